"""Authentication of a socket: by Django's login, a ticket, the host's function, or as a visitor."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.http import parse_cookie
from django.utils.datastructures import CaseInsensitiveMapping
from django.utils.module_loading import import_string

from chatmemory import services
from chatmemory.access import gates, logins
from chatmemory.access.networks import network_of
from chatmemory.access.visitors import token_in
from chatmemory.access.visits import Visit
from chatmemory.conf import settings
from chatmemory.consumers.origins import is_allowed_origin, origin_of
from chatmemory.database.host_code import fresh_connections
from chatmemory.database.pool import in_pool
from chatmemory.errors import Unauthenticated
from chatmemory.services import Actor, Login

TICKET = "ticket."
"""Prefix of the subprotocol that carries a ticket. It is not in the URL: servers log URLs."""


def ticket_of(scope: Mapping[str, Any]) -> str | None:
    """Return the ticket that the client sent; None without one."""
    for name in scope.get("subprotocols", ()):
        if name.startswith(TICKET):
            return str(name.removeprefix(TICKET))
    return None


async def login_of(scope: Mapping[str, Any]) -> Login:
    """Authenticate the person of this socket, whom the function of GATE must let in.

    Raises Unauthenticated, Refused, MemoryUnavailable, and any error of the host's functions.
    """
    login = await _authenticated(scope)
    if settings.GATE is None and settings.IMPERSONATOR is None:
        return login  # without a call of the pool
    return await gates.aenter(login, _visit_of(scope, login.actor))


def _visit_of(scope: Mapping[str, Any], by: Actor) -> Visit:
    names = dict.fromkeys(name for name, _ in scope["headers"])
    return Visit(
        kind="socket",
        by=by,
        user=None,
        session={},
        headers=CaseInsensitiveMapping(
            {name.decode("latin1"): _header_value(scope, name) for name in names}
        ),
        cookies=_cookies(scope),
        host=_header_value(scope, b"host"),
        path=scope.get("path", ""),
    )


async def _authenticated(scope: Mapping[str, Any]) -> Login:
    """Authenticate the person of this socket; if a ticket is offered, by the ticket alone.

    A visitor is a person without a login of Django or the host.
    Raises Unauthenticated, MemoryUnavailable, and any error of the host's function.
    """
    ticket = ticket_of(scope)
    if ticket is not None:
        network, origin = _network(scope), origin_of(scope)
        login = await services.ause_ticket(ticket=ticket, network=network, origin=origin)
        if not login.embed and not is_allowed_origin(scope, may_be_missing=True):
            raise Unauthenticated  # the handshake lets the page of each embed in
        return login
    try:
        return await _login_of_account(scope)
    except Unauthenticated:
        token = _visitor_token(scope)
        if token is None:
            raise
    return await services.aauthenticate_visitor(token=token, network=_network(scope))


async def _login_of_account(scope: Mapping[str, Any]) -> Login:
    if settings.SOCKET_AUTH is not None:
        result = await _call_host_function(settings.SOCKET_AUTH, scope)
        user, credential = result if isinstance(result, tuple) else (result, None)
        return _of_user(user, credential=credential)
    session = scope.get("session")
    if session is None and "user" not in scope:
        return await _login_of_cookie(scope)
    return _of_user(scope.get("user"), session.session_key if session is not None else None)


async def _login_of_cookie(scope: Mapping[str, Any]) -> Login:
    """Authenticate by the cookie of Django's session, without a middleware of Channels."""
    key = _cookies(scope).get(django_settings.SESSION_COOKIE_NAME)
    # Databases refuse a NUL, which a quoted cookie can contain.
    if not key or "\0" in key:
        raise Unauthenticated
    return await logins.alogin_of_session(key)


def _visitor_token(scope: Mapping[str, Any]) -> str | None:
    is_secure = scope.get("scheme") == "wss"
    return token_in(_cookies(scope), host=_header_value(scope, b"host"), is_secure=is_secure)


def _cookies(scope: Mapping[str, Any]) -> dict[str, str]:
    return parse_cookie(_header_value(scope, b"cookie", "; "))


def _network(scope: Mapping[str, Any]) -> str:
    remote, _ = scope.get("client") or ("", 0)
    return network_of(remote or "", _header_value(scope, b"x-forwarded-for", ","))


def _header_value(scope: Mapping[str, Any], name: bytes, separator: str = ",") -> str:
    """Return the value of a header; of a repeated one, all values."""
    return separator.join(value.decode("latin1") for key, value in scope["headers"] if key == name)


def _of_user(user: object, key: str | None = None, credential: str | None = None) -> Login:
    # An account of another model may have the primary key of another person.
    if not isinstance(user, get_user_model()) or not logins.is_active(user):
        raise Unauthenticated
    return Login.of(user, key, credential)


async def _call_host_function(path: str, scope: Mapping[str, Any]) -> object:
    function = import_string(path)
    if not inspect.iscoroutinefunction(function):
        return await in_pool(function)(scope)
    async with fresh_connections():
        return await function(scope)
