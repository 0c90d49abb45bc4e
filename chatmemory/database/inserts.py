"""Store rows: the only place where rows get their numbers.

The UPDATE of the session row takes its lock and reserves the numbers. On PostgreSQL the same
statement inserts the rows, on MariaDB and SQLite a second one in the same transaction.
See Note [One lock for one session].
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from chatmemory.codec import Row
from chatmemory.database.after_commit import announce_appended
from chatmemory.database.faults import write_connection
from chatmemory.database.locks import is_one_statement, lock_limit_sql, statement_transaction
from chatmemory.database.sql import Text, Values, with_names
from chatmemory.database.statements import MAX_TEXTS, prepared_cursor
from chatmemory.database.turn_writes import TurnWrite
from chatmemory.database.watched import watched
from chatmemory.models import (
    CLOCK,
    SESSION_COLUMNS,
    TODAY,
    Head,
    Message,
    NewRows,
    Session,
    StoredMessage,
    Turn,
    unexpired_sql,
)

OPEN_SESSION: Final[Mapping[str, object]] = {"removed_at": None, "archived_at": None}
"""Conditions for a session that accepts messages; it must also be unexpired."""

MAX_VALUES_ROWS = 4
"""More rows are sent to PostgreSQL as one array per column: half the time for 200 rows."""
MAX_SHOWN_ROWS = 20
"""Sockets read the rows of larger batches, so that slow ones keep none in memory."""

_COLUMNS = (
    "role",
    "text",
    "body",
    "client_id",
    "batch",
    "step",
    "status",
    "error",
    "model",
    "author",
    "tokens",
)
_DIFFERING = ("role", "text", "tokens")
"""Columns that differ in nearly all batches."""

_COLUMN_LIST = ", ".join(_COLUMNS)
_GIVEN_COLUMN_LIST = ", ".join(f"given.{name}" for name in _COLUMNS)

# The templates of the three databases. {…} are names and fragments; values are parameters.
#
# On PostgreSQL it is one statement: with two, other writers would wait for the lock during one more
# round trip to the server.
#
# All conditions are on the columns of the session row itself. After a wait for the lock PostgreSQL
# reads only that row again; a subquery would still see the data from before the wait.
# https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED

_POSTGRESQL_STORE = """\
WITH {lock_limit}locked AS (
    UPDATE {sessions}
    SET {changes}
    {from_lock_limit}
    WHERE {conditions}
    RETURNING id, last_seq - {row_count} AS before, fence, {session_columns}
){turn_write},
stored AS (
    INSERT INTO {messages} (session_id, seq, turn, {columns})
    SELECT locked.id, locked.before + given.number, {turn}, {given_columns}
    FROM locked, {given} AS given (number, {columns})
    RETURNING seq, created_at
)
SELECT locked.id, last_seq, epoch, fence, waiting, {turn_pk}{shown}
FROM locked{stored}"""

_POSITION_COLUMNS = ("last_seq", "epoch", "waiting")
_POSITION_SIZE = 6
_SHOWN = f",\n    {', '.join(SESSION_COLUMNS)}, seq, created_at"

# The UPDATE reads from it, so PostgreSQL sets the limit before it waits for the lock.
_POSTGRESQL_LOCK_LIMIT = """\
lock_limit AS MATERIALIZED ({sql}),
"""

_POSTGRESQL_TURN_WRITE = """,
written_turn AS (
    {sql}
)"""

_POSTGRESQL_ARRAYS = """\
(
    SELECT number, {given}
    FROM unnest({arrays}) WITH ORDINALITY AS arrays ({names}, number)
)"""

_MARIADB_LOCK = """\
UPDATE {sessions}
SET {changes}
WHERE {conditions}"""

_MARIADB_READ_LOCKED = """\
SELECT id, last_seq, epoch, fence, waiting
FROM {sessions}
WHERE {address}"""

_SQLITE_LOCK = """\
UPDATE {sessions}
SET {changes}
WHERE {conditions}
RETURNING id, last_seq, epoch, fence, waiting"""

# Positional: SQLite searches a list for each named parameter, which takes 0.1 s for 200 rows.
_MARIADB_AND_SQLITE_INSERT = """\
INSERT INTO {messages} (session_id, seq, turn, {columns})
VALUES {rows}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """The position of stored rows, and their session after the write."""

    session_pk: int
    epoch: int
    fence: int
    waiting: int
    first_seq: int
    last_seq: int
    turn_pk: int | None = None
    """The primary key of the turn that was written with the rows."""
    change: NewRows | None = None
    """For the sockets of this process, if there are any. See Note [Rows from memory]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """The arguments of `store_rows`."""

    rows: Sequence[Row]
    address: Mapping[str, object]
    conditions: Mapping[str, object]
    only_unexpired: bool
    client_id: str | None
    author: str | None
    turn: int | None
    begins_turn: bool
    updates: Mapping[str, object]
    increments: Mapping[str, int]
    turn_write: TurnWrite | None
    is_shown: bool
    """Whether the statement returns what sockets show."""

    def values(self) -> list[tuple[object, ...]]:
        """Return the values of `_COLUMNS` for each row."""
        # A client_id is unique in its session, so only the first row has it. `batch`, the number of
        # the rows, leads from there to the others.
        return [
            (
                row.role,
                row.text,
                row.body,
                self.client_id if index == 0 else None,
                len(self.rows) if index == 0 else None,
                row.step,
                row.status,
                row.error,
                row.model,
                self.author,
                row.tokens,
            )
            for index, row in enumerate(self.rows)
        ]

    def position(self, columns: Sequence[int], turn_pk: int | None = None) -> StoredRows:
        """Return the position from the session's id, last_seq, epoch, fence and waiting."""
        session_pk, last_seq, epoch, fence, waiting = columns
        return StoredRows(
            session_pk=session_pk,
            epoch=epoch,
            fence=fence,
            waiting=waiting,
            first_seq=last_seq - len(self.rows) + 1,
            last_seq=last_seq,
            turn_pk=turn_pk,
        )

    def change(self, found: Sequence[tuple[Any, ...]]) -> NewRows:
        """Return the change from the rows that the statement returned."""
        session_pk, (*columns, _, _) = found[0][0], found[0][_POSITION_SIZE:]
        head = Head(
            pk=session_pk,
            turn_status=Turn.Status.RUNNING.value if self.begins_turn else None,
            turn_since=None,
            **dict(zip(SESSION_COLUMNS, columns, strict=True)),
        )
        times = {seq: created_at for *_, seq, created_at in found}
        first_seq = min(times)
        turn = first_seq if self.begins_turn else self.turn
        # The user row has the client_id of the turn, which runs before or after the write.
        running: Any = self.updates.get("running") or self.conditions.get("running")
        rows = []
        for seq, values in enumerate(self.values(), first_seq):
            given: dict[str, Any] = dict(zip(_COLUMNS, values, strict=True))
            del given["batch"], given["author"]  # readers get neither
            rows.append(
                StoredMessage(
                    seq=seq,
                    turn=turn,
                    turn_client_id=None if turn is None else running,
                    revision=0,
                    redacted=False,
                    quarantined=False,
                    feedback=None,
                    created_at=times[seq],
                    **given,
                )
            )
        before = head.revision - self.increments.get("revision", 0)
        return NewRows(head=head, rows=rows, revision_before=before)


