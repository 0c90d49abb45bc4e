"""Who opens a socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chatmemory.services import Login


def login_of(scope: Mapping[str, Any]) -> Login | None:
    """How the person was let in whose socket this is; None for nobody."""
    user = scope.get("user")
    if user is None or not user.is_authenticated:
        return None
    session = scope.get("session")
    return Login.of(user, session.session_key if session is not None else None)
