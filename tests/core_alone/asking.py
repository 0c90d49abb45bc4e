"""A graph that asks the user, without a checkpointer."""

from __future__ import annotations

from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


def ask(state: Any) -> Any:
    return {"messages": [("ai", interrupt("Sure?"))]}


builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_edge(START, "ask")
graph = builder.compile()
