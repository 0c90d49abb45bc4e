"""Check the origin of the page that opens a socket."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.http.request import split_domain_port, validate_host

from chatmemory.access.visitors import LOCAL_HOSTS
from chatmemory.conf import settings

logger = logging.getLogger(__name__)

MAX_LOGGED = 100
"""How many different problems are logged as warnings. Clients could cause any number of them."""
MAX_SHOWN_CHARS = 200
PORTS = {"http": 80, "https": 443}

_logged: set[str] = set()


def is_allowed_origin(scope: Mapping[str, Any], *, may_be_missing: bool = False) -> bool:
    """Return whether `origin_problem` finds no problem; log the problem."""
    problem = origin_problem(scope, may_be_missing=may_be_missing)
    if problem is not None:
        is_new = problem not in _logged and len(_logged) < MAX_LOGGED
        if is_new:
            _logged.add(problem)
        logger.log(logging.WARNING if is_new else logging.DEBUG, "websocket refused: %s", problem)
    return problem is None


def origin_problem(scope: Mapping[str, Any], *, may_be_missing: bool = False) -> str | None:
    """Return the reason to refuse the socket of this page; None if its origin and host are allowed.

    The origin must equal one of `ALLOWED_ORIGINS`, or the socket's own address, in scheme, host and
    port. If it `may_be_missing`, a client without an origin is allowed; browsers always send it.
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
    given = _shown(headers[b"origin"])
    origin = _address(headers[b"origin"])
    if settings.ALLOWED_ORIGINS is not None:
        is_allowed = origin is not None and origin in map(_address, settings.ALLOWED_ORIGINS)
        return None if is_allowed else f"the origin {given} is not in ALLOWED_ORIGINS"
    scheme = {"ws": "http", "wss": "https"}.get(scope.get("scheme", "ws"), "")
    own = f"{scheme}://{host}"
    if origin is not None and origin == _address(own):
        return None
    return f"the origin {given} is not this server's, {_shown(own)}; add it to ALLOWED_ORIGINS"


def _shown(value: str) -> str:
    return ascii(value[:MAX_SHOWN_CHARS])


def _is_our_host(host: str) -> bool:
    """Return whether Django would accept this host, by the rules of `HttpRequest.get_host`."""
    allowed = django_settings.ALLOWED_HOSTS
    if django_settings.DEBUG and not allowed:
        allowed = LOCAL_HOSTS
    domain, _port = split_domain_port(host)
    return bool(domain) and validate_host(domain, allowed)


def _address(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None
