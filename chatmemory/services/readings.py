"""Which messages an operator read: an audit entry at the first page, and one when the hour ends."""

from __future__ import annotations

from functools import partial

from django.db import IntegrityError
from django.db.models import Exists, OuterRef, QuerySet

from chatmemory.models import AuditEntry, DatabaseNow, Reading, Session
from chatmemory.services.actors import Actor
from chatmemory.services.audit import (
    COUNTS_FOR,
    MAX_ACTOR_CHARS,
    actor_of,
    record,
    record_ranges,
)
from chatmemory.services.faults import Fault, durably, fault_of
from chatmemory.services.locks import unit
from chatmemory.services.pool import in_pool


def record_reading(
    *, session: Session, by: Actor, from_seq: int | None = None, to_seq: int | None = None
) -> None:
    """Record that an operator reads a session, or these messages of it.

    The first page gets an entry immediately. Later pages within the hour are collected, and one
    more entry states all ranges once the hour has passed. Raises MemoryUnavailable.
    """
    page = [] if from_seq is None or to_seq is None else [[from_seq, to_seq]]

    def work() -> None:
        try:
            _add(session, by, page)
        except IntegrityError as error:
            if fault_of(error) is not Fault.DUPLICATE:
                raise
            _add(session, by, page)  # another page of the same operator came first

    durably(work, is_repeatable=False)


def close_readings() -> int:
    """Record the ranges of all readings whose hour has passed; return their number.

    Raises MemoryUnavailable.
    """
    over = Reading.objects.exclude(entry_pk__in=_recent()).order_by("pk")
    pks = durably(lambda: list(over.values_list("pk", flat=True)), is_repeatable=True)
    return sum(durably(partial(_close_one, pk), is_repeatable=True) for pk in pks)


def merged(ranges: list[list[int]]) -> list[list[int]]:
    """The same numbers as ascending ranges that neither overlap nor touch."""
    found: list[list[int]] = []
    for first, last in sorted(map(tuple, ranges)):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return found


def _add(session: Session, by: Actor, page: list[list[int]]) -> None:
    with unit():
        is_recent = Exists(_recent().filter(pk=OuterRef("entry_pk")))
        found = Reading.objects.select_for_update().filter(**_of(session, by))
        reading = found.annotate(is_recent=is_recent).first()
        if reading is not None and not reading.is_recent:
            _close(reading)
            reading = None
        if reading is None:
            from_seq, to_seq = page[0] if page else (None, None)
            entry = record(session, "read", by, "", from_seq=from_seq, to_seq=to_seq)
            Reading.objects.create(**_of(session, by), entry_pk=entry.pk, ranges=page)
            return
        ranges = merged([*reading.ranges, *page])
        if ranges != reading.ranges:
            Reading.objects.filter(pk=reading.pk).update(ranges=ranges)


def _of(session: Session, by: Actor) -> dict[str, int | str]:
    actor_id = by.id[:MAX_ACTOR_CHARS]
    return {"session_pk": session.pk, "actor_kind": by.kind, "actor_id": actor_id}


def _recent() -> QuerySet[AuditEntry, int]:
    """The entries of this hour."""
    entries = AuditEntry.objects.filter(action="read", created_at__gt=DatabaseNow() - COUNTS_FOR)
    return entries.values_list("pk", flat=True)


def _close_one(pk: int) -> int:
    with unit():
        reading = Reading.objects.select_for_update().filter(pk=pk).first()
        if reading is not None:
            _close(reading)
    return int(reading is not None)


def _close(reading: Reading) -> None:
    """Record what was read after the first page. Needs a transaction."""
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


arecord_reading = in_pool(record_reading)
aclose_readings = in_pool(close_readings)
