"""The default checkpointer of graphs of RESPONDER: a thread for each turn that asks."""

from __future__ import annotations

import operator
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import pytest
from asgiref.sync import async_to_sync
from django.db import connections
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from chatmemory import services
from chatmemory.langgraph.models import Blob, Checkpoint, Thread, Write
from chatmemory.langgraph.runs import RunMemory, begin
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.langgraph.state import keep_state
from chatmemory.live.runner import runner
from chatmemory.models import Session
from chatmemory.responders import values
from tests.factories import TALK, make_messages, make_session
from tests.langgraph.graphs import at, stored_bytes
from tests.langgraph.turns import last_text, send, use_graph

__all__ = ["use_graph"]

pytestmark = [pytest.mark.django_db, pytest.mark.database]

REDACTIONS = int(os.environ.get("RUN_REDACTIONS", "250"))


def graph_with(*nodes: Any, state: Any = MessagesState, **options: Any) -> Any:
    builder = StateGraph(state)
    for before, node in zip([START, *(n.__name__ for n in nodes)], nodes, strict=False):
        builder.add_node(node.__name__, node)
        builder.add_edge(before, node.__name__)
    return builder.compile(**options)


def order(state: Any) -> Any:
    """Asks two questions in sequence."""
    return {"messages": [AIMessage(f"{interrupt('Size?')} and {interrupt('Color?')}.")]}


def reply(state: Any) -> Any:
    return {"messages": [AIMessage("Hello.")]}


def ask_the_rest(state: Any) -> Any:
    """A part of a graph with its own namespace."""
    return graph_with(order).invoke(state)


def rows() -> list[int]:
    return [model.objects.count() for model in (Thread, Checkpoint, Blob, Write)]


@pytest.fixture(autouse=True)
def talk() -> Session:
    return make_session()


@pytest.mark.parametrize("node", [order, ask_the_rest])
def test_a_question_needs_no_set_up_and_survives_the_process(use_graph, node):
    for text, expected in (("a shirt", "Size?"), ("XL", "Color?"), ("red", "XL and red.")):
        use_graph(graph_with(node))  # as another process compiles it
        assert send(text).status == "complete"
        assert last_text() == expected


def test_a_thread_is_stored_only_while_its_question_is_open(use_graph):
    use_graph(graph_with(order))
    send("a shirt", "c1")
    thread = Thread.objects.get()
    assert (thread.turn, thread.low, thread.high) == ("c1", 1, 2)
    first = rows()
    assert first[1] == 1
    send("XL", "c2")
    thread = Thread.objects.get()
    assert (thread.turn, thread.low, thread.high) == ("c2", 1, 4)
    assert rows()[1] == 1
    send("red")
    assert rows() == [0, 0, 0, 0]


def test_a_turn_without_a_question_stores_no_thread(use_graph):
    use_graph(graph_with(reply))
    assert send("hi").status == "complete"
    assert rows() == [0, 0, 0, 0]


def test_the_saver_reads_the_thread_of_an_open_question(use_graph, talk):
    graph = graph_with(order)
    use_graph(graph)
    send("a shirt", "c1")
    talk.refresh_from_db()
    saved = graph.copy(update={"checkpointer": DjangoSaver(session=talk)})
    state = async_to_sync(saved.aget_state)(at(f"{talk.pk}.{talk.epoch}.c1"))
    assert [one.value for one in state.interrupts] == ["Size?"]


def test_a_copy_of_the_thread_of_a_question_is_made_from_the_same_messages(use_graph, talk):
    use_graph(graph_with(order))
    send("a shirt", "c1")
    talk.refresh_from_db()
    DjangoSaver(session=talk).copy_thread(f"{talk.pk}.{talk.epoch}.c1", "copy")
    assert {(thread.low, thread.high) for thread in Thread.objects.all()} == {(1, 2)}


def test_a_message_that_is_not_the_answer_ends_the_thread(use_graph):
    use_graph(graph_with(order))
    send("a shirt", "c1")
    services.append_messages(**TALK, messages=[{"role": "assistant", "content": "By the way."}])
    send("socks", "c2")
    assert [thread.turn for thread in Thread.objects.all()] == ["c2"]
    assert last_text() == "Size?"


def test_a_new_version_of_the_question_replaces_its_thread(use_graph):
    use_graph(graph_with(order))
    send("a shirt", "c1")
    send("socks", "c2", replaces=1, expect_seq=1)
    assert [thread.turn for thread in Thread.objects.all()] == ["c2"]
    assert len([*DjangoSaver(session=Session.objects.get()).list(None)]) == 1


