"""The roll-up: add what is new to the daily figures, in chunks behind a watermark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import Any

from django.db.models import QuerySet, TextChoices
from django.utils.translation import gettext_lazy as _

from chatmemory.database.batches import Progress, check_size
from chatmemory.database.faults import write_connection
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import durably
from chatmemory.models import Feedback, Message, Session, Turn, database_now
from chatmemory.services.maintenance.records import recorded
from chatmemory.statistics.tables import (
    ACTIVITY,
    add_activity,
    add_turns,
    select_activity,
    uncounted,
)
from chatmemory.statistics.watermark import (
    MARGIN,
    RowMark,
    lock_watermark,
    move,
    settled,
    turns_until,
)


class Task(TextChoices):
    """The maintenance task of this app."""

    STATISTICS = "statistics", _("daily figures")


CHUNK = 5_000
"""Rows that one transaction counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledUp:
    """How many rows one call added to the daily figures."""

    turns: int
    messages: int
    sessions: int
    feedback: int
    until: datetime
    """Rows up to this time are counted."""


def roll_up_statistics(*, chunk: int = CHUNK, progress: Progress | None = None) -> RolledUp:
    """Add the turns, messages, sessions and feedback since the last call to the daily figures.

    Each row is counted once, also by concurrent and interrupted calls. Rows of the last five
    minutes, and on PostgreSQL rows from the start of the oldest open transaction that writes, are
    left to the next call. Imported rows are counted by the first call alone. Each transaction
    counts at most `chunk` rows. `progress` is called with the number of rows that are counted, and
    None. Raises MemoryUnavailable.
    """
    check_size("chunk", chunk)
    total = _Total(progress)
    with recorded(Task.STATISTICS) as outcome:
        limit = durably(settled, is_repeatable=True)
        counts = {
            "turns": _count_all(partial(_count_turns, limit, chunk), total),
            **{
                name: _count_all(partial(_count_rows, name, limit, chunk), total)
                for name in ACTIVITY
            },
        }
        outcome.counts.update(counts)
    return RolledUp(**counts, until=limit)


@dataclass(slots=True)
class _Total:
    """The number of rows of all kinds, and where to report it."""

    progress: Progress | None
    rows: int = 0

    def add(self, counted: int) -> None:
        self.rows += counted
        if self.progress is not None:
            self.progress(self.rows, None)


def _count_all(count_chunk: Callable[[], tuple[int, bool]], of_all: _Total) -> int:
    """Call until there are no more rows; return the total."""
    total, is_more = 0, True
    while is_more:
        # Repeatable: after a lost commit, the watermark decides what is left.
        counted, is_more = durably(count_chunk, is_repeatable=True)
        total += counted
        of_all.add(counted)
    return total


def _count_turns(limit: datetime, size: int) -> tuple[int, bool]:
    """Count the next turns, by the times of their ends; also return whether there may be more."""
    with locked_transaction():
        watermark = lock_watermark()
        until = turns_until(watermark)
        if until is not None and until >= limit:
            return 0, False  # counted by another process, or an older transaction is open
        ended = uncounted(Turn.objects.filter(ended_at__lte=limit), until)
        ends = ended.order_by("ended_at").values_list("ended_at", flat=True)
        last: Any = ends[size - 1 : size].first()
        # Behind the last one: SQLite compares texts, and the text of its time may have more digits.
        end = limit if last is None else min(limit, last + timedelta(microseconds=1))
        counted = add_turns(ended.filter(ended_at__lte=end))
        move(watermark, turns=end.isoformat())
        return counted, last is not None


def _count_rows(name: str, limit: datetime, size: int) -> tuple[int, bool]:
    """Count the next rows, by their primary keys; also return whether there may be more."""
    with locked_transaction():
        watermark = lock_watermark()
        rows = select_activity(_ROWS[name](), name)
        mark = RowMark.read(watermark, name) or RowMark(first=_highest_pk(rows))
        found = list(rows.filter(pk__gt=mark.pk).order_by("pk")[:size])
        # Read after the rows. A time in the future is not from this clock: the row was imported.
        now = database_now(write_connection())
        # Others before a row younger than the limit may not be committed yet.
        old = list(takewhile(lambda values: not limit < values[1] <= now, found))
        is_more = len(old) == size
        counted = [
            (created_at, column)
            for pk, created_at, column in old
            if created_at <= limit and mark.counts(pk, created_at)
        ]
        add_activity(counted)
        last = old[-1][0] if old else mark.pk
        # The rows of the next chunk may be as old as the rows of this one.
        since = mark.since if is_more else limit - MARGIN
        move(watermark, **{name: replace(mark, pk=last, since=since).as_json()})
        return len(counted), is_more


def _highest_pk(rows: QuerySet[Any, Any]) -> int:
    return next((values[0] for values in rows.order_by("-pk")[:1]), 0)


_ROWS: Mapping[str, Callable[[], QuerySet[Any]]] = {
    "messages": Message.stored.all,
    "sessions": Session.objects.all,
    "feedback": Feedback.objects.all,
}
