"""Count and time the statements that this process sends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from unittest.mock import patch

import psycopg
from django.db import connection, transaction


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, and the time from its start until its rows arrived."""

    sql: str
    params: Any
    ms: float


@contextmanager
def metered() -> Iterator[list[Statement]]:
    """Collect the statements of all threads.

    In the driver, since Django's `execute_wrapper` does not see prepared statements.
    """
    found: list[Statement] = []
    with ExitStack() as stack:
        for owner in (psycopg.Cursor, psycopg.ServerCursor):
            timed = _timing(found, owner.execute)
            stack.enter_context(patch.object(owner, "execute", timed))
        yield found


def _timing(found: list[Statement], execute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(execute)
    def timing(self: Any, query: Any, params: Any = None, *args: Any, **options: Any) -> Any:
        started = perf_counter()
        try:
            return execute(self, query, params, *args, **options)
        finally:
            found.append(Statement(_text(query), params, (perf_counter() - started) * 1_000))

    return timing


def _text(query: Any) -> str:
    return query if isinstance(query, str) else bytes(query).decode()


def explain(statement: Statement) -> str:
    """Return the plan of a statement with its times and buffers, and undo its changes."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) {statement.sql}", statement.params)
        plan = "\n".join(line for (line,) in cursor.fetchall())
        transaction.set_rollback(True)
    return plan
