"""How much data to create."""

from __future__ import annotations

from dataclasses import dataclass

CYCLE = 22
"""The rows of ten turns: nine of two rows, and one of four with a tool call."""

SESSIONS = 200_000
MESSAGES = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Approximate numbers of rows, and how they are distributed."""

    sessions: int
    messages: int
    users: int
    audit: int

    @classmethod
    def of(cls, sessions: int, messages: int) -> Size:
        """Return a size with a user for four sessions, and an audit entry for each."""
        return cls(
            sessions=sessions, messages=messages, users=max(sessions // 4, 2), audit=sessions
        )

    @property
    def giant(self) -> int:
        """The rows of the largest session."""
        return _even(self.messages // 10)

    @property
    def large_count(self) -> int:
        return max(self.sessions // 1_000 - 1, 1)

    @property
    def large(self) -> int:
        """The rows of each large session."""
        return _even(self.messages // 2_500)

    @property
    def typical(self) -> int:
        """The average rows of all other sessions."""
        others = max(self.sessions - self.large_count - 1, 1)
        return max((self.messages - self.giant - self.large * self.large_count) // others, 2)

    @property
    def running(self) -> int:
        """The number of sessions with a running turn, half of which have waiting turns too."""
        return min(max(self.sessions // 10_000, 4), 50)

    @property
    def operators(self) -> int:
        return min(self.users, 30)


def _even(number: int) -> int:
    return max(number // 2 * 2, 2)
