"""Run the cases of a unit in processes of their own, in slices whose order is shuffled.

The load of a machine changes within seconds. So each round runs a slice of every case, and a case
is compared with its baseline of the same round. Parent and process exchange lines of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.programs.speed.cases import BenchError, Case, Plan, Scale, Unit
from tests.programs.speed.meter import cpu_by_process, own_cpu

AGAIN = "again"
"""The suffix of the name of a baseline's second case."""
LOG_CHARS = 4_000
END_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Means of one slice, per call, in seconds; CPU is None where it cannot be read."""

    seconds: float
    cpu: float | None
    backend: float | None


@dataclass(kw_only=True)
class Result:
    """What a case has shown."""

    plan: Plan
    samples: list[Sample] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Process:
    """A process that runs a case."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # our own command line
                command,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C ends the parent, which ends the rest
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the pipe, at which the process ends; kill it and its server if it does not."""
        assert self._process.stdin is not None  # a pipe
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def begin(self, task: str, **arguments: object) -> None:
        """Send a task."""
        assert self._process.stdin is not None  # a pipe
        with suppress(BrokenPipeError):  # `answer` reports it
            self._process.stdin.write(json.dumps({"task": task, **arguments}).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the task. Raises BenchError if the process has failed."""
        assert self._process.stdout is not None  # a pipe
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise BenchError(f"A process failed:\n{self._log.read_text()[-LOG_CHARS:]}")
        return json.loads(line)

    def ask(self, task: str, **arguments: object) -> Any:
        self.begin(task, **arguments)
        return self.answer()


Start = Callable[[Plan, int], Process]
"""Starts the process of a case with this number."""


def run_unit(
    unit: Unit, *, scale: Scale, rounds: int, start: Start, shuffle: random.Random
) -> dict[str, Result]:
    """Measure the cases of a unit; return their results by name."""
    plans = list(unit.plans(scale))
    if unit.repeats_baseline:
        first = plans[0]
        plans.append(replace(first, name=f"{first.name} {AGAIN}", baseline=first.name))
    with ExitStack() as stack:
        pools = {
            plan.name: [stack.enter_context(start(plan, n)) for n in range(plan.processes)]
            for plan in plans
        }
        results = {plan.name: Result(plan=plan) for plan in plans}
        for pool in pools.values():
            for process in pool:
                process.ask("prepare")
        for pool in pools.values():
            for _ in range(unit.warmups):
                _run_slice(pool, unit.calls)
        for _ in range(rounds):
            for name in shuffle.sample(list(pools), len(pools)):
                results[name].samples.append(_run_slice(pools[name], unit.calls))
        for name, pool in pools.items():
            results[name].counts = pool[0].ask("count")
            results[name].steps = pool[0].ask("steps")
            calls = [process.ask("calls") for process in pool]
            results[name].faults = pool[0].ask("find_faults", calls=calls)
        return results


def _run_slice(pool: Sequence[Process], calls: int) -> Sample:
    begin = time.perf_counter()
    for process in pool:
        process.begin("slice", calls=calls)
    parts = [process.answer() for process in pool]
    seconds = time.perf_counter() - begin
    if len(pool) == 1:
        return Sample(**parts[0])
    # With several writers, the throughput of all counts.
    means = {
        name: None if None in (found := [part[name] for part in parts]) else sum(found) / len(pool)
        for name in ("cpu", "backend")
    }
    return Sample(seconds=seconds / calls / len(pool), **means)


def serve(case: Case) -> None:
    """Answer the tasks of the parent process until it closes the pipe."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log
    calls = 0
    try:
        for line in sys.stdin:
            task = json.loads(line)
            answer: object = None
            match task["task"]:
                case "prepare":
                    case.prepare()
                case "slice":
                    answer = _timed(case, task["calls"])
                    calls += task["calls"]
                case "count":
                    answer = case.count()
                    calls += bool(answer)
                case "steps":
                    answer = case.steps()
                    calls += bool(answer)
                case "calls":
                    answer = calls
                case "find_faults":
                    answer = case.find_faults(task["calls"])
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        case.close()


def _timed(case: Case, calls: int) -> dict[str, float | None]:
    """Make the calls of a slice; return the means of a `Sample`."""
    # The CPU of reading /proc is outside of the slice.
    backends_before = cpu_by_process(case.backend_pids())
    cpu_before = _cpu(case)
    begin = time.perf_counter()
    own_times = [case.call() for _ in range(calls)]
    seconds = time.perf_counter() - begin
    cpu_after = _cpu(case)
    backends = cpu_by_process(case.backend_pids())
    if counted := [own for own in own_times if own is not None]:
        seconds = sum(counted)
    cpu = None if cpu_before is None or cpu_after is None else cpu_after - cpu_before
    backend = sum(used - backends_before.get(pid, 0.0) for pid, used in backends.items())
    parts = calls * case.parts()
    return {
        "seconds": seconds / calls,
        "cpu": None if cpu is None else cpu / parts,
        "backend": backend / parts if backends else None,
    }


def _cpu(case: Case) -> float | None:
    """Return the CPU seconds of the processes that do a case's work."""
    if not case.has_cpu:
        return None
    servers = case.server_pids()
    if not servers:
        return own_cpu()
    used = cpu_by_process(servers)
    return sum(used.values()) if len(used) == len(servers) else None
