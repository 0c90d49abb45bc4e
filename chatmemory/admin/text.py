"""Text of users, prepared for display to operators."""

from __future__ import annotations

import unicodedata
from itertools import chain
from typing import Final

JOINERS: Final = "\u200c\u200d"
"""Invisible characters that Persian words and emoji need."""

_INVISIBLE = {
    point: f"⟦U+{point:04X}⟧"
    for point in chain(range(0x3000), range(0xFE00, 0x10000), range(0xE0000, 0xE0080))
    if unicodedata.category(chr(point)) in ("Cc", "Cf") and chr(point) not in "\t\n\r" + JOINERS
}


def visible(text: str) -> str:
    """Replace invisible characters (direction changes, tags, controls) with visible marks."""
    return text.translate(_INVISIBLE)


def truncate(text: str, limit: int) -> tuple[str, bool]:
    """Return the first `limit` characters, made visible, and whether there are more."""
    return visible(text[:limit]), len(text) > limit
