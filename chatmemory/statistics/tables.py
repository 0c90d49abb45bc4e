"""Add to the tables of daily figures. All functions need the lock of `lock_watermark`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

from django.db.models import Case, QuerySet, Value, When

from chatmemory import codec
from chatmemory.models import Feedback, TurnQuerySet
from chatmemory.statistics.histograms import added, bucket_of
from chatmemory.statistics.models import DailyActivity, DailyTurns

MAX_TOKENS = 10**9
"""A model that reports more for one turn is wrong, and would overflow the sum."""

READ_ROWS = 1_000

_COLUMNS = (
    "model",
    "status",
    "error",
    "usage",
    "started_at",
    "ended_at",
    "first_text_ms",
)

ACTIVITY: Final[Mapping[str, Case | Value]] = {
    "messages": Value("messages"),
    "sessions": Value("sessions"),
    "feedback": Case(When(value=Feedback.Value.GOOD, then=Value("good")), default=Value("bad")),
}
"""For each kind of row, the column of DailyActivity that counts it."""

Key = tuple[date, str, str, str]


@dataclass(slots=True)
class _Sum:
    """What is added to one row of DailyTurns."""

    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    first_text: Counter[str] = field(default_factory=Counter)
    duration: Counter[str] = field(default_factory=Counter)


def day_of(moment: datetime) -> date:
    """Return the day in UTC."""
    return moment.astimezone(UTC).date()


def add_turns(ended: TurnQuerySet) -> int:
    """Count ended turns; return their number."""
    sums: defaultdict[Key, _Sum] = defaultdict(_Sum)
    total = 0
    for values in ended.values(*_COLUMNS).iterator(chunk_size=READ_ROWS):
        key = (day_of(values["ended_at"]), values["model"], values["status"], values["error"])
        _add_turn(sums[key], values)
        total += 1
    _store_turns(sums)
    return total


def _add_turn(row: _Sum, turn: Mapping[str, Any]) -> None:
    usage = codec.parse_usage(turn["usage"])
    row.turns += 1
    row.tokens_in += _token_count(usage, "input_tokens")
    row.tokens_out += _token_count(usage, "output_tokens")
    if turn["first_text_ms"] is not None:
        row.first_text[bucket_of(turn["first_text_ms"])] += 1
    if turn["started_at"] is not None:
        seconds = (turn["ended_at"] - turn["started_at"]).total_seconds()
        row.duration[bucket_of(seconds * 1000)] += 1


def _token_count(usage: Mapping[str, object], name: str) -> int:
    return min(max(0, codec.token_count(usage, name) or 0), MAX_TOKENS)


def _store_turns(sums: Mapping[Key, _Sum]) -> None:
    days = {key[0] for key in sums}
    found = DailyTurns.objects.filter(day__in=days).select_for_update()
    rows = {(row.day, row.model, row.status, row.error): row for row in found}
    new = []
    for key, given in sums.items():
        row = rows.get(key)
        if row is None:
            day, model, status, error = key
            row = DailyTurns(
                day=day, model=model, status=status, error=error, turns=0, tokens_in=0, tokens_out=0
            )
            new.append(row)
        row.turns += given.turns
        row.tokens_in += given.tokens_in
        row.tokens_out += given.tokens_out
        row.first_text = added(row.first_text, given.first_text)
        row.duration = added(row.duration, given.duration)
    changed = [rows[key] for key in sums if key in rows]
    DailyTurns.objects.bulk_update(
        changed, ["turns", "tokens_in", "tokens_out", "first_text", "duration"], batch_size=100
    )
    DailyTurns.objects.bulk_create(new)


def select_activity(rows: QuerySet[Any], kind: str) -> QuerySet[Any, Any]:
    """Select the primary key, the time, and the column of DailyActivity that counts the row."""
    return rows.values_list("pk", "created_at", ACTIVITY[kind])


def add_activity(rows: Sequence[tuple[datetime, str]]) -> None:
    """Count rows by the time and the column of each."""
    for column in {column for _, column in rows}:
        _add_days(column, (day_of(created_at) for created_at, own in rows if own == column))


def _add_days(column: str, days: Iterable[date]) -> None:
    """Add one for each of these days, with repetitions, to a column of DailyActivity."""
    counts = Counter(days)
    found = DailyActivity.objects.filter(day__in=counts).select_for_update()
    rows = {row.day: row for row in found}
    for day, row in rows.items():
        setattr(row, column, getattr(row, column) + counts[day])
    DailyActivity.objects.bulk_update(rows.values(), [column], batch_size=100)
    DailyActivity.objects.bulk_create(
        DailyActivity(day=day, **{column: count})
        for day, count in counts.items()
        if day not in rows
    )


def uncounted(turns: TurnQuerySet, until: datetime | None) -> TurnQuerySet:
    """Return the ended ones of these turns that no roll-up up to this time has counted."""
    if until is None:
        return turns.filter(ended_at__isnull=False)
    return turns.filter(ended_at__gt=until)
