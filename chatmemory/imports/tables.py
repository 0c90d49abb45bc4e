"""Read LangChain's histories from a table of a database of the project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import ProgrammingError, connections
from django.utils.connection import ConnectionDoesNotExist

from chatmemory.database.retries import durably
from chatmemory.errors import BadInput, Conflict
from chatmemory.imports.histories import CHANGED, History, Stored

FORMAT = "langchain-sql"

TABLE = "message_store"
"""The default of `SQLChatMessageHistory`."""

_COLUMNS = ("id", "session_id", "message")
_TIME = "created_at"
"""A column that langchain-postgres has too."""

INDEX_PAGE = 10_000
PAGE = 100
"""Rows that are read at a time, without and with their messages."""


class Table:
    """A table with a row for each message. Raises BadInput, MemoryUnavailable."""

    format = FORMAT

    def __init__(self, alias: str, table: str = TABLE) -> None:
        try:
            self.connection = connections[alias]
        except ConnectionDoesNotExist as error:
            message = f"DATABASES has no {alias[:80]!a}."
            raise BadInput(message, field="database") from error
        self.table = table
        self.columns = durably(self._existing_columns, is_repeatable=True)

    def histories(self) -> Iterator[History]:
        """Yield the histories, in the order of their first messages."""
        # Not SELECT DISTINCT: a collation may ignore case, and the column need not have an index.
        ends: dict[object, tuple[int, int]] = {}
        for pk, session_id in self._rows(["id", "session_id"], INDEX_PAGE):
            first, _ = ends.get(session_id, (pk, pk))
            ends[session_id] = first, pk
        for session_id, (first, last) in ends.items():
            name = str(session_id) if isinstance(session_id, UUID) else session_id
            yield History(session_id=name, messages=self._messages(session_id, first, last))

    def _messages(self, session_id: object, first: int, last: int) -> Iterator[Stored]:
        condition = "session_id = %s AND id <= %s AND"
        values = [session_id, last]
        newest = None
        for pk, found, message, *times in self._rows(
            self.columns, PAGE, condition, values, after=first - 1
        ):
            if found == session_id:
                newest = pk
                yield Stored(id=str(pk), text=message, at=str(times[0]) if times else None)
        if newest not in (None, last):
            raise Conflict(CHANGED)

    def _rows(
        self,
        columns: Sequence[str],
        size: int,
        condition: str = "",
        values: Sequence[object] = (),
        *,
        after: int = -1,
    ) -> Iterator[Sequence[Any]]:
        """Yield the rows that meet the condition in pages, by their primary keys."""
        quoted = self.connection.ops.quote_name
        sql = (
            f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(self.table)}"  # noqa: S608  # quoted names
            f" WHERE {condition} id > %s ORDER BY id LIMIT {size}"
        )
        while True:
            page = durably(partial(self._fetch, sql, [*values, after]), is_repeatable=True)
            yield from page
            if len(page) < size:
                return
            after = page[-1][0]

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[Sequence[Any]]:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql, values)
                return list(cursor.fetchall())
        except ProgrammingError as error:
            raise self._unreadable(f"can't be read: {type(error.__cause__).__name__}") from error

    def _existing_columns(self) -> list[str]:
        read = self.connection.introspection
        with self.connection.cursor() as cursor:
            if self.table not in read.table_names(cursor, include_views=True):
                raise self._unreadable("does not exist in this database")
            found = {column.name for column in read.get_table_description(cursor, self.table)}
        for name in _COLUMNS:
            if name not in found:
                raise self._unreadable(f"has no column {name}")
        return [*_COLUMNS, *({_TIME} & found)]

    def _unreadable(self, why: str) -> BadInput:
        return BadInput(f"The table {self.table[:80]!a} {why}.", code="bad_shape", field="table")
