"""Up to where rows are counted in the daily numbers. See docs/decisions/0022-daily-numbers.md."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from chatmemory.database.faults import ignored_duplicate, write_connection
from chatmemory.database.locks import locked_transaction
from chatmemory.models import Maintenance, database_now

MARGIN: Final = timedelta(minutes=5)
"""Rows younger than this wait for the next roll-up: others like them may not be committed yet."""

# Transactions that have written; they may commit rows with a time from their start on. Those of
# other roles have no `backend_xid` here, and have only MARGIN.
_OLDEST_WRITER = """\
SELECT min(xact_start)
FROM pg_stat_activity
WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()"""

# Note [Watermark]
#
# A row is counted once, although rows become visible in another order than that of their times.
# - A turn is counted by `ended_at`. Up to `settled_at` no transaction can still commit one, so all
#   later ends are above the watermark. A turn that ends days after its start is counted then.
# - A message, session or feedback is counted by its primary key, since an index on `created_at`
#   would slow down each append. The highest counted key is below the first row that is younger than
#   `settled_at`. A row that commits later got its key after that time, so it is higher.
# - An imported row keeps its `created_at`, and is older than the rows around it. It is skipped.
# - The row `numbers` is locked while numbers are added and the watermark moves, in one transaction.


@dataclass(frozen=True, slots=True)
class Watermark:
    """The database's time, and a time up to which all transactions have ended."""

    now: datetime
    at: datetime

    def is_unsettled(self, created_at: datetime) -> bool:
        """Whether a row is so young that others before it may not be committed yet.

        A time in the future is none of this database's clock: the row was imported.
        """
        return self.at < created_at <= self.now


def settled() -> Watermark:
    """Return up to when rows can be counted."""
    connection = write_connection()
    now = oldest = database_now(connection)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(_OLDEST_WRITER)
            (begun,) = cursor.fetchone()
        if begun is not None:
            oldest = min(now, begun.astimezone(UTC))  # naive if USE_TZ is False
    return Watermark(now=now, at=oldest - MARGIN)


def lock_numbers() -> Maintenance:
    """Lock the row of the daily numbers. Needs a transaction."""
    rows = Maintenance.objects.filter(name=Maintenance.Task.NUMBERS)
    # An update that changes nothing: SQLite's transaction must begin with a write.
    if not rows.update(name=Maintenance.Task.NUMBERS):
        with ignored_duplicate(), locked_transaction():
            return Maintenance.objects.create(name=Maintenance.Task.NUMBERS)
    return rows.select_for_update().get()


def turns_until(row: Maintenance | None) -> datetime | None:
    """Return the time up to which ended turns are counted; None before the first roll-up."""
    return _moment(row.watermark.get("turns")) if row else None


@dataclass(frozen=True, slots=True)
class RowMark:
    """Which rows are counted, and which of the others are imported."""

    pk: int
    """The highest counted primary key."""
    since: datetime | None
    """Rows that are stored after the last roll-up are not older than this."""
    first: int
    """Up to this primary key rows existed at the first roll-up, which counts imported ones too."""

    @classmethod
    def read(cls, row: Maintenance, name: str) -> RowMark | None:
        """Return the mark; None before the first roll-up."""
        if name not in row.watermark:
            return None
        pk, since, first = row.watermark[name]
        return cls(pk, _moment(since), first)

    def counts(self, pk: int, created_at: datetime) -> bool:
        """Whether a row was stored here, or existed at the first roll-up."""
        return pk <= self.first or self.since is None or created_at >= self.since

    def as_json(self) -> list[Any]:
        return [self.pk, self.since and self.since.isoformat(), self.first]


def move(row: Maintenance, **marks: Any) -> None:
    """Store new values of the watermark. Needs the lock of the row."""
    row.watermark = {**row.watermark, **marks}
    Maintenance.objects.filter(pk=row.pk).update(watermark=row.watermark)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
