"""The sessions of OpenAI's agents SDK, with a fake model under its runner."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from agents import Agent, ModelResponse, RunConfig, Runner, SQLiteSession, Usage
from agents.extensions.memory import SQLAlchemySession
from agents.memory import SessionSettings
from agents.models.interface import Model as AgentModel
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from sqlalchemy.ext.asyncio import create_async_engine

from chatmemory.testing.stores import Address, AsyncStore, Message, Model, Store
from tests.programs.peers.base import POSTGRESQL, FilePeer, Peer, Proxy, name_of


class FakeModel(AgentModel):
    def __init__(self, model: Model) -> None:
        self.model = model

    async def get_response(self, *_: Any, **asked: Any) -> ModelResponse:
        given = [text_of(item) for item in asked["input"]]
        text = await asyncio.to_thread(self.model, given)
        part = ResponseOutputText(type="output_text", text=text, annotations=[])
        message = ResponseOutputMessage(
            id="reply", type="message", role="assistant", status="completed", content=[part]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def text_of(item: Any) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class Sessions(AsyncStore):
    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.settings = SessionSettings(limit=limit)

    def session(self, at: Address) -> Any:
        raise NotImplementedError

    async def aappend(self, at: Address, messages: Sequence[Message]) -> None:
        await self.session(at).add_items([dict(message) for message in messages])

    async def aread(self, at: Address) -> list[Message]:
        items = await self.session(at).get_items()
        return [{**item, "content": text_of(item)} for item in items]

    async def aclear(self, at: Address) -> None:
        await self.session(at).clear_session()

    async def aturn(self, at: Address, text: str, model: Model) -> str:
        done = await Runner.run(
            Agent(name="peer", model=FakeModel(model)),
            text,
            session=self.session(at),
            run_config=RunConfig(tracing_disabled=True),
        )
        return str(done.final_output)


class Sqlite(Sessions):
    def __init__(self, path: str, limit: int | None = None) -> None:
        super().__init__(limit)
        self.path = path

    def session(self, at: Address) -> Any:
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

    def session(self, at: Address) -> Any:
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
