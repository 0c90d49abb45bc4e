"""Short excerpts of a text around what matched."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

Range = tuple[int, int]

_ELLIPSIS: Final = "…"

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, those that change the direction of what follows, and halves of characters."""

_UNCLEAN: Final = re.compile(rf"{_CONTROL.pattern}|[^\S ]|  |\A | \Z")
"""What `_cleaned` removes or replaces; most texts have none."""

_MAX_WORD: Final = 30
"""A longer word is cut inside."""


def snippet(text: str, ranges: Sequence[Range], max_chars: int = 200) -> tuple[str, list[Range]]:
    """Return plain text of up to `max_chars` characters, and the ranges in it.

    It has the part with the most matches, is cut between words, and "…" shows what is missing.
    Spaces become one; control characters are removed. `ranges` are in order, without overlaps.
    """
    room = max(max_chars - 2 * len(_ELLIPSIS), 0)
    first, last = _densest(ranges, room)
    # Spaces are removed below, so more than the room is read.
    low, high = max(0, first - 3 * max_chars), last + 3 * max_chars
    cleaned, places = _cleaned(text, low, high)
    moved = _moved(ranges, low, places)
    if low == 0 and high >= len(text) and len(cleaned) <= max_chars:
        return cleaned, moved
    start, end = _bounds(
        cleaned, places[first - low], places[min(last - low, len(places) - 1)], room
    )
    before = _ELLIPSIS if (low or start) and room else ""
    after = _ELLIPSIS if (high < len(text) or end < len(cleaned)) and room else ""
    shift = len(before) - start
    kept = [(max(a, start) + shift, min(b, end) + shift) for a, b in moved if a < end and b > start]
    return before + cleaned[start:end] + after, kept


def _moved(ranges: Sequence[Range], low: int, places: Sequence[int]) -> list[Range]:
    """Return the ranges in the cleaned text, without those that it has no character of."""
    last = len(places) - 1
    found = [
        (places[max(start - low, 0)], places[min(end - low, last)])
        for start, end in ranges
        if end > low and start < low + last
    ]
    return [(start, end) for start, end in found if start < end]


def _densest(ranges: Sequence[Range], room: int) -> Range:
    """Return the bounds of the most ranges that fit into the room; of equal ones the first."""
    best, bounds = 0, (0, 0)
    left = 0
    for right, (_, end) in enumerate(ranges):
        while left < right and end - ranges[left][0] > room:
            left += 1
        if right - left + 1 > best:
            best, bounds = right - left + 1, (ranges[left][0], end)
    return bounds


def _cleaned(text: str, low: int, high: int) -> tuple[str, Sequence[int]]:
    """Return a part of the text without controls and repeated spaces, and where each one went."""
    part = text[low:high]
    if _UNCLEAN.search(part) is None:
        return part, range(len(part) + 1)
    chars: list[str] = []
    places: list[int] = []
    for char in part:
        places.append(len(chars))
        if char.isspace():
            if chars and chars[-1] != " ":
                chars.append(" ")
        elif not _CONTROL.match(char):
            chars.append(char)
    if chars and chars[-1] == " ":
        chars.pop()
    places.append(len(chars))
    return "".join(chars), [min(place, len(chars)) for place in places]


def _bounds(text: str, first: int, last: int, room: int) -> Range:
    """Return where to cut: the matches in the middle, and the cuts between words."""
    last = min(last, first + room)
    start = max(0, min(first - (room - (last - first)) // 2, len(text) - room))
    end = min(len(text), start + room)
    if start:
        start = _word_start(text, start, first)
    if end < len(text):
        end = _word_end(text, max(end, last), last)
    while start < first and unicodedata.combining(text[start]):
        start += 1
    return start, min(end, start + room)


def _word_start(text: str, start: int, first: int) -> int:
    if text[start - 1] == " ":
        return start
    at = text.find(" ", start, min(first, start + _MAX_WORD))
    return start if at < 0 else at + 1


def _word_end(text: str, end: int, last: int) -> int:
    if text[end] == " ":
        return end
    at = text.rfind(" ", max(last, end - _MAX_WORD), end)
    return end if at < 0 else at
