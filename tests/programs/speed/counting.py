"""Count the statements that a client sends, and how often the ORM compiles one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from django.db import connection
from django.db.models.sql.compiler import SQLCompiler


class Counts(dict[str, int]):
    """Numbers by name."""

    def __init__(self) -> None:
        super().__init__(statements=0, characters=0, parameters=0, as_sql=0, compile=0)
        self._thread = threading.local()

    def add_statement(self, sql: object, params: Any) -> None:
        self["statements"] += 1
        self["characters"] += len(str(sql))
        self["parameters"] += len(params or ())

    @contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """Count a call of `as_sql`, and one of `compile` only outside of another of both."""
        depth: int = getattr(self._thread, "depth", 0)
        if name == "as_sql" or depth == 0:
            self[name] += 1
        self._thread.depth = depth + 1
        try:
            yield
        finally:
            self._thread.depth = depth


@contextmanager
def counted() -> Iterator[Counts]:
    """Count in all threads of this process. Transaction statements of a driver do not count."""
    counts = Counts()
    with ExitStack() as stack:
        for owner in _cursors():
            original = owner.execute
            stack.enter_context(patch.object(owner, "execute", _counting(counts, original)))
        for compiler in set(_compilers(SQLCompiler)):  # a class can have two bases
            for name in {"as_sql", "compile"} & vars(compiler).keys():
                original = vars(compiler)[name]
                replaced = _compiling(counts, name, original)
                stack.enter_context(patch.object(compiler, name, replaced))
        yield counts


def _cursors() -> list[Any]:
    """Return the classes of the driver whose `execute` sends a statement."""
    if connection.vendor == "postgresql":
        # Not Django's wrapper: prepared statements use a cursor of psycopg itself.
        return [_class("psycopg", "Cursor")]
    if connection.vendor == "sqlite":
        return [_class("django.db.backends.sqlite3.base", "SQLiteCursorWrapper")]
    return [_class("django.db.backends.mysql.base", "CursorWrapper")]


def _class(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _compilers(base: type[SQLCompiler]) -> Iterator[type[SQLCompiler]]:
    yield base
    for child in base.__subclasses__():
        yield from _compilers(child)


def _counting(counts: Counts, execute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(execute)
    def counting(self: Any, query: Any, params: Any = None, *args: Any, **options: Any) -> Any:
        counts.add_statement(query, params)
        return execute(self, query, params, *args, **options)

    return counting


def _compiling(counts: Counts, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def compiling(*args: Any, **options: Any) -> Any:
        with counts.compiling(name):
            return method(*args, **options)

    return compiling