def test_an_overdue_run_leaves_the_thread_of_a_later_turn(use_graph, talk):
    use_graph(graph_with(order))
    send("hi")
    talk.refresh_from_db()
    send("a shirt", "c2")
    begin(talk, None)  # as of the first turn
    assert [thread.turn for thread in Thread.objects.all()] == ["c2"]


def test_the_vacuum_deletes_the_thread_of_a_question_that_was_not_answered(use_graph):
    use_graph(graph_with(order))
    send("a shirt", "c1")
    Thread.clean_up()
    assert Thread.objects.count() == 1
    services.append_messages(**TALK, messages=[{"role": "assistant", "content": "By the way."}])
    Session.objects.update(running="c2")  # a turn that may be the answer
    Thread.clean_up()
    assert Thread.objects.count() == 1
    Session.objects.update(running=None)
    Thread.clean_up()
    assert rows() == [0, 0, 0, 0]


def test_a_checkpoint_in_memory_is_not_changed_by_its_reader(talk):
    memory = RunMemory(talk)
    config = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"]["messages"] = []
    checkpoint["channel_versions"]["messages"] = "1"
    memory.put(config, checkpoint, {}, {"messages": "1"})
    for _ in range(2):
        found = memory.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_versions"] == {"messages": "1"}
        assert found.checkpoint["channel_values"] == {"messages": []}
        found.checkpoint["channel_versions"]["other"] = "1"
        found.checkpoint["channel_values"]["messages"].append("a")


def test_threads_of_other_graphs_of_the_session_stay(use_graph, talk):
    services.append_messages(**TALK, messages=make_messages("a", "b"))
    for name, seq in (("helper", None), ("question", 2)):
        other = graph_with(reply, checkpointer=DjangoSaver(session=talk, seq=seq))
        async_to_sync(other.ainvoke)({"messages": []}, at(name))
    use_graph(graph_with(reply))
    send("hi")
    found = [thread.thread_id for thread in Thread.objects.order_by("pk")]
    assert found == ["helper", "question"]


def test_a_thread_that_is_deleted_during_its_run_does_not_return(use_graph, talk):
    def delete(state: Any) -> Any:
        DjangoSaver(session=talk).delete_thread(f"{talk.pk}.{talk.epoch}.c1")
        return {}

    use_graph(graph_with(delete, order))
    assert send("a shirt", "c1").status == "complete"
    assert rows()[1:] == [0, 0, 0]
    use_graph(graph_with(order))
    send("XL")
    assert last_text() == "Size?"


def test_a_graph_with_a_saver_of_its_own_keeps_it(use_graph):
    saver = InMemorySaver()
    graph = graph_with(order, checkpointer=saver)
    use_graph(graph)
    for text in ("a shirt", "XL", "red"):
        send(text)
    assert last_text() == "XL and red."
    assert graph.checkpointer is saver
    assert len(saver.storage) == 1
    assert rows() == [0, 0, 0, 0]


def test_a_graph_that_forbids_a_checkpointer_gets_none(use_graph):
    graph = graph_with(order, checkpointer=False)
    use_graph(graph)
    turn = send("a shirt")
    assert (turn.status, turn.error) == ("failed", "no_checkpointer")
    assert graph.checkpointer is False


def test_the_graph_of_the_host_is_not_changed(use_graph):
    graph = graph_with(order)
    use_graph(graph)
    send("a shirt")
    assert graph.checkpointer is None


def test_without_the_app_a_question_fails_as_before(use_graph, monkeypatch):
    monkeypatch.setattr(values, "before_graph", [])
    use_graph(graph_with(order))
    turn = send("a shirt")
    assert (turn.status, turn.error) == ("failed", "no_checkpointer")


class WithLock(TypedDict):
    messages: Annotated[list[Any], operator.add]
    lock: Any


def lock(state: Any) -> Any:
    return {"lock": threading.Lock()}


def test_a_state_that_cannot_be_serialized_matters_only_to_a_question(use_graph):
    use_graph(graph_with(lock, reply, state=WithLock))
    assert send("hi").status == "complete"
    use_graph(graph_with(lock, order, state=WithLock))
    turn = send("a shirt")
    assert (turn.status, turn.error) == ("failed", "turn_end_error")
    assert rows() == [0, 0, 0, 0]


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["ours", "langgraph"])
def test_a_node_that_changes_its_state_before_it_asks_finds_the_unchanged_one(use_graph, saver):
    def note(state: Any) -> Any:
        state["messages"].append(AIMessage("noted"))
        interrupt("Size?")
        return {"messages": [AIMessage(f"{len(state['messages'])} messages")]}

    use_graph(graph_with(note, checkpointer=saver))
    send("a shirt")
    send("XL")
    assert last_text() == "2 messages"


