"""Embeds: other sites whose visitors may chat here. Each has a public key and a list of origins."""

from __future__ import annotations

from urllib.parse import urlsplit

from chatmemory.conf import settings

PORTS = {"http": 80, "https": 443}


def has_origin(embed: str, origin: str) -> bool:
    """Whether this is one of the embed's origins; False for an unknown embed."""
    address = address_of(origin)
    return address is not None and address in map(address_of, settings.EMBEDS.get(embed, ()))


def is_origin_of_any(origin: str) -> bool:
    """Whether any embed has this origin."""
    return any(has_origin(embed, origin) for embed in settings.EMBEDS)


def exists(embed: str) -> bool:
    """Whether the visitors of this embed may chat; those without one have the key ""."""
    return not embed or embed in settings.EMBEDS


def address_of(origin: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of an origin; None if it is none."""
    try:
        parts = urlsplit(origin)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None
