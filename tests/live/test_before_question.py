"""Messages that other apps add to the model's input, directly before the question."""

from __future__ import annotations

import logging

import pytest

from chatmemory import derived, services
from chatmemory.live.run import read_request
from tests.factories import TALK, make_messages, make_session

pytestmark = pytest.mark.django_db

ADDED = {"role": "user", "content": "earlier"}


@pytest.fixture
def before(monkeypatch):
    """Register functions for this test only."""
    monkeypatch.setattr("chatmemory.services.turns.context._functions", {})
    return derived.before_question


@pytest.fixture
def claim():
    make_session()
    services.append_messages(**TALK, messages=make_messages("one", "two", "three"))
    return services.admit_turn(**TALK, client_id="c1", content="four?", owner="me").claim


def contents(claim):
    return [message["content"] for message in read_request(claim=claim, left={}).messages]


def test_messages_are_added_directly_before_the_question(claim, before, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WINDOW_MESSAGES": 2}
    calls = []

    @before
    def recall(asking):
        calls.append((asking.turn, asking.question["content"], asking.window_from))
        return [ADDED]

    before(recall)  # a repeated registration changes nothing
    assert contents(claim) == ["three", "earlier", "four?"]
    assert calls == [("c1", "four?", 3)]


def test_added_messages_are_arranged_as_those_of_the_window(claim, before, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WINDOW_JOIN": True}
    before(lambda asking: [ADDED])
    assert contents(claim)[-1].endswith("earlier\n\nfour?")


def test_a_function_that_fails_never_fails_the_turn(claim, before, caplog):
    @before
    def fail(asking):
        raise ValueError("secret")

    before(lambda asking: [ADDED])
    with caplog.at_level(logging.ERROR):
        assert contents(claim)[-2:] == ["earlier", "four?"]
    assert "a function of before_question failed" in caplog.text
    assert "secret" not in caplog.text
