"""Checks of the settings of visitors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks

from chatmemory.access.networks import networks_of
from chatmemory.checks.values import is_dictionary
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
    return [*found, *_check_proxies()]


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
