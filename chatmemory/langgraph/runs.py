"""The thread of a turn: the default checkpointer of graphs of RESPONDER.

Importing this module imports LangGraph.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from django.db.models import F, Model
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel import Pregel

from chatmemory.codec import Question
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import Lane, in_pool
from chatmemory.database.retries import retried
from chatmemory.derived import READS_OTHERS, EndingTurn, leave, store
from chatmemory.langgraph.models import (
    Blob,
    Checkpoint,
    SessionState,
    Thread,
    Write,
    hash_of,
    key_of,
    newest_withdrawal,
)
from chatmemory.langgraph.pruning import COUNTERS
from chatmemory.langgraph.state import LEFT, State, newest_of
from chatmemory.langgraph.summaries import SUMMARY, Summaries
from chatmemory.models import DatabaseToday, Message, Session
from chatmemory.models.derived import all_rows
from chatmemory.responders import Request
from chatmemory.services.turns.run_context import is_in_run

logger = logging.getLogger(__name__)

# Note [Threads of turns]
#
# A graph of RESPONDER has a thread for each turn, and needs it in one case only: the turn ended
# with a question, and the next turn answers it. So its checkpoints are in memory, and the
# transaction that stores the question stores them too, unless a message was changed since the run
# began. A process that dies leaves nothing of its run, and no run continues by itself.
#
# The next run of a graph in the session takes the thread out of the database, whether its message
# is the answer or not. So a thread is resumed at most once: no tool runs again if that run dies,
# and a later question stores a thread of its own.
#
# A thread was made from all messages up to the question, since its state contains the window and
# maybe older messages that were recalled. A redaction of any of them deletes it, and so does the
# vacuum of the first ones. A trim alone leaves it: it is found by its id, and by the core, which
# reads the question if that is visible. With recalled messages of other sessions, whose removal
# would not reach it, no thread is stored.

_IN_MEMORY = "in memory"
"""The type of a value that is not serialized yet."""


async def prepare(graph: Any, request: Request) -> tuple[Any, Request]:
    """Return a copy of a graph with a checkpointer for this turn, and the input that it gets.

    Unchanged are a graph that has a checkpointer, or was compiled with False; and one that no turn
    runs, since nothing would store its thread.
    """
    session = request.session
    is_ours = isinstance(graph, Pregel) and graph.checkpointer is None
    if not is_ours or not is_in_run(session.scope, session.key):
        return graph, request
    asked = None if request.answers is None else request.answers.thread
    memory, summary = await abegin(session, asked)
    memory.summaries = Summaries(graph, request, summary)
    memory.thread_id = request.thread
    leave(f"{LEFT}run", memory)
    # Not `Pregel.copy`, which validates the graph again, at each turn.
    own = copy.copy(graph)
    own.checkpointer = memory
    return own, replace(request, messages=memory.summaries.messages)


class _Serializer(JsonPlusSerializer):
    """Keeps values as they are; most runs end without a question and need none serialized."""

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        # LangGraph changes the versions in a checkpoint in place.
        if isinstance(obj, dict) and "channel_versions" in obj:
            return super().dumps_typed(obj)
        return _IN_MEMORY, _copied(obj)

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        type_, value = data
        return _copied(value) if type_ == _IN_MEMORY else super().loads_typed(data)

    def serialized(self, data: tuple[str, Any]) -> dict[str, Any]:
        """Return the columns of a value."""
        if data[0] == _IN_MEMORY:
            data = super().dumps_typed(data[1])
        return {"type": data[0], "data": data[1]}


def _copied(value: Any) -> Any:
    """Return a copy of a collection: a node may append to the list of its state, and then ask."""
    return copy.copy(value) if isinstance(value, list | dict | set) else value


class RunMemory(InMemorySaver):
    """The thread of a turn while it runs. See Note [Threads of turns]."""

    serde: _Serializer
    summaries: Summaries

    def __init__(self, session: Session) -> None:
        super().__init__(serde=_Serializer())
        self.thread_id = ""
        """The thread of this turn, unless it resumes another."""
        self.low = session.first_seq
        """The first message from which the state of the graph may be made."""

    def load(self, thread: Thread, rows: Sequence[Model]) -> None:
        """Add a stored thread with its rows. It may know messages that were trimmed since."""
        thread_id, self.low = thread.thread_id, min(self.low, thread.low)
        checkpoints = [row for row in rows if isinstance(row, Checkpoint)]
        names = {row.ns_hash: row.ns for row in checkpoints}
        for row in rows:
            if not isinstance(row, Checkpoint | Blob | Write):
                continue
            ns, data = names.get(row.ns_hash, ""), (row.type, bytes(row.data))
            match row:
                case Checkpoint():
                    metadata = (row.metadata_type, bytes(row.metadata))
                    self.storage[thread_id][ns][row.checkpoint_id] = (data, metadata, row.parent_id)
                case Blob():
                    self.blobs[thread_id, ns, row.channel, row.version] = data
                case Write():
                    written = (row.task_id, row.channel, data, row.task_path)
                    of_checkpoint = self.writes[thread_id, ns, row.checkpoint_id]
                    of_checkpoint[row.task_id, row.idx] = written

    def store(self, ending: EndingTurn, low: int) -> None:
        """Store the thread if the turn asks the user, and a new summary."""
        self.summaries.store(ending, low, self._messages())
        rows = Message.stored.filter(session=ending.seen.session_pk, turn=ending.user_seq)
        last = rows.in_order().last()
        asks = None if last is None else Question.of(last.plain())
        if last is None or asks is None or asks.thread not in self.storage:
            return
        if READS_OTHERS in ending.left:
            logger.info("turn %s recalled other sessions: its question has no thread", ending.turn)
            return
        self._store_thread(ending, asks.thread, low, last.seq)

    def _messages(self) -> Sequence[BaseMessage]:
        """Return the messages in the state of the graph; none if it has resumed another thread."""
        if self.thread_id not in self.storage:
            return []
        found = self.get_tuple({"configurable": {"thread_id": self.thread_id}})
        messages = found.checkpoint["channel_values"].get("messages") if found else None
        return messages if isinstance(messages, list) else []

    def _store_thread(self, ending: EndingTurn, thread_id: str, low: int, high: int) -> None:
        key = key_of(ending.seen.session_pk, thread_id)
        thread = Thread(
            key=key,
            thread_id=thread_id,
            turn=ending.turn,
            low=low,
            high=high,
            last_active_day=DatabaseToday(),
            known_seq=high,
            known_withdrawal=newest_withdrawal(ending.seen.session_pk),
        )
        # A deletion has left an empty thread: see Note [Fence of a run].
        is_deleted = all_rows(Thread).filter(key=key).exists()
        if is_deleted or not store(ending.seen, [thread]):
            logger.info("turn %s: the thread of its question was removed meanwhile", ending.turn)
            return
        rows = list(self._rows(thread_id))
        for row in rows:
            row.thread = thread
        for model in _PARTS:
            model.objects.bulk_create([row for row in rows if isinstance(row, model)])

    def _rows(self, thread_id: str) -> Iterator[Checkpoint | Blob | Write]:
        """Yield the newest checkpoint of each namespace, with its values and writes."""
        for ns, checkpoints in self.storage[thread_id].items():
            ns_hash, versions = hash_of(ns), set[tuple[str, Any]]()
            for checkpoint_id in self._needed(checkpoints):
                data, metadata, parent_id = checkpoints[checkpoint_id]
                versions |= self.serde.loads_typed(data)["channel_versions"].items()
                columns = self.serde.serialized(metadata)
                yield Checkpoint(
                    ns=ns,
                    ns_hash=ns_hash,
                    checkpoint_id=checkpoint_id,
                    parent_id=parent_id,
                    metadata_type=columns["type"],
                    metadata=columns["data"],
                    **self.serde.serialized(data),
                )
                written = self.writes.get((thread_id, ns, checkpoint_id), {})
                for (task_id, idx), (_, channel, value, path) in written.items():
                    yield Write(
                        ns_hash=ns_hash,
                        checkpoint_id=checkpoint_id,
                        task_id=task_id,
                        idx=idx,
                        channel=channel,
                        task_path=path,
                        **self.serde.serialized(value),
                    )
            for channel, version in versions:
                if (stored := self.blobs.get((thread_id, ns, channel, version))) is not None:
                    yield Blob(
                        ns_hash=ns_hash,
                        channel=channel,
                        version=str(version),
                        **self.serde.serialized(stored),
                    )

    def _needed(self, checkpoints: dict[str, Any]) -> list[str]:
        """Return the id of the newest checkpoint; of all, if it needs ancestors.

        See Note [Newest checkpoint] and Note [Delta channels].
        """
        *_, newest = ids = list(checkpoints)
        metadata = self.serde.loads_typed(checkpoints[newest][1])
        return ids if metadata.get(COUNTERS) else [newest]


@retried(is_repeatable=False)
def begin(session: Session, asked: str | None) -> tuple[RunMemory, State | None]:
    """Take the thread of an answered question out of the database, and read the summary.

    Deletes the threads of all earlier turns. A turn that runs although another process has ended it
    leaves those of later turns.
    """
    memory = RunMemory(session)
    earlier = all_rows(Thread).filter(session=session.pk, high__lt=session.last_seq)
    earlier = earlier.exclude(turn=None)
    if earlier.exists():
        with locked_transaction():
            # Locks them, also on SQLite, so that no redaction deletes rows of them meanwhile.
            earlier.update(epoch=F("epoch"))
            for thread in list(earlier):
                of_thread = [model.objects.filter(thread=thread) for model in _PARTS]
                if thread.thread_id == asked:
                    rows = [row for found in of_thread for row in found.order_by("pk")]
                    memory.load(thread, rows)
                for found in of_thread:
                    found.delete()
                all_rows(Thread).filter(pk=thread.pk).delete()
    # Not a summary that begins later: a restore has shown messages that it does not contain.
    summaries = SessionState.visible(session).filter(name=SUMMARY, low=session.first_seq)
    return memory, newest_of(summaries)


_PARTS: tuple[Any, ...] = (Checkpoint, Blob, Write)


def _lane_of_session(session: Session, _: object) -> Lane:
    return (session.scope, session.key)


abegin = in_pool(begin, lane=_lane_of_session)
