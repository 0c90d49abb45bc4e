"""Checks of the settings of visitors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core import checks

from chatmemory.access.networks import networks_of
from chatmemory.checks.values import is_dictionary, is_origin
from chatmemory.conf import settings


@checks.register
def check_visitors(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Check the settings that only visitors need."""
    if not is_dictionary():
        return []
    found: list[checks.CheckMessage] = []
    if settings.VISITOR_ADOPT not in ("ask", "auto"):
        message = "CHATMEMORY['VISITOR_ADOPT'] must be ask or auto."
        found.append(checks.Error(message, id="chatmemory.E020"))
    return [*found, *_check_embeds(), *_check_proxies()]


@checks.register(deploy=True)
def check_https(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Warn if visitors are allowed, and no setting of Django mentions HTTPS."""
    is_https = django_settings.SECURE_SSL_REDIRECT or django_settings.SECURE_PROXY_SSL_HEADER
    if not is_dictionary() or not settings.ALLOW_ANONYMOUS or is_https:
        return []
    return [
        checks.Warning(
            "Visitors need HTTPS, and SECURE_PROXY_SSL_HEADER and SECURE_SSL_REDIRECT are not set.",
            hint="If a proxy provides HTTPS, set SECURE_PROXY_SSL_HEADER: without it, each new "
            "visitor is refused as forbidden. Silence this if the server itself detects HTTPS.",
            id="chatmemory.W023",
        )
    ]


def _check_embeds() -> list[checks.CheckMessage]:
    given: object = settings.EMBEDS
    if not isinstance(given, Mapping):
        message = "CHATMEMORY['EMBEDS'] must map each public key to a list of origins."
        return [checks.Error(message, id="chatmemory.E022")]
    # `dict` alone: a mapping of the host may query a database for each key.
    if isinstance(given, dict) and (wrong := [*_invalid_parts(given)]):
        message = "CHATMEMORY['EMBEDS'] must map keys to lists of scheme://host[:port]."
        hint = (
            f"Invalid: {', '.join(map(repr, wrong))}. A key has 1 to 64 of A-Z a-z 0-9 - _; an "
            "origin has no path, and no slash at its end."
        )
        return [checks.Error(message, hint=hint, id="chatmemory.E022")]
    if given and not settings.ALLOW_ANONYMOUS:
        message = "CHATMEMORY['EMBEDS'] has no effect without ALLOW_ANONYMOUS."
        return [checks.Warning(message, id="chatmemory.W022")]
    return []


def _invalid_parts(embeds: Mapping[object, object]) -> Iterator[object]:
    for key, origins in embeds.items():
        if not isinstance(key, str) or not re.fullmatch("[A-Za-z0-9_-]{1,64}", key):
            yield key
        if not isinstance(origins, list | tuple):
            yield origins
        else:
            yield from (origin for origin in origins if not is_origin(origin))


def _check_proxies() -> list[checks.CheckMessage]:
    given: object = settings.TRUSTED_PROXIES
    hint = None
    try:
        if isinstance(given, list | tuple):
            networks_of(tuple(given))
            return []
    except (TypeError, ValueError) as error:
        hint = f"{error}."
    message = "CHATMEMORY['TRUSTED_PROXIES'] must be a list of networks, or unix."
    return [checks.Error(message, hint=hint, id="chatmemory.E019")]
