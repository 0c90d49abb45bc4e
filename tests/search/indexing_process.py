"""Index all sessions in processes that are killed before one of their statements.

`python -m tests.search.indexing_process` reads a number from each line, starts a process that is
killed before its statement of this number, and prints `killed`, or `done` if it has fewer.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from importlib import import_module
from typing import Any

import django
from django.db import connection


def main() -> None:
    django.setup()
    indexing: Any = import_module("chatmemory.search.indexing")
    for line in sys.stdin:
        pid = os.fork()  # which starts faster than Python
        if not pid:
            _index(indexing, int(line))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        sys.stdout.write("killed\n" if is_killed else "done\n" if not status else f"{status}\n")
        sys.stdout.flush()


def _index(indexing: Any, count: int) -> None:
    numbers = itertools.count(1)

    def kill(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if next(numbers) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(kill):
        indexing.index_all()


if __name__ == "__main__":
    main()
