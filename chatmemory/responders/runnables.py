"""LangChain's Runnables as responders: chat models, chains, compiled graphs.

Importing this module imports LangChain, which takes over a second.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, get_args, get_origin

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables import Runnable, RunnableConfig

from chatmemory.codec import text_of
from chatmemory.langchain import to_langchain, to_plain
from chatmemory.responders.values import Finished, Request, Responder, Text


def from_runnable(runnable: Runnable[Any, Any]) -> Responder:
    """Adapt a chat model, a chain or a compiled graph.

    A model, alone or bound, is given the list of messages. A graph is given `messages`, with the
    turn as its thread. A chain is given `messages`, `history` (all but the last) and `input` (the
    text of the last), and streams text or messages.
    """
    return partial(_graph_answers if _is_graph(runnable) else _chain_answers, runnable)


def _is_graph(runnable: Runnable[Any, Any]) -> bool:
    # Where nothing has imported LangGraph, nothing is a graph.
    pregel = sys.modules.get("langgraph.pregel.protocol")
    return pregel is not None and isinstance(runnable, pregel.PregelProtocol)


async def _chain_answers(
    chain: Runnable[Any, Any], request: Request
) -> AsyncGenerator[Text | Finished, None]:
    messages = list(map(to_langchain, request.messages))
    given: object = messages
    if not _takes_messages(chain):
        asked = text_of(request.messages[-1]["content"])
        given = {"messages": messages, "history": messages[:-1], "input": asked}
    texts: list[str] = []
    chunks: list[AIMessageChunk] = []
    async with _closing(chain.astream(given, _config(request))) as outputs:
        async for output in outputs:
            match output:
                case str():
                    texts.append(output)
                    yield Text(output)
                case AIMessageChunk():
                    chunks.append(output)
                    if piece := text_of(output.content):
                        yield Text(piece)
                case AIMessage() | ToolMessage():
                    yield Finished(to_plain(output))
                case _:
                    name = type(output).__name__
                    raise TypeError(f"a chain streams text or the model's messages, not {name}")
    if chunks:
        yield Finished(to_plain(chunks[0] + chunks[1:]))  # all at once: one by one is quadratic
    if texts:
        yield Finished({"role": "assistant", "content": "".join(texts)})


def _takes_messages(chain: Runnable[Any, Any]) -> bool:
    """Whether it is a model, or begins with one."""
    if getattr(chain, "input_messages_key", "") is None:  # LangChain's memory around a model
        return True
    try:
        kind = chain.InputType
    except TypeError:  # it doesn't tell
        return False
    return any(get_origin(option) is list for option in (kind, *get_args(kind)))


async def _graph_answers(
    graph: Runnable[Any, Any], request: Request
) -> AsyncGenerator[Text | Finished, None]:
    messages = list(map(to_langchain, request.messages))
    for message in messages:
        message.id = message.id or str(uuid.uuid4())
    known = {message.id for message in messages}
    held: BaseMessage | None = None  # a later node may correct it, unless a tool acts on it
    modes = ["messages", "updates"]
    steps = graph.astream({"messages": messages}, _config(request), stream_mode=modes)
    async with _closing(steps) as outputs:
        async for mode, data in outputs:
            if mode == "messages":
                if piece := _text(data[0]):
                    if held:
                        yield Finished(to_plain(held))
                        held = None
                    yield Text(piece)
                continue
            for message in _updated(data):
                if held and held.id != message.id not in known:
                    yield Finished(to_plain(held))
                if message.id not in known or (held and held.id == message.id):
                    held = message
                known.add(message.id)
            if isinstance(held, ToolMessage) or getattr(held, "tool_calls", None):
                yield Finished(to_plain(held))
                held = None
    if held:
        yield Finished(to_plain(held))


def _text(message: object) -> str:
    """The text that a model has just streamed; whole messages come by the updates."""
    return text_of(message.content) if isinstance(message, AIMessageChunk) else ""


def _updated(update: dict[str, Any]) -> Iterator[BaseMessage]:
    """The model's and tools' messages in what the nodes of a graph put into its state."""
    for changes in update.values():
        for change in changes if isinstance(changes, list) else [changes]:
            found = change.get("messages", []) if isinstance(change, dict) else []
            for message in convert_to_messages(found if isinstance(found, list) else [found]):
                if isinstance(message, AIMessage | ToolMessage):
                    message.id = message.id or str(uuid.uuid4())
                    yield message


def _config(request: Request) -> RunnableConfig:
    # `session_id` is what LangChain's memory asks for.
    return {"configurable": {"thread_id": request.turn, "session_id": request.session.key}}


@asynccontextmanager
async def _closing(outputs: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Close the stream, and the connection behind it, when nobody listens any more."""
    try:
        yield outputs
    finally:
        if isinstance(outputs, AsyncGenerator):
            await outputs.aclose()
