"""Counts with their nouns, for the output of commands."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return `1 message`, `2,000 messages` or `2 entries`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural}"
