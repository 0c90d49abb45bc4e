"""The sessions of OpenAI's agents SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import create_async_engine

from chatmemory.testing.stores import Address, Store
from tests.programs.peers.agents_sdk import Sessions
from tests.programs.peers.base import POSTGRESQL, FilePeer, Peer, Proxy, name_of


class Sqlite(Sessions):
    def __init__(self, path: str, limit: int | None = None) -> None:
        super().__init__(limit)
        self.path = path

    async def session(self, at: Address) -> Any:
        return SQLiteSession(name_of(at), self.path, session_settings=self.settings)

    def bounded(self, messages: int) -> Store:
        return Sqlite(self.path, limit=messages)


class SqlAlchemy(Sessions):
    """Uses PostgreSQL, with one engine for all sessions."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(limit)
        address = urlsplit(POSTGRESQL)
        self.proxy = Proxy(address.hostname or "127.0.0.1", address.port or 5432)
        at = f"{address.username}@127.0.0.1:{self.proxy.port}"
        url = address._replace(scheme="postgresql+asyncpg", netloc=at).geturl()
        self.engine = create_async_engine(url, pool_size=8)

    async def session(self, at: Address) -> Any:
        return SQLAlchemySession(
            name_of(at), engine=self.engine, create_tables=True, session_settings=self.settings
        )

    def bounded(self, messages: int) -> Store:
        return SqlAlchemy(limit=messages)

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self.proxy.cut():
            yield
        self.run(self.engine.dispose(close=False))

    async def aclose(self) -> None:
        await self.engine.dispose()

    def close(self) -> None:
        super().close()
        self.proxy.close()


class TestSqlite(FilePeer):
    column = "OpenAI SQLiteSession"
    make_store = "tests.programs.peers.openai_agents:Sqlite"


class TestSqlAlchemy(Peer):
    column = "OpenAI SQLAlchemySession"
    make_store = "tests.programs.peers.openai_agents:SqlAlchemy"
