"""Embeds: other sites whose visitors may chat here. Each has a public key and a list of origins."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from chatmemory.conf import settings

PORTS = {"http": 80, "https": 443}

_PLACE = re.compile(r"[\w.:\[\]-]+")
"""A host with an optional port, without the characters that separate parts of a policy."""


def has_origin(embed: str, origin: str) -> bool:
    """Whether this is one of the embed's origins; False for an unknown embed."""
    return _is_one_of(origin, settings.EMBEDS.get(embed, ()))


def is_origin_of_any(origin: str) -> bool:
    """Whether any embed has this origin."""
    # Not by key: a host's mapping can define `values` as one query.
    return any(_is_one_of(origin, origins) for origins in settings.EMBEDS.values())


def _is_one_of(origin: str, origins: Iterable[str]) -> bool:
    address = address_of(origin)
    return address is not None and address in map(address_of, origins)


def address_of(origin: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of an origin; None for any other text.

    An origin has neither a user nor a path, not even a slash (RFC 6454, 6.1).
    """
    try:
        parts = urlsplit(origin)
        default = PORTS[parts.scheme]
        port = default if parts.port is None else parts.port
    except (ValueError, KeyError):
        return None
    has_place = parts.hostname is not None and _PLACE.fullmatch(parts.netloc) is not None
    # The text too: `urlsplit` drops an empty query or fragment, and some characters.
    is_bare = len(origin) == len(parts.scheme) + len("://") + len(parts.netloc)
    return (parts.scheme, parts.hostname or "", port) if has_place and is_bare else None
