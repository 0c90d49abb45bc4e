"""Store checkpoints and writes under the fence of their run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import Conflict, HistoryCleared
from chatmemory.langgraph import pruning
from chatmemory.langgraph.models import Blob, Checkpoint, Write
from chatmemory.langgraph.threads import GONE, OVERTAKEN, Fence, Owner, lock

# Note [Newest checkpoint]
#
# The newest checkpoint of a namespace is the one that was stored last, by its primary key, which it
# gets under the lock of the thread. LangGraph's ids begin with the time of the process. By them, a
# run on a host whose clock is slow would store a checkpoint below the one that it continues, which
# no later run would find.


@retried(is_repeatable=True)
def put_checkpoint(
    owner: Owner,
    thread_pk: int,
    fence: Fence,
    row: Checkpoint,
    blobs: Sequence[Blob],
    *,
    overlap: str,
    keep_last: pruning.KeepLast | None,
) -> None:
    """Store a checkpoint with the new values of its channels.

    Raises Conflict if the run does not continue the newest checkpoint, HistoryCleared.
    """
    with locked_transaction():
        lock(owner, thread_pk, fence)
        row.thread_id = thread_pk
        is_fork = fence["fork"] or overlap == "allow"
        if not _is_repeated(row, is_fork):
            row.save(force_insert=True)
        _insert_blobs(thread_pk, row.ns_hash, blobs)
        if keep_last is not None and not pruning.is_held(owner):
            keep_last(thread_pk, row.ns_hash)


def _is_repeated(row: Checkpoint, is_fork: bool) -> bool:
    """Check that a checkpoint continues another one; return whether it is stored already.

    Then its columns are updated.
    """
    stored = Checkpoint.objects.filter(thread=row.thread_id, ns_hash=row.ns_hash)
    ids = stored.order_by("-pk").values_list("checkpoint_id", flat=True)
    newest = ids.first()
    if row.checkpoint_id == newest or (is_fork and _is_stored(stored, row.checkpoint_id)):
        columns = ("parent_id", "type", "data", "metadata_type", "metadata", "run_id")
        changed = {name: getattr(row, name) for name in columns}
        stored.filter(checkpoint_id=row.checkpoint_id).update(**changed)
        return True
    if newest == row.parent_id:
        return False
    if newest is None:
        raise HistoryCleared(GONE)
    # A fork may start anywhere. But a pruned checkpoint had values that the fork refers to.
    if not is_fork or (row.parent_id is not None and not _is_stored(stored, row.parent_id)):
        raise Conflict(OVERTAKEN)
    return False


def _is_stored(rows: Any, checkpoint_id: str) -> bool:
    return bool(rows.filter(checkpoint_id=checkpoint_id).exists())


def _insert_blobs(thread_pk: int, ns_hash: str, blobs: Collection[Blob]) -> None:
    """Insert what is not stored yet: a version of a channel never changes."""
    if not blobs:
        return
    stored = Blob.objects.filter(
        thread=thread_pk,
        ns_hash=ns_hash,
        channel__in={blob.channel for blob in blobs},
        version__in={blob.version for blob in blobs},
    )
    known = set(stored.values_list("channel", "version"))
    new = [blob for blob in blobs if (blob.channel, blob.version) not in known]
    for blob in new:
        blob.thread_id = thread_pk
    Blob.objects.bulk_create(new)


@retried(is_repeatable=True)
def put_writes(owner: Owner, thread_pk: int, fence: Fence, rows: Sequence[Write]) -> None:
    """Store what a task wrote after a checkpoint, which may be stored later than this.

    A repeated write is ignored, unless its `idx` is negative: then it replaces the earlier one.
    Raises HistoryCleared.
    """
    with locked_transaction():
        lock(owner, thread_pk, fence)
        if not rows:
            return
        first = rows[0]
        stored = Write.objects.filter(
            thread=thread_pk,
            ns_hash=first.ns_hash,
            checkpoint_id=first.checkpoint_id,
            task_id=first.task_id,
        )
        known = set(stored.values_list("idx", flat=True))
        replaced = [row.idx for row in rows if row.idx < 0 and row.idx in known]
        if replaced:
            stored.filter(idx__in=replaced).delete()
        by_idx = {row.idx: row for row in rows if row.idx < 0 or row.idx not in known}
        for row in by_idx.values():
            row.pk, row.thread_id = None, thread_pk
        Write.objects.bulk_create(by_idx.values())
