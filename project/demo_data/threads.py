"""The threads of the example data, as graphs leave them."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.models import Session


def store_threads(sessions: Iterable[Session]) -> None:
    """Store a checkpoint of a graph for each of these sessions, which must have messages."""
    for session in sessions:
        thread = {"thread_id": f"refund-{session.pk}", "checkpoint_ns": ""}
        config: RunnableConfig = {"configurable": thread}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"order": "4711"}
        saver = DjangoSaver(session=session)
        saver.put(config, checkpoint, {"source": "input", "step": -1, "parents": {}}, {"order": 1})
