"""States that a responder keeps of a session, from turn to turn."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from chatmemory import services
from chatmemory.errors import BadInput
from chatmemory.langgraph.models import SessionState
from chatmemory.langgraph.state import (
    MAX_STATE_BYTES,
    State,
    aread_state,
    keep_state,
    read_state,
)
from chatmemory.models import Session
from chatmemory.testing.derived import check_derived_rows
from tests.factories import TALK, make_messages, make_session
from tests.langgraph.turns import send, use_graph

__all__ = ["use_graph"]

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def talk() -> Session:
    return make_session()


@pytest.fixture
def keeping(use_graph: Any) -> Any:
    """Return a function that runs a turn, which keeps a state."""

    def run(name: str, value: Any, *, text: str = "hi", fails: bool = False, **more: Any) -> Any:
        def node(state: Any) -> Any:
            keep_state(Session.objects.get(), name, value, **more)
            if fails:
                raise RuntimeError
            return {"messages": [{"role": "assistant", "content": "Noted."}]}

        builder = StateGraph(MessagesState)
        builder.add_node("node", node)
        builder.add_edge(START, "node")
        use_graph(builder.compile(checkpointer=False))
        return send(text)

    return run


def reply(state: Any) -> Any:
    return {"messages": [{"role": "assistant", "content": "Hello."}]}


def answering(node: Any = reply) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile()


def state(name: str = "notes") -> State | None:
    return read_state(Session.objects.get(), name)


def test_a_state_is_read_in_later_turns(keeping):
    assert state() is None
    keeping("notes", {"likes": ["tea", 1, None]})
    assert state() == State({"likes": ["tea", 1, None]}, 1)
    keeping("notes", "coffee")
    keeping("other", 1)
    assert state() == State("coffee", 3)
    assert state("other") == State(1, 5)
    assert SessionState.objects.count() == 2


async def test_a_state_is_read_in_an_event_loop(talk):
    assert await aread_state(talk, "notes") is None


def test_a_state_has_the_seq_up_to_which_it_was_made(keeping):
    services.append_messages(**TALK, messages=make_messages("a", "b", "c", "d"))
    keeping("notes", "x", seq=2)
    assert state() == State("x", 2)
    row = SessionState.objects.get()
    assert (row.low, row.high) == (1, 2)


def test_a_failed_turn_keeps_its_state_too(keeping):
    turn = keeping("notes", 1, fails=True)
    assert turn.status == "failed"
    assert state() == State(1, 1)


@pytest.mark.parametrize("seq", [0, 3])
def test_a_seq_outside_of_the_conversation_fails_the_turn(keeping, seq):
    assert keeping("notes", 1, seq=seq).error == "responder_error"
    assert state() is None


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("", 1, "bad_field"),
        ("x" * 101, 1, "bad_field"),
        ("a\0", 1, "bad_text"),
        ("a", object(), "bad_json"),
        ("a", float("nan"), "bad_json"),
        ("a", "\ud800", "bad_json"),
        ("a", "x" * (MAX_STATE_BYTES - 1), "too_large"),
    ],
    ids=["empty", "long-name", "nul", "object", "nan", "surrogate", "large"],
)
def test_a_wrong_state_is_refused(talk, name, value, code):
    talk.first_seq = talk.last_seq = 1
    with pytest.raises(BadInput) as error:
        keep_state(talk, name, value)
    assert error.value.code == code


def test_the_largest_state_is_stored(keeping):
    keeping("notes", "x" * (MAX_STATE_BYTES - 2))
    found = state()
    assert found is not None
    assert len(found.value) == MAX_STATE_BYTES - 2


def test_a_state_is_kept_only_in_a_run(talk):
    talk.first_seq = talk.last_seq = 1
    with pytest.raises(RuntimeError):
        keep_state(talk, "notes", 1)


def make(low: int, high: int | None, text: str) -> SessionState:
    return SessionState(low=low, high=high, name="notes", value=text)


@pytest.mark.slow
def test_no_word_of_a_removed_message_stays_in_a_state():
    check_derived_rows(SessionState, make)


@pytest.mark.parametrize("name", ["redact", "trim", "clear", "edit"])
def test_a_removal_ends_a_state(keeping, use_graph, name):
    keeping("notes", "old")
    use_graph(answering())
    services.append_messages(**TALK, messages=make_messages("a", "b"))
    match name:
        case "redact":
            services.redact_message(**TALK, seq=1, reason="")
        case "trim":
            services.trim_session(**TALK, keep_last=2, reason="")
        case "clear":
            services.clear_session(**TALK, reason="")
        case "edit":
            send("hello", replaces=1, expect_seq=3)
    assert state() is None


def test_an_edit_of_later_messages_leaves_a_state(keeping, use_graph):
    keeping("notes", "old")
    use_graph(answering())
    send("hello", "c2")
    send("hello again", replaces=3, expect_seq=3)
    assert state() == State("old", 1)


def test_a_state_that_was_made_after_an_edit_is_read(keeping, use_graph):
    use_graph(answering())
    send("hello", "c1")
    send("hello again", replaces=1, expect_seq=1)
    keeping("notes", "new")
    assert state() == State("new", 5)


def test_a_run_does_not_read_a_state_of_messages_that_are_restored_meanwhile(keeping, use_graph):
    keeping("notes", "canary")
    services.append_messages(**TALK, messages=make_messages("a", "b"))
    trimmed = services.trim_session(**TALK, keep_last=1, reason="")
    assert trimmed is not None

    def node(found: Any) -> Any:
        session = Session.objects.get()
        at = {"by": TALK["by"], "scope": TALK["scope"]}
        services.restore_session(entry_pk=trimmed.pk, **at, reason="")
        seen = read_state(session, "notes")
        keep_state(session, "copy", [seen and seen.value])
        return {"messages": [{"role": "assistant", "content": "Noted."}]}

    use_graph(answering(node))
    send("hi")
    assert state() == State("canary", 1)
    assert state("copy") == State([None], 5)


def test_a_state_is_not_stored_if_a_message_was_redacted_during_the_run(use_graph):
    services.append_messages(**TALK, messages=make_messages("a", "b"))

    def node(found: Any) -> Any:
        keep_state(Session.objects.get(), "notes", "a")
        services.redact_message(**TALK, seq=1, reason="")
        return {"messages": [{"role": "assistant", "content": "Noted."}]}

    use_graph(answering(node))
    assert send("hi").status == "complete"
    assert state() is None


def test_a_state_is_not_stored_if_a_message_was_trimmed_during_the_run(use_graph):
    services.append_messages(**TALK, messages=make_messages("a", "b"))

    def node(found: Any) -> Any:
        session = Session.objects.get()
        keep_state(session, "notes", "a")
        services.trim_session(**TALK, keep_last=1, reason="")
        return {"messages": [{"role": "assistant", "content": "Noted."}]}

    use_graph(answering(node))
    assert send("hi").status == "complete"
    assert state() is None