def store_rows(
    rows: Sequence[Row],
    *,
    address: Mapping[str, object],
    conditions: Mapping[str, object],
    only_unexpired: bool = False,
    client_id: str | None = None,
    author: str | None = None,
    turn: int | None = None,
    begins_turn: bool = False,
    updates: Mapping[str, object] | None = None,
    increments: Mapping[str, int] | None = None,
    turn_write: TurnWrite | None = None,
) -> StoredRows | None:
    """Lock a session, number the rows and insert them; return None if a condition fails.

    `address` and `conditions` are columns of the session and their required values (None for NULL).
    The columns of `address` identify it and do not change. `updates` and `increments` are further
    changes to the session. `turn` is the number of the turn; with `begins_turn` it is the number of
    the first row. `turn_write` is a write to a turn in the same transaction.
    Raises IntegrityError, and changes nothing, if a row or a new turn has an existing `client_id`.
    Outside a transaction it is one statement on PostgreSQL.
    """
    write = _Write(
        rows=rows,
        address=address,
        conditions=conditions,
        only_unexpired=only_unexpired,
        client_id=client_id,
        author=author,
        turn=turn,
        begins_turn=begins_turn,
        updates=updates or {},
        increments=increments or {},
        turn_write=turn_write,
        is_shown=is_one_statement() and len(rows) <= MAX_SHOWN_ROWS and watched.has(address),
    )
    connection = write_connection()
    with statement_transaction():
        if connection.vendor == "postgresql":
            stored = _store_in_one_statement(connection, write)
        else:
            stored = _store_in_steps(connection, write)
    if stored is not None:
        announce_appended(
            stored.session_pk,
            first_seq=stored.first_seq,
            last_seq=stored.last_seq,
            roles=[row.role for row in rows],
            turn=stored.first_seq if begins_turn else turn,
        )
    return stored


def _store_in_one_statement(connection: BaseDatabaseWrapper, write: _Write) -> StoredRows | None:
    """Lock, number and insert on PostgreSQL."""
    sql, parameters = _postgresql_statement(connection, write)
    with prepared_cursor(connection) as cursor:
        cursor.execute(sql, parameters)
        found = cursor.fetchall()
    if not found:
        return None
    *position, turn_pk = found[0][:_POSITION_SIZE]
    stored = write.position(position, turn_pk)
    return replace(stored, change=write.change(found)) if write.is_shown else stored


