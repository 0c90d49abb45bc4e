"""Limits of a trim: compute the new floor, always at the first row of a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, TypedDict

from django.db.models import BigIntegerField, Case, OuterRef, QuerySet, Subquery, Value, When
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Coalesce
from django.utils.timezone import is_naive

from chatmemory.database.batches import PAGE_ROWS
from chatmemory.database.faults import write_connection
from chatmemory.errors import BadInput
from chatmemory.models import DatabaseNow, Message, MessageQuerySet, Session

Floors = dict[int, int]
"""A seq for each session, by its primary key."""

# Adds the tokens of each session from its newest row on.
_NEWEST_THAT_DO_NOT_FIT = """\
SELECT summed.session_id, MAX(summed.seq)
FROM (
    SELECT session_id, seq,
        SUM(tokens) OVER (PARTITION BY session_id ORDER BY seq DESC) AS total
    FROM {messages}
    WHERE {pages}
) summed
WHERE summed.total > %s
GROUP BY summed.session_id"""


class TrimLimit(TypedDict, total=False):
    """What a trim keeps. Exactly one key is given."""

    keep_last: int
    """Number of newest messages to keep."""
    keep_turns: int
    """Number of newest turns to keep."""
    keep_tokens: int
    """Keep the newest messages with at most this number of tokens in total."""
    before: datetime
    """Hide the messages before the first one, in order of seq, that is not older than this time."""
    before_seq: int
    """Hide the messages below this seq."""


def check_trim_limit(limit: TrimLimit) -> None:
    """Check that one limit is given, with a valid value.

    Raises BadInput for a bad value, TypeError for another number of limits or a wrong type.
    """
    if len(limit) != 1 or not limit.keys() <= _FLOORS.keys():
        raise TypeError(f"give exactly one of {', '.join(_FLOORS)}, not {', '.join(limit) or None}")
    ((name, value),) = limit.items()
    if name == "before":
        if not isinstance(value, datetime):
            raise TypeError(f"before must be a datetime, not {type(value).__name__}")
        if is_naive(value):
            raise BadInput("before must have a time zone.", field=name)
        try:
            value.astimezone(UTC)
        except OverflowError:
            raise BadInput("before is out of range.", field=name) from None
    elif not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    elif value < 0:
        raise BadInput(f"{name} must be 0 or more.", field=name, limit=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderRows:
    """Rows that a search without the session's lock found to be older than a time.

    A search by time reads all older rows, which can take seconds. With this result the search
    under the lock reads only the later rows.
    """

    session_pk: int = 0
    from_seq: int = 0
    below_seq: int = 0

    def known_below(self, session: Session) -> int:
        """Return the seq below which all visible rows are older; 0 if nothing is known."""
        # Rows never change their time, so the result stays valid while the floor only rises.
        is_same = session.pk == self.session_pk and session.first_seq >= self.from_seq
        return self.below_seq if is_same else 0


NONE_FOUND = OlderRows()


def find_older_rows(session: Session, limit: TrimLimit) -> OlderRows:
    """Search for the rows that a limit hides, without the lock."""
    return _older_rows(session, floor_for_limit(session, limit))


def find_rows_older_than(session: Session, age: timedelta) -> OlderRows:
    """Search for the rows older than this by the database's clock, without the lock."""
    return _older_rows(session, floor_for_age(session, age))


def _older_rows(session: Session, floor: int) -> OlderRows:
    return OlderRows(session_pk=session.pk, from_seq=session.first_seq, below_seq=floor)


def floor_for_limit(session: Session, limit: TrimLimit, older: OlderRows = NONE_FOUND) -> int:
    """Return the floor after a trim, at least the current floor: see `floors_for_limit`."""
    return floors_for_limit([session], limit, older)[session.pk]


def floor_for_age(session: Session, age: timedelta, older: OlderRows = NONE_FOUND) -> int:
    """Return the floor after all messages older than this, by the database's clock."""
    wanted = _hide_before([session], DatabaseNow() - age, older)
    return _at_turn_starts([session], wanted)[session.pk]


def floors_for_limit(
    sessions: Sequence[Session], limit: TrimLimit, older: OlderRows = NONE_FOUND
) -> Floors:
    """Return the floor of each session after a trim, by primary key, at least the current floor.

    A floor inside a turn is lowered to the turn's first row. The floor never passes the first row
    of the running turn. At most two statements for up to 100 sessions, of which SQLite can combine
    the conditions; `keep_tokens` needs more where more than `PAGE_ROWS` messages fit.
    """
    if "before" in limit:
        return _at_turn_starts(sessions, _hide_before(sessions, limit["before"], older))
    ((name, value),) = limit.items()
    return _at_turn_starts(sessions, _FLOORS[name](sessions, value))


