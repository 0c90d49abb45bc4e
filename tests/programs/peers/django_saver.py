"""Our own saver in the graph of the others. It runs as the tests of our memory do."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from django.contrib.auth.models import User
from django.db import connections
from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage

from chatmemory.errors import Conflict, MemoryUnavailable
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.services import user_scope
from chatmemory.testing.contract import MemoryContract
from chatmemory.testing.stores import Address, Model
from tests.memories import outage
from tests.programs.peers.graphs import Graph
from tests.testing.test_contract import Ours, kept_database, our_pool

__all__ = ["kept_database", "our_pool"]

T = TypeVar("T")

PATIENCE_SECONDS = 60
"""How long a refused run is run again."""
FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 1.0


class Saver(Graph):
    """Runs a refused run again, as docs/howto/langgraph.md describes."""

    errors = (MemoryUnavailable,)

    def __init__(self) -> None:
        super().__init__(DjangoSaver())
        self._scopes: dict[str, str] = {}

    def config(self, at: Address) -> Any:
        return {"configurable": {"thread_id": at.session, "scope": self._scope_of(at)}}

    def update(self, at: Address, messages: Sequence[BaseMessage]) -> None:
        again(lambda: super(Saver, self).update(at, messages))

    def purge(self, at: Address) -> None:
        DjangoSaver(scope=self._scope_of(at)).delete_thread(at.session)

    clear = purge  # it hides the thread

    def turn(self, at: Address, text: str, model: Model) -> str:
        asked: list[str] = []

        def run() -> str:
            known = {message.id for message in self.messages(at)} if asked else set()
            earlier = [RemoveMessage(id=name) for name in asked if name in known]
            asked.append(str(uuid.uuid4()))
            return self.run(at, [*earlier, HumanMessage(text, id=asked[-1])], model)

        return again(run)

    def _scope_of(self, at: Address) -> str:
        if at.user not in self._scopes:
            user, _ = User.objects.get_or_create(username=at.user)
            self._scopes[at.user] = user_scope(user)
        return self._scopes[at.user]

    @contextmanager
    def outage(self) -> Iterator[None]:
        with outage():
            yield

    def release(self) -> None:
        connections.close_all()
        self._scopes.clear()  # the next test in this process has other users


def again(work: Callable[[], T]) -> T:
    """Call this until it is not refused, after longer and longer pauses."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return work()
        except Conflict:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0, pause))  # noqa: S311  # no secret
            pause = min(2 * pause, MAX_PAUSE_SECONDS)


class TestSaver(Ours, MemoryContract):
    kind = "DjangoSaver"
    make_store = "tests.programs.peers.django_saver:Saver"

    @pytest.fixture
    def arguments(self) -> dict[str, Any]:
        return {}
