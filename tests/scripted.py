"""A chat model that says what it was told, streamed, and refuses what providers refuse."""

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
    """Gives its replies in turn; notes what it was given."""

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
        check_taken(messages)
        return self.replies[len(self.given) - 1]


def calling(*calls: tuple[str, dict[str, Any], str], text: str = "") -> AIMessage:
    """A reply that calls tools: the name, the arguments and the id of each."""
    return AIMessage(text, tool_calls=[{"name": n, "args": a, "id": i} for n, a, i in calls])


def check_taken(messages: Sequence[BaseMessage]) -> None:
    """Raise where OpenAI or Anthropic answer 400: calls and results that are no pairs."""
    seen: set[str] = set()
    awaited: list[str] = []
    for message in messages:
        if awaited and not isinstance(message, ToolMessage):
            raise ValueError(f"no result for {awaited}")
        match message:
            case ToolMessage():
                awaited.remove(message.tool_call_id)
            case AIMessage():
                awaited = [str(call["id"]) for call in message.tool_calls]
                if not message.content and not awaited:
                    raise ValueError("an empty message")
                if seen.intersection(awaited):
                    raise ValueError("two calls of one id")
                seen.update(awaited)
    if awaited or not isinstance(messages[-1], HumanMessage | ToolMessage):
        raise ValueError("nothing to answer")


def _pieces(content: Any) -> list[Any]:
    """Words of a text; of blocks, each alone."""
    if isinstance(content, str):
        return [f"{word} " for word in content.split()]
    return [[{**block, "index": index}] for index, block in enumerate(content)]
