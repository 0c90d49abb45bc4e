"""Graphs for the tests of the saver: each turn adds a question and its reply."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from chatmemory.langgraph.models import Blob, Checkpoint, SessionState, Thread, Write


class State(TypedDict):
    messages: Annotated[list[str], operator.add]


def reply(state: State) -> dict[str, list[str]]:
    return {"messages": [f"reply to {state['messages'][-1]}"]}


def ask(state: State) -> dict[str, list[str]]:
    return {"messages": [interrupt(f"sure about {state['messages'][-1]}?")]}


def graph_of(saver: Any, *nodes: Any) -> Any:
    """Compile a graph that calls these nodes one after the other."""
    builder = StateGraph(State)
    previous: str = START
    for number, node in enumerate(nodes or (reply,)):
        builder.add_node(f"node{number}", node)
        builder.add_edge(previous, f"node{number}")
        previous = f"node{number}"
    return builder.compile(checkpointer=saver)


def at(thread_id: str = "talk", **configurable: Any) -> dict[str, Any]:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread_id, **configurable}}


def input_of(*texts: str) -> dict[str, list[str]]:
    """Return the input of a run."""
    return {"messages": [*texts]}


def messages_of(graph: Any, thread_id: str = "talk") -> list[str]:
    """Return the messages of a thread."""
    found: list[str] = graph.get_state(at(thread_id)).values.get("messages", [])
    return found


def before(call: Callable[[], object]) -> Callable[[State], dict[str, list[str]]]:
    """Return a node that calls something, then replies."""

    def node(state: State) -> dict[str, list[str]]:
        call()
        return reply(state)

    return node


def stored_bytes() -> bytes:
    """Return all that the tables contain, in one text."""
    rows: list[Any] = []
    for model in (Thread, Checkpoint, Blob, Write, SessionState):
        rows += model._base_manager.values_list()
    columns = (value for row in rows for value in row)
    return b"\0".join(
        bytes(v) if isinstance(v, memoryview) else v if isinstance(v, bytes) else str(v).encode()
        for v in columns
    )
