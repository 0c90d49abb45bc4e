"""Read checkpoints with the values of their channels and their writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    writes_sort_key,
)

from chatmemory.codec import check_value
from chatmemory.database.retries import retried
from chatmemory.langgraph.models import Blob, Checkpoint, Write, hash_of
from chatmemory.langgraph.pruning import Loads
from chatmemory.langgraph.threads import Owner

PAGE = 50
"""Checkpoints that one read returns."""

MAX_ATTEMPTS = 5
"""Reads of a checkpoint while others delete the ones that were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which checkpoints are listed, the newest first. None selects all."""

    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    """An id; the checkpoints that are older are listed."""

    def __post_init__(self) -> None:
        """Raise BadInput for what no text of the database can be equal to."""
        for name in ("namespace", "checkpoint_id", "before"):
            check_value(getattr(self, name) or "", name)

    def rows(self, owner: Owner) -> QuerySet[Checkpoint]:
        """Select the checkpoints."""
        threads = owner.threads()
        if self.thread_id is not None:
            threads = threads.filter(key=owner.key_of(self.thread_id))
        pks = list(threads.values_list("pk", flat=True))
        found = Checkpoint.objects.filter(thread__in=pks)
        if self.namespace is not None:
            found = found.filter(ns_hash=hash_of(self.namespace))
        if self.before is not None:
            found = found.filter(self._older(found))
        if self.checkpoint_id is not None:
            found = found.filter(checkpoint_id=self.checkpoint_id)
        return found.order_by("-pk")

    def _older(self, found: QuerySet[Checkpoint]) -> Q:
        pk = found.filter(checkpoint_id=self.before).values_list("pk", flat=True).first()
        # LangGraph names one of another namespace too: those can only be compared by their ids.
        return Q(checkpoint_id__lt=self.before) if pk is None else Q(pk__lt=pk)


@retried(is_repeatable=True)
def read_page(
    owner: Owner,
    search: Search,
    loads: Loads,
    matches: Callable[[Mapping[str, Any]], bool],
    *,
    below: int | None,
    limit: int,
) -> tuple[list[CheckpointTuple], int | None]:
    """Return up to `limit` checkpoints, and the primary key from which the next page continues.

    It is None after the last page. `matches` gets the metadata; what does not match is left out,
    so a page can be empty.
    """
    rows = search.rows(owner)
    rows = rows if below is None else rows.filter(pk__lt=below)
    page = list(rows.select_related("thread")[:PAGE])
    found = [row for row in page if matches(_metadata_of(row, loads))][:limit]
    next_below = page[-1].pk if len(page) == PAGE else None
    return list(_load(found, loads)), next_below


@retried(is_repeatable=True)
def read_one(owner: Owner, search: Search, loads: Loads) -> CheckpointTuple | None:
    """Return the newest checkpoint of a search, or None."""
    for _ in range(MAX_ATTEMPTS):
        row = search.rows(owner).select_related("thread").first()
        if row is None:
            return None
        for checkpoint in _load([row], loads):
            return checkpoint
    return None


def _load(rows: Sequence[Checkpoint], loads: Loads) -> Iterator[CheckpointTuple]:
    """Yield checkpoints with their values and writes, without those that were deleted meanwhile."""
    checkpoints = {row.pk: loads((row.type, bytes(row.data))) for row in rows}
    wanted = {
        (row.thread_id, row.ns_hash, name, str(version))
        for row in rows
        for name, version in checkpoints[row.pk]["channel_versions"].items()
    }
    blobs = _blobs(wanted)
    writes = _writes(rows, loads)
    if len(blobs) < len(wanted):
        # A version without a value was never stored, or was pruned after its checkpoint was read.
        stored = Checkpoint.objects.filter(pk__in=[row.pk for row in rows])
        still_stored = set(stored.values_list("pk", flat=True))
        rows = [row for row in rows if row.pk in still_stored]
    for row in rows:
        place = (row.thread_id, row.ns_hash)
        versions = checkpoints[row.pk]["channel_versions"]
        stored_blobs = ((name, blobs.get((*place, name, str(v)))) for name, v in versions.items())
        values = {
            name: loads((blob.type, bytes(blob.data)))
            for name, blob in stored_blobs
            if blob is not None and blob.type != Blob.EMPTY
        }
        checkpoint: Any = {**checkpoints[row.pk], "channel_values": values}
        yield CheckpointTuple(
            config=config_of(row, row.checkpoint_id),
            checkpoint=checkpoint,
            metadata=_metadata_of(row, loads),
            parent_config=None if row.parent_id is None else config_of(row, row.parent_id),
            pending_writes=[
                (write.task_id, write.channel, loads((write.type, bytes(write.data))))
                for write in writes[*place, row.checkpoint_id]
            ],
        )


def config_of(row: Checkpoint, checkpoint_id: str) -> RunnableConfig:
    """Return the config that names a checkpoint of the thread and namespace of a row."""
    return {
        "configurable": {
            "thread_id": row.thread.thread_id,
            "checkpoint_ns": row.ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def _metadata_of(row: Checkpoint, loads: Loads) -> Any:
    return loads((row.metadata_type, bytes(row.metadata)))


def _blobs(wanted: Collection[tuple[int, str, str, str]]) -> dict[tuple[int, str, str, str], Blob]:
    if not wanted:
        return {}
    threads, hashes, channels, versions = map(set, zip(*wanted, strict=True))
    found = Blob.objects.filter(
        thread__in=threads, ns_hash__in=hashes, channel__in=channels, version__in=versions
    )
    pairs = ((blob.thread_id, blob.ns_hash, blob.channel, blob.version) for blob in found)
    return {key: blob for key, blob in zip(pairs, found, strict=True) if key in wanted}


def _writes(rows: Sequence[Checkpoint], loads: Loads) -> dict[tuple[int, str, str], list[Write]]:
    found = Write.objects.filter(
        thread__in={row.thread_id for row in rows},
        ns_hash__in={row.ns_hash for row in rows},
        checkpoint_id__in={row.checkpoint_id for row in rows},
    )
    writes: dict[tuple[int, str, str], list[Write]] = defaultdict(list)
    for write in sorted(found, key=_write_order):
        writes[write.thread_id, write.ns_hash, write.checkpoint_id].append(write)
    return writes


def _write_order(write: Write) -> tuple[str, str, int]:
    return writes_sort_key(write.task_path, write.task_id, write.idx)


@retried(is_repeatable=True)
def read_delta_history(
    owner: Owner, search: Search, channels: Sequence[str], loads: Loads
) -> dict[str, DeltaChannelHistory]:
    """Return the writes of the ancestors of a checkpoint, up to the value of each channel.

    The contract of `BaseCheckpointSaver.get_delta_channel_history`.
    """
    writes: dict[str, list[PendingWrite]] = {name: [] for name in channels}
    seeds: dict[str, Any] = {}
    for row in _ancestors(search.rows(owner)):
        missing = [name for name in channels if name not in seeds]
        if not missing:
            break
        of_row = Write.objects.filter(
            thread=row.thread_id,
            ns_hash=row.ns_hash,
            checkpoint_id=row.checkpoint_id,
            channel__in=missing,
        )
        for write in sorted(of_row, key=_write_order, reverse=True):
            value = loads((write.type, bytes(write.data)))
            writes[write.channel].append((write.task_id, write.channel, value))
        seeds.update(_values(row, missing, loads))
    history = {name: DeltaChannelHistory(writes=writes[name][::-1]) for name in channels}
    for name, seed in seeds.items():
        history[name]["seed"] = seed
    return history


def _ancestors(found: QuerySet[Checkpoint]) -> Iterator[Checkpoint]:
    """Yield the parent of the newest of these checkpoints, its parent, and so on."""
    row = found.first()
    while row is not None and row.parent_id is not None:
        row = Checkpoint.objects.filter(
            thread=row.thread_id, ns_hash=row.ns_hash, checkpoint_id=row.parent_id
        ).first()
        if row is not None:
            yield row


def _values(row: Checkpoint, channels: Collection[str], loads: Loads) -> dict[str, Any]:
    """Return the stored values of channels at a checkpoint."""
    versions = loads((row.type, bytes(row.data)))["channel_versions"]
    blobs = _blobs(
        {
            (row.thread_id, row.ns_hash, name, str(versions[name]))
            for name in channels
            if name in versions
        }
    )
    return {
        channel: loads((blob.type, bytes(blob.data)))
        for (_, _, channel, _), blob in blobs.items()
        if blob.type != Blob.EMPTY
    }
