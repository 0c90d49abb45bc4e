"""Adapts LangChain's Runnables: chat models and chains.

Importing this module imports LangChain, which takes over a second.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, get_args, get_origin

from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig

from chatmemory.codec import REASONING_TYPES, text_of
from chatmemory.langchain import to_langchain, to_plain
from chatmemory.responders.values import Finished, Progress, Request, Responder, Step, Text


def from_runnable(runnable: Runnable[Any, Any]) -> Responder:
    """Adapt a chat model or a chain.

    The input of a model is the list of messages. The input of a chain is a dict with `messages`,
    `history` (all but the last message) and `input` (the text of the last message). A chain must
    stream text or messages.
    """
    return partial(_chain_answers, runnable)


async def _chain_answers(chain: Runnable[Any, Any], request: Request) -> AsyncGenerator[Step, None]:
    messages = list(map(to_langchain, request.messages))
    given: object = messages
    if not _takes_messages(chain):
        asked = text_of(request.messages[-1]["content"])
        given = {"messages": messages, "history": messages[:-1], "input": asked}
    texts: list[str] = []
    chunks: list[AIMessageChunk] = []
    reasoning = ReasoningFilter()
    async with closing(chain.astream(given, config_of(request, request.thread))) as outputs:
        async for output in outputs:
            match output:
                case str():
                    texts.append(output)
                    yield Text(output)
                case AIMessageChunk():
                    chunks.append(output)
                    for step in reasoning.steps(output):
                        yield step
                case AIMessage() | ToolMessage():
                    yield Finished(to_plain(output))
                case _:
                    name = type(output).__name__
                    raise TypeError(f"a chain must stream text or the model's messages, not {name}")
    if chunks:
        # One sum: adding chunk by chunk takes quadratic time.
        yield Finished(to_plain(chunks[0] + chunks[1:]))
    if texts:
        yield Finished({"role": "assistant", "content": "".join(texts)})


def _takes_messages(chain: Runnable[Any, Any]) -> bool:
    """Whether the input is a list of messages, as of a model or a chain that starts with one."""
    if getattr(chain, "input_messages_key", "") is None:  # LangChain's memory around a model
        return True
    try:
        kind = chain.InputType
    except TypeError:  # it declares no input type
        return False
    return any(get_origin(option) is list for option in (kind, *get_args(kind)))


class ReasoningFilter:
    """Separates a model's streamed reasoning from the text of its reply."""

    def __init__(self) -> None:
        self._is_on = False

    def steps(self, chunk: AIMessageChunk) -> Iterator[Text | Progress]:
        """Yield the text of a chunk, and a `Progress` when reasoning starts or ends."""
        text = text_of(chunk.content)
        if not self._is_on and _has_reasoning(chunk):
            self._is_on = True
            yield Progress("thinking", "", "started")
        elif self._is_on and (text or chunk.tool_call_chunks or chunk.chunk_position == "last"):
            self._is_on = False
            yield Progress("thinking", "", "ended")
        if text:
            yield Text(text)


def _has_reasoning(chunk: AIMessageChunk) -> bool:
    if chunk.additional_kwargs.get("reasoning_content"):
        return True
    blocks = chunk.content if isinstance(chunk.content, list) else []
    return any(isinstance(block, dict) and block.get("type") in REASONING_TYPES for block in blocks)


def config_of(request: Request, thread: str) -> RunnableConfig:
    """Return the Runnable's config. LangChain's own memory reads `session_id`."""
    return {"configurable": {"thread_id": thread, "session_id": request.session.key}}


@asynccontextmanager
async def closing(outputs: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Close the stream at the end, and thereby the connection to the model."""
    try:
        yield outputs
    finally:
        if isinstance(outputs, AsyncGenerator):
            await outputs.aclose()
