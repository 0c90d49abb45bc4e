"""Runs of graphs: what they remember, and that none loses a turn or brings a thread back."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from langgraph.types import Command

from chatmemory.errors import Conflict, HistoryCleared
from chatmemory.langgraph.models import Blob, Checkpoint, Write
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.langgraph.threads import Owner, begin, create_missing
from chatmemory.services import SERVER
from tests.langgraph.graphs import (
    ask,
    at,
    before,
    graph_of,
    input_of,
    messages_of,
    reply,
    stored_bytes,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.slow]

DURABILITIES = ("sync", "async", "exit")


def saver(**options):
    return DjangoSaver(scope=SERVER, **options)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_thread_remembers_its_turns(durability):
    graph = graph_of(saver())
    for text in ("a", "b", "c"):
        graph.invoke(input_of(text), at(), durability=durability)
    assert messages_of(graph) == ["a", "reply to a", "b", "reply to b", "c", "reply to c"]


async def test_an_async_run_remembers_its_turns():
    graph = graph_of(saver())
    for text in ("a", "b"):
        await graph.ainvoke(input_of(text), at())
    state = await graph.aget_state(at())
    assert state.values["messages"] == ["a", "reply to a", "b", "reply to b"]
    assert len([one async for one in graph.aget_state_history(at())]) == 6


async def test_a_sync_call_in_an_event_loop_names_its_async_version():
    with pytest.raises(SynchronousOnlyOperation, match=r"`await aget_tuple\(…\)`"):
        saver().get_tuple(at())
    with pytest.raises(SynchronousOnlyOperation, match=r"`await alist\(…\)`"):
        next(saver().list(at()))


@pytest.mark.parametrize("keep_last", [None, 1])
def test_an_interrupted_run_continues_with_the_answer(keep_last):
    graph = graph_of(saver(keep_last=keep_last), reply, ask, reply)
    graph.invoke(input_of("a"), at())
    assert messages_of(graph) == ["a", "reply to a"]
    graph = graph_of(saver(keep_last=keep_last), reply, ask, reply)  # of another process
    graph.invoke(Command(resume="yes"), at())
    assert messages_of(graph) == ["a", "reply to a", "yes", "reply to yes"]


def test_the_config_of_a_state_can_be_stored_as_json():
    graph = graph_of(saver())
    graph.invoke(input_of("a"), at())
    config = json.loads(json.dumps(graph.get_state(at()).config))
    assert graph.get_state(config).values == {"messages": ["a", "reply to a"]}


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_run_that_was_overtaken_raises_and_loses_no_turn(durability):
    graph = graph_of(saver())
    graph.invoke(input_of("a"), at())
    slow = graph_of(saver(), before(lambda: graph.invoke(input_of("fast"), at("talk"))))
    with pytest.raises(Conflict, match="Another run has changed the thread"):
        slow.invoke(input_of("slow"), at(), durability=durability)
    if durability == "exit":
        assert messages_of(graph) == ["a", "reply to a", "fast", "reply to fast"]
    else:  # it stored its question before it was overtaken
        assert messages_of(graph) == ["a", "reply to a", "slow", "fast", "reply to fast"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_of_two_first_runs_of_a_thread_the_later_one_raises(durability):
    fast = graph_of(saver())
    slow = graph_of(saver(), before(lambda: fast.invoke(input_of("fast"), at())))
    with pytest.raises(Conflict):
        slow.invoke(input_of("slow"), at(), durability=durability)
    assert messages_of(fast)[-2:] == ["fast", "reply to fast"]


@pytest.mark.parametrize("is_deleted", [False, True], ids=["known", "deleted"])
def test_a_first_run_is_told_whether_its_thread_was_begun_or_deleted_meanwhile(is_deleted):
    owner = Owner(scope=SERVER)
    first, second = (begin(owner, "talk", fork=False) for _ in range(2))
    create_missing(owner, "talk", first)  # it has no checkpoint yet
    if is_deleted:
        saver().delete_thread("talk")
    with pytest.raises(HistoryCleared if is_deleted else Conflict):
        create_missing(owner, "talk", second)


def test_overlapping_runs_are_allowed_on_request():
    graph = graph_of(saver())
    graph.invoke(input_of("a"), at())
    allowed = saver(overlap="allow")
    slow = graph_of(allowed, before(lambda: graph.invoke(input_of("fast"), at())))
    slow.invoke(input_of("slow"), at(), durability="exit")
    assert messages_of(graph) == ["a", "reply to a", "slow", "reply to slow"]


def test_a_run_may_begin_at_an_earlier_checkpoint():
    graph = graph_of(saver())
    graph.invoke(input_of("a"), at())
    earlier = graph.get_state(at()).config
    graph.invoke(input_of("b"), at())
    graph.invoke(input_of("c"), earlier)
    assert messages_of(graph) == ["a", "reply to a", "c", "reply to c"]
    graph.update_state(earlier, input_of("d"))
    assert messages_of(graph) == ["a", "reply to a", "d"]
    graph.invoke(input_of("e"), at())
    assert messages_of(graph) == ["a", "reply to a", "d", "e", "reply to e"]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("turns", [0, 1], ids=["new", "known"])
def test_a_thread_that_is_deleted_during_a_run_does_not_return(durability, turns):
    graph = graph_of(saver())
    for _ in range(turns):
        graph.invoke(input_of("canary"), at())
    slow = graph_of(saver(), before(lambda: saver().delete_thread("talk")))
    with pytest.raises(HistoryCleared):
        slow.invoke(input_of("canary"), at(), durability=durability)
    assert b"canary" not in stored_bytes()
    assert not Checkpoint.objects.exists() | Blob.objects.exists() | Write.objects.exists()
    graph.invoke(input_of("b"), at())
    assert messages_of(graph) == ["b", "reply to b"]


@pytest.mark.parametrize("turns", [0, 1], ids=["new", "known"])
def test_a_subgraph_does_not_bring_a_deleted_thread_back(turns):
    graph = graph_of(saver())
    for _ in range(turns):
        graph.invoke(input_of("canary"), at())
    inner = graph_of(None, reply, ask)
    slow = graph_of(saver(), before(lambda: saver().delete_thread("talk")), inner)
    with pytest.raises(HistoryCleared):
        slow.invoke(input_of("canary"), at())
    assert b"canary" not in stored_bytes()


def test_a_subgraph_resumes_in_its_own_namespace():
    inner = graph_of(None, reply, ask)
    graph = graph_of(saver(keep_last=1), inner, reply)
    graph.invoke(input_of("a"), at())
    graph.invoke(Command(resume="yes"), at())
    assert messages_of(graph)[-2:] == ["yes", "reply to yes"]
    assert Checkpoint.objects.exclude(ns="").exists()


def test_a_deleted_thread_can_begin_again():
    graph = graph_of(saver())
    graph.invoke(input_of("a"), at())
    saver().delete_thread("talk")
    graph.invoke(input_of("b"), at())
    assert messages_of(graph) == ["b", "reply to b"]


def test_a_run_on_a_slow_clock_is_not_hidden_by_an_earlier_one():
    """LangGraph's ids begin with the time of the process."""
    graph = graph_of(saver())
    graph.invoke(input_of("a"), at())
    for row in Checkpoint.objects.all():  # as if this host's clock had been fast
        Checkpoint.objects.filter(parent_id=row.checkpoint_id).update(
            parent_id=f"f{row.checkpoint_id[1:]}"
        )
        Checkpoint.objects.filter(pk=row.pk).update(checkpoint_id=f"f{row.checkpoint_id[1:]}")
    graph.invoke(input_of("b"), at())
    assert messages_of(graph) == ["a", "reply to a", "b", "reply to b"]


def test_a_run_leaves_no_connection_open_in_its_threads():
    left = []

    class Watched(DjangoSaver):
        def put(self, *args):
            config = super().put(*args)
            if threading.current_thread() is not threading.main_thread():
                left.append(connections["default"].connection)
            return config

    graph_of(Watched(scope=SERVER)).invoke(input_of("a"), at())
    assert left == [None, None, None]


async def test_parallel_runs_of_several_threads_do_not_disturb_one_another():
    graph = graph_of(saver())
    names = [f"talk{number}" for number in range(8)]
    await asyncio.gather(*(graph.ainvoke(input_of(name), at(name)) for name in names))
    for name in names:
        state = await graph.aget_state(at(name))
        assert state.values["messages"] == [name, f"reply to {name}"]
