"""Stores for LangChain history classes. This module imports no package except LangChain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from chatmemory.testing.stores import Address, AsyncStore, Message, Model, Store

CLASSES: dict[str, type[BaseMessage]] = {
    "user": HumanMessage,
    "assistant": AIMessage,
    "tool": ToolMessage,
}
ROLES = {"human": "user", "ai": "assistant", "tool": "tool"}
FIELDS = {
    "id": "id",
    "name": "name",
    "tool_calls": "tool_calls",
    "tool_call_id": "tool_call_id",
    "artifact": "artifact",
    "usage": "usage_metadata",
    "additional_kwargs": "additional_kwargs",
}
"""The fields of the contract's messages, and their names in LangChain."""


def to_langchain(message: Message) -> BaseMessage:
    """Convert a message of the contract to LangChain's class."""
    fields = {FIELDS.get(name, name): value for name, value in message.items() if name != "role"}
    return CLASSES[message["role"]](**fields)


def to_plain(message: BaseMessage) -> Message:
    """Convert LangChain's message to one of the contract."""
    plain = {"role": ROLES.get(message.type, message.type), "content": message.content}
    fields = {name: getattr(message, field, None) for name, field in FIELDS.items()}
    return {**plain, **{name: value for name, value in fields.items() if value}}


def given(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the contents of a model's messages as texts."""
    return [str(message.content) for message in messages]


def as_runnable(model: Model) -> Runnable[Any, Any]:
    """Wrap a model of the contract as a Runnable."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        return AIMessage(model(given(messages)))

    async def aanswer(messages: list[BaseMessage]) -> AIMessage:
        return AIMessage(await asyncio.to_thread(model, given(messages)))

    return RunnableLambda(answer, aanswer)


class HistoryStore(Store):
    """A history class; its turns are run by `RunnableWithMessageHistory`. Override `history`."""

    def history(self, at: Address) -> BaseChatMessageHistory:
        """Return a new history object, as each request of a project makes one."""
        raise NotImplementedError

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.history(at).add_messages([to_langchain(message) for message in messages])

    def read(self, at: Address) -> list[Message]:
        return [to_plain(message) for message in self.history(at).messages]

    def clear(self, at: Address) -> None:
        self.history(at).clear()

    def trim(self, at: Address, keep_last: int) -> None:
        """Clear the history and store the kept messages again, as LangChain's guides do."""
        history = self.history(at)
        kept = history.messages[-keep_last:]
        history.clear()
        history.add_messages(kept)

    def turn(self, at: Address, text: str, model: Model) -> str:
        chain = RunnableWithMessageHistory(as_runnable(model), lambda session_id: self.history(at))
        config: Any = {"configurable": {"session_id": at.session}}
        return str(chain.invoke([HumanMessage(text)], config).content)


class AsyncHistoryStore(AsyncStore):
    """A history class, called by its async methods. Override `history`."""

    def history(self, at: Address) -> BaseChatMessageHistory:
        """Return a new history object, as each request of a project makes one."""
        raise NotImplementedError

    async def aappend(self, at: Address, messages: Sequence[Message]) -> None:
        await self.history(at).aadd_messages([to_langchain(message) for message in messages])

    async def aread(self, at: Address) -> list[Message]:
        return [to_plain(message) for message in await self.history(at).aget_messages()]

    async def aclear(self, at: Address) -> None:
        await self.history(at).aclear()

    async def aturn(self, at: Address, text: str, model: Model) -> str:
        chain = RunnableWithMessageHistory(as_runnable(model), lambda session_id: self.history(at))
        config: Any = {"configurable": {"session_id": at.session}}
        reply = await chain.ainvoke([HumanMessage(text)], config)
        return str(reply.content)
