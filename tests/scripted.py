"""A chat model that streams given replies, and rejects requests that providers reject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult


class ScriptedModel(BaseChatModel):
    """Returns its replies one after another, and records the requests."""

    replies: list[AIMessage]
    given: list[list[BaseMessage]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._next(messages))])

    def _stream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        reply = self._next(messages)
        for content in _pieces(reply.content):
            yield ChatGenerationChunk(message=AIMessageChunk(content=content))
        for index, call in enumerate(reply.tool_calls):
            args_text = str(call["args"]).replace("'", '"')
            piece = tool_call_chunk(name=call["name"], args=args_text, id=call["id"], index=index)
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[piece]))

    def _next(self, messages: list[BaseMessage]) -> AIMessage:
        self.given.append(messages)
        check_request(messages)
        return self.replies[len(self.given) - 1]


def calling(*calls: tuple[str, dict[str, Any], str], text: str = "") -> AIMessage:
    """Return a reply that calls tools; each call has a name, arguments and an id."""
    return AIMessage(text, tool_calls=[{"name": n, "args": a, "id": i} for n, a, i in calls])


def check_request(messages: Sequence[BaseMessage]) -> None:
    """Raise for requests that OpenAI and Anthropic reject, such as a tool call without result."""
    seen: set[str] = set()
    expected: list[str] = []
    for message in messages:
        if expected and not isinstance(message, ToolMessage):
            raise ValueError(f"missing result for {expected}")
        match message:
            case ToolMessage():
                expected.remove(message.tool_call_id)
            case AIMessage():
                expected = [str(call["id"]) for call in message.tool_calls]
                if not message.content and not expected:
                    raise ValueError("an empty message")
                if seen.intersection(expected):
                    raise ValueError("two calls with the same id")
                seen.update(expected)
    if expected or not isinstance(messages[-1], HumanMessage | ToolMessage):
        raise ValueError("the last message cannot be answered")


def _pieces(content: Any) -> list[Any]:
    """Split a text into words, and a list of blocks into lists of one block."""
    if isinstance(content, str):
        return [f"{word} " for word in content.split()]
    return [[{**block, "index": index}] for index, block in enumerate(content)]
