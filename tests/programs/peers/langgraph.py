"""LangGraph's savers: a graph with one node, and a thread for each session."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psycopg
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from chatmemory.testing.langchain import given, to_langchain, to_plain
from chatmemory.testing.stores import Address, Message, Model, Store
from tests.programs.peers.base import POSTGRESQL, FilePeer, Peer, Proxy, name_of


class Graph(Store):
    stores_user_message_first = True  # "durable execution": the input has its own checkpoint

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver

    def graph(self, model: Model = lambda texts: "") -> Any:
        builder: Any = StateGraph(MessagesState)
        builder.add_node(
            "model", lambda state: {"messages": [AIMessage(model(given(state["messages"])))]}
        )
        builder.add_edge(START, "model")
        return builder.compile(checkpointer=self.saver)

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        update = {"messages": [to_langchain(message) for message in messages]}
        self.graph().update_state(config(at), update, as_node="model")

    def read(self, at: Address) -> list[Message]:
        state = self.graph().get_state(config(at))
        return [to_plain(message) for message in state.values.get("messages", [])]

    def trim(self, at: Address, keep_last: int) -> None:
        messages = self.graph().get_state(config(at)).values["messages"][:-keep_last]
        update = {"messages": [RemoveMessage(id=message.id) for message in messages]}
        self.graph().update_state(config(at), update, as_node="model")

    def clear(self, at: Address) -> None:
        update = {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]}
        self.graph().update_state(config(at), update, as_node="model")

    def purge(self, at: Address) -> None:
        self.saver.delete_thread(name_of(at))

    def turn(self, at: Address, text: str, model: Model) -> str:
        done = self.graph(model).invoke({"messages": [HumanMessage(text)]}, config(at))
        return str(done["messages"][-1].content)


def config(at: Address) -> Any:
    return {"configurable": {"thread_id": name_of(at)}}


class Postgres(Graph):
    """Uses a pool, as its documentation recommends."""

    def __init__(self) -> None:
        address = urlsplit(POSTGRESQL)
        self.proxy = Proxy(address.hostname or "127.0.0.1", address.port or 5432)
        at = f"{address.username}@127.0.0.1:{self.proxy.port}"
        self.pool: ConnectionPool[Any] = ConnectionPool(
            address._replace(netloc=at).geturl(),
            min_size=1,
            max_size=10,
            timeout=5,
            kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
            open=True,
        )
        saver = PostgresSaver(self.pool)
        with psycopg.connect(POSTGRESQL) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(1)")  # one process at a time
            saver.setup()
        super().__init__(saver)

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self.proxy.cut():
            yield
        self.pool.check()

    def close(self) -> None:
        self.pool.close()
        self.proxy.close()


class Sqlite(Graph):
    def __init__(self, path: str) -> None:
        self.connection = sqlite3.connect(path, check_same_thread=False, timeout=20)
        saver = SqliteSaver(self.connection)
        saver.setup()
        super().__init__(saver)

    def close(self) -> None:
        self.connection.close()


class InMemory(Graph):
    kept: ClassVar[InMemorySaver] = InMemorySaver()

    def __init__(self) -> None:
        super().__init__(self.kept)


class TestPostgres(Peer):
    column = "LangGraph PostgresSaver"
    make_store = "tests.programs.peers.langgraph:Postgres"


class TestSqlite(FilePeer):
    column = "LangGraph SqliteSaver"
    make_store = "tests.programs.peers.langgraph:Sqlite"


class TestInMemory(Peer):
    column = "LangGraph InMemorySaver"
    make_store = "tests.programs.peers.langgraph:InMemory"
