"""Count what a waiting turn costs in 1, 4 and 10 processes that run turns, for two versions.

Usage: `python -m tests.programs.benchmarks.runners OLD NEW [ROUNDS]`, with the directories of two
versions of the repository, which may be the same. DATABASE_URL names a PostgreSQL database whose
tables of chatmemory it fills, and REDIS_URL a Redis of its own: it reads the server's count of
PUBLISH.

The cases take turns, in a new order in each round. A case starts the processes of one version, then
admits TURNS turns in new sessions of as many users, either from a process that runs none or from
one of those that do. Sweeps are off: they cost the same for each process, with and without turns.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TURNS = 40
PAUSE_SECONDS = 0.05
"""Between two admissions, so that a machine with few cores is not saturated."""
RUNNERS = (1, 4, 10)
DEADLINE_SECONDS = 60
SECONDS = "EXTRACT(EPOCH FROM t.started_at - t.created_at)"


async def reply(messages: object, session: object) -> AsyncIterator[str]:
    """Reply in two pieces, as the responder of the processes."""
    yield "one "
    await asyncio.sleep(0.1)
    yield "two"


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def work(*, runs_turns: bool) -> None:
    """Execute the commands of the lines of the input in a process of one version."""
    sys.path.insert(0, str(Path.cwd()))
    os.environ["RESPONDER"] = "__main__.reply"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django

    django.setup()

    logging.getLogger("chatmemory.turns").setLevel(logging.WARNING)
    from django.db.backends.signals import connection_created

    from chatmemory.live.hub import hub
    from chatmemory.live.preload import preload
    from chatmemory.live.runner import runner

    statements = [0]

    def count(execute: Any, *given: Any) -> Any:
        statements[0] += 1
        return execute(*given)

    def watch(connection: Any, **_: object) -> None:
        if count not in connection.execute_wrappers:
            connection.execute_wrappers.append(count)

    connection_created.connect(watch, weak=False)
    hub.sweep.seconds = DEADLINE_SECONDS * 10
    preload()
    if runs_turns:
        runner.enable()
    write(json.dumps("ready"))
    for line in sys.stdin:
        command = json.loads(line)
        if command == "count":
            answer: object = {"statements": statements[0], "cpu": time.process_time()}
        else:
            admit(command)
            answer = "done"
        write(json.dumps(answer))


def admit(prefix: str) -> None:
    """Admit turns of new users, which wait."""
    from django.contrib.auth import get_user_model

    from chatmemory import services

    for number in range(TURNS):
        user = get_user_model().objects.get(username=f"{prefix}-{number}")
        services.admit_turn(
            session_key=prefix,
            client_id="c1",
            content="Hello",
            by=services.Actor.user(user),
        )
        time.sleep(PAUSE_SECONDS)


@dataclass
class Process:
    """A process of one version that executes commands."""

    directory: str
    runs_turns: bool

    def start(self, stack: ExitStack) -> None:
        role = "runner" if self.runs_turns else "sender"
        self.process = subprocess.Popen(  # noqa: S603  # this file
            [sys.executable, __file__, role],
            cwd=self.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)

    def ask(self, command: object) -> Any:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())


@dataclass
class Result:
    """The costs of a waiting turn in the repetitions of a case."""

    statements: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    publishes: list[float] = field(default_factory=list)
    start_ms: list[float] = field(default_factory=list)

    def line(self) -> str:
        times = sorted(self.start_ms)
        return (
            f"{statistics.mean(self.statements):10.1f} {statistics.mean(self.cpu_ms):8.0f} "
            f"{statistics.mean(self.publishes):8.2f} {statistics.median(times):8.0f} "
            f"{times[int(len(times) * 0.99)]:8.0f}"
        )


def measure(directory: str, count: int, sender: str, result: Result) -> None:
    """Measure one case once."""
    from django.contrib.auth import get_user_model
    from django.db import connection

    from chatmemory import services

    prefix = f"r{time.time_ns()}"
    people = [get_user_model()(username=f"{prefix}-{n}") for n in range(TURNS)]
    for user in get_user_model().objects.bulk_create(people):
        services.open_session(session_key=prefix, by=services.Actor.user(user))
    with ExitStack() as stack:
        runners = [Process(directory, runs_turns=True) for _ in range(count)]
        others = [] if sender == "runner" else [Process(directory, runs_turns=False)]
        for process in [*runners, *others]:
            process.start(stack)
        for process in [*runners, *others]:
            process.answer()
        time.sleep(1)  # until each has joined its group
        (others or runners)[0].ask(f"{prefix}")  # the processes learn of each other
        _wait_for_ends(prefix)
        _reset(prefix)
        before, published = [process.ask("count") for process in runners], _publishes()
        (others or runners)[0].ask(prefix)
        _wait_for_ends(prefix)
        time.sleep(0.5)  # notifications that are late
        after = [process.ask("count") for process in runners]
        result.publishes.append((_publishes() - published) / TURNS)
        sums = {
            name: sum(b[name] for b in after) - sum(a[name] for a in before) for name in after[0]
        }
        result.statements.append(sums["statements"] / TURNS)
        result.cpu_ms.append(sums["cpu"] * 1000 / TURNS)
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {SECONDS} FROM chatmemory_turn t "  # noqa: S608  # a constant
                "JOIN chatmemory_session s ON s.id = t.session_id WHERE s.key = %s",
                [prefix],
            )
            result.start_ms += [float(seconds) * 1000 for (seconds,) in cursor.fetchall()]


def _reset(prefix: str) -> None:
    """Delete the turns of the first pass, whose messages remain."""
    from chatmemory.models import Message, Turn

    Turn.objects.filter(session__key=prefix).delete()
    Message.stored.filter(session__key=prefix, client_id="c1").update(client_id=None)


def _wait_for_ends(prefix: str) -> None:
    from chatmemory.models import Turn

    end = time.monotonic() + DEADLINE_SECONDS
    while Turn.objects.filter(session__key=prefix, status="complete").count() < TURNS:
        assert time.monotonic() < end, "the turns do not end"
        time.sleep(0.1)


def _publishes() -> int:
    import redis

    client = redis.Redis.from_url(os.environ["REDIS_URL"])
    found: Any = client.info("commandstats")
    return int(found.get("cmdstat_publish", {}).get("calls", 0))


def _set_up() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def main(old: str, new: str, rounds: int = 3) -> None:
    """Measure all cases in turns, and print the costs of a waiting turn."""
    results: dict[tuple[str, str, int], Result] = {
        (sender, directory, count): Result()
        for sender in ("other", "runner")
        for count in RUNNERS
        for directory in (old, new)
    }
    _set_up()
    for _ in range(rounds):
        cases = list(results)
        random.shuffle(cases)
        for sender, directory, count in cases:
            measure(directory, count, sender, results[sender, directory, count])
    write("sender  version  runners  statements   CPU ms  PUBLISH   median      p99 ms")
    for (sender, directory, count), result in results.items():
        version = "old" if directory == old else "new"
        write(f"{sender:7s} {version:7s} {count:8d} {result.line()}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["runner" | "sender" as role]:
            work(runs_turns=role == "runner")
        case [old, new]:
            main(old, new)
        case [old, new, rounds]:
            main(old, new, int(rounds))
        case _:
            write(__doc__ or "")
