"""Statements that are built once, and prepared on PostgreSQL."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, CharField, Expression
from django.db.models.sql import UpdateQuery
from django.db.models.sql.compiler import SQLCompiler

from chatmemory.conf import settings
from chatmemory.database.faults import write_connection
from chatmemory.logs import log_once
from chatmemory.models import Turn
from chatmemory.models.fields import KeyField

# Note [Statements built once]
#
# Django builds the SQL of a queryset at each use, which takes several times as long as PostgreSQL
# needs to run it, and PostgreSQL parses and plans it again. The statements of each turn and page
# are therefore built once for each database and shape; afterwards only their parameters change.
# - A text is cached under all that it contains: the database, the shape, and the values of the
#   settings that its declaration names. A changed setting gives another text.
# - On PostgreSQL psycopg prepares a statement at its second use in a connection, so that a
#   connection for one request pays nothing. Django's cursor puts the parameters into the text and
#   never prepares, so a server-side cursor of psycopg is used.
# - The statuses of turns are a part of the text: with a parameter in their place, a plan that
#   PostgreSQL makes for all values cannot use the index of the few live turns.
# - Integers are sent as bigint, since psycopg prepares again for each combination of types.
# - psycopg drops all prepared statements after a ROLLBACK, also one to a savepoint. Ordinary
#   refusals therefore match no row instead of rolling back.
# - Behind a pooler, such as PgBouncer, the next transaction may use another server connection, on
#   which the same name may belong to another client's statement. So nothing is prepared there
#   unless `PREPARED_STATEMENTS` is True.
# - Nothing is prepared if a backend of the host opens cursors in its own way.

logger = logging.getLogger(__name__)

T = TypeVar("T")

ON_REQUEST_ONLY = 2**62
"""A `prepare_threshold` for psycopg that no count reaches. Django's None forbids preparing."""


MAX_TEXTS = 500
"""Texts that are remembered for each connection: constants in them give many combinations."""


@dataclass(frozen=True, slots=True)
class _Name:
    """The place of a named value among the parameters of a statement."""

    name: str
    field: Any = None
    """Converts the value for the database; None for numbers and texts, which need no conversion."""


class Parameter(Expression):
    """A value in a queryset that is given by name at each execution: by default, a number."""

    def __init__(self, name: str, output_field: Any = None) -> None:
        super().__init__(output_field=output_field or BigIntegerField())
        self.name = name
        # Not by isinstance: a field of the host, such as its primary key, may convert texts.
        is_plain = type(output_field) in (type(None), CharField, KeyField)
        self._place = _Name(name, None if is_plain else output_field)

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        return "%s", [self._place]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """The text of a statement, its parameters, and how its rows are read."""

    sql: str
    params: tuple[object, ...]
    names: tuple[str, ...] = ()
    converters: tuple[tuple[int, Sequence[Callable[..., Any]], Any], ...] = ()

    @classmethod
    def of(cls, sql: str, params: Sequence[object], **reading: Any) -> _Statement:
        """Return the statement that the ORM has compiled, with the statuses in its text."""
        kept: list[object] = []
        values = iter(params)

        def replace(match: re.Match[str]) -> str:
            if match[0] == "%%":
                return "%%"
            value = next(values)
            if value in Turn.Status.values:
                return f"'{value}'"
            kept.append(value)
            return "%s"

        return cls(sql=re.sub("%[%s]", replace, sql), params=tuple(kept), **reading)

    def bound(self, values: Mapping[str, object], connection: BaseDatabaseWrapper) -> list[object]:
        """Return the parameters with the named values in their places."""
        params: list[object] = []
        for param in self.params:
            if isinstance(param, _Name):
                value = values[param.name]
                param = param.field.get_db_prep_value(value, connection) if param.field else value
            params.append(param)
        return params

    def read(
        self, rows: list[tuple[Any, ...]], connection: BaseDatabaseWrapper
    ) -> list[tuple[Any, ...]]:
        """Convert rows from the database to Python values."""
        # PostgreSQL needs no converter.
        return [self._converted(row, connection) for row in rows] if self.converters else rows

    def _converted(self, row: Sequence[Any], connection: BaseDatabaseWrapper) -> tuple[Any, ...]:
        columns = list(row)
        for place, converters, expression in self.converters:
            for convert in converters:
                columns[place] = convert(columns[place], expression, connection)
        return tuple(columns)


def padded(values: Sequence[T]) -> list[T]:
    """Repeat the last value up to a power of two, so that few numbers of values have a text."""
    count = 1 << (len(values) - 1).bit_length()
    return [*values, *[values[-1]] * (count - len(values))]


