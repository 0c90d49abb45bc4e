"""The floors of many sessions after a trim, in at most two statements: see trim_limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Case, F, IntegerField, OuterRef, Subquery, Value, When
from django.db.models.functions import Coalesce

from chatmemory.database.faults import write_connection
from chatmemory.models import Message, MessageQuerySet, Session
from chatmemory.services.removal.trim_limits import TrimLimit

# Adds the tokens of each session from its newest row on, and takes the oldest row that still fits.
_KEPT_BY_TOKENS = """\
SELECT summed.session_id, MIN(summed.seq)
FROM (
    SELECT m.session_id, m.seq,
        SUM(m.tokens) OVER (PARTITION BY m.session_id ORDER BY m.seq DESC) AS total
    FROM {messages} m
    JOIN {sessions} s ON s.id = m.session_id AND m.seq >= s.first_seq
    WHERE m.session_id IN ({pks})
) summed
WHERE summed.total <= %s
GROUP BY summed.session_id"""


def floors_of(sessions: Sequence[Session], limit: TrimLimit) -> dict[int, int]:
    """Return the floor that a trim would give each session, by primary key."""
    wanted = {
        session.pk: min(max(at, session.first_seq), session.last_seq + 1)
        for session, at in zip(sessions, _wanted(sessions, limit), strict=True)
    }
    inside = [
        session
        for session in sessions
        if session.first_seq < wanted[session.pk]
        and (wanted[session.pk] <= session.last_seq or session.running is not None)
    ]
    starts = _turn_starts(inside, wanted)
    lowered = {session.pk: max(starts[session.pk] or 0, session.first_seq) for session in inside}
    return {**wanted, **lowered}


def _wanted(sessions: Sequence[Session], limit: TrimLimit) -> list[int]:
    """Return the floors by the limit alone, which can be inside a turn."""
    value: Any
    ((name, value),) = limit.items()
    match name:
        case "keep_last":
            return [session.last_seq - value + 1 for session in sessions]
        case "before_seq":
            return [value for _ in sessions]
        case "keep_tokens":
            found = _kept_by_tokens(sessions, value)
            return [found.get(session.pk, session.last_seq + 1) for session in sessions]
        case "keep_turns" if value == 0:
            return [session.last_seq + 1 for session in sessions]
        case "keep_turns":
            starts = _visible().turn_starts().order_by("-seq")[value - 1 : value]
            return _first_rows(sessions, starts, missing="first_seq")
        case _:
            kept = _visible().filter(created_at__gte=value).order_by("seq")[:1]
            return _first_rows(sessions, kept, missing="last_seq")


def _visible() -> MessageQuerySet:
    return Message.stored.filter(session=OuterRef("pk"), seq__gte=OuterRef("first_seq"))


def _first_rows(sessions: Sequence[Session], rows: MessageQuerySet, *, missing: str) -> list[int]:
    """Return the seq of each session's row; without one the floor, or what follows the last row."""
    other: Any = F("first_seq") if missing == "first_seq" else F("last_seq") + 1
    chosen = Session.objects.filter(pk__in=[session.pk for session in sessions])
    found = dict(chosen.values_list("pk", Coalesce(Subquery(rows.values("seq")), other)))
    return [found.get(session.pk, session.first_seq) for session in sessions]


def _turn_starts(sessions: Sequence[Session], floors: dict[int, int]) -> dict[int, int | None]:
    """Return the first seq of the turn that contains each session's floor."""
    if not sessions:
        return {}
    whens = [When(pk=session.pk, then=Value(floors[session.pk])) for session in sessions]
    rows = _visible().filter(role=Message.Role.USER, seq__lte=OuterRef("wanted"))
    start = rows.order_by("-seq").values(at=Coalesce("turn", "seq"))[:1]
    chosen = Session.objects.filter(pk__in=[session.pk for session in sessions])
    wanted = chosen.annotate(wanted=Case(*whens, output_field=IntegerField()))
    return dict(wanted.values_list("pk", Subquery(start)))


def _kept_by_tokens(sessions: Sequence[Session], keep: int) -> dict[int, int]:
    connection = write_connection()
    pks = [session.pk for session in sessions]
    sql = _KEPT_BY_TOKENS.format(
        messages=connection.ops.quote_name(Message._meta.db_table),
        sessions=connection.ops.quote_name(Session._meta.db_table),
        pks=", ".join(["%s"] * len(pks)),
    )
    if not pks:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(sql, [*pks, keep])
        return dict(cursor.fetchall())
