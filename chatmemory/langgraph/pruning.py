"""Delete checkpoints that are not needed any more, with what only they refer to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from chatmemory.access.actors import Actor
from chatmemory.database.batches import check_size
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.langgraph.actions import ThreadAction
from chatmemory.langgraph.models import CHUNK, Blob, Checkpoint, Write
from chatmemory.langgraph.threads import (
    Owner,
    is_held,
    lock_session,
    lock_unfenced,
    note,
)

__all__ = ["KeepLast", "delete_runs", "is_held", "prune_threads"]

# Note [Delta channels]
#
# A DeltaChannel stores only what was added. Its value is the last snapshot, and the writes of all
# checkpoints since. A checkpoint counts them in its metadata. So a kept checkpoint keeps its
# ancestors up to the snapshots of all channels that it counts, or up to the first checkpoint.

COUNTERS = "counters_since_delta_snapshot"

Loads = Callable[[tuple[str, bytes]], Any]
"""Returns the value of a type and data."""


@dataclass(frozen=True, slots=True)
class KeepLast:
    """Keeps the newest checkpoints of a namespace, and deletes the others."""

    loads: Loads
    count: int = 1

    def __post_init__(self) -> None:
        check_size("keep_last", self.count)

    def __call__(self, thread_pk: int, ns_hash: str) -> int:
        """Delete older checkpoints, and return their number. Needs the lock of the thread."""
        of_ns = Checkpoint.objects.filter(thread=thread_pk, ns_hash=ns_hash)
        pks = list(of_ns.order_by("-pk").values_list("pk", flat=True)[: self.count + 1])
        if len(pks) <= self.count:
            return 0
        newest = pks[: self.count]
        kept = {*newest, *self._needed(of_ns, newest)}
        return _keep_only(thread_pk, ns_hash, kept, self.loads)

    def _needed(self, of_ns: Any, newest: Collection[int]) -> Iterable[int]:
        """Yield the ancestors from which delta channels are read. See Note [Delta channels]."""
        for row in of_ns.filter(pk__in=newest):
            counters = self.loads((row.metadata_type, bytes(row.metadata))).get(COUNTERS, {})
            missing = {name for name, counts in counters.items() if tuple(counts) != (0, 0)}
            parent = row.parent_id
            while missing and parent is not None:
                ancestor = of_ns.filter(checkpoint_id=parent).first()
                if ancestor is None:
                    break
                yield ancestor.pk
                missing -= _with_value(ancestor, missing, self.loads)
                parent = ancestor.parent_id


def _with_value(row: Checkpoint, channels: Collection[str], loads: Loads) -> set[str]:
    """Return those of the channels of which a checkpoint has a value."""
    versions = _versions_of(row, loads)
    found = Blob.objects.filter(
        thread=row.thread_id,
        ns_hash=row.ns_hash,
        channel__in=channels,
        version__in=[versions[name] for name in channels if name in versions],
    ).exclude(type=Blob.EMPTY)
    pairs = found.values_list("channel", "version")
    return {channel for channel, version in pairs if versions[channel] == version}


def _versions_of(row: Checkpoint, loads: Loads) -> dict[str, str]:
    checkpoint = loads((row.type, bytes(row.data)))
    return {name: str(version) for name, version in checkpoint["channel_versions"].items()}


def _keep_only(thread_pk: int, ns_hash: str, kept: Collection[int], loads: Loads) -> int:
    """Delete all other checkpoints of a namespace, with their writes and values.

    Writes of checkpoints that are not stored yet stay: a run stores both at the same time.
    """
    of_ns = {"thread": thread_pk, "ns_hash": ns_hash}
    checkpoints = list(Checkpoint.objects.filter(**of_ns, pk__in=kept).order_by("pk"))
    ids = dict(Checkpoint.objects.filter(**of_ns).values_list("pk", "checkpoint_id"))
    deleted = [pk for pk in ids if pk not in kept]
    # By the bytes of the ids, as LangGraph orders those of one run.
    newest_id = checkpoints[-1].checkpoint_id if checkpoints else ""
    writes = Write.objects.filter(
        Q(checkpoint_id__in=[ids[pk] for pk in deleted]) | Q(checkpoint_id__lt=newest_id),
        **of_ns,
    ).exclude(checkpoint_id__in=[row.checkpoint_id for row in checkpoints])
    blobs = Blob.objects.filter(**of_ns).values_list("pk", "channel", "version")
    used = {pair for row in checkpoints for pair in _versions_of(row, loads).items()}
    _delete(Write, list(writes.values_list("pk", flat=True)))
    _delete(Blob, [pk for pk, channel, version in blobs if (channel, version) not in used])
    _delete(Checkpoint, deleted)
    return len(deleted)


def _delete(model: Any, pks: Sequence[int]) -> None:
    for start in range(0, len(pks), CHUNK):
        model.objects.filter(pk__in=pks[start : start + CHUNK]).delete()


@retried(is_repeatable=True)
def prune_threads(
    owner: Owner, thread_ids: Sequence[str], keep: KeepLast, by: Actor, reason: str
) -> None:
    """Keep the newest checkpoints of each namespace of threads, and record how many were deleted.

    Threads of a session on hold stay as they are.
    """
    keys = [owner.key_of(thread_id) for thread_id in thread_ids]
    with locked_transaction():
        session = lock_session(owner)
        if session is not None and session.held_at is not None:
            return
        counts: Counter[str] = Counter()
        for thread_pk in owner.threads().filter(key__in=keys).values_list("pk", flat=True):
            if lock_unfenced(thread_pk):
                counts["threads"] += 1
                counts["checkpoints"] += _prune(thread_pk, keep)
        if counts["checkpoints"]:
            note(owner, session, ThreadAction.PRUNE, by, reason, **counts)


def _prune(thread_pk: int, keep: KeepLast) -> int:
    rows = Checkpoint.objects.filter(thread=thread_pk).order_by()
    namespaces = list(rows.values_list("ns_hash", flat=True).distinct())
    return sum(keep(thread_pk, ns_hash) for ns_hash in namespaces)


@retried(is_repeatable=True)
def delete_runs(owner: Owner, run_ids: Sequence[str], loads: Loads, by: Actor, reason: str) -> None:
    """Delete the checkpoints of runs, with their writes, and record how many there were.

    Threads of a session on hold stay as they are.
    """
    with locked_transaction():
        session = lock_session(owner)
        if session is not None and session.held_at is not None:
            return
        of_runs = Checkpoint.objects.filter(run_id__in=run_ids, thread__in=owner.threads())
        counts: Counter[str] = Counter()
        places: QuerySet[Any, Any] = of_runs.order_by("thread", "ns_hash")
        for thread_pk, ns_hash in list(places.values_list("thread", "ns_hash").distinct()):
            if lock_unfenced(thread_pk):
                of_ns = Checkpoint.objects.filter(thread=thread_pk, ns_hash=ns_hash)
                kept = of_ns.exclude(run_id__in=run_ids).values_list("pk", flat=True)
                counts["checkpoints"] += _keep_only(thread_pk, ns_hash, {*kept}, loads)
        if counts["checkpoints"]:
            note(owner, session, ThreadAction.PRUNE, by, reason, **counts)