class _Compiled:
    """A query that is built once for each database, shape and value of the settings it uses."""

    def __init__(self, build: Callable[..., Any], *settings_used: str) -> None:
        """`build` receives the shape: hashable values on which the text depends."""
        self._build = build
        self._settings_used = settings_used
        self._statements: dict[Hashable, _Statement] = {}

    def _statement(
        self, connection: BaseDatabaseWrapper, shape: tuple[Hashable, ...]
    ) -> _Statement:
        used = [getattr(settings, name) for name in self._settings_used]
        key = (connection.alias, connection.timezone, shape, *used)
        statement = self._statements.get(key)
        if statement is None:
            statement = self._statements[key] = self._compile(connection, shape)
        return statement

    def _compile(self, connection: BaseDatabaseWrapper, shape: tuple[Hashable, ...]) -> _Statement:
        raise NotImplementedError


class CompiledSelect(_Compiled):
    """A queryset of `values()` with `Parameter`s. See Note [Statements built once]."""

    def __init__(
        self, build: Callable[..., Any], *settings_used: str, is_binary: bool = False
    ) -> None:
        """`is_binary` saves time if rows have times. No column may be of another app or JSON."""
        super().__init__(build, *settings_used)
        self._is_binary = is_binary

    def rows(
        self, *shape: Hashable, using: str | None = None, **values: object
    ) -> list[dict[str, Any]]:
        """Return the rows as `values()` does. `values` are for the parameters."""
        connection = write_connection() if using is None else connections[using]
        statement = self._statement(connection, shape)
        found = self._fetch(statement, connection, values)
        return [dict(zip(statement.names, row, strict=True)) for row in found]

    def tuples(self, *shape: Hashable, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows as `values_list()` does, which is faster. See `rows`."""
        connection = write_connection()
        return self._fetch(self._statement(connection, shape), connection, values)

    def _fetch(
        self,
        statement: _Statement,
        connection: BaseDatabaseWrapper,
        values: Mapping[str, object],
    ) -> list[tuple[Any, ...]]:
        with prepared_cursor(connection, is_binary=self._is_binary) as cursor:
            cursor.execute(statement.sql, statement.bound(values, connection))
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return statement.read(found, connection)

    def _compile(self, connection: BaseDatabaseWrapper, shape: tuple[Hashable, ...]) -> _Statement:
        query = self._build(*shape).query
        compiler = query.get_compiler(connection=connection)
        sql, params = compiler.as_sql()
        columns = [column for column, _, _ in compiler.select[: compiler.col_count]]
        converters = compiler.get_converters(columns)
        return _Statement.of(
            sql,
            params,
            names=tuple(query.selected),
            converters=tuple((place, *found) for place, found in converters.items()),
        )


class CompiledUpdate(_Compiled):
    """A queryset with `Parameter`s, and its new values. See Note [Statements built once]."""

    def run(self, *shape: Hashable, **values: object) -> int:
        """Execute the update; return the number of rows. `values` are for the parameters."""
        connection = write_connection()
        statement = self._statement(connection, shape)
        with prepared_cursor(connection) as cursor:
            cursor.execute(statement.sql, statement.bound(values, connection))
            count: int = cursor.rowcount
        return count

    def returned(self, column: str, *shape: Hashable, **values: object) -> list[Any]:
        """Execute the update; return a column of the updated rows. PostgreSQL only."""
        connection = write_connection()
        statement = self._statement(connection, shape)
        sql = f"{statement.sql} RETURNING {connection.ops.quote_name(column)}"
        with prepared_cursor(connection) as cursor:
            cursor.execute(sql, statement.bound(values, connection))
            return [value for (value,) in cursor.fetchall()]

    def _compile(self, connection: BaseDatabaseWrapper, shape: tuple[Hashable, ...]) -> _Statement:
        rows, columns = self._build(*shape)
        query = rows.query.chain(UpdateQuery)
        query.add_update_values(columns)
        with transaction.atomic(using=connection.alias):  # Django requires it for row locks
            sql, params = query.get_compiler(connection=connection).as_sql()
        return _Statement.of(sql, params)


@dataclass(slots=True)
class _ConnectionState:
    """What is known about preparing on one connection to PostgreSQL."""

    is_direct: bool | None = None
    """Whether it leads to the server without a pooler; None if unknown."""
    used: set[int] = field(default_factory=set)
    """The hashes of the texts that were executed: the texts themselves would take a megabyte."""


_states: WeakKeyDictionary[Any, _ConnectionState] = WeakKeyDictionary()


def prepared_cursor(connection: BaseDatabaseWrapper, *, is_binary: bool = False) -> Any:
    """Return a cursor that prepares its statements if that is possible and worthwhile.

    It logs and wraps them like `connection.cursor()`. With `is_binary` PostgreSQL may send
    the rows in binary form, which psycopg converts to the same values.
    """
    if connection.vendor != "postgresql" or settings.PREPARED_STATEMENTS is False:
        return connection.cursor()
    backend: Any = connection
    driver = backend.Database
    if not hasattr(driver, "Cursor") or _has_own_cursors(connection):  # the first: psycopg 2
        return connection.cursor()
    # As in `connection.cursor()`:
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    connection.validate_thread_sharing()
    raw = driver.Cursor(connection.connection)
    # Django's converter of times in text form is slow. In binary form psycopg's own one is used,
    # which returns aware times.
    if is_binary and connection.timezone is not None:
        raw.format = driver.pq.Format.BINARY
    cursor = _PreparingCursor(driver, raw)
    is_logged = connection.queries_logged
    return backend.make_debug_cursor(cursor) if is_logged else backend.make_cursor(cursor)


def _has_own_cursors(connection: BaseDatabaseWrapper) -> bool:
    """Whether a backend or tool of the host does more than Django to open a cursor.

    Backends for tenants set the search path there, so their cursors must be used.
    """
    is_patched = any(name in vars(connection) for name in _CURSOR_METHODS)
    return is_patched or _cursor_methods_of(type(connection)) != _cursor_methods_of_django()


_CURSOR_METHODS = ("cursor", "_cursor", "create_cursor")
_cursor_methods_of = attrgetter(*_CURSOR_METHODS)


@cache
def _cursor_methods_of_django() -> object:
    return _cursor_methods_of(import_module("django.db.backends.postgresql.base").DatabaseWrapper)


class _PreparingCursor:
    """A server-side cursor of psycopg 3 that prepares each statement at its second use."""

    def __init__(self, driver: Any, cursor: Any) -> None:
        self._driver = driver
        self._cursor = cursor
        self._executed: tuple[str, Any] = ("", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    @property
    def _query(self) -> SimpleNamespace:
        """What Django's log of queries reads: the text with its parameters, as it logs others."""
        client_cursor = self._driver.ClientCursor(self._cursor.connection)
        return SimpleNamespace(query=client_cursor.mogrify(*self._executed).encode())

    def execute(self, sql: str, params: Mapping[str, object] | Sequence[object]) -> None:
        raw, errors = self._cursor.connection, self._driver.errors
        state = _states.get(raw)
        if state is None:
            state = _states[raw] = _ConnectionState()
        typed = self._typed_params(params)
        self._executed = (sql, typed)
        if not self._may_prepare(sql, state):
            self._cursor.execute(sql, typed, prepare=False)
            return
        try:
            self._prepare(sql, typed)
        except (
            errors.InvalidSqlStatementName,
            errors.DuplicatePreparedStatement,
            errors.FeatureNotSupported,  # a table that the statement reads was altered
            errors.ProtocolViolation,  # the name is that of another client's statement
        ) as error:
            if raw.closed:  # an error of the pooler itself
                raise
            log_once(logger, logging.WARNING, _LOSS)
            state.is_direct = False
            if raw.info.transaction_status != self._driver.pq.TransactionStatus.IDLE:
                # The transaction is lost, and can be repeated.
                raise errors.SerializationFailure("a prepared statement was lost") from error
            self._cursor.execute(sql, typed, prepare=False)

    def _prepare(self, sql: str, params: Any) -> None:
        """Execute a statement, and prepare it if it is not prepared yet."""
        raw = self._cursor.connection
        threshold = raw.prepare_threshold
        if threshold is None:
            raw.prepare_threshold = ON_REQUEST_ONLY
        try:
            self._cursor.execute(sql, params, prepare=True)
        finally:
            # Otherwise psycopg would also count the texts of the host, and keep the last hundred.
            raw.prepare_threshold = threshold

    def _may_prepare(self, sql: str, state: _ConnectionState) -> bool:
        if hash(sql) not in state.used:
            if len(state.used) >= MAX_TEXTS:
                state.used.clear()
            state.used.add(hash(sql))
            return False
        if state.is_direct is None:
            state.is_direct = settings.PREPARED_STATEMENTS is True or self._is_direct()
        return state.is_direct

    def _is_direct(self) -> bool:
        """Whether the process that answers is the one that accepted the connection.

        A pooler invents the number of its process.
        """
        (pid,) = self._cursor.execute("SELECT pg_backend_pid()").fetchone()
        is_direct: bool = pid == self._cursor.connection.info.backend_pid
        if not is_direct:
            log_once(logger, logging.INFO, _POOLER)
        return is_direct

    def _typed_params(self, params: Mapping[str, object] | Sequence[object]) -> Any:
        bigint = self._driver.types.numeric.Int8
        values = params.values() if isinstance(params, Mapping) else params
        if any(type(value) is list for value in values):
            # The text form of an array is searched for characters to escape, in Python.
            as_binary = self._driver.types.array.ListBinaryDumper
            self._cursor.adapters.register_dumper(list, as_binary)
        if isinstance(params, Mapping):
            return {name: _as_bigint(value, bigint) for name, value in params.items()}
        return [_as_bigint(value, bigint) for value in params]


def _as_bigint(value: object, bigint: Any) -> object:
    if type(value) is int:
        return bigint(value)
    if type(value) is list:
        return [_as_bigint(item, bigint) for item in value]
    return value


_POOLER = (
    "A pooler is between this process and PostgreSQL, so no statement is prepared. "
    "If it supports prepared statements, set PREPARED_STATEMENTS to True."
)
_LOSS = (
    "A prepared statement was lost. If a pooler is between this process and PostgreSQL, set "
    "PREPARED_STATEMENTS to False."
)
