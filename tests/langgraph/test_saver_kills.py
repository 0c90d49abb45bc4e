"""A process that is killed at any step of a run leaves a thread that the next run continues."""

from __future__ import annotations

import os
from itertools import count

import pytest

from chatmemory.langgraph.models import Blob, Checkpoint, Thread, Write
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.services import SERVER
from tests.conftest import database_environment
from tests.killed import killable
from tests.langgraph.graphs import at, graph_of, messages_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.long]

STRIDE = int(os.environ.get("TURN_KILL_STRIDE", "5"))
"""With 1 it kills a process at each step."""

FIRST = ["one", "reply to one"]
STATES: tuple[list[str], ...] = ([], ["two"], ["two", "reply to two"])
"""What a killed run leaves of its turn: a state that LangGraph has stored, as a whole."""


def check_thread(name: str) -> list[str]:
    """Check that all checkpoints of a thread can be read; return the messages of this turn."""
    graph = graph_of(DjangoSaver(scope=SERVER))
    found = messages_of(graph, name)
    assert found[:2] == FIRST
    for state in graph.get_state_history(at(name)):
        messages = state.values.get("messages", [])
        assert messages == found[: len(messages)]
    return found[2:]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_killed_run_leaves_a_whole_state(durability):
    left = []
    with killable("tests.langgraph.saver_process", database_environment()) as kill:
        for number in count(1, STRIDE):
            name = f"thread{number}"
            kill(0, name, "one", durability)
            is_killed = kill(number, name, "two", durability)
            left.append(check_thread(name))
            kill(0, name, "three", durability)
            *kept, question, answer = check_thread(name)
            assert (question, answer) == ("three", "reply to three")
            # The next run of LangGraph drops what one task has written without a checkpoint.
            assert kept in (left[-1], left[-1][:-1])
            assert [Thread.objects.filter(thread_id=name).count()] == [1]
            if not is_killed:
                break
    assert len(left) > 20 // STRIDE
    assert all(found in STATES for found in left)
    assert left[-1] == STATES[-1]
    for model in (Checkpoint, Blob, Write):
        assert not model.objects.exclude(thread__in=Thread.objects.all()).exists()
