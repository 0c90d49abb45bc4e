"""Adapters of our own memory for the contract: services and histories, sync and async."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django.contrib.auth.models import User
from django.db import connection, connections
from django.db.models import F, QuerySet
from django.test import override_settings
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables.history import RunnableWithMessageHistory

from chatmemory import services
from chatmemory.codec import text_of
from chatmemory.database import retries
from chatmemory.errors import Busy, MemoryUnavailable, NotFound
from chatmemory.langchain import DjangoChatMessageHistory, with_memory
from chatmemory.live.runner import runner
from chatmemory.models import Message as Row
from chatmemory.models import Session, Turn
from chatmemory.services import Actor, user_scope
from chatmemory.testing.langchain import AsyncHistoryStore, HistoryStore, as_runnable, to_langchain
from chatmemory.testing.stores import Address, AsyncStore, Message, Model, Store

T = TypeVar("T")

BY = Actor.server("contract")
BUSY_SECONDS = 0.01

MODELS: dict[str, Model] = {}
"""The model of each turn, by the user's text."""


async def respond(messages: list[dict[str, object]], session: Session) -> AsyncGenerator[str, None]:
    """The contract's model as `RESPONDER`."""
    given = [text_of(message["content"]) for message in messages]
    yield await asyncio.to_thread(MODELS[given[-1]], given)


