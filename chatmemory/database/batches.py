"""Iterate over many sessions or rows, without an open cursor or transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from django.db.models import QuerySet

from chatmemory.database.retries import retried
from chatmemory.models import Session, SessionQuerySet

BATCH_SESSIONS = 500
"""Sessions that `in_batches` reads in one statement."""

PAGE_ROWS = 1_000
"""Rows that `in_pages` reads in one statement."""

Progress = Callable[[int, int | None], None]
"""Called with the number of sessions or rows that are done, and their total if it is known."""

T = TypeVar("T")

# Note [No cursors]
#
# On PostgreSQL, `iterator()` of a queryset opens a cursor, which one server connection has. Outside
# of a transaction, a pooler such as PgBouncer requests the next rows from another connection, which
# does not have it. So many rows are read in pages.


def in_batches(sessions: SessionQuerySet, progress: Progress | None = None) -> Iterator[int]:
    """Yield the primary keys of sessions in ascending order, without those created meanwhile.

    No transaction or cursor is open between two batches, so the caller may change the sessions.
    With `progress`, one more statement counts the sessions.
    """
    pks = chain.from_iterable(batches(sessions, BATCH_SESSIONS))
    return pks if progress is None else reported(pks, progress, count_of(sessions))


def reported(items: Iterable[T], progress: Progress, total: int | None) -> Iterator[T]:
    """Yield these items, and report how many the caller has processed."""
    done = 0
    for item in items:
        progress(done, total)
        yield item
        done += 1
    progress(done, total)


@retried(is_repeatable=True)
def count_of(rows: QuerySet[Any, Any]) -> int:
    """Count rows, for the total of a progress."""
    return rows.count()


def batches(sessions: SessionQuerySet, size: int) -> Iterator[list[int]]:
    """Yield lists of up to `size` primary keys, by the rules of `in_batches`."""
    # Without this bound, the loop would not end while other processes create sessions faster.
    newest = _newest_pk()
    batch = _next_batch(sessions, after=0, newest=newest, size=size)
    while batch:
        yield batch
        batch = _next_batch(sessions, after=batch[-1], newest=newest, size=size)


def in_pages(
    rows: QuerySet[Any, T], column: str = "pk", value_of: Callable[[T], Any] = attrgetter("pk")
) -> Iterator[T]:
    """Yield rows in the order of a unique column. See Note [No cursors].

    "-pk" is the descending order. `value_of` returns the value of the column in a row.
    """
    beyond = f"{column[1:]}__lt" if column.startswith("-") else f"{column}__gt"
    rest = rows.order_by(column)
    page = list(rest[:PAGE_ROWS])
    yield from page
    while len(page) == PAGE_ROWS:
        page = list(rest.filter(**{beyond: value_of(page[-1])})[:PAGE_ROWS])
        yield from page


def check_size(name: str, size: int, *, maximum: int | None = None) -> None:
    """Check the argument for the size of a batch. Raises ValueError."""
    # An empty batch would be taken for the end: a check would find nothing, and report no damage.
    if size < 1 or (maximum is not None and size > maximum):
        limits = "1 or more" if maximum is None else f"1 to {maximum}"
        raise ValueError(f"{name} must be {limits}, not {size}")


@retried(is_repeatable=True)
def _newest_pk() -> int:
    return Session.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


@retried(is_repeatable=True)
def _next_batch(sessions: SessionQuerySet, *, after: int, newest: int, size: int) -> list[int]:
    # Not OFFSET: it would skip sessions after the caller has removed some. Note [No cursors]
    pks = sessions.filter(pk__gt=after, pk__lte=newest).order_by("pk").values_list("pk", flat=True)
    return list(pks[:size])
