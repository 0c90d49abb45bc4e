"""Which checkpoints remain, and how much is stored."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, TypedDict

import pytest
from asgiref.sync import async_to_sync
from django.db.models import Sum
from django.db.models.functions import Length
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import Command

from chatmemory.langgraph.models import Blob, Checkpoint, Write
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.services import SERVER
from tests.langgraph.graphs import ask, at, graph_of, input_of, reply

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def saver(**options):
    return DjangoSaver(scope=SERVER, **options)


def run(graph, given, thread_id="talk", **options):
    return async_to_sync(graph.ainvoke)(given, at(thread_id), **options)


def remembered(graph, thread_id="talk"):
    return async_to_sync(graph.aget_state)(at(thread_id)).values["messages"]


@pytest.mark.slow
def test_a_pruned_thread_has_its_newest_checkpoint_and_its_values():
    graph = graph_of(saver())
    for text in ("a", "b"):
        run(graph, input_of(text))
    saver().prune(["talk"])
    assert remembered(graph) == ["a", "reply to a", "b", "reply to b"]
    used = Checkpoint.objects.get()
    versions = saver().serde.loads_typed((used.type, bytes(used.data)))["channel_versions"]
    assert {*Blob.objects.values_list("channel", "version")} == {*versions.items()}
    assert not Write.objects.exists()
    run(graph, input_of("c"))
    assert remembered(graph)[-2:] == ["c", "reply to c"]


@pytest.mark.slow
def test_more_than_one_checkpoint_may_be_kept():
    graph = graph_of(saver())
    run(graph, input_of("a"))
    before = async_to_sync(graph.aget_state)(at()).config
    run(graph, input_of("b"))
    saver().prune(["talk"], keep_last=4)
    assert Checkpoint.objects.count() == 4
    run(graph, input_of("c"))
    async_to_sync(graph.ainvoke)(input_of("d"), before)
    assert remembered(graph) == ["a", "reply to a", "d", "reply to d"]


def test_a_saver_can_keep_the_newest_checkpoints_after_each_step():
    graph = graph_of(saver(keep_last=1), reply, ask, reply)
    run(graph, input_of("a"))
    assert Checkpoint.objects.count() == 1
    run(graph, Command(resume="yes"))
    assert remembered(graph) == ["a", "reply to a", "yes", "reply to yes"]
    assert (Checkpoint.objects.count(), Write.objects.count()) == (1, 0)


@pytest.mark.parametrize("keep_last", [0, -1])
def test_a_saver_keeps_at_least_one_checkpoint(keep_last):
    with pytest.raises(ValueError, match="keep_last must be 1 or more"):
        saver(keep_last=keep_last)
    with pytest.raises(ValueError, match="keep_last must be 1 or more"):
        saver().prune([], keep_last=keep_last)


def test_unknown_strategies_are_errors():
    with pytest.raises(ValueError, match='must be "keep_latest" or "delete"'):
        saver().prune(["talk"], strategy="newest")
    with pytest.raises(ValueError, match='must be "reject" or "allow"'):
        saver(overlap="queue")


def add_all(messages, writes):
    return [*messages, *chain.from_iterable(writes)]


def delta_graph(of, snapshot_frequency=4):
    channel = DeltaChannel(add_all, snapshot_frequency=snapshot_frequency)
    builder = StateGraph(TypedDict("Increments", {"messages": Annotated[list, channel]}))
    builder.add_node("reply", lambda state: reply(state))  # whose annotation is another state
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=of)


@pytest.mark.parametrize("keep_last", [None, 1])
@pytest.mark.parametrize("durability", ["async", "exit"])
@pytest.mark.slow
def test_a_thread_with_increments_survives_pruning(keep_last, durability):
    graph = delta_graph(saver(keep_last=keep_last))
    expected = []
    for number in range(5):
        run(graph, input_of(f"m{number}"), durability=durability)
        expected += [f"m{number}", f"reply to m{number}"]
        saver().prune(["talk"])
        assert remembered(graph) == expected
    assert Checkpoint.objects.count() < 15  # 3 for each turn without pruning


@pytest.mark.long
def test_a_pruned_thread_with_increments_takes_at_most_four_times_its_text():
    graph = delta_graph(saver(keep_last=1), snapshot_frequency=20)
    for number in range(1, 51):
        run(graph, input_of("m" * 1_000))
        text = number * (len("reply to ") + 2_000)
        # Between two snapshots all increments stay, beside the snapshot before them.
        assert stored_sum() <= 4 * text + 10_000
    saver().prune(["talk"])
    assert text < stored_sum() <= 4 * text


@pytest.mark.slow
def test_the_checkpoints_of_runs_are_deleted_and_others_stay():
    graph = graph_of(saver())
    run(graph, input_of("a"))
    for run_id in ("first", "second"):
        config = at() | {"metadata": {"run_id": run_id}}
        async_to_sync(graph.ainvoke)(input_of(run_id), config)
    saver().delete_for_runs(["second"])
    assert remembered(graph) == ["a", "reply to a", "first", "reply to first"]
    assert {*Checkpoint.objects.values_list("run_id", flat=True)} == {None, "first"}
    ids = Checkpoint.objects.values("checkpoint_id")
    assert not Write.objects.exclude(checkpoint_id__in=ids).exists()


def test_a_copy_continues_without_its_source():
    graph = graph_of(saver())
    run(graph, input_of("a"))
    saver().copy_thread("talk", "copy")
    saver().delete_thread("talk")
    run(graph, input_of("b"), "copy")
    assert remembered(graph, "copy") == ["a", "reply to a", "b", "reply to b"]


def stored_sum():
    models = (Checkpoint, Blob, Write)
    sizes = (model.objects.aggregate(sum=Sum(Length("data")))["sum"] or 0 for model in models)
    return sum(sizes)


class Chat(TypedDict):
    messages: Annotated[list, add_messages]


def chat_graph(of):
    def answer(state):
        return {"messages": [AIMessage("r" * 500)]}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=of)


def check_bound(turns, at_once):
    """Check the bound for a thread of many turns, of which each run adds some."""
    graph = chat_graph(saver(keep_last=1))
    for _ in range(turns // at_once):
        kinds = [HumanMessage, AIMessage] * (at_once - 1)
        given = [kind("m" * 500) for kind in (*kinds, HumanMessage)]
        run(graph, {"messages": given}, durability="exit")
    kept = stored_sum()
    saver().prune(["talk"])
    assert len(remembered(graph)) == 2 * turns
    text = turns * 1_000
    assert text < stored_sum() <= kept <= 2 * text


@pytest.mark.slow
def test_a_pruned_thread_takes_at_most_two_times_its_text():
    check_bound(20, at_once=1)


@pytest.mark.long
def test_a_long_pruned_thread_takes_at_most_two_times_its_text():
    check_bound(1_000, at_once=20)
