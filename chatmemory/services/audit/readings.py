"""Record what operators read: one entry for the first page, and another entry after an hour."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from chatmemory.access.actors import Actor
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.models import AuditAction, AuditEntry, DatabaseNow, Page, Reading, Session
from chatmemory.services.audit.entries import (
    DEDUPLICATED_FOR,
    MAX_ACTOR_CHARS,
    actor_of,
    check_reason,
    record,
    record_ranges,
)


@retried(is_repeatable=False)
def record_reading(
    *, session: Session, by: Actor, from_seq: int | None = None, to_seq: int | None = None
) -> None:
    """Record that an operator reads a session, or these messages of it.

    The first page gets an entry immediately. Later pages within the hour are collected, and one
    more entry states all ranges once the hour has passed. Raises MemoryUnavailable.
    """
    page = [] if from_seq is None or to_seq is None else [[from_seq, to_seq]]
    with ignored_duplicate():
        _add_reading(session, by, page)
        return
    _add_reading(
        session, by, page
    )  # a concurrent call for this operator inserted the reading first


def record_view(page: Page, by: Actor) -> None:
    """Record that an operator reads a page of messages in the name of its person.

    Raises MemoryUnavailable.
    """
    session = Session(pk=page.head.pk, key=page.head.key)
    seqs = [row.seq for row in page.rows]
    record_reading(
        session=session, by=by, from_seq=min(seqs, default=None), to_seq=max(seqs, default=None)
    )


@retried(is_repeatable=False)
def record_reveal(*, session: Session, by: Actor, reason: str) -> None:
    """Record that an operator reads the masked texts of a session.

    Raises BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    record(session, AuditAction.REVEAL, by, reason)


def close_readings() -> int:
    """Record the ranges of all readings older than an hour; return their number.

    Raises MemoryUnavailable.
    """
    old = Reading.objects.exclude(entry_pk__in=_recent()).order_by("pk")
    pks = durably(lambda: list(old.values_list("pk", flat=True)), is_repeatable=True)
    return sum(durably(partial(_close_one, pk), is_repeatable=True) for pk in pks)


def merged(ranges: list[list[int]]) -> list[list[int]]:
    """Merge ranges that overlap or are adjacent; return them in ascending order."""
    disjoint: list[list[int]] = []
    for first, last in sorted(map(tuple, ranges)):
        if disjoint and first <= disjoint[-1][1] + 1:
            disjoint[-1][1] = max(disjoint[-1][1], last)
        else:
            disjoint.append([first, last])
    return disjoint


def _add_reading(session: Session, by: Actor, page: list[list[int]]) -> None:
    readings = _readings(session, by)
    known = readings.first()
    # Without a lock: a page that is opened again, which is the usual case, writes nothing.
    if known is not None and known.is_recent and _with(known, page) == known.ranges:
        return
    with locked_transaction():
        # The row of the reading is the lock: concurrent pages of one operator must not lose ranges.
        reading = readings.select_for_update().first()
        if reading is not None and not reading.is_recent:
            _close(reading)
            reading = None
        if reading is None:
            from_seq, to_seq = page[0] if page else (None, None)
            entry = record(session, AuditAction.READ, by, "", from_seq=from_seq, to_seq=to_seq)
            Reading.objects.create(**_key(session, by), entry_pk=entry.pk, ranges=page)
            return
        ranges = _with(reading, page)
        if ranges != reading.ranges:
            Reading.objects.filter(pk=reading.pk).update(ranges=ranges)


def _readings(session: Session, by: Actor) -> QuerySet[Any, Any]:
    """Select the reading of an operator, with `is_recent`."""
    is_recent = Exists(_recent().filter(pk=OuterRef("entry_pk")))
    return Reading.objects.filter(**_key(session, by)).annotate(is_recent=is_recent)


def _with(reading: Reading, page: list[list[int]]) -> list[list[int]]:
    return merged([*reading.ranges, *page])


def _key(session: Session, by: Actor) -> dict[str, int | str]:
    actor_id = by.id[:MAX_ACTOR_CHARS]
    return {"session_pk": session.pk, "actor_kind": by.kind, "actor_id": actor_id}


def _recent() -> QuerySet[AuditEntry, int]:
    """Return the primary keys of the entries of the last hour."""
    entries = AuditEntry.objects.filter(
        action=AuditAction.READ, created_at__gt=DatabaseNow() - DEDUPLICATED_FOR
    )
    return entries.values_list("pk", flat=True)


def _close_one(pk: int) -> int:
    with locked_transaction():
        reading = Reading.objects.select_for_update().filter(pk=pk).first()
        if reading is not None:
            _close(reading)
    return int(reading is not None)


def _close(reading: Reading) -> None:
    """Record what was read after the first page, and delete the reading. Needs a transaction."""
    first = AuditEntry.objects.filter(pk=reading.entry_pk).first()
    ranges = reading.ranges
    if ranges and not (first and ranges == [[first.from_seq, first.to_seq]]):
        by = Actor(reading.actor_kind, reading.actor_id, reading.actor_id)
        record_ranges(
            reading.session_pk,
            first.key_hash if first else "",
            actor_of(first) if first else by,
            ranges,
            first_entry=reading.entry_pk,
        )
    reading.delete()
