"""Other people's text, made fit to look at."""

from __future__ import annotations

import unicodedata
from itertools import chain
from typing import Final

JOINERS: Final = "\u200c\u200d"
"""Invisible, but part of words in Persian and of emoji."""

_INVISIBLE = {
    point: f"⟦U+{point:04X}⟧"
    for point in chain(range(0x3000), range(0xFE00, 0x10000), range(0xE0000, 0xE0080))
    if unicodedata.category(chr(point)) in ("Cc", "Cf") and chr(point) not in "\t\n\r" + JOINERS
}


def visible(text: str) -> str:
    """The text with marks in place of what can't be seen: changes of direction, tags, controls."""
    return text.translate(_INVISIBLE)


def cut(text: str, limit: int) -> tuple[str, bool]:
    """The text made visible, at most `limit` characters of it, and whether there are more."""
    return visible(text[:limit]), len(text) > limit
