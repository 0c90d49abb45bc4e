"""The official savers of LangGraph."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psycopg
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from tests.programs.peers.base import POSTGRESQL, FilePeer, Peer, Proxy
from tests.programs.peers.graphs import AsyncGraph, Graph

POOL: dict[str, Any] = {
    "min_size": 1,
    "max_size": 10,
    "timeout": 5,
    "kwargs": {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
}
"""As the documentation of the savers recommends."""


def proxied() -> tuple[Proxy, str]:
    """Return a proxy of the server, and the address through it."""
    address = urlsplit(POSTGRESQL)
    proxy = Proxy(address.hostname or "127.0.0.1", address.port or 5432)
    at = f"{address.username}@127.0.0.1:{proxy.port}"
    return proxy, address._replace(netloc=at).geturl()


def make_tables() -> None:
    with psycopg.connect(POSTGRESQL) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(1)")  # one process at a time
        with PostgresSaver.from_conn_string(POSTGRESQL) as saver:
            saver.setup()


class Postgres(Graph):
    def __init__(self) -> None:
        make_tables()
        self.proxy, address = proxied()
        self.pool: ConnectionPool[Any] = ConnectionPool(address, open=True, **POOL)
        super().__init__(PostgresSaver(self.pool))

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self.proxy.cut():
            yield
        self.pool.check()

    def close(self) -> None:
        self.pool.close()
        self.proxy.close()


class AsyncPostgres(AsyncGraph):
    def __init__(self) -> None:
        super().__init__()
        make_tables()
        self.proxy, self.address = proxied()
        self.run(self.open())

    async def open(self) -> None:
        self.pool: AsyncConnectionPool[Any] = AsyncConnectionPool(self.address, open=False, **POOL)
        await self.pool.open()
        self.saver = AsyncPostgresSaver(self.pool)

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self.proxy.cut():
            yield
        self.run(self.pool.check())

    async def aclose(self) -> None:
        await self.pool.close()

    def close(self) -> None:
        super().close()
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


class TestAsyncPostgres(Peer):
    column = "LangGraph AsyncPostgresSaver"
    make_store = "tests.programs.peers.langgraph:AsyncPostgres"


class TestSqlite(FilePeer):
    column = "LangGraph SqliteSaver"
    make_store = "tests.programs.peers.langgraph:Sqlite"


class TestInMemory(Peer):
    column = "LangGraph InMemorySaver"
    make_store = "tests.programs.peers.langgraph:InMemory"
