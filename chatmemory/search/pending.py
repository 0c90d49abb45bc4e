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


@dataclass(frozen=True, slots=True)
class _New:
    rows: int
    changed_at: float


class Pending:
    """The sessions with new messages. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[int, _New] = {}
        """The one that changed last is at the end."""
        self._due: set[int] = set()
        """Those with MIN_ROWS new messages."""

    def add(self, session_pk: int, rows: int) -> None:
        """Remember new messages of a session."""
        with self._lock:
            known = self._sessions.pop(session_pk, None)
            if known is None and len(self._sessions) == MAX_SESSIONS:
                return
            new = _New(rows + (known.rows if known else 0), time.monotonic())
            self._sessions[session_pk] = new
            if new.rows >= MIN_ROWS:
                self._due.add(session_pk)

    def take(self) -> int | None:
        """Return a session that is due, and forget it; None if there is none."""
        with self._lock:
            quietest = next(iter(self._sessions.items()), None)
            if quietest is None:
                return None
            pk, new = quietest
            if time.monotonic() - new.changed_at < QUIET_SECONDS:
                if not self._due:
                    return None
                pk = self._due.pop()
            self._due.discard(pk)
            del self._sessions[pk]
            return pk

    def clear(self) -> None:
        """Forget all sessions."""
        with self._lock:
            self._sessions.clear()
            self._due.clear()


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
