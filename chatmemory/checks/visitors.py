"""Checks of the settings of visitors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    if settings.ALLOW_ANONYMOUS not in (True, False):
        message = "CHATMEMORY['ALLOW_ANONYMOUS'] must be True or False."
        found.append(checks.Error(message, id="chatmemory.E002"))
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
    wrong = (
        [key for key, value in given.items() if not _is_embed(key, value)]
        if isinstance(given, dict)
        else []
    )
    if wrong:
        message = "CHATMEMORY['EMBEDS'] must map keys to lists of scheme://host[:port]."
        hint = f"Invalid: {', '.join(map(repr, wrong))}. A key has 1 to 64 of A-Z a-z 0-9 - _"
        return [checks.Error(message, hint=hint, id="chatmemory.E022")]
    if given and not settings.ALLOW_ANONYMOUS:
        message = "CHATMEMORY['EMBEDS'] has no effect without ALLOW_ANONYMOUS."
        return [checks.Warning(message, id="chatmemory.W022")]
    return []


def _is_embed(key: object, origins: object) -> bool:
    is_key = isinstance(key, str) and re.fullmatch("[A-Za-z0-9_-]{1,64}", key) is not None
    return is_key and isinstance(origins, list | tuple) and all(map(is_origin, origins))


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
