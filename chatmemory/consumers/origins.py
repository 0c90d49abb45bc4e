"""Check the origin of the page that opens a socket."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.conf import settings as django_settings
from django.http.request import split_domain_port, validate_host

from chatmemory.access.embeds import address_of, is_origin_of_any
from chatmemory.access.visitors import LOCAL_HOSTS
from chatmemory.conf import settings
from chatmemory.database.pool import in_pool

logger = logging.getLogger(__name__)

MAX_LOGGED = 100
"""How many different problems are logged as warnings. Clients could cause any number of them."""
MAX_SHOWN_CHARS = 200

_logged: set[str] = set()


def is_allowed_origin(
    scope: Mapping[str, Any], *, may_be_missing: bool = False, may_be_embed: bool = False
) -> bool:
    """Return whether `origin_problem` finds no problem; log the problem."""
    problem = origin_problem(scope, may_be_missing=may_be_missing, may_be_embed=may_be_embed)
    if problem is not None:
        is_new = problem not in _logged and len(_logged) < MAX_LOGGED
        if is_new:
            _logged.add(problem)
        logger.log(logging.WARNING if is_new else logging.DEBUG, "websocket refused: %s", problem)
    return problem is None


def origin_of(scope: Mapping[str, Any]) -> str:
    """Return the origin of the page that opens the socket; empty without one."""
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    return headers.get(b"origin", b"").decode("latin1")


def origin_problem(
    scope: Mapping[str, Any], *, may_be_missing: bool = False, may_be_embed: bool = False
) -> str | None:
    """Return the reason to refuse the socket of this page; None if its origin and host are allowed.

    The origin must equal one of `ALLOWED_ORIGINS`, or the socket's own address, in scheme, host and
    port. If it `may_be_missing`, a client without an origin is allowed; browsers always send it. If
    it `may_be_embed`, the origin of any embed is allowed: only the login tells which embed it is.
    """
    # Browsers let any page open a socket to any host, with cookies (RFC 6455, 10.2). The host is
    # checked too, because a foreign page can point its own name to this server (DNS rebinding).
    headers = {name: value.decode("latin1") for name, value in scope["headers"]}
    host = headers.get(b"host", "")
    if django_settings.USE_X_FORWARDED_HOST:
        host = headers.get(b"x-forwarded-host", host)
    if host and not _is_our_host(host):
        return f"the host {_shown(host)} is not in ALLOWED_HOSTS"
    if b"origin" not in headers:
        return None if may_be_missing else "it has neither an Origin header nor a ticket"
    if may_be_embed and is_origin_of_any(headers[b"origin"]):
        return None
    given = _shown(headers[b"origin"])
    origin = address_of(headers[b"origin"])
    if settings.ALLOWED_ORIGINS is not None:
        is_allowed = origin is not None and origin in map(address_of, settings.ALLOWED_ORIGINS)
        return None if is_allowed else f"the origin {given} is not in ALLOWED_ORIGINS"
    scheme = {"ws": "http", "wss": "https"}.get(scope.get("scheme", "ws"), "")
    own = f"{scheme}://{host}"
    if origin is not None and origin == address_of(own):
        return None
    return f"the origin {given} is not this server's, {_shown(own)}; add it to ALLOWED_ORIGINS"


# In the pool: EMBEDS may be a mapping of the host, which queries a database.
ais_allowed_origin = in_pool(is_allowed_origin)


def _shown(value: str) -> str:
    return ascii(value[:MAX_SHOWN_CHARS])


def _is_our_host(host: str) -> bool:
    """Return whether Django would accept this host, by the rules of `HttpRequest.get_host`."""
    allowed = django_settings.ALLOWED_HOSTS
    if django_settings.DEBUG and not allowed:
        allowed = LOCAL_HOSTS
    domain, _port = split_domain_port(host)
    return bool(domain) and validate_host(domain, allowed)
