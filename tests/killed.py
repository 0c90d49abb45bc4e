"""Run code again and again in processes that are killed at one of their steps.

A module for such a process calls `serve`; a test talks to it with `killable`. A step is the
beginning or the end of a statement, or a call of `step`.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db.backends.signals import connection_created

Kill = Callable[..., bool]

_numbers = itertools.count(1)
_killed_at = 0


def serve(run: Callable[..., None]) -> None:
    """Read lines `NUMBER ARGUMENT…`, and call a function with the arguments in a process for each.

    The process is killed at the step of this number. Prints `killed`, or `done` if it has fewer.
    Call it after `django.setup()` and the imports that the function needs.
    """
    connection_created.connect(_count_statements)
    for line in sys.stdin:
        pid = os.fork()  # which starts faster than Python
        if not pid:
            _run(run, *line.split())
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        sys.stdout.write("killed\n" if is_killed else "done\n" if not status else f"{status}\n")
        sys.stdout.flush()


def step() -> None:
    """Kill this process if this is its step to be killed at."""
    if next(_numbers) == _killed_at:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def killable(module: str, env: dict[str, str], *arguments: str) -> Iterator[Kill]:
    """Yield a function that runs a module which calls `serve`: `kill(number, argument, …)`.

    The function returns whether the process was killed at the step of this number; 0 kills none.
    """
    with subprocess.Popen(  # noqa: S603  # our own module
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        env=env,
        cwd=settings.BASE_DIR,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def kill(number: int, *given: str) -> bool:
            stdin.write(f"{' '.join([str(number), *given])}\n")
            stdin.flush()
            line = stdout.readline()
            assert line in {"killed\n", "done\n"}
            return bool(line == "killed\n")

        yield kill
        stdin.close()


def _run(run: Callable[..., None], number: str, *arguments: str) -> None:
    global _killed_at
    _killed_at = int(number)
    run(*arguments)


def _count_statements(connection: Any, **_: object) -> None:
    def count(execute: Callable[..., Any], *arguments: Any) -> Any:
        step()
        result = execute(*arguments)
        step()
        return result

    if count.__name__ not in {wrapper.__name__ for wrapper in connection.execute_wrappers}:
        connection.execute_wrappers.append(count)
