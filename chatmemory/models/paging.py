"""Pages of sessions by keyset: each page has the same cost, and no row repeats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Q, Value
from django.db.models.functions import Cast

from chatmemory.errors import BadInput
from chatmemory.models.fields import MomentField
from chatmemory.models.sessions import Session, SessionQuerySet

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """Sessions, the last active first, and the cursor of the next page."""

    sessions: list[Session]
    next: str | None


def session_page(
    sessions: SessionQuerySet, *, limit: int, cursor: str | None = None
) -> SessionPage:
    """Return the first `limit` sessions, after the cursor if it is given. Raises BadInput."""
    if cursor is not None:
        sessions = _after_cursor(sessions, cursor)
    found = list(sessions.most_recent_first()[: limit + 1])
    has_more = len(found) > limit
    return SessionPage(sessions=found[:limit], next=_cursor(found[limit - 1]) if has_more else None)


def _cursor(session: Session) -> str:
    at = session.last_message_at
    return f"{'' if at is None else (at - UNIX_EPOCH) // MICROSECOND}.{session.pk}"


def _after_cursor(sessions: SessionQuerySet, cursor: str) -> SessionQuerySet:
    # An imported message may be older than 1970: the number is negative then.
    parts = re.fullmatch(r"(-?[0-9]{1,18})?\.([0-9]{1,18})", cursor)
    if parts is None:
        raise _invalid()
    older = Q(pk__lt=int(parts[2]))
    if not parts[1]:
        return sessions.filter(older, last_message_at__isnull=True)
    # SQLite compares times as text, and its clock writes another form than Django. The cast makes
    # the forms equal; on other databases it does nothing.
    try:
        last = UNIX_EPOCH + int(parts[1]) * MICROSECOND
    except OverflowError:
        raise _invalid() from None
    moment = MomentField()
    at = Cast(Value(last, output_field=moment), moment)
    return sessions.alias(at=Cast("last_message_at", moment)).filter(
        Q(at__lt=at) | Q(older, at=at) | Q(at__isnull=True)
    )


def _invalid() -> BadInput:
    return BadInput("cursor is invalid. Use `next` of an earlier response.", field="cursor")
