"""Pages of sessions by keyset: the same cost however far one pages, and no row twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from django.db.models import DateTimeField, Q, Value
from django.db.models.functions import Cast

from chatmemory.errors import BadInput
from chatmemory.models import Session, SessionQuerySet, StoredMessage

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_CHARS = 1_000_000
"""Of messages in one answer, unless a single one has more."""
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """Some sessions, the last active first, and the cursor of those that follow."""

    sessions: list[Session]
    next: str | None


def page_of(sessions: SessionQuerySet, *, limit: int, cursor: str | None = None) -> SessionPage:
    """The first `limit` sessions, or those behind the cursor. Raises BadInput."""
    if cursor is not None:
        sessions = _behind(sessions, cursor)
    found = list(sessions.most_recent_first()[: limit + 1])
    more = len(found) > limit
    return SessionPage(sessions=found[:limit], next=_cursor(found[limit - 1]) if more else None)


def fitting(rows: Sequence[StoredMessage]) -> list[StoredMessage]:
    """The first rows that fit one answer, at least one; their next page begins after them."""
    sizes = accumulate(len(row.text) + len(row.body or "") for row in rows)
    return [row for row, size in zip(rows, sizes, strict=True) if size <= MAX_CHARS] or [*rows[:1]]


def _cursor(session: Session) -> str:
    at = session.last_message_at
    return f"{'' if at is None else (at - EPOCH) // MICROSECOND}.{session.pk}"


def _behind(sessions: SessionQuerySet, cursor: str) -> SessionQuerySet:
    parts = re.fullmatch(r"([0-9]{0,16})\.([0-9]{1,18})", cursor)
    if parts is None:
        raise BadInput("This is not a cursor of ours.", field="cursor")
    older = Q(pk__lt=int(parts[2]))
    if not parts[1]:
        return sessions.filter(older, last_message_at__isnull=True)
    # A cast, since SQLite compares times as texts, of which the clock and Django write different
    # forms; on other databases it is none.
    moment = DateTimeField()
    at = Cast(Value(EPOCH + int(parts[1]) * MICROSECOND, output_field=moment), moment)
    return sessions.alias(at=Cast("last_message_at", moment)).filter(
        Q(at__lt=at) | Q(older, at=at) | Q(at__isnull=True)
    )
