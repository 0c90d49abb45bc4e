"""Cases run in processes of their own, in shuffled slices."""

from __future__ import annotations

import os
import random
from itertools import count
from types import SimpleNamespace

import pytest

from tests.programs.speed import interleave
from tests.programs.speed.cases import BenchError, Scale
from tests.programs.speed.interleave import Process, run_unit
from tests.programs.speed.tests.waiting import COMMAND, unit
from tests.servers import free_port, is_listening, wait_for


@pytest.fixture
def begun_at_answers() -> list[int]:
    """How many slices had begun when the answer to each was read."""
    return []


@pytest.fixture
def run(tmp_path, begun_at_answers):
    """Run a unit of cases that wait; return the results, and the order of the slices."""
    numbers = count()

    class Recorded(Process):
        def __init__(self, plan, index):
            self.name = plan.name
            command = [*plan.command, "", plan.name, str(index), "{}"]
            super().__init__(command, dict(os.environ), tmp_path / f"{next(numbers)}.log")

        def begin(self, task, **arguments):
            self.task = task
            if task == "slice":
                order.append(self.name)
            super().begin(task, **arguments)

        def answer(self):
            if self.task == "slice":
                begun_at_answers.append(len(order))
            return super().answer()

    order: list[str] = []

    def call(given, rounds=3, seed=1):
        order.clear()
        results = run_unit(
            given,
            scale=Scale(),
            rounds=rounds,
            start=Recorded,
            shuffle=random.Random(seed),  # noqa: S311  # no secret
        )
        return results, list(order)

    return call


@pytest.mark.long
def test_each_round_has_one_slice_of_each_case_in_another_order(run):
    names = ["0 a", "0 b", "0 c"]
    results, order = run(unit(*names), rounds=8)
    rounds = [order[at : at + 3] for at in range(3, len(order), 3)]  # after the warm-up
    assert [sorted(one) for one in rounds] == [names] * 8
    assert len({tuple(one) for one in rounds}) > 1
    assert {name: len(result.samples) for name, result in results.items()} == dict.fromkeys(
        names, 8
    )


@pytest.mark.long
def test_a_seed_repeats_the_order(run):
    orders = [run(unit("0 a", "0 b", "0 c"), seed=seed)[1] for seed in (5, 5)]
    assert orders[0] == orders[1]


def test_times_are_per_call_and_waiting_needs_no_cpu(run):
    results, _ = run(unit("1 short", "20 long"))
    for sample in results["20 long"].samples:
        assert sample.seconds >= 0.02
        assert sample.cpu is not None
        assert sample.cpu < sample.seconds
        assert sample.backend is None


@pytest.mark.long
def test_the_floor_runs_against_itself(run):
    results, _ = run(unit("0 a", "0 b", repeats_baseline=True))
    assert results["0 a again"].plan.baseline == "0 a"


@pytest.mark.long
def test_several_processes_call_simultaneously_and_their_time_is_that_of_all(
    run, begun_at_answers, monkeypatch
):
    clock = count(step=12)
    monkeypatch.setattr(interleave, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    results, order = run(unit("0 a", processes=3), rounds=1)
    assert order == ["0 a"] * 6
    assert begun_at_answers == [3, 3, 3, 6, 6, 6]
    (sample,) = results["0 a"].samples
    assert sample.seconds == 12 / (3 * 2)
    # 3 processes, 2 slices of 2 calls; one call of the first was counted.
    assert results["0 a"].faults == ["13 calls"]


@pytest.mark.long
def test_a_process_that_fails_ends_the_run_with_its_log(run):
    with pytest.raises(BenchError, match="it cannot start"):
        run(unit("0 a", "broken"))


@pytest.mark.long
def test_a_process_that_hangs_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(interleave, "END_SECONDS", 0.5)
    port = free_port()
    command = [*COMMAND, "", "hanging", "0", "{}"]
    with Process(command, {**os.environ, "PORT": str(port)}, tmp_path / "log"):
        wait_for(lambda: is_listening(port), "the child does not start", tmp_path / "log")
    wait_for(lambda: not is_listening(port), "the child still runs", tmp_path / "log")
