"""What a search returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chatmemory.search.scoring import Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A found message."""

    session_pk: int
    session_key: str
    scope: str
    seq: int
    role: str
    created_at: datetime
    snippet: str
    """Plain text around the found words, up to 200 characters."""
    ranges: tuple[tuple[int, int], ...]
    """Where the found words are in the snippet: starts and ends, in characters."""
    score: float
    """By which hits are ranked; 0 in the order `newest`."""
    why: Why
    """The parts of the score."""
    text: str
    """The first 32,000 characters of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """Hits, and how to continue."""

    hits: list[Hit]
    partial: bool
    """Whether older messages of the scope have not been searched."""
    cursor: str | None
    """For the next call; None if there is nothing more."""
    searched: int
    """The number of chats whose messages were searched."""
