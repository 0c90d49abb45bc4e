"""Add to the tables of daily numbers. All functions need the lock of `lock_numbers`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from chatmemory import codec
from chatmemory.models import DailyActivity, DailyTurns, TurnQuerySet
from chatmemory.services.numbers.histograms import added, bucket_of

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

Key = tuple[date, str, str, str]


@dataclass(slots=True)
class _Sum:
    """The numbers of one row of DailyTurns."""

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
    row.tokens_in += _tokens(usage, "input_tokens")
    row.tokens_out += _tokens(usage, "output_tokens")
    if turn["first_text_ms"] is not None:
        row.first_text[bucket_of(turn["first_text_ms"])] += 1
    if turn["started_at"] is not None:
        seconds = (turn["ended_at"] - turn["started_at"]).total_seconds()
        row.duration[bucket_of(seconds * 1000)] += 1


def _tokens(usage: Mapping[str, object], name: str) -> int:
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


def add_activity(column: str, days: Iterable[date]) -> None:
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
