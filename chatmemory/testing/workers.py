"""Processes that use a store: at once, killed, started again.

`python -m chatmemory.testing.workers SOCKET [PATH]` is the one from which they come: it calls the
function at `PATH`, if there is one, which imports what takes long, and then forks for each who
connects to the socket. A worker reads tasks, each a line of JSON, and answers with a line for each
call, and one at the end of a task. It shares no memory with another but what was imported.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from chatmemory.testing.models import BY_NAME, DEADLINE_SECONDS
from chatmemory.testing.stores import Address, Recipe, Store


class Worker:
    """One such process."""

    def __init__(self, address: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        self._input = self._connection.makefile("w")
        self._output = self._connection.makefile("r")
        self._pid = int(self._output.readline())

    def begin(self, recipe: Recipe, operation: str, calls: Sequence[Sequence[Any]]) -> None:
        """Give it a task: to make these calls, one after another."""
        task = [recipe.path, dict(recipe.arguments), operation, calls]
        self._input.write(json.dumps(task) + "\n")
        self._input.flush()

    def answers(self) -> Iterator[Any]:
        """What each call of the task returned, as it comes; for one that failed a Refused.

        Ends early where the process does.
        """
        with suppress(ConnectionResetError):
            for line in self._output:
                kind, value = json.loads(line)
                if kind == "end":
                    return
                yield Refused(value) if kind == "refused" else value

    def call(self, recipe: Recipe, operation: str, *arguments: Any) -> Any:
        """What a single call returns. Raises Refused, and EOFError if the process ends in it."""
        self.begin(recipe, operation, [arguments])
        answers = list(self.answers())
        if not answers:
            raise EOFError("the process ended")
        if isinstance(answers[0], Refused):
            raise answers[0]
        return answers[0]

    def kill(self) -> None:
        """End it as an operating system does that is out of memory; its answers can be read."""
        with suppress(ProcessLookupError):
            while True:
                os.kill(self._pid, signal.SIGKILL)
                time.sleep(0.001)

    def close(self) -> None:
        """End it, and what leads to it."""
        self.kill()
        for file in (self._input, self._output):
            with suppress(OSError):
                file.close()
        self._connection.close()


class Refused(Exception):
    """A call failed in a worker, and so its caller was told."""


class Crew:
    """Workers, kept for the next who asks; those that were killed are replaced."""

    def __init__(self, environment: Mapping[str, str] | None = None, prepare: str = "") -> None:
        """`prepare` is the path of a function, `package.module:function`, called before all."""
        self._environment = os.environ if environment is None else environment
        self._prepare = prepare
        self._folder = tempfile.TemporaryDirectory()
        self._address = str(Path(self._folder.name) / "workers")
        self._source: subprocess.Popen[bytes] | None = None
        self._workers: list[Worker] = []
        self._killed: list[Worker] = []

    def take(self, count: int, recipe: Recipe) -> list[Worker]:
        """So many, each with the store of this recipe at hand."""
        while len(self._workers) < count:
            self._workers.append(self._worker())
        taken = self._workers[:count]
        for worker in taken:
            worker.begin(recipe, "release", [[]])
        for worker in taken:
            for answer in worker.answers():
                if isinstance(answer, Refused):
                    raise answer
        return taken

    def kill(self, worker: Worker) -> None:
        """Kill one, and have another in its place when it is asked for."""
        self._workers.remove(worker)
        self._killed.append(worker)
        worker.kill()

    def end(self) -> None:
        """End them all."""
        for worker in self._workers + self._killed:
            worker.close()
        if self._source is not None:
            self._source.communicate()
        self._folder.cleanup()

    def _worker(self) -> Worker:
        if self._source is None:
            self._source = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-m", "chatmemory.testing.workers", self._address, self._prepare],
                env=self._environment,
                stdin=subprocess.PIPE,
            )
        until = time.monotonic() + DEADLINE_SECONDS
        while not Path(self._address).exists():
            if self._source.poll() is not None or time.monotonic() > until:
                raise AssertionError("the workers can't be started")
            time.sleep(0.01)
        return Worker(self._address)


def main(address: str, prepare: str) -> None:
    """Fork for each who connects, until the input ends."""
    if prepare:
        module, _, name = prepare.partition(":")
        getattr(import_module(module), name)()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    draft = f"{address}.draft"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(draft)
        listener.listen()
        Path(draft).rename(address)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                work(connection.makefile("r"), connection.makefile("w"))
                os._exit(0)
            connection.close()


def work(tasks: IO[str], out: IO[str]) -> None:
    """Do the tasks, one after another, until there are no more."""
    out.write(f"{os.getpid()}\n")
    out.flush()
    stores: dict[str, Store] = {}
    for line in tasks:
        path, arguments, operation, calls = json.loads(line)
        known = json.dumps([path, arguments])
        try:
            if known not in stores:
                stores[known] = Recipe(path=path, arguments=arguments).make()
            for call in calls:
                _say(out, *_outcome(stores[known], operation, call))
            stores[known].release()
        except Exception as error:
            _say(out, "refused", _named(error))
        _say(out, "end", None)


def _outcome(store: Store, operation: str, call: Sequence[Any]) -> tuple[str, object]:
    arguments = [Address(*call[0]), *call[1:]] if call else []
    if operation == "turn":
        arguments[-1] = BY_NAME[arguments[-1]]
    try:
        return "returned", getattr(store, operation)(*arguments)
    except Exception as error:
        return "refused", _named(error)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _say(out: IO[str], kind: str, value: object) -> None:
    out.write(json.dumps([kind, value]) + "\n")
    out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