def test_a_tool_of_which_a_result_is_known_does_not_run_again(use_graph):
    calls = []

    class Two(TypedDict):
        messages: Annotated[list[Any], operator.add]

    def effect(state: Any) -> Any:
        calls.append("effect")
        return {"messages": [AIMessage("Done.")]}

    builder = StateGraph(Two)
    for node in (effect, order):  # in one step
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    use_graph(builder.compile())
    for text in ("a shirt", "XL", "red"):
        send(text)
    assert last_text() == "XL and red."
    assert calls == ["effect"]


# Removals


def redact(seq: int) -> None:
    services.redact_message(**TALK, seq=seq, reason="")


@pytest.mark.parametrize("seq", [1, 3, 4], ids=["window", "asked", "question"])
def test_a_redaction_deletes_the_thread(use_graph, seq, django_capture_on_commit_callbacks):
    services.append_messages(**TALK, messages=make_messages("canary", "b"))
    use_graph(graph_with(order))
    send("a canary")
    assert b"canary" in stored_bytes()
    with django_capture_on_commit_callbacks(execute=True):
        redact(seq)
    assert b"canary" not in stored_bytes()
    send("XL")
    assert last_text() == "Size?"


def test_a_trim_leaves_an_open_question_until_the_messages_are_deleted(use_graph):
    services.append_messages(**TALK, messages=make_messages("a", "b", "c", "d"))
    use_graph(graph_with(order))
    send("a shirt")
    services.trim_session(**TALK, keep_last=2, reason="")
    send("XL")
    assert last_text() == "Color?"


def test_a_resumed_thread_stores_no_word_that_was_trimmed(use_graph):
    def order_and_remember(state: Any) -> Any:
        answer = interrupt("Size?")
        keep_state(Session.objects.get(), "notes", str(state["messages"]))
        return {"messages": [AIMessage(f"{answer} and {interrupt('Color?')}.")]}

    services.append_messages(**TALK, messages=make_messages("canary", "b"))
    use_graph(graph_with(order_and_remember))
    send("a shirt")
    services.trim_session(**TALK, keep_last=2, reason="")
    assert b"canary" in stored_bytes()
    send("XL")
    assert last_text() == "Color?"
    assert b"canary" not in stored_bytes()


def test_a_clear_ends_the_question(use_graph):
    use_graph(graph_with(order))
    send("a shirt")
    services.clear_session(**TALK, reason="")
    send("XL")
    assert last_text() == "Size?"
    assert Thread.objects.count() == 1


def redact_during_a_run(use_graph: Any, chosen: random.Random) -> bool:
    """Redact a message between the start of a run and a moment after its end.

    Returns whether the run had ended.
    """
    services.append_messages(**TALK, messages=make_messages("a canary", "b"))
    session = Session.objects.get()
    seq, pauses = session.last_seq - 1, [chosen.uniform(0, 0.04) for _ in range(2)]
    is_running = threading.Event()

    def remember(state: Any) -> Any:
        said = str(state["messages"])[-10_000:]
        is_running.set()
        time.sleep(pauses[0])
        keep_state(Session.objects.get(), "notes", said)
        return {"messages": [AIMessage(f"{interrupt('Size?')}.")]}

    def run() -> None:
        try:
            runner.run(session.pk)
        finally:
            connections.close_all()

    use_graph(graph_with(remember))
    services.admit_turn(**TALK, client_id=f"c{seq}", content="hi")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        assert is_running.wait(20)
        time.sleep(pauses[1])
        redact(seq)
        has_ended = running.done()
        running.result(20)
    assert last_text() == "Size?"
    assert b"canary" not in stored_bytes()
    return has_ended


def redact_during_runs(use_graph: Any, count: int, seed: int) -> None:
    chosen = random.Random(seed)  # noqa: S311  # no secret
    found = {redact_during_a_run(use_graph, chosen) for _ in range(count)}
    assert count < REDACTIONS or found == {True, False}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_no_redacted_word_is_stored_by_a_run(use_graph):
    redact_during_runs(use_graph, 8, seed=1)


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_no_redacted_word_is_stored_by_many_runs(use_graph):
    redact_during_runs(use_graph, REDACTIONS, seed=2)
