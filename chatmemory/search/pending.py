"""The sessions of this process whose new messages have no block yet, and the sweep that adds them.

A process that ends forgets them; then a search analyzes these messages itself, and the daily
`chatmemory_search` finds the sessions.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from chatmemory.models import AuditAction
from chatmemory.search.indexing import MIN_ROWS, index_session

QUIET_SECONDS: Final = 600.0
"""After this time without a new message a session is indexed, however few messages are new."""

SWEEP_SECONDS: Final = 5.0
MAX_SWEEP_SECONDS: Final = 0.5
"""How long one sweep indexes, plus one block."""

MAX_SESSIONS: Final = 100_000
"""Sessions that are remembered; further ones are left to the daily run."""

REINDEXED: Final = frozenset(
    {AuditAction.REDACT, AuditAction.REPAIR, AuditAction.IMPORT, AuditAction.RESTORE}
)
"""Actions that delete blocks, or show messages that have none."""


@dataclass(slots=True)
class _New:
    rows: int
    changed_at: float


class Pending:
    """The sessions with new messages. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[int, _New] = {}

    def add(self, session_pk: int, rows: int) -> None:
        """Remember new messages of a session."""
        with self._lock:
            known = self._sessions.get(session_pk)
            if known is not None:
                known.rows += rows
                known.changed_at = time.monotonic()
            elif len(self._sessions) < MAX_SESSIONS:
                self._sessions[session_pk] = _New(rows, time.monotonic())

    def take(self) -> int | None:
        """Return a session that is due, and forget it; None if there is none."""
        now = time.monotonic()
        with self._lock:
            for pk, new in self._sessions.items():
                if new.rows >= MIN_ROWS or now - new.changed_at >= QUIET_SECONDS:
                    del self._sessions[pk]
                    return pk
        return None

    def clear(self) -> None:
        """Forget all sessions."""
        with self._lock:
            self._sessions.clear()


pending = Pending()


def sweep_search() -> float:
    """Index sessions that are due for half a second; return the seconds to the next sweep."""
    deadline = time.monotonic() + MAX_SWEEP_SECONDS
    while time.monotonic() < deadline:
        session_pk = pending.take()
        if session_pk is None:
            break
        if not index_session(session_pk, deadline=deadline).is_complete:
            pending.add(session_pk, MIN_ROWS)  # it has more blocks than there was time for
    return SWEEP_SECONDS


def note_appended(session_pk: int, first_seq: int, last_seq: int, **_: object) -> None:
    """Receive `messages_appended`."""
    pending.add(session_pk, last_seq - first_seq + 1)


def note_action(session_pk: int | None, action: str, **_: object) -> None:
    """Receive `action_recorded`: no new messages are announced for an import."""
    if session_pk is not None and action in REINDEXED:
        pending.add(session_pk, MIN_ROWS)