async def in_own_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread that keeps no connection; return its result."""

    def call() -> T:
        try:
            return function(*arguments)
        finally:
            connections.close_all()

    return await asyncio.to_thread(call)


def without_connection(model: Model) -> Model:
    """Wrap a model that thinks for longer than Django keeps a connection."""

    def think(given: Sequence[str]) -> str:
        reply = model(given)
        connections.close_all()
        return reply

    return think


class Ours(Store):
    """The base of all adapters of our own memory."""

    errors = (MemoryUnavailable,)

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._people: dict[str, User] = {}
        self._settings = ExitStack()
        chosen = {"RESPONDER": "tests.memories.respond", "DB_THREADS": 4, **settings}
        self._settings.enter_context(override_settings(CHATMEMORY=chosen))

    def person(self, at: Address) -> User:
        person = self._people.get(at.user)
        if person is None:
            person, _ = User.objects.get_or_create(username=at.user)
            self._people[at.user] = person
        return person

    def talk(self, at: Address) -> dict[str, Any]:
        """Return the arguments with which services find the session."""
        return {"session_key": at.session, "by": BY, "scope": user_scope(self.person(at))}

    def sessions(self, at: Address) -> QuerySet[Session]:
        return Session.objects.filter(key=at.session, scope=user_scope(self.person(at)))

    def rows(self, at: Address) -> QuerySet[Row]:
        return Row.stored.filter(session__in=self.sessions(at)).order_by("seq")

    def raw(self, at: Address) -> Iterable[bytes]:
        for columns in self.rows(at).values_list("text", "body"):
            yield from (value.encode() for value in columns if value)

    def damage(self, at: Address, index: int) -> None:
        pk = self.rows(at).values_list("pk", flat=True)[index]
        Row.stored.filter(pk=pk).update(body="{oops")

    def short_lived(self, seconds: float) -> Store:
        return type(self)(SESSION_TTL=seconds)

    def age(self, at: Address, seconds: float) -> None:
        ago = timedelta(seconds=seconds)
        self.sessions(at).update(
            created_at=F("created_at") - ago, last_message_at=F("last_message_at") - ago
        )

    @contextmanager
    def outage(self) -> Iterator[None]:
        with outage():
            yield

    def release(self) -> None:
        connections.close_all()
        self._people.clear()  # the next test in this process has other users

    def close(self) -> None:
        super().close()
        runner.shut_down()
        self._settings.close()
        self.release()


@contextmanager
def outage() -> Iterator[None]:
    """Point the connection to an address where no server answers, with short timeouts."""
    address = connection.settings_dict
    before, deadline = dict(address), retries.DEADLINE_SECONDS
    connections.close_all()
    close_pool()
    if connection.vendor == "sqlite":
        address["NAME"] = "/"
    else:
        address |= {"HOST": "127.0.0.1", "PORT": "1"}
    if "pool" in address["OPTIONS"]:
        pool = {**address["OPTIONS"]["pool"], "timeout": 0.2}
        address["OPTIONS"] = {**address["OPTIONS"], "pool": pool}
    retries.DEADLINE_SECONDS = 0.2
    try:
        yield
    finally:
        connections.close_all()
        close_pool()
        address |= before
        retries.DEADLINE_SECONDS = deadline


def close_pool() -> None:
    if connection.vendor == "postgresql":
        connection.close_pool()  # type: ignore[attr-defined]  # only PostgreSQL's has it


class Services(Ours):
    """The services; the runner runs an admitted turn."""

    stores_user_message_first = True

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        services.append_messages(**self.talk(at), messages=messages, create=True)

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        services.append_messages(
            **self.talk(at), messages=messages, create=True, client_id=client_id
        )

    def read(self, at: Address) -> list[Message]:
        try:
            page = services.read_history(**self.talk(at))
        except NotFound:
            return []
        return [row.plain() for row in page.rows]

    def trim(self, at: Address, keep_last: int) -> None:
        services.trim_session(**self.talk(at), keep_last=keep_last, reason="contract")

    def clear(self, at: Address) -> None:
        services.clear_session(**self.talk(at), reason="contract")

    def purge(self, at: Address) -> None:
        services.purge_session(**self.talk(at), reason="contract")

    def turn(self, at: Address, text: str, model: Model) -> str:
        MODELS[text] = model
        asked = {**self.talk(at), "content": text, "client_id": uuid.uuid4().hex}
        while True:
            try:
                admitted = services.admit_turn(**asked, create=True, if_busy="reject")
                break
            except Busy:
                time.sleep(BUSY_SECONDS)
        connections.close_all()
        return reply_of(admitted.session_pk, admitted.turn)

    def bounded(self, messages: int) -> Store:
        return type(self)(WINDOW_MESSAGES=messages)


def reply_of(session_pk: int, client_id: str) -> str:
    """Run the waiting turn of this session; return its reply. Raises if it has none."""
    runner.run(session_pk)
    turn = Turn.objects.get(session_id=session_pk, client_id=client_id)
    if turn.status != Turn.Status.COMPLETE:
        raise MemoryUnavailable(f"The turn is {turn.status}.")
    return Row.stored.get(session_id=session_pk, turn=turn.user_seq, role="assistant").text


class AsyncServices(Ours, AsyncStore):
    """The async versions of the services."""

    stores_user_message_first = True

    async def _talk(self, at: Address) -> dict[str, Any]:
        return await in_own_thread(self.talk, at)

    async def aappend(self, at: Address, messages: Sequence[Message]) -> None:
        talk = await self._talk(at)
        await services.aappend_messages(**talk, messages=messages, create=True)

    async def aappend_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        talk = await self._talk(at)
        await services.aappend_messages(**talk, messages=messages, create=True, client_id=client_id)

    async def aread(self, at: Address) -> list[Message]:
        try:
            page = await services.aread_history(**await self._talk(at))
        except NotFound:
            return []
        return [row.plain() for row in page.rows]

    async def atrim(self, at: Address, keep_last: int) -> None:
        talk = await self._talk(at)
        trim = partial(services.trim_session, **talk, keep_last=keep_last, reason="contract")
        await in_own_thread(trim)

    async def aclear(self, at: Address) -> None:
        await services.aclear_session(**await self._talk(at), reason="contract")

    async def apurge(self, at: Address) -> None:
        talk = await self._talk(at)
        await in_own_thread(partial(services.purge_session, **talk, reason="contract"))

    async def aturn(self, at: Address, text: str, model: Model) -> str:
        MODELS[text] = model
        asked = {**await self._talk(at), "content": text, "client_id": uuid.uuid4().hex}
        while True:
            try:
                admitted = await services.aadmit_turn(**asked, create=True, if_busy="reject")
                break
            except Busy:
                await asyncio.sleep(BUSY_SECONDS)
        return await in_own_thread(reply_of, admitted.session_pk, admitted.turn)

    def bounded(self, messages: int) -> Store:
        return type(self)(WINDOW_MESSAGES=messages)


class Histories(Ours):
    """The base of the adapters of the history class; services trim and purge."""

    def history(self, at: Address) -> DjangoChatMessageHistory:
        return DjangoChatMessageHistory(at.session, owner=self.person(at))

    def trim(self, at: Address, keep_last: int) -> None:
        services.trim_session(**self.talk(at), keep_last=keep_last, reason="contract")

    def purge(self, at: Address) -> None:
        services.purge_session(**self.talk(at), reason="contract")


class History(Histories, HistoryStore):
    """The history class under `RunnableWithMessageHistory`."""

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        self.history(at).add_messages(with_ids(messages, client_id))

    def turn(self, at: Address, text: str, model: Model) -> str:
        history = self.history(at)
        chain = RunnableWithMessageHistory(
            as_runnable(without_connection(model)), lambda session_id: history
        )
        config: Any = {"configurable": {"session_id": at.session}}
        reply = chain.invoke([HumanMessage(text)], config)
        _ = history.messages  # the next use of the object raises what LangChain swallowed
        return str(reply.content)


class AsyncHistory(Histories, AsyncHistoryStore):
    """The history class under `RunnableWithMessageHistory`, by its async methods."""

    async def aappend(self, at: Address, messages: Sequence[Message]) -> None:
        await in_own_thread(self.person, at)
        await super().aappend(at, messages)

    async def aread(self, at: Address) -> list[Message]:
        await in_own_thread(self.person, at)
        return await super().aread(at)

    async def aappend_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        await in_own_thread(self.person, at)
        await self.history(at).aadd_messages(with_ids(messages, client_id))

    async def aturn(self, at: Address, text: str, model: Model) -> str:
        await in_own_thread(self.person, at)
        history = self.history(at)
        chain = RunnableWithMessageHistory(as_runnable(model), lambda session_id: history)
        config: Any = {"configurable": {"session_id": at.session}}
        reply = await chain.ainvoke([HumanMessage(text)], config)
        await history.aget_messages()  # the next use of the object raises what LangChain swallowed
        return str(reply.content)


class WithMemory(History):
    """The history class under `with_memory`."""

    def turn(self, at: Address, text: str, model: Model) -> str:
        chain = with_memory(as_runnable(without_connection(model)), lambda: self.history(at))
        return str(chain.invoke(text).content)


class AsyncWithMemory(AsyncHistory):
    """The history class under `with_memory`, by its async methods."""

    async def aturn(self, at: Address, text: str, model: Model) -> str:
        await in_own_thread(self.person, at)
        chain = with_memory(as_runnable(model), lambda: self.history(at))
        reply = await chain.ainvoke(text)
        return str(reply.content)


def with_ids(messages: Sequence[Message], client_id: str) -> list[BaseMessage]:
    """Convert messages and give them ids, by which the history class detects a retry."""
    return [
        to_langchain({**message, "id": f"{client_id}-{index}"})
        for index, message in enumerate(messages)
    ]
