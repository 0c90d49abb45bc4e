"""The system check of the setting `API_AUTHENTICATION`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication, SessionAuthentication

from chatmemory.checks.values import is_dictionary
from chatmemory.conf import settings


@checks.register
def check_authentication(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Check that API_AUTHENTICATION is a list of authentication classes."""
    if not is_dictionary():
        return []
    paths: object = settings.API_AUTHENTICATION
    if not isinstance(paths, list | tuple):
        return [_error("must be a list of dotted paths.")]
    return [_error(f"{path!r} {fault}.") for path in paths if (fault := _fault_of(path))]


def _fault_of(path: object) -> str:
    """Return what is wrong with an entry of the setting; empty if nothing is."""
    try:
        found = import_string(path) if isinstance(path, str) else None
    except (ImportError, TypeError, ValueError):  # the last two: a path that begins with a dot
        return "cannot be imported"
    if not isinstance(found, type) or not issubclass(found, BaseAuthentication):
        return "is not an authentication class of REST framework"
    if found.authenticate is BaseAuthentication.authenticate:
        return "does not define authenticate"
    if issubclass(found, SessionAuthentication):
        # It would read the body before the views do.
        return "is a session login, which is always accepted; remove it"
    return ""


def _error(fault: str) -> checks.Error:
    return checks.Error(f"CHATMEMORY['API_AUTHENTICATION']: {fault}", id="chatmemory.E017")
