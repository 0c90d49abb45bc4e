"""Copy a thread with all its rows."""

from __future__ import annotations

from typing import Any

from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import Conflict
from chatmemory.langgraph.models import Blob, Checkpoint, Thread, Write
from chatmemory.langgraph.threads import (
    Owner,
    begin,
    create_missing,
    lock,
    lock_session,
    lock_unfenced,
)
from chatmemory.models.derived import all_rows

RANGE = ("low", "high", "known_seq", "known_withdrawal")

BATCH = 100
"""Rows that one statement inserts; a value may be large."""


@retried(is_repeatable=False)
def copy_thread(owner: Owner, source_id: str, target_id: str) -> None:
    """Copy a thread in one transaction; nothing if it does not exist.

    Raises Conflict if the target exists, HistoryCleared if the threads are erased meanwhile.
    """
    source = owner.threads().filter(key=owner.key_of(source_id)).first()
    if source is None:
        return
    fence = begin(owner, target_id, fork=False)
    # Committed before the rows: an erasure that waits for the source finds the target too.
    target_pk = create_missing(owner, target_id, fence)
    with locked_transaction():
        lock_session(owner)  # before any thread
        if not lock_unfenced(source.pk):
            return
        lock(owner, target_pk, fence)
        if Checkpoint.objects.filter(thread=target_pk).exists():
            raise Conflict(f"The thread {target_id!r} exists.")
        # The copy is made from the messages of the source.
        columns = all_rows(Thread).filter(pk=source.pk).values(*RANGE)
        all_rows(Thread).filter(pk=target_pk).update(**columns.get())
        for model in (Blob, Write, Checkpoint):
            _copy_rows(model, source.pk, target_pk)


def _copy_rows(model: Any, source_pk: int, target_pk: int) -> None:
    of_source = model.objects.filter(thread=source_pk).order_by("pk")
    pks = list(of_source.values_list("pk", flat=True))
    for start in range(0, len(pks), BATCH):
        rows = list(of_source.filter(pk__in=pks[start : start + BATCH]))
        for row in rows:
            row.pk, row.thread_id = None, target_pk
        model.objects.bulk_create(rows)
