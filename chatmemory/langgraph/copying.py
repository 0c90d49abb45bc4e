"""Copy a thread with all its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import Conflict
from chatmemory.langgraph.models import Blob, Checkpoint, Write
from chatmemory.langgraph.threads import (
    Owner,
    begin,
    check_erasure,
    create_missing,
    lock_session,
    lock_unfenced,
)

BATCH = 100
"""Rows that one statement inserts; a value may be large."""


@retried(is_repeatable=False)
def copy_thread(owner: Owner, source_id: str, target_id: str) -> None:
    """Copy a thread in one transaction; nothing if it does not exist.

    Raises Conflict if the target exists, HistoryCleared if the person is erased meanwhile.
    """
    with locked_transaction():
        lock_session(owner)  # before any thread
        source = owner.threads().filter(key=owner.key_of(source_id)).first()
        if source is None or not lock_unfenced(source.pk):
            return
        fence = begin(owner, target_id, fork=False)
        if fence["thread"] is not None:
            raise Conflict(f"The thread {target_id!r} exists.")
        target_pk = create_missing(replace(owner, seq=source.high), target_id, fence)
        for model in (Blob, Write, Checkpoint):
            _copy_rows(model, source.pk, target_pk)
    check_erasure(owner, target_pk, fence)


def _copy_rows(model: Any, source_pk: int, target_pk: int) -> None:
    of_source = model.objects.filter(thread=source_pk).order_by("pk")
    pks = list(of_source.values_list("pk", flat=True))
    for start in range(0, len(pks), BATCH):
        rows = list(of_source.filter(pk__in=pks[start : start + BATCH]))
        for row in rows:
            row.pk, row.thread_id = None, target_pk
        model.objects.bulk_create(rows)
