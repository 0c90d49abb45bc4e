"""Count rows before they are deleted. See Note [Counting before a deletion]."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from chatmemory.database.batches import Progress
from chatmemory.models import DatabaseNow
from chatmemory.services.removal.deletions import Deletion
from chatmemory.statistics.models import Watermark
from chatmemory.statistics.roll_up import roll_up_statistics
from chatmemory.statistics.tables import (
    ACTIVITY,
    add_activity,
    add_turns,
    select_activity,
    uncounted,
)
from chatmemory.statistics.watermark import (
    RowMark,
    lock_watermark,
    read_watermark,
    turns_until,
)


def prepare(progress: Progress | None) -> None:
    """Roll up before a vacuum, which then finds little that is not counted."""
    roll_up_statistics(progress=progress)


def count_before_deletion(deletion: Deletion) -> None:
    """Add the rows that no roll-up has counted to the daily figures."""
    # The lock only for uncounted rows, since all deletions and the roll-up wait for it.
    if _has_uncounted(deletion, read_watermark()):
        _count_deleted(deletion, lock_watermark())


def _has_uncounted(deletion: Deletion, watermark: Watermark | None) -> bool:
    if uncounted(deletion.turns, turns_until(watermark)).exists():
        return True
    return any(_above(_row_mark(watermark, kind), deletion, kind).exists() for kind in ACTIVITY)


def _count_deleted(deletion: Deletion, watermark: Watermark) -> None:
    """Count the rows above the watermark. Needs its lock."""
    add_turns(uncounted(deletion.turns, turns_until(watermark)))
    for kind in ACTIVITY:
        mark = _row_mark(watermark, kind)
        rows = select_activity(_above(mark, deletion, kind), kind)
        add_activity(
            [(created_at, column) for pk, created_at, column in rows if mark.counts(pk, created_at)]
        )


def _above(mark: RowMark, deletion: Deletion, kind: str) -> QuerySet[Any]:
    """Return the rows above a mark, with imported ones."""
    rows: QuerySet[Any] = getattr(deletion, kind)
    # A time in the future is not from this database's clock: the row was imported.
    return rows.filter(pk__gt=mark.pk, created_at__lte=DatabaseNow())


def _row_mark(watermark: Watermark | None, kind: str) -> RowMark:
    return RowMark.read(watermark, kind) or RowMark()