def _postgresql_statement(
    connection: BaseDatabaseWrapper, write: _Write
) -> tuple[str, dict[str, Any]]:
    """Return the statement and its parameters. Its text is built once for each shape."""
    # Inside a transaction, `locked_transaction` has set the limit.
    lock_limit = "" if connection.in_atomic_block else lock_limit_sql()
    given = {**_session_values(write), **_row_values(write)}
    if write.turn_write is not None:
        given |= write.turn_write.values()
    query = _Query(connection, given)
    shape = (
        lock_limit,
        unexpired_sql(connection) if write.only_unexpired else None,
        write.begins_turn,
        write.is_shown,
        type(write.turn_write),
        query.shape,
    )
    text = _texts.get(shape)
    if text is None:
        if len(_texts) >= MAX_TEXTS:
            _texts.clear()
        text = _texts[shape] = Text.of(_postgresql_text(query, write, lock_limit), query)
    return text.sql, text.parameters(given)


def _postgresql_text(query: _Query, write: _Write, lock_limit: str) -> str:
    turn_write, turn_pk = "", "NULL"
    if write.turn_write is not None:
        turn_write = _POSTGRESQL_TURN_WRITE.format(sql=write.turn_write.sql(query))
        turn_pk = "(SELECT id FROM written_turn)"
    return _POSTGRESQL_STORE.format(
        sessions=query.sessions,
        messages=query.messages,
        lock_limit=_POSTGRESQL_LOCK_LIMIT.format(sql=lock_limit) if lock_limit else "",
        from_lock_limit="FROM lock_limit" if lock_limit else "",
        changes=query.changes(write),
        conditions=query.conditions(write),
        turn_write=turn_write,
        turn_pk=turn_pk,
        row_count=query.sql_of("row_count"),
        session_columns=", ".join(SESSION_COLUMNS if write.is_shown else _POSITION_COLUMNS),
        shown=_SHOWN if write.is_shown else "",
        stored=", stored" if write.is_shown else "",
        turn="locked.before + 1" if write.begins_turn else f"{query.sql_of('turn')}::bigint",
        columns=_COLUMN_LIST,
        given=query.given_rows(write),
        given_columns=_GIVEN_COLUMN_LIST,
    )


def _store_in_steps(connection: BaseDatabaseWrapper, write: _Write) -> StoredRows | None:
    """Lock and number, then insert, on MariaDB and SQLite. Needs a transaction."""
    query = _Query(connection, _session_values(write))
    lock = _SQLITE_LOCK if connection.vendor == "sqlite" else _MARIADB_LOCK
    lock = lock.format(
        sessions=query.sessions,
        changes=query.changes(write),
        conditions=query.conditions(write),
    )
    with connection.cursor() as cursor:
        cursor.execute(lock, query.parameters)
        if connection.vendor == "sqlite":
            found = cursor.fetchone()
        else:
            found = _read_locked(connection, write) if cursor.rowcount else None
        if found is None:
            return None
        stored = write.position(found)
        turn = stored.first_seq if write.begins_turn else write.turn
        row = "(" + ", ".join(["%s"] * (3 + len(_COLUMNS))) + ")"
        insert = _MARIADB_AND_SQLITE_INSERT.format(
            messages=query.messages,
            columns=_COLUMN_LIST,
            rows=", ".join([row] * len(write.rows)),
        )
        params: list[Any] = []
        for seq, values in enumerate(write.values(), stored.first_seq):
            params += [stored.session_pk, seq, turn, *values]
        cursor.execute(insert, params)
    if write.turn_write is None:
        return stored
    return replace(stored, turn_pk=write.turn_write.write(stored))


def _read_locked(connection: BaseDatabaseWrapper, write: _Write) -> tuple[Any, ...]:
    """Read the session that this transaction has locked: MariaDB's UPDATE returns no columns."""
    # Only by its address: the UPDATE may have changed columns of `conditions`.
    query = _Query(connection, _session_values(write))
    sql = _MARIADB_READ_LOCKED.format(sessions=query.sessions, address=query.equals(write.address))
    with connection.cursor() as cursor:
        cursor.execute(sql, query.parameters)
        found: tuple[Any, ...] = cursor.fetchone()
    return found


_texts: dict[Hashable, Text] = {}
"""The statements for PostgreSQL, by all that their texts depend on."""


