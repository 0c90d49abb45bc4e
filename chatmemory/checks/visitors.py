"""Checks of the settings of visitors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.apps import AppConfig
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
