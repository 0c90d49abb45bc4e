"""A graph with one node as a store: a thread for each session, in any saver of LangGraph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from chatmemory.testing.langchain import given, to_langchain, to_plain
from chatmemory.testing.stores import Address, AsyncStore, Message, Model, Store
from tests.programs.peers.base import name_of


class Graph(Store):
    stores_user_message_first = True  # "durable execution": the input has its own checkpoint

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver

    def graph(self, model: Model = lambda texts: "") -> Any:
        return compiled(
            lambda state: {"messages": [AIMessage(model(given(state["messages"])))]}, self.saver
        )

    def config(self, at: Address) -> Any:
        return {"configurable": {"thread_id": name_of(at)}}

    def messages(self, at: Address) -> list[BaseMessage]:
        state = self.graph().get_state(self.config(at))
        return list(state.values.get("messages", []))

    def update(self, at: Address, messages: Sequence[BaseMessage]) -> None:
        self.graph().update_state(self.config(at), {"messages": messages}, as_node="model")

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.update(at, [to_langchain(message) for message in messages])

    def read(self, at: Address) -> list[Message]:
        return [to_plain(message) for message in self.messages(at)]

    def trim(self, at: Address, keep_last: int) -> None:
        self.update(at, removals(self.messages(at)[:-keep_last]))

    def clear(self, at: Address) -> None:
        self.update(at, [RemoveMessage(id=REMOVE_ALL_MESSAGES)])

    def purge(self, at: Address) -> None:
        self.saver.delete_thread(name_of(at))

    def turn(self, at: Address, text: str, model: Model) -> str:
        return self.run(at, [HumanMessage(text)], model)

    def run(self, at: Address, messages: Sequence[BaseMessage], model: Model) -> str:
        done = self.graph(model).invoke({"messages": messages}, self.config(at))
        return str(done["messages"][-1].content)


class AsyncGraph(AsyncStore):
    stores_user_message_first = True
    saver: BaseCheckpointSaver[Any]

    def graph(self, model: Model = lambda texts: "") -> Any:
        async def answer(state: Any) -> Any:
            text = await asyncio.to_thread(model, given(state["messages"]))
            return {"messages": [AIMessage(text)]}

        return compiled(answer, self.saver)

    def config(self, at: Address) -> Any:
        return {"configurable": {"thread_id": name_of(at)}}

    async def messages(self, at: Address) -> list[BaseMessage]:
        state = await self.graph().aget_state(self.config(at))
        return list(state.values.get("messages", []))

    async def update(self, at: Address, messages: Sequence[BaseMessage]) -> None:
        update = {"messages": messages}
        await self.graph().aupdate_state(self.config(at), update, as_node="model")

    async def aappend(self, at: Address, messages: Sequence[Message]) -> None:
        await self.update(at, [to_langchain(message) for message in messages])

    async def aread(self, at: Address) -> list[Message]:
        return [to_plain(message) for message in await self.messages(at)]

    async def atrim(self, at: Address, keep_last: int) -> None:
        await self.update(at, removals((await self.messages(at))[:-keep_last]))

    async def aclear(self, at: Address) -> None:
        await self.update(at, [RemoveMessage(id=REMOVE_ALL_MESSAGES)])

    async def apurge(self, at: Address) -> None:
        await self.saver.adelete_thread(name_of(at))

    async def aturn(self, at: Address, text: str, model: Model) -> str:
        state = {"messages": [HumanMessage(text)]}
        done = await self.graph(model).ainvoke(state, self.config(at))
        return str(done["messages"][-1].content)


def compiled(node: Callable[[Any], Any], saver: BaseCheckpointSaver[Any]) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", node)
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver)


def removals(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    return [RemoveMessage(id=str(message.id)) for message in messages]