def _session_values(write: _Write) -> dict[str, Any]:
    """Return the values for the session's row, by their names in the statement."""
    # Increments in SQL: no value that was read before the lock is written. Note [Commit order].
    increments = {"tokens": sum(row.tokens for row in write.rows), **write.increments}
    return {
        "row_count": len(write.rows),
        **{f"add_{name}": value for name, value in increments.items()},
        **{f"set_{name}": value for name, value in write.updates.items()},
        **{f"is_{name}": value for name, value in write.address.items()},
        **{f"is_{name}": value for name, value in write.conditions.items()},
    }


def _row_values(write: _Write) -> dict[str, Any]:
    """Return the values of the rows, by their names in the statement for PostgreSQL."""
    values = write.values()
    given: dict[str, Any] = {} if write.begins_turn else {"turn": write.turn}
    if len(values) <= MAX_VALUES_ROWS:
        for names, row in zip(_ROW_NAMES, values, strict=False):
            given.update(zip(names, row, strict=True))
        return given
    # An array only for columns that differ after the first row.
    for name, (first, *others) in zip(_COLUMNS, zip(*values, strict=True), strict=True):
        if name in _DIFFERING or any(value != others[0] for value in others):
            given[f"all_{name}"] = [first, *others]
        else:
            given[f"other_{name}"] = others[0]
            if first != others[0]:
                given[f"first_{name}"] = first
    return given


_ROW_NAMES = tuple(
    tuple(f"{name}_{number}" for name in _COLUMNS) for number in range(1, MAX_VALUES_ROWS + 1)
)
"""The names of the values of each row."""


class _Query(Values):
    """The fragments of a statement for one database, and the parameters that they use."""

    @property
    def sessions(self) -> str:
        return self.quote(Session._meta.db_table)

    @property
    def messages(self) -> str:
        return self.quote(Message._meta.db_table)

    def conditions(self, write: _Write) -> str:
        """Return all conditions of a write on its session."""
        equals = self.equals({**write.address, **write.conditions})
        if not write.only_unexpired:
            return equals
        unexpired, named = _unexpired(self.connection)
        self.parameters |= named
        return f"{equals} AND {unexpired}"

    def changes(self, write: _Write) -> str:
        """Return the assignments to the session: counters, other changes, and its last activity."""
        vendor = self.connection.vendor
        clock = CLOCK[vendor].replace("%", "%%")
        greatest = "MAX" if vendor == "sqlite" else "GREATEST"
        return ", ".join(
            [
                f"last_seq = last_seq + {self.sql_of('row_count')}",
                *(
                    f"{name} = {name} + {self.sql_of(f'add_{name}')}"
                    for name in ("tokens", *write.increments)
                ),
                *(f"{name} = {self.sql_of(f'set_{name}')}" for name in write.updates),
                f"last_message_at = {clock}",
                # The only indexed column here. It changes once a day, even if the clock goes back,
                # so other updates on PostgreSQL change no index (HOT).
                f"last_active_day = {greatest}(last_active_day, {TODAY[vendor]})",
            ]
        )

    def given_rows(self, write: _Write) -> str:
        """Return the rows as a table for PostgreSQL: their number from 1, then `_COLUMNS`."""
        types = _column_types(self.connection.alias)
        if len(write.rows) > MAX_VALUES_ROWS:
            return self._given_arrays(types)
        rows: list[str] = []
        for number, names in enumerate(_ROW_NAMES[: len(write.rows)], 1):
            texts = [self.sql_of(name) for name in names]
            if number == 1:  # the types of the first row apply to all
                typed = zip(texts, _COLUMNS, strict=True)
                texts = [f"{text}::{types[name]}" for text, name in typed]
            rows.append(f"({number}, {', '.join(texts)})")
        return f"(VALUES {', '.join(rows)})"

    def _given_arrays(self, types: Mapping[str, str]) -> str:
        given: list[str] = []
        arrays: dict[str, str] = {}
        for name in _COLUMNS:
            if f"all_{name}" in self.given:
                arrays[name] = f"{self.sql_of(f'all_{name}')}::{types[name]}[]"
                given.append(name)
                continue
            other = self.sql_of(f"other_{name}")
            if f"first_{name}" in self.given:
                first = self.sql_of(f"first_{name}")
                other = f"CASE number WHEN 1 THEN {first} ELSE {other} END"
            given.append(f"({other})::{types[name]}")
        return _POSTGRESQL_ARRAYS.format(
            given=", ".join(given), arrays=", ".join(arrays.values()), names=", ".join(arrays)
        )


def _unexpired(connection: BaseDatabaseWrapper) -> tuple[str, Mapping[str, Any]]:
    return _named_unexpired(*unexpired_sql(connection))


@cache
def _named_unexpired(sql: str, params: tuple[Any, ...]) -> tuple[str, Mapping[str, Any]]:
    return with_names(sql, params, "unexpired")


@cache
def _column_types(alias: str) -> dict[str, str]:
    connection = connections[alias]
    return {name: str(Message._meta.get_field(name).db_type(connection)) for name in _COLUMNS}
