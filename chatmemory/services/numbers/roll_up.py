"""The roll-up: add what is new to the daily numbers, in chunks behind a watermark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import Any

from django.db.models import Case, QuerySet, Value, When

from chatmemory.database.batches import Progress, check_size
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import durably, retried
from chatmemory.models import Feedback, Maintenance, Message, Session, Turn, TurnQuerySet
from chatmemory.services.numbers.maintenance import Task, recorded
from chatmemory.services.numbers.tables import add_activity, add_turns, day_of, uncounted
from chatmemory.services.numbers.watermark import (
    MARGIN,
    RowMark,
    Watermark,
    lock_numbers,
    move,
    settled,
    turns_until,
)

CHUNK = 5_000
"""Rows that one transaction counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledUp:
    """How many rows one call added to the daily numbers."""

    turns: int
    messages: int
    sessions: int
    feedback: int
    until: datetime
    """Rows up to this time are counted."""


def roll_up_numbers(*, chunk: int = CHUNK, progress: Progress | None = None) -> RolledUp:
    """Add the turns, messages, sessions and feedback since the last call to the daily numbers.

    Each row is counted once, also by concurrent and interrupted calls. Rows of the last five
    minutes, and on PostgreSQL those from the start of the oldest open transaction that writes, are
    left to the next call. Imported rows are counted by the first call alone. Each transaction
    counts at most `chunk` rows. `progress` is called with the number of rows that are counted, and
    None. Raises MemoryUnavailable.
    """
    check_size("chunk", chunk)
    total = _Total(progress)
    with recorded(Task.NUMBERS) as outcome:
        limit = durably(settled, is_repeatable=True)
        counts = {
            "turns": _repeat(partial(_count_turns, limit, chunk), total),
            **{
                name: _repeat(partial(_count_rows, name, limit, chunk), total)
                for name in ("messages", "sessions", "feedback")
            },
        }
        outcome.counts.update(counts)
    return RolledUp(**counts, until=limit.at)


def count_before_deletion(turns: TurnQuerySet, until: datetime | None = None) -> None:
    """Count those of these turns that no roll-up has counted. Call it before their deletion.

    `until` is a known value of the watermark, possibly an older one. Needs the session's lock.
    """
    if not uncounted(turns, until).exists():
        return
    row = lock_numbers()
    add_turns(uncounted(turns, turns_until(row)))


@retried(is_repeatable=True)
def counted_until() -> datetime | None:
    """Return the time up to which ended turns are counted; None before the first roll-up."""
    return turns_until(Maintenance.objects.filter(name=Task.NUMBERS).first())


@dataclass(slots=True)
class _Total:
    """The number of rows of all kinds, and where to report it."""

    progress: Progress | None
    rows: int = 0

    def add(self, counted: int) -> None:
        self.rows += counted
        if self.progress is not None:
            self.progress(self.rows, None)


def _repeat(count_chunk: Callable[[], tuple[int, bool]], of_all: _Total) -> int:
    """Call until there are no more rows; return the total."""
    total, is_more = 0, True
    while is_more:
        # Repeatable: after a lost commit, the watermark decides what is left.
        counted, is_more = durably(count_chunk, is_repeatable=True)
        total += counted
        of_all.add(counted)
    return total


def _count_turns(limit: Watermark, size: int) -> tuple[int, bool]:
    """Count the next turns, by the times of their ends; also return whether there may be more."""
    with locked_transaction():
        row = lock_numbers()
        until = turns_until(row)
        if until is not None and until >= limit.at:
            return 0, False  # counted by another process, or an older transaction is open
        ended = uncounted(Turn.objects.filter(ended_at__lte=limit.at), until)
        ends = ended.order_by("ended_at").values_list("ended_at", flat=True)
        last: Any = ends[size - 1 : size].first()
        end = limit.at if last is None else min(limit.at, _after(last))
        counted = add_turns(ended.filter(ended_at__lte=end))
        move(row, turns=end.isoformat())
        return counted, last is not None


def _after(moment: datetime) -> datetime:
    """Return a time that is not before this one on any database.

    SQLite compares texts, and has `12:00:00.000` after `12:00:00`.
    """
    return moment if moment.microsecond else moment + timedelta(microseconds=1)


def _count_rows(name: str, limit: Watermark, size: int) -> tuple[int, bool]:
    """Count the next rows, by their primary keys; also return whether there may be more."""
    with locked_transaction():
        row = lock_numbers()
        rows = _ROWS[name]()
        mark = RowMark.read(row, name) or RowMark(0, None, _highest_pk(rows))
        found = list(rows.filter(pk__gt=mark.pk).order_by("pk")[:size])
        old = list(takewhile(lambda values: not limit.is_unsettled(values[1]), found))
        is_more = len(old) == size
        counted = [
            (day_of(created_at), column)
            for pk, created_at, column in old
            if created_at <= limit.at and mark.counts(pk, created_at)
        ]
        for column in {column for _, column in counted}:
            add_activity(column, (day for day, own in counted if own == column))
        last = old[-1][0] if old else mark.pk
        # The rows of the next chunk may be as old as those of this one.
        since = mark.since if is_more else limit.at - MARGIN
        move(row, **{name: replace(mark, pk=last, since=since).as_json()})
        return len(counted), is_more


def _highest_pk(rows: QuerySet[Any, Any]) -> int:
    return next((values[0] for values in rows.order_by("-pk")[:1]), 0)


_ROWS: Mapping[str, Callable[[], QuerySet[Any, Any]]] = {
    "messages": lambda: _rows(Message.stored.all(), Value("messages")),
    "sessions": lambda: _rows(Session.objects.all(), Value("sessions")),
    "feedback": lambda: _rows(
        Feedback.objects.all(),
        Case(When(value=Feedback.Value.GOOD, then=Value("good")), default=Value("bad")),
    ),
}


def _rows(rows: QuerySet[Any], column: Case | Value) -> QuerySet[Any, Any]:
    """Select the primary key, the time, and the column of DailyActivity that counts the row."""
    return rows.values_list("pk", "created_at", column)


aroll_up_numbers = in_pool(roll_up_numbers)
