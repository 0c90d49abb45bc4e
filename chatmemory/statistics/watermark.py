"""Up to where rows are counted in the daily figures.

See docs/reasons/decisions/0022-daily-figures.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from chatmemory.database.faults import ignored_duplicate, write_connection
from chatmemory.database.locks import locked_transaction
from chatmemory.models import database_now
from chatmemory.statistics.models import Watermark

ROW_PK: Final = 1
"""The primary key of the only row of `Watermark`."""

MARGIN: Final = timedelta(minutes=5)
"""Rows younger than this wait for the next roll-up: others like them may not be committed yet."""

# Transactions that have written; they may commit rows with a time from their start on. Other roles'
# transactions have no `backend_xid` here, and have only MARGIN.
_OLDEST_WRITER = """\
SELECT min(xact_start)
FROM pg_stat_activity
WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()"""

# Note [Watermark]
#
# A row is counted once, although rows do not become visible in the order of their times.
# - A turn is counted by `ended_at`. Up to `settled()` no transaction can still commit one, so all
#   later ends are above the watermark. A turn that ends days after its start is counted then.
# - A message, session or feedback is counted by its primary key, since an index on `created_at`
#   would slow down each append. The highest counted key is below the first row that is younger than
#   `settled()`. A row that commits later got its key after that time, so it is higher.
# - An imported row keeps its `created_at`, and is older than the rows around it. It is skipped. So
#   during an import the key can move above a row whose transaction is still open, which is not
#   counted then.
# - A row above the watermark that is deleted is counted before, by the same rules.
# - The row of `Watermark` is locked while figures are added and the watermark moves, in one
#   transaction.


def settled() -> datetime:
    """Return up to when rows can be counted: all older transactions have ended."""
    connection = write_connection()
    now = oldest = database_now(connection)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(_OLDEST_WRITER)
            (begun,) = cursor.fetchone()
        if begun is not None:
            oldest = min(now, begun.astimezone(UTC))  # naive if USE_TZ is False
    return oldest - MARGIN


def read_watermark() -> Watermark | None:
    """Return the watermark; None before the first count."""
    return Watermark.objects.filter(pk=ROW_PK).first()


def lock_watermark() -> Watermark:
    """Lock the watermark, which is also the lock of the daily figures. Needs a transaction."""
    rows = Watermark.objects.filter(pk=ROW_PK)
    # An update that changes nothing: SQLite's transaction must begin with a write.
    if not rows.update(id=ROW_PK):
        with ignored_duplicate(), locked_transaction():
            return Watermark.objects.create(pk=ROW_PK)
    return rows.select_for_update().get()


def turns_until(watermark: Watermark | None) -> datetime | None:
    """Return the time up to which ended turns are counted; None before the first roll-up."""
    return _moment_of(watermark.marks.get("turns")) if watermark else None


@dataclass(frozen=True, slots=True)
class RowMark:
    """Which rows are counted, and which of the others are imported."""

    pk: int = 0
    """The highest counted primary key."""
    since: datetime | None = None
    """Rows that are stored after the last roll-up are not older than this."""
    first: int = 0
    """Up to this primary key rows existed at the first roll-up, which counts imported ones too."""

    @classmethod
    def read(cls, watermark: Watermark | None, name: str) -> RowMark | None:
        """Return the mark; None before the first roll-up."""
        if watermark is None or name not in watermark.marks:
            return None
        pk, since, first = watermark.marks[name]
        return cls(pk, _moment_of(since), first)

    def counts(self, pk: int, created_at: datetime) -> bool:
        """Whether a row was stored here, or existed at the first roll-up."""
        return pk <= self.first or self.since is None or created_at >= self.since

    def as_json(self) -> list[Any]:
        return [self.pk, self.since and self.since.isoformat(), self.first]


def move(watermark: Watermark, **marks: Any) -> None:
    """Store new values of the watermark. Needs its lock."""
    watermark.marks = {**watermark.marks, **marks}
    Watermark.objects.filter(pk=watermark.pk).update(marks=watermark.marks)


def _moment_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
