"""Which pages may open a socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from chatmemory.conf import settings

PORTS = {"http": 80, "https": 443}


def is_allowed_origin(scope: Mapping[str, Any], *, may_be_missing: bool = False) -> bool:
    """Whether the page that opens the socket is one of `ALLOWED_ORIGINS`, or of this host.

    Scheme, host and port must all be equal; no origin is a foreign one, unless it `may_be_missing`:
    no page then, which always has one. Browsers let any page open a socket to any host, with
    cookies (RFC 6455, 10.2).
    """
    headers = {name: value.decode("latin1") for name, value in scope["headers"]}
    if b"origin" not in headers:
        return may_be_missing
    origin = _address(headers[b"origin"])
    if settings.ALLOWED_ORIGINS is not None:
        return origin is not None and origin in map(_address, settings.ALLOWED_ORIGINS)
    scheme = {"ws": "http", "wss": "https"}.get(scope.get("scheme", "ws"), "")
    return origin is not None and origin == _address(f"{scheme}://{headers.get(b'host', '')}")


def _address(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None
