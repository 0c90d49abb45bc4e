"""What is made from a turn that recalled another chat has no words of it: see READS_OTHERS."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from chatmemory import services
from chatmemory.langgraph.models import SessionState, Thread
from chatmemory.models import Message, Session
from chatmemory.services import Actor
from tests.factories import make_messages, make_user
from tests.langgraph.graphs import stored_bytes
from tests.langgraph.test_summaries import agent
from tests.langgraph.turns import send, use_graph

__all__ = ["use_graph"]

pytestmark = [pytest.mark.django_db, pytest.mark.database]

SECRET = "Tofu-K47"


@pytest.fixture
def person() -> Actor:
    """Somebody with two chats; `old` has a secret."""
    by = Actor.user(make_user("ann"))
    passport = f"My passport number is {SECRET}."
    for key, texts in {"old": (passport, "Noted."), "talk": ("Hello.", "Hi.")}.items():
        messages = make_messages(*texts)
        services.append_messages(session_key=key, by=by, messages=messages, create=True)
    return by


@pytest.fixture
def recall(use_graph: Any, settings: Any) -> Any:
    def change(reach: str) -> None:
        changed = {"RECALL_TOKENS": 500, "RECALL_REACH": reach}
        settings.CHATMEMORY = {**settings.CHATMEMORY, **changed}

    return change


def confirm(state: Any) -> Any:
    given = " ".join(str(message.content) for message in state["messages"])
    interrupt(f"Is it {'known' if SECRET in given else 'unknown'}?")
    return {"messages": [AIMessage("Good.")]}


def graph() -> Any:
    return StateGraph(MessagesState).add_node(confirm).add_edge(START, "confirm").compile()


def ask(by: Actor) -> str:
    """Ask for the secret in the other chat; return the reply."""
    turn = send("What is my passport number?", by=by, scope=None)
    assert turn.status == "complete"
    return Message.stored.get(session=turn.session_id, turn=turn.user_seq, role="assistant").text


def test_a_question_that_recalled_another_chat_has_no_thread(use_graph, recall, person):
    use_graph(graph())
    recall("scope")
    assert ask(person) == "Is it known?"
    assert SECRET.encode() not in stored_bytes()
    assert not Thread.objects.exists()
    # The answer begins the graph again.
    assert send("Yes.", by=person, scope=None).status == "complete"


def test_a_question_that_recalled_nothing_has_one(use_graph, recall, person):
    use_graph(graph())
    recall("session")
    assert ask(person) == "Is it unknown?"
    assert Thread.objects.count() == 1


@pytest.mark.parametrize(("keep", "expected"), [(1, 0), (2, 1)], ids=["in-it", "behind-it"])
def test_a_summary_is_kept_unless_the_recalled_message_is_in_it(
    use_graph, recall, person, keep, expected
):
    made, _, summarized = agent(trigger=4, keep=keep)
    use_graph(made)
    recall("scope")
    ask(person)
    assert (SECRET in str(summarized)) is (keep == 1)
    assert SessionState.objects.count() == expected
    assert Session.objects.get(key="talk").last_seq == 4
