"""The examples of docs/howto/langgraph.md."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from chatmemory.langgraph.models import Checkpoint
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.services import SERVER, Actor, clear_session, user_scope
from tests.blocks import block_with
from tests.factories import make_session, make_user
from tests.langgraph.graphs import at, graph_of, input_of, stored_bytes
from tests.langgraph.turns import last_text, send

PAGE = "docs/howto/langgraph.md"


def run(name):
    names = {}
    exec(block_with(PAGE, f"# {name}").text, names)  # noqa: S102  # our own page
    return names


def count(messages):
    """Answer as a model would."""
    return AIMessage(f"{len(messages)} messages")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_user_has_a_thread_of_the_own():
    plan = run("shop/planner.py")["plan"]
    ann, bob = make_user(), make_user()
    texts = [plan(user, count, "Rome").content for user in (ann, ann, bob)]
    assert texts == ["1 messages", "3 messages", "1 messages"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_thread_of_a_conversation_is_cleared_with_it():
    user = make_user()
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [count(state["messages"])]})
    builder.add_edge(START, "answer")
    help_with = run("shop/helper.py")["help_with"]
    texts = [help_with(user, "talk", builder, "Help").content for _ in range(2)]
    clear_session(session_key="talk", by=Actor.user(user), reason="")
    texts.append(help_with(user, "talk", builder, "Help").content)
    assert texts == ["1 messages", "3 messages", "1 messages"]


@pytest.mark.django_db
def test_the_examples_prune():
    names = run("shop/prune.py")
    scope = user_scope(make_user())
    async_to_sync(graph_of(DjangoSaver(scope=scope)).ainvoke)(input_of("a"), at())
    names["prune"](scope, ["talk"])
    assert Checkpoint.objects.count() == 1
    async_to_sync(graph_of(names["small_saver"](scope)).ainvoke)(input_of("a"), at())
    assert Checkpoint.objects.count() == 1


@pytest.mark.django_db
def test_the_example_keeps_notes(settings):
    MADE["responder"] = run("shop/notes.py")["with_notes"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.with_notes"}
    make_session()
    texts = []
    for text in ("tea", "coffee"):
        send(text)
        texts.append(last_text())
    assert texts == ["You have sent 0 messages before.", "You have sent 1 messages before."]


MADE: dict[str, Any] = {}
"""The responder of the test."""


async def with_notes(messages, session):
    async for piece in MADE["responder"](messages, session):
        yield piece


class Reversed:
    """A cipher for the test."""

    def encrypt(self, plaintext):
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername, ciphertext):
        assert ciphername == "reversed"
        return ciphertext[::-1]


@pytest.mark.django_db
def test_the_example_encrypts_values_writes_and_metadata():
    graph = graph_of(run("shop/secret.py")["secret_saver"](SERVER, Reversed()))
    config = at() | {"metadata": {"customer": "canary"}}
    async_to_sync(graph.ainvoke)(input_of("canary"), config)
    assert b"canary" not in stored_bytes()
    state = async_to_sync(graph.aget_state)(at())
    assert state.values["messages"] == ["canary", "reply to canary"]
    assert state.metadata["customer"] == "canary"
    saver = DjangoSaver(scope=SERVER, serde=graph.checkpointer.serde)
    [found] = saver.list(at(), filter={"customer": "canary", "step": 1})
    assert found.checkpoint["channel_values"]["messages"][0] == "canary"
