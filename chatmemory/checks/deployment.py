"""Checks of `manage.py check --deploy`: several processes, public access, evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core import checks

from chatmemory.checks.values import is_dictionary
from chatmemory.conf import settings

IN_PROCESS_LAYERS = ("", "channels.layers.InMemoryChannelLayer")

IN_PROCESS_CACHES = (
    "",
    "django.core.cache.backends.locmem.LocMemCache",
    "django.core.cache.backends.dummy.DummyCache",
)

COUNTED_IN_CACHE = (
    "SENDS_PER_MINUTE",
    "READS_PER_MINUTE",
    "WRITES_PER_MINUTE",
    "TOKENS_PER_DAY",
)
"""Limits that are counted in Django's cache."""


@checks.register(deploy=True)
def check_deployment(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Warn of settings that suit development, but not several processes or public access."""
    if not is_dictionary():
        return []
    layer = getattr(django_settings, "CHANNEL_LAYERS", {}).get("default", {})
    backend = layer.get("BACKEND", "")
    found: list[checks.CheckMessage] = []
    if backend in IN_PROCESS_LAYERS:
        message = "The channel layer is not shared by several processes."
        hint = (
            "With several, each detects changes of the others only by its sweep, after up to 5 s. "
            "Set CHANNEL_LAYERS, or silence this if there is one process."
        )
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W007"))
    if "*" in django_settings.ALLOWED_HOSTS and settings.ALLOWED_ORIGINS is None:
        message = "ALLOWED_HOSTS has '*', and CHATMEMORY['ALLOWED_ORIGINS'] is not set."
        hint = "Pages of any host may then open a websocket. Set ALLOWED_ORIGINS or ALLOWED_HOSTS."
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W008"))
    if (settings.SOCKET_AUTH or settings.API_AUTHENTICATION) and settings.VALID_LOGINS is None:
        message = "Users sign in without a Django session, and VALID_LOGINS is not set."
        hint = (
            "A websocket stays open for up to CONNECTION_AGE after its token is revoked, and a "
            "ticket outlives it. Set CHATMEMORY['VALID_LOGINS'], for REST framework's "
            "TokenAuthentication to 'chatmemory.api.tokens.valid_logins', or silence this if no "
            "token is ever revoked."
        )
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W013"))
    found += _check_cache(has_shared_layer=backend not in IN_PROCESS_LAYERS)
    if settings.DB_THREADS == 0:
        message = "CHATMEMORY['DB_THREADS'] is 0, which is for tests."
        hint = "Leases are not renewed and sweeps do not run. Use 1 or more."
        found.append(checks.Error(message, hint=hint, id="chatmemory.E012"))
    return found


@checks.register(deploy=True)
def check_evidence(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Warn if a rotation of Django's key breaks the audit, or a restore undoes erasures."""
    if not is_dictionary():
        return []
    found: list[checks.CheckMessage] = []
    if not settings.AUDIT_KEY:
        message = "CHATMEMORY['AUDIT_KEY'] is not set; the audit uses Django's SECRET_KEY."
        hint = (
            "After a rotation of SECRET_KEY, the audit cannot be verified, nor erased persons "
            "found. Set AUDIT_KEY, and add the SECRET_KEY to AUDIT_KEY_FALLBACKS if there are "
            "entries already."
        )
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W015"))
    if settings.ERASURE_LIST is None:
        message = "CHATMEMORY['ERASURE_LIST'] is not set."
        hint = "After a backup is restored, erasures cannot be repeated. Set a file or function."
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W020"))
    return found


def _check_cache(*, has_shared_layer: bool) -> list[checks.CheckMessage]:
    """Warn if several processes would not share the cache that counts."""
    limits = [name for name in COUNTED_IN_CACHE if getattr(settings, name) is not None]
    backend = django_settings.CACHES.get("default", {}).get("BACKEND", "")
    is_embedded = django_settings.DATABASES["default"].get("ENGINE", "").endswith(".sqlite3")
    if not limits or backend not in IN_PROCESS_CACHES or (is_embedded and not has_shared_layer):
        return []
    message = f"CACHES['default'] is not shared by several processes: {backend}."
    hint = (
        f"With several, each counts separately or not at all: {', '.join(limits)}. Use a "
        "shared cache such as Redis, or silence this if there is one process."
    )
    return [checks.Warning(message, hint=hint, id="chatmemory.W010")]
