"""Authentication of a socket: by Django's login, a ticket, or the host's own function."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from django.utils.module_loading import import_string

from chatmemory import services
from chatmemory.conf import settings
from chatmemory.errors import Unauthenticated
from chatmemory.services import Login
from chatmemory.services.pool import in_pool

TICKET = "ticket."
"""How the subprotocol begins that carries a ticket. Not in the address, which servers log."""


def ticket_of(scope: Mapping[str, Any]) -> str | None:
    """The ticket that the client offers; None if it offers none."""
    for name in scope.get("subprotocols", ()):
        if name.startswith(TICKET):
            return str(name.removeprefix(TICKET))
    return None


async def login_of(scope: Mapping[str, Any]) -> Login:
    """Authenticate the person who opens this socket. A ticket, if offered, decides alone.

    Raises Unauthenticated, MemoryUnavailable, and what the host's function raises.
    """
    ticket = ticket_of(scope)
    if ticket is not None:
        return await services.ause_ticket(ticket=ticket)
    if settings.SOCKET_AUTH is not None:
        found = await _asked(settings.SOCKET_AUTH, scope)
        user, credential = found if isinstance(found, tuple) else (found, None)
        return _of_user(user, credential=credential)
    session = scope.get("session")
    return _of_user(scope.get("user"), session.session_key if session is not None else None)


def _of_user(user: Any, key: str | None = None, credential: str | None = None) -> Login:
    if user is None or not (user.is_authenticated and user.is_active):
        raise Unauthenticated
    return Login.of(user, key, credential)


async def _asked(path: str, scope: Mapping[str, Any]) -> object:
    function = import_string(path)
    if not inspect.iscoroutinefunction(function):
        function = in_pool(function)
    return await function(scope)
