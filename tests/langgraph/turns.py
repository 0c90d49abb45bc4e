"""Turns of a graph that a test chooses."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from chatmemory import services
from chatmemory.live.runner import runner
from chatmemory.models import Message, Session, Turn
from chatmemory.responders import finding
from tests.factories import TALK

MADE: dict[str, Any] = {}
"""The graph of the test."""


def responder(session: Session) -> Any:
    return MADE["graph"]


@pytest.fixture
def use_graph(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the graph of RESPONDER; it can be called again."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "RESPONDER": "tests.langgraph.turns.responder",
        "SENDS_PER_MINUTE": None,
        "WINDOW_TOKENS": None,
        "WINDOW_MESSAGES": None,
    }
    yield lambda graph: MADE.update(graph=graph)
    MADE.clear()
    finding._find_responder.cache_clear()


def send(text: str, client_id: str = "", **more: Any) -> Turn:
    """Send a message to the session `talk`, and run its turn to the end."""
    client_id = client_id or uuid.uuid4().hex
    services.admit_turn(**{**TALK, **more}, client_id=client_id, content=text)
    turn = Turn.objects.get(client_id=client_id)
    runner.run(turn.session_id)
    turn.refresh_from_db()
    return turn


def last_text() -> str:
    found = Message.stored.filter(session__key="talk").in_order().last()
    assert found is not None
    return found.text
