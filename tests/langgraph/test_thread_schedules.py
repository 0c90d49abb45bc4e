"""Random schedules of runs and deletions of one thread, in real threads: nothing is lost."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Queue
from threading import Event
from typing import Any

import pytest
from django.db import connections

from chatmemory.errors import Conflict, HistoryCleared
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.services import SERVER
from tests.langgraph.graphs import at, before, graph_of, input_of, messages_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

LONG = int(os.environ.get("THREAD_SCHEDULES", "50"))
STEPS = 2
"""Nodes of a graph; a schedule decides which run executes its next node."""
WAIT_S = 60


def saver() -> DjangoSaver:
    return DjangoSaver(scope=SERVER)


@dataclass
class Run:
    """A run in a thread of its own, which stops in each node until `step` is called."""

    text: str
    thread_id: str
    durability: str
    reports: Queue[str] = field(default_factory=Queue)
    released: list[Event] = field(default_factory=lambda: [Event() for _ in range(STEPS)])
    steps: int = 0
    deletions: int = 0
    """How many deletions had ended before it began."""
    result: Future[Any] | None = None

    def start(self, pool: ThreadPoolExecutor) -> None:
        """Start, and return when it has read the thread, or has ended."""
        self.result = pool.submit(self._invoke)
        self.reports.get(timeout=WAIT_S)

    def step(self) -> bool:
        """Let it execute a node; return whether it continues."""
        self.released[self.steps].set()
        self.steps += 1
        return self.reports.get(timeout=WAIT_S) == "node"

    def _invoke(self) -> None:
        try:
            nodes = [before(self._stop_in(number)) for number in range(STEPS)]
            graph_of(saver(), *nodes).invoke(
                input_of(self.text), at(self.thread_id), durability=self.durability
            )
        finally:
            connections.close_all()
            self.reports.put("ended")

    def _stop_in(self, number: int) -> Callable[[], None]:
        def stop() -> None:
            self.reports.put("node")
            assert self.released[number].wait(timeout=WAIT_S)

        return stop

    def error(self) -> BaseException | None:
        assert self.result is not None
        return self.result.exception(timeout=WAIT_S)


def run_schedule(chosen: random.Random, thread_id: str) -> tuple[int, int, int]:
    """Execute a random schedule; return the numbers of ended, lost and returned turns."""
    deletions = 0
    waiting = [
        Run(f"turn {number}", thread_id, chosen.choice(("sync", "async", "exit")))
        for number in range(3)
    ]
    runs = [*waiting]
    active: list[Run] = []
    ended: list[Run] = []
    with ThreadPoolExecutor(len(runs)) as pool:
        while waiting or active:
            action = chosen.random()
            if action < 0.08:
                saver().delete_thread(thread_id)
                deletions += 1
                ended.clear()
            elif waiting and (action < 0.5 or not active):
                run = waiting.pop()
                run.deletions = deletions
                run.start(pool)
                (ended if run.result.done() else active).append(run)  # type: ignore[union-attr]
            elif active:
                run = chosen.choice(active)
                if not run.step():
                    active.remove(run)
                    if run.error() is None:
                        ended.append(run)
    errors = [run.error() for run in runs]
    assert all(error is None or isinstance(error, Conflict | HistoryCleared) for error in errors)
    found = messages_of(graph_of(saver()), thread_id)
    lost = [run for run in ended if run.error() is None and run.text not in found]
    returned = [run for run in runs if run.deletions < deletions and run.text in found]
    return sum(error is None for error in errors), len(lost), len(returned)


def run_schedules(number: int, seed: int) -> None:
    chosen = random.Random(seed)  # noqa: S311  # no secret
    results = [run_schedule(chosen, f"talk{index}") for index in range(number)]
    ended, lost, returned = map(sum, zip(*results, strict=True))
    assert (lost, returned) == (0, 0)
    assert number // 2 < ended < 3 * number  # runs end, and some are refused


@pytest.mark.slow
def test_no_turn_is_lost_and_no_thread_returns():
    run_schedules(12, seed=1)


@pytest.mark.long
def test_no_turn_is_lost_and_no_thread_returns_in_many_schedules():
    run_schedules(LONG, seed=2)
