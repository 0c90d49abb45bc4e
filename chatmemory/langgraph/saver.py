"""The checkpoint saver for LangGraph. Importing this module imports LangGraph."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.base import Checkpoint as LangGraphCheckpoint
from langgraph.checkpoint.serde.base import SerializerProtocol

from chatmemory.access.actors import Actor, check_person
from chatmemory.database.faults import write_connection
from chatmemory.database.pool import Lane, in_pool, is_pool_thread, release_connections
from chatmemory.database.retries import has_async_version
from chatmemory.errors import HistoryCleared
from chatmemory.langgraph import copying, pruning, reading, storing, threads
from chatmemory.langgraph.exporting import line_of
from chatmemory.langgraph.models import Blob, Checkpoint, Write, hash_of
from chatmemory.langgraph.reading import Search
from chatmemory.langgraph.threads import FENCE, RUN_FENCE, RUNTIME, Fence, Owner
from chatmemory.models import Session

SCOPE = "scope"
"""The key of the scope in the `configurable` of a config."""

OWN_KEYS = frozenset({SCOPE, FENCE, RUN_FENCE})
"""What the metadata of a checkpoint does not contain; an adoption could not move a scope there."""


@contextmanager
def _closing_new_connection() -> Iterator[None]:
    """Close the connections of this thread if it had none before.

    LangGraph calls `put` on threads that exist for one run. Nothing else would close their
    connections.
    """
    is_new = not is_pool_thread() and write_connection().connection is None
    try:
        yield
    finally:
        if is_new and write_connection().connection is not None:
            release_connections()


def _lane_of_config(self: DjangoSaver, config: RunnableConfig, *_: Any, **__: Any) -> Lane:
    # Not checked: a lane only orders calls, and the call itself rejects what is wrong.
    configurable = config["configurable"]
    return (self.session_pk, self.scope, configurable.get(SCOPE), configurable.get("thread_id"))


class DjangoSaver(BaseCheckpointSaver[str]):
    """Stores the checkpoints of graphs in the database of the sessions.

    Its threads belong to a person, by `scope`, or to a session, by `session`, and to a message of
    it if `seq` is given; other threads do not exist for it. Without both, `configurable` must have
    a `scope` in each call. With `overlap="reject"`, a run that does not continue the newest
    checkpoint raises Conflict. `keep_last` is the number of checkpoints that remain in each
    namespace after each step; None keeps all. `by` and `reason` are for the audit.
    """

    def __init__(
        self,
        *,
        scope: str | None = None,
        session: Session | None = None,
        seq: int | None = None,
        overlap: Literal["reject", "allow"] = "reject",
        keep_last: int | None = None,
        by: Actor | None = None,
        reason: str = "",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        if overlap not in ("reject", "allow"):
            raise ValueError(f'overlap must be "reject" or "allow", not {overlap!r}')
        if session is None and seq is not None:
            raise TypeError("seq needs a session")
        if session is not None and scope not in (None, session.scope):
            raise TypeError("session has another scope; omit the scope")
        if scope is not None:
            check_person(scope)
        self.scope = scope
        self.session_pk = None if session is None else session.pk
        self.seq = seq
        self.overlap = overlap
        self.keep_last = keep_last
        self.by = by or Actor.server("langgraph")
        self.reason = reason
        self._keep(1 if keep_last is None else keep_last)  # checks the number

    @_closing_new_connection()
    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the newest one, and take the fence of the run."""
        owner, configurable = self._owner(config), config["configurable"]
        thread_id, checkpoint_id = _thread_id(config), get_checkpoint_id(config)
        fence = threads.fence_of({RUN_FENCE: configurable.get(RUN_FENCE)}, owner.key_of(thread_id))
        if fence is None:
            fence = threads.begin(owner, thread_id, fork=bool(checkpoint_id))
        if RUNTIME in configurable:
            configurable[RUN_FENCE] = fence
        search = Search(
            thread_id=thread_id,
            namespace=_namespace(config),
            checkpoint_id=checkpoint_id or None,
        )
        found = reading.read_one(owner, search, self.serde.loads_typed)
        return None if found is None else found._replace(config=_fenced(found.config, fence))

    @has_async_version("alist")
    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  # as in LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the newest first. No transaction is open between two of them."""
        pages = _Pages(self, config, filter, before, limit)
        while pages.is_more:
            yield from pages.take(pages.read())

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  # as in LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        pages = _Pages(self, config, filter, before, limit)
        while pages.is_more:
            for found in pages.take(await pages.aread()):
                yield found

    def export(self) -> Iterator[str]:
        """Yield each checkpoint of the threads as a line of JSON, the newest first.

        For somebody who asks for their data; the exports of conversations contain no threads. The
        audit has an entry, with `by` and `reason` of the saver.
        """
        owner = self._owner(None)
        threads.note_export(owner, self.by, self.reason)
        yield from map(line_of, self.list(None))

    @_closing_new_connection()
    def put(
        self,
        config: RunnableConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return the config that names it.

        Raises Conflict, HistoryCleared.
        """
        owner, parent_id = self._owner(config), get_checkpoint_id(config) or None
        fence, thread_pk = self._fence(owner, config, may_create=parent_id is None)
        namespace = _namespace(config)
        ns_hash = hash_of(namespace)
        without_values = {**checkpoint}
        values: Any = without_values.pop("channel_values", {})
        type_, data = self.serde.dumps_typed(without_values)
        stored_metadata = self._metadata(config, metadata)
        metadata_type, metadata_data = self.serde.dumps_typed(stored_metadata)
        run_id = stored_metadata.get("run_id")
        row = Checkpoint(
            ns=namespace,
            ns_hash=ns_hash,
            checkpoint_id=checkpoint["id"],
            parent_id=parent_id,
            type=type_,
            data=data,
            metadata_type=metadata_type,
            metadata=metadata_data,
            run_id=None if run_id is None else str(run_id),
        )
        blobs = [
            self._blob(ns_hash, name, str(version), values)
            for name, version in new_versions.items()
        ]
        keep = None if self.keep_last is None else self._keep(self.keep_last)
        storing.put_checkpoint(
            owner, thread_pk, fence, row, blobs, overlap=self.overlap, keep_last=keep
        )
        configurable = {
            "thread_id": _thread_id(config),
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint["id"],
        }
        return _fenced({"configurable": configurable}, fence)

    @_closing_new_connection()
    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote after a checkpoint. Raises Conflict, HistoryCleared."""
        owner = self._owner(config)
        fence, thread_pk = self._fence(owner, config, may_create=False)
        ns_hash = hash_of(_namespace(config))
        rows = []
        for number, (channel, value) in enumerate(writes):
            type_, data = self.serde.dumps_typed(value)
            row = Write(
                ns_hash=ns_hash,
                checkpoint_id=config["configurable"]["checkpoint_id"],
                task_id=task_id,
                idx=WRITES_IDX_MAP.get(channel, number),
                channel=channel,
                type=type_,
                data=data,
                task_path=task_path,
            )
            rows.append(row)
        storing.put_writes(owner, thread_pk, fence, rows)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread. A run that has begun can store nothing in it any more. Raises Held."""
        threads.delete_thread(self._owner(None), thread_id, self.by, self.reason)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, by the `run_id` of their metadata."""
        owner = self._owner(None)
        pruning.delete_runs(owner, run_ids, self.serde.loads_typed, self.by, self.reason)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread. Raises Conflict if the target exists."""
        copying.copy_thread(self._owner(None), source_thread_id, target_thread_id)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int = 1,
    ) -> None:
        """Keep the newest checkpoints of each namespace; with `strategy="delete"` none.

        Threads of a session on hold stay. Raises ValueError for another strategy.
        """
        owner = self._owner(None)
        if strategy == "keep_latest":
            keep = self._keep(keep_last)
            pruning.prune_threads(owner, thread_ids, keep, self.by, self.reason)
        elif strategy == "delete":
            if not pruning.is_held(owner):
                for thread_id in thread_ids:
                    threads.delete_thread(owner, thread_id, self.by, self.reason)
        else:
            raise ValueError(f'strategy must be "keep_latest" or "delete", not {strategy!r}')

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes from which the values of delta channels are made."""
        search = Search(
            thread_id=_thread_id(config),
            namespace=_namespace(config),
            checkpoint_id=get_checkpoint_id(config) or None,
        )
        return reading.read_delta_history(
            self._owner(config), search, channels, self.serde.loads_typed
        )

    def get_next_version(self, current: str | None, channel: None) -> str:
        # Random at its end: two runs that continue one checkpoint must not give one version to two
        # values.
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311  # no secret

    def _owner(self, config: RunnableConfig | None) -> Owner:
        """Return whose threads a call reaches. Raises TypeError if it names another scope."""
        if self.session_pk is not None:
            return Owner(session_pk=self.session_pk, seq=self.seq)
        given = None if config is None else config["configurable"].get(SCOPE)
        if self.scope is not None and given not in (None, self.scope):
            raise TypeError("the saver reaches only its own scope; omit it in configurable")
        scope = self.scope or given
        if not isinstance(scope, str):
            raise TypeError("DjangoSaver needs a scope or a session")
        check_person(scope)
        return Owner(scope=scope)

    def _fence(
        self, owner: Owner, config: RunnableConfig, *, may_create: bool
    ) -> tuple[Fence, int]:
        """Return the fence of a call, and the thread, which the first write of a run creates."""
        thread_id = _thread_id(config)
        fence = threads.fence_of(config["configurable"], owner.key_of(thread_id))
        if fence is None:  # not a run: a call of the saver itself
            fence = threads.begin(owner, thread_id, fork=False)
            if fence["thread"] is None and not may_create:
                raise HistoryCleared(threads.GONE)
        return fence, threads.create_missing(owner, thread_id, fence)

    def _keep(self, count: int) -> pruning.KeepLast:
        return pruning.KeepLast(self.serde.loads_typed, count)

    def _metadata(self, config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
        """Return the metadata as LangGraph's savers store it, without our own keys."""
        given = {
            name: {key: value for key, value in found.items() if key not in OWN_KEYS}
            for name in ("metadata", "configurable")
            if isinstance(found := config.get(name), Mapping)
        }
        return {**get_checkpoint_metadata(given, metadata)}  # type: ignore[arg-type]  # a part of it

    def _blob(self, ns_hash: str, channel: str, version: str, values: Mapping[str, Any]) -> Blob:
        type_, data = (Blob.EMPTY, b"")
        if channel in values:
            type_, data = self.serde.dumps_typed(values[channel])
        return Blob(ns_hash=ns_hash, channel=channel, version=version, type=type_, data=data)

    # The base class declares them with itself as `self`.
    aget_tuple = in_pool(get_tuple, lane=_lane_of_config)  # type: ignore[arg-type]
    aput = in_pool(put, lane=_lane_of_config)  # type: ignore[arg-type]
    aput_writes = in_pool(put_writes, lane=_lane_of_config)  # type: ignore[arg-type]
    adelete_thread = in_pool(delete_thread)  # type: ignore[arg-type]
    adelete_for_runs = in_pool(delete_for_runs)  # type: ignore[arg-type]
    acopy_thread = in_pool(copy_thread)  # type: ignore[arg-type]
    aprune = in_pool(prune)  # type: ignore[arg-type]
    aget_delta_channel_history = in_pool(get_delta_channel_history)  # type: ignore[arg-type]


class _Pages:
    """The pages of a list of checkpoints, and how many are still wanted."""

    def __init__(
        self,
        saver: DjangoSaver,
        config: RunnableConfig | None,
        wanted: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        configurable: Mapping[str, Any] = config["configurable"] if config else {}
        self._owner = saver._owner(config)  # noqa: SLF001  # the class is a part of the saver
        self._loads = saver.serde.loads_typed
        self._wanted = {**(wanted or {})}
        self._search = Search(
            thread_id=_thread_id(config) if config and "thread_id" in configurable else None,
            namespace=configurable.get("checkpoint_ns"),
            checkpoint_id=configurable.get("checkpoint_id") or None,
            before=(get_checkpoint_id(before) or None) if before else None,
        )
        self._left = limit
        self._below: int | None = None
        self.is_more = limit is None or limit > 0

    def read(self) -> tuple[Sequence[CheckpointTuple], int | None]:
        """Read the next page."""
        limit = reading.PAGE if self._left is None else min(self._left, reading.PAGE)
        return reading.read_page(
            self._owner, self._search, self._loads, self._matches, below=self._below, limit=limit
        )

    aread = in_pool(read)

    def take(self, page: tuple[Sequence[CheckpointTuple], int | None]) -> Sequence[CheckpointTuple]:
        """Return the checkpoints of a page, and note what is still to be read."""
        found, self._below = page
        if self._left is not None:
            self._left -= len(found)
        self.is_more = self._below is not None and self._left != 0
        return found

    def _matches(self, metadata: Mapping[str, Any]) -> bool:
        return all(metadata.get(name) == value for name, value in self._wanted.items())


def _thread_id(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _namespace(config: RunnableConfig) -> str:
    return config["configurable"].get("checkpoint_ns") or ""


def _fenced(config: RunnableConfig, fence: Fence) -> RunnableConfig:
    return {"configurable": {**config["configurable"], FENCE: fence}}
