"""Which pages may open a socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.http.request import split_domain_port, validate_host

from chatmemory.conf import settings

PORTS = {"http": 80, "https": 443}
LOCAL_HOSTS = [".localhost", "127.0.0.1", "[::1]"]
"""What Django allows while DEBUG is on and ALLOWED_HOSTS is empty."""


def is_allowed_origin(scope: Mapping[str, Any], *, may_be_missing: bool = False) -> bool:
    """Return whether the page that opens a socket has an allowed origin, and the host is ours.

    The origin must equal one of `ALLOWED_ORIGINS`, or the socket's own address, in scheme, host and
    port. If it `may_be_missing`, a client without one is no page, which always has one. Browsers
    let any page open a socket to any host, with cookies (RFC 6455, 10.2). A name in `ALLOWED_HOSTS`
    is required, since a foreign page can point its own name to this server (DNS rebinding).
    """
    headers = {name: value.decode("latin1") for name, value in scope["headers"]}
    host = headers.get(b"host", "")
    if django_settings.USE_X_FORWARDED_HOST:
        host = headers.get(b"x-forwarded-host", host)
    if host and not _is_our_host(host):
        return False
    if b"origin" not in headers:
        return may_be_missing
    origin = _address(headers[b"origin"])
    if settings.ALLOWED_ORIGINS is not None:
        return origin is not None and origin in map(_address, settings.ALLOWED_ORIGINS)
    scheme = {"ws": "http", "wss": "https"}.get(scope.get("scheme", "ws"), "")
    return origin is not None and origin == _address(f"{scheme}://{host}")


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