def _at_turn_starts(sessions: Sequence[Session], wanted: Floors) -> Floors:
    floors = {
        session.pk: min(max(wanted[session.pk], session.first_seq), session.last_seq + 1)
        for session in sessions
    }
    # A floor after the last row is inside a turn if that runs.
    inside = [
        session
        for session in sessions
        if session.first_seq < floors[session.pk]
        and (floors[session.pk] <= session.last_seq or session.running is not None)
    ]
    user_rows = _visible_rows().filter(role=Message.Role.USER, seq__lte=OuterRef("bound"))
    # A run can store user rows too, so the newest user row is not always the start of its turn.
    newest = user_rows.order_by("-seq").values(start=Coalesce("turn", "seq"))
    starts = _first_of_each(inside, newest, floors)
    return floors | {
        session.pk: max(starts[session.pk] or 0, session.first_seq) for session in inside
    }


def _visible_rows() -> MessageQuerySet:
    """Select the rows of the session of an outer query."""
    return Message.stored.filter(session=OuterRef("pk"), seq__gte=OuterRef("first_seq"))


def _first_of_each(
    sessions: Sequence[Session], rows: QuerySet[Any, Any], bounds: Floors
) -> dict[int, int | None]:
    """Return the first of these rows in each session, in at most one statement.

    `rows` selects one column; it may refer to the session's `bound`.
    """
    if not sessions:
        return {}
    whens = [When(pk=session.pk, then=Value(bounds[session.pk])) for session in sessions]
    found = Session.objects.filter(pk__in=[session.pk for session in sessions])
    found = found.annotate(bound=Case(*whens, output_field=BigIntegerField()))
    firsts = dict(found.values_list("pk", Subquery(rows[:1])))
    return {session.pk: firsts.get(session.pk) for session in sessions}


def _keep_messages(sessions: Sequence[Session], keep: int) -> Floors:
    return {session.pk: session.last_seq - keep + 1 for session in sessions}


def _keep_turns(sessions: Sequence[Session], keep: int) -> Floors:
    if keep == 0:
        return {session.pk: session.last_seq + 1 for session in sessions}
    floors = _current_floors(sessions)
    longer = [session for session in sessions if session.message_count > keep]
    starts = _visible_rows().turn_starts().order_by("-seq").values("seq")
    found = _first_of_each(longer, starts[keep - 1 :], floors)
    return {pk: found.get(pk) or floor for pk, floor in floors.items()}


def _current_floors(sessions: Sequence[Session]) -> Floors:
    return {session.pk: session.first_seq for session in sessions}


def _keep_tokens(sessions: Sequence[Session], keep: int) -> Floors:
    floors = _current_floors(sessions)
    unread = [session for session in sessions if session.message_count]
    # In larger and larger pages: of a long history, only about the rows that fit are read.
    size = PAGE_ROWS
    while unread:
        found = _newest_that_do_not_fit(unread, size, min(keep, BigIntegerField.MAX_BIGINT))
        floors |= {pk: seq + 1 for pk, seq in found.items()}
        unread = [
            session
            for session in unread
            if session.pk not in found and session.message_count > size
        ]
        size *= 4
    return floors


def _newest_that_do_not_fit(sessions: Sequence[Session], size: int, keep: int) -> Floors:
    """Return for each session the newest of its last `size` rows that does not fit, if any."""
    pages = [
        (session.pk, max(session.first_seq, session.last_seq - size + 1)) for session in sessions
    ]
    connection = write_connection()
    sql = _NEWEST_THAT_DO_NOT_FIT.format(
        messages=connection.ops.quote_name(Message._meta.db_table),
        pages=" OR ".join(["(session_id = %s AND seq >= %s)"] * len(pages)),
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [*chain.from_iterable(pages), keep])
        return dict(cursor.fetchall())


def _hide_before(
    sessions: Sequence[Session],
    moment: datetime | CombinedExpression,
    older: OlderRows = NONE_FOUND,
) -> Floors:
    searched = {
        session.pk: max(session.first_seq, older.known_below(session)) for session in sessions
    }
    # Without `_visible_rows`: of two lower bounds, SQLite uses the first.
    rows = Message.stored.filter(session=OuterRef("pk"), seq__gte=OuterRef("bound"))
    newer = rows.filter(created_at__gte=moment).order_by("seq").values("seq")
    kept = _first_of_each(sessions, newer, searched)
    return {session.pk: kept[session.pk] or session.last_seq + 1 for session in sessions}


def _hide_below(sessions: Sequence[Session], seq: int) -> Floors:
    return {session.pk: seq for session in sessions}


_FLOORS: dict[str, Callable[..., Floors]] = {
    "keep_last": _keep_messages,
    "keep_turns": _keep_turns,
    "keep_tokens": _keep_tokens,
    "before": _hide_before,
    "before_seq": _hide_below,
}
