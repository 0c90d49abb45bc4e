"""Worker processes that use a store, for tests that run and kill several of them.

`python -m chatmemory.testing.workers SOCKET [PATH]` is their parent process. It calls the function
at `PATH`, if given, for slow imports, and then forks a worker for each connection to the socket. A
worker reads tasks, one JSON line each, and answers with a line for each call and a line at the end
of the task. Workers share no memory except for the imported modules.
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
from chatmemory.testing.stores import Address, Store, StoreFactory


class Worker:
    """The connection to a worker process."""

    def __init__(self, address: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        self._input = self._connection.makefile("w")
        self._output = self._connection.makefile("r")
        self._pid = int(self._output.readline())

    def begin(self, factory: StoreFactory, operation: str, calls: Sequence[Sequence[Any]]) -> None:
        """Send a task: a list of calls, which the worker makes one after another."""
        task = [factory.path, dict(factory.arguments), operation, calls]
        self._input.write(json.dumps(task) + "\n")
        self._input.flush()

    def answers(self) -> Iterator[Any]:
        """Yield the result of each call, or a Refused for a failed call, when it arrives.

        Ends early if the process ends.
        """
        with suppress(ConnectionResetError):
            for line in self._output:
                kind, value = json.loads(line)
                if kind == "end":
                    return
                yield Refused(value) if kind == "refused" else value

    def call(self, factory: StoreFactory, operation: str, *arguments: Any) -> Any:
        """Return the result of one call. Raises Refused, and EOFError if the process ends."""
        self.begin(factory, operation, [arguments])
        answers = list(self.answers())
        if not answers:
            raise EOFError("The worker process ended during the call.")
        if isinstance(answers[0], Refused):
            raise answers[0]
        return answers[0]

    def kill(self) -> None:
        """Kill the process with SIGKILL; the answers that it sent can still be read."""
        # The parent process reaps the worker. Until then its writes may still be under way.
        with suppress(ProcessLookupError):
            while True:
                os.kill(self._pid, signal.SIGKILL)
                time.sleep(0.001)

    def close(self) -> None:
        """Kill the process and close the connection."""
        self.kill()
        for file in (self._input, self._output):
            with suppress(OSError):
                file.close()
        self._connection.close()


class Refused(Exception):
    """A call failed in a worker; the text is the class and message of its exception."""


class WorkerPool:
    """A pool of workers; killed workers are replaced."""

    def __init__(self, environment: Mapping[str, str] | None = None, prepare: str = "") -> None:
        """`prepare` is the path of a function, `package.module:function`, called before a fork."""
        self._environment = os.environ if environment is None else environment
        self._prepare = prepare
        self._folder = tempfile.TemporaryDirectory()
        self._address = str(Path(self._folder.name) / "workers")
        self._parent: subprocess.Popen[bytes] | None = None
        self._workers: list[Worker] = []
        self._killed: list[Worker] = []

    def take(self, count: int, factory: StoreFactory) -> list[Worker]:
        """Return `count` workers that have made the store of this factory. Raises Refused."""
        while len(self._workers) < count:
            self._workers.append(self._worker())
        workers = self._workers[:count]
        for worker in workers:
            worker.begin(factory, "release", [[]])
        for worker in workers:
            for answer in worker.answers():
                if isinstance(answer, Refused):
                    raise answer
        return workers

    def kill(self, worker: Worker) -> None:
        """Kill a worker; the next `take` replaces it."""
        self._workers.remove(worker)
        self._killed.append(worker)
        worker.kill()

    def end(self) -> None:
        """End all workers and their parent process."""
        for worker in self._workers + self._killed:
            worker.close()
        if self._parent is not None:
            self._parent.communicate()
        self._folder.cleanup()

    def _worker(self) -> Worker:
        if self._parent is None:
            self._parent = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-m", "chatmemory.testing.workers", self._address, self._prepare],
                env=self._environment,
                stdin=subprocess.PIPE,
            )
        until = time.monotonic() + DEADLINE_SECONDS
        while not Path(self._address).exists():
            if self._parent.poll() is not None or time.monotonic() > until:
                raise AssertionError("The parent process of the workers does not listen.")
            time.sleep(0.01)
        return Worker(self._address)


def main(address: str, prepare: str) -> None:
    """Fork a worker for each connection, until the standard input ends."""
    if prepare:
        module, _, name = prepare.partition(":")
        getattr(import_module(module), name)()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps killed workers
    # Renamed only when it listens, so that a process that sees the socket can connect to it.
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
    """Run the tasks one after another, until the input ends."""
    out.write(f"{os.getpid()}\n")
    out.flush()
    stores: dict[str, Store] = {}
    for line in tasks:
        path, arguments, operation, calls = json.loads(line)
        factory = json.dumps([path, arguments])
        try:
            if factory not in stores:
                stores[factory] = StoreFactory(path=path, arguments=arguments).make()
            for call in calls:
                _send_value(out, *_outcome(stores[factory], operation, call))
            stores[factory].release()
        except Exception as error:
            _send_value(out, "refused", _describe(error))
        _send_value(out, "end", None)


def _outcome(store: Store, operation: str, call: Sequence[Any]) -> tuple[str, object]:
    arguments = [Address(*call[0]), *call[1:]] if call else []
    if operation == "turn":
        arguments[-1] = BY_NAME[arguments[-1]]
    try:
        return "returned", getattr(store, operation)(*arguments)
    except Exception as error:
        return "refused", _describe(error)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _send_value(out: IO[str], kind: str, value: object) -> None:
    out.write(json.dumps([kind, value]) + "\n")
    out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
