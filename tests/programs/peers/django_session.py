"""Our own session of OpenAI's agents SDK. It runs as the tests of our memory do."""

from __future__ import annotations

from typing import Any

import pytest
from agents.memory import SessionSettings

from chatmemory.agents import DjangoSession
from chatmemory.testing.contract import MemoryContract
from chatmemory.testing.stores import Address, Store
from tests import memories
from tests.programs.peers.agents_sdk import Sessions
from tests.testing.test_contract import Ours, kept_database, our_pool

__all__ = ["kept_database", "our_pool"]


class OurSessions(memories.Ours, Sessions):
    """A new object for each run, as docs/howto/agents-sdk.md describes."""

    def __init__(self, limit: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.settings = SessionSettings(limit=limit)

    async def session(self, at: Address) -> Any:
        talk = await memories.in_own_thread(self.talk, at)
        return DjangoSession(talk.pop("session_key"), **talk, session_settings=self.settings)

    def bounded(self, messages: int) -> Store:
        return OurSessions(limit=messages)


class TestSession(Ours, MemoryContract):
    kind = "DjangoSession"
    make_store = "tests.programs.peers.django_session:OurSessions"

    @pytest.fixture
    def arguments(self) -> dict[str, Any]:
        return {}
