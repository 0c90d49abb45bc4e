"""The baselines: hand-written statements on the driver itself, in the same tables.

F is one complete append: all conditions and counters, the lock timeout, one client_id. It does not
check its input and returns nothing. Reads select three columns and build LangChain's messages.
"""

from __future__ import annotations

import sqlite3
import uuid
from functools import cache
from importlib import import_module
from typing import Any

from django.db import connection
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from chatmemory.models import CLOCK, TODAY
from tests.programs.speed.texts import Batch, role_of

MAX_VALUES = 16
"""More rows are sent to PostgreSQL as arrays."""

_CONDITIONS = """scope = 'server' AND {key} = {p} AND removed_at IS NULL AND archived_at IS NULL
    AND running IS NULL AND (waiting > 0 OR held_at IS NOT NULL OR expires_at IS NULL
        OR expires_at > {clock})"""

_LOCK = """UPDATE chatmemory_session
    SET last_seq = {last_seq}, tokens = tokens + {p}, last_message_at = {clock},
        last_active_day = {greatest}(last_active_day, {today})
    {source}WHERE {conditions}"""

_INSERT = """INSERT INTO chatmemory_message (session_id, seq, role, text, client_id, batch, tokens,
    status, error, model) VALUES """

_POSTGRESQL = """WITH
lock_limit AS MATERIALIZED (SELECT set_config('lock_timeout', '2000ms', true)),
locked AS ({lock} RETURNING id, last_seq - {count} AS before, epoch, fence, waiting)
INSERT INTO chatmemory_message (session_id, seq, role, text, client_id, batch, tokens,
    status, error, model)
SELECT locked.id, locked.before + given.number, given.role, given.text, given.client_id,
    given.batch, given.tokens, 'complete', '', ''
FROM locked, {given} AS given (number, role, text, client_id, batch, tokens)
RETURNING session_id, seq"""

_READ = """SELECT role, text, body FROM chatmemory_message
WHERE session_id = {p} AND seq > {p} AND seq <= {p} ORDER BY seq"""


class Baseline:
    """A connection of the driver."""

    p = "%s"
    """The placeholder of a parameter."""
    vendor = ""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def append(self, key: str, batch: Batch) -> None:
        """Store a batch."""
        raise NotImplementedError

    def text(self, count: int) -> str:
        """Return the main statement for a number of messages; it is made once."""
        if count not in self._texts:
            self._texts[count] = self.make_text(count)
        return self._texts[count]

    def make_text(self, count: int) -> str:
        raise NotImplementedError

    def execute(self, sql: str, params: tuple[Any, ...]) -> list[Any]:
        """Return the rows of a statement."""
        raise NotImplementedError

    def read(self, session_pk: int, low: int, high: int) -> list[BaseMessage]:
        """Return the messages above `low` and up to `high`."""
        rows = self.execute(_READ.format(p=self.p), (session_pk, low, high))
        return [HumanMessage(text) if role == "user" else AIMessage(text) for role, text, _ in rows]

    def backend_pids(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        """Close the connection."""

    def lock_text(self, last_seq: str, source: str = "") -> str:
        clock = CLOCK[self.vendor]
        return _LOCK.format(
            p=self.p,
            last_seq=last_seq,
            clock=clock,
            greatest="MAX" if self.vendor == "sqlite" else "GREATEST",
            today=TODAY[self.vendor],
            source=source,
            conditions=_CONDITIONS.format(
                p=self.p, clock=clock, key=connection.ops.quote_name("key")
            ),
        )


class PostgreSQLBaseline(Baseline):
    """One statement, prepared."""

    vendor = "postgresql"

    def __init__(self) -> None:
        super().__init__()
        psycopg: Any = import_module("psycopg")
        params = connection.get_connection_params()
        for name in ("cursor_factory", "context", "prepare_threshold"):  # Django's own
            params.pop(name, None)
        self._connection = psycopg.connect(**params, autocommit=True)

    def append(self, key: str, batch: Batch) -> None:
        count = len(batch)
        tokens = [_tokens(text) for text in batch]
        if count > MAX_VALUES:
            params: tuple[Any, ...] = (
                list(range(1, count + 1)),
                [role_of(place) for place in range(count)],
                list(batch),
                [uuid.uuid4().hex, *[None] * (count - 1)],
                [count, *[None] * (count - 1)],
                tokens,
            )
        else:
            params = (batch[0], uuid.uuid4().hex, tokens[0])
            for pair in zip(batch[1:], tokens[1:], strict=True):
                params += pair
        self.execute(self.text(count), (sum(tokens), key, *params))

    def make_text(self, count: int) -> str:
        given = "unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::int[], %s::int[])"
        if count <= MAX_VALUES:
            rows = [f"(1, '{role_of(0)}', %s::text, %s::text, {count}, %s::int)"]
            rows += [f"({n + 1}, '{role_of(n)}', %s, NULL, NULL, %s)" for n in range(1, count)]
            given = f"(VALUES {', '.join(rows)})"
        lock = self.lock_text(f"last_seq + {count}", "FROM lock_limit\n    ")
        return _POSTGRESQL.format(lock=lock, count=count, given=given)

    def execute(self, sql: str, params: tuple[Any, ...]) -> list[Any]:
        found: list[Any] = self._connection.execute(sql, params, prepare=True).fetchall()
        return found

    def backend_pids(self) -> tuple[int, ...]:
        return (self._connection.info.backend_pid,)

    def close(self) -> None:
        self._connection.close()


class SQLiteBaseline(Baseline):
    """Two statements in a transaction."""

    p = "?"
    vendor = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        given = connection.settings_dict
        self._connection = sqlite3.connect(
            given["NAME"], timeout=given["OPTIONS"]["timeout"], isolation_level=None
        )
        self._connection.executescript(given["OPTIONS"]["init_command"])

    def append(self, key: str, batch: Batch) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        parameters = (sum(map(_tokens, batch)), key)
        [(pk, last_seq)] = self.execute(self.text(len(batch)), parameters)
        self._connection.execute(*_insert(self.p, pk, last_seq, batch))
        self._connection.execute("COMMIT")

    def make_text(self, count: int) -> str:
        return self.lock_text(f"last_seq + {count}") + " RETURNING id, last_seq"

    def execute(self, sql: str, params: tuple[Any, ...]) -> list[Any]:
        return self._connection.execute(sql, params).fetchall()

    def close(self) -> None:
        self._connection.close()


class MariaDBBaseline(Baseline):
    """Three statements in a transaction: UPDATE returns no columns."""

    vendor = "mysql"

    def __init__(self) -> None:
        super().__init__()
        driver: Any = import_module("MySQLdb")
        params = connection.get_connection_params()
        self._connection = driver.connect(**params)
        self._connection.autocommit(True)

    def append(self, key: str, batch: Batch) -> None:
        find = "SELECT id FROM chatmemory_session WHERE scope = 'server' AND `key` = %s"
        self.execute("START TRANSACTION", ())
        cursor = self._connection.cursor()
        cursor.execute(self.text(len(batch)), (sum(map(_tokens, batch)), key))
        last_seq = cursor.lastrowid
        [(pk,)] = self.execute(find, (key,))
        self.execute(*_insert(self.p, pk, last_seq, batch))
        self._connection.commit()

    def make_text(self, count: int) -> str:
        lock = self.lock_text(f"LAST_INSERT_ID(last_seq + {count})")
        return f"SET STATEMENT innodb_lock_wait_timeout=2 FOR {lock}"

    def execute(self, sql: str, params: tuple[Any, ...]) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())

    def close(self) -> None:
        self._connection.close()


def open_baseline() -> Baseline:
    """Return the baseline for this process's database."""
    match connection.vendor:
        case "postgresql":
            return PostgreSQLBaseline()
        case "sqlite":
            return SQLiteBaseline()
        case _:
            return MariaDBBaseline()


@cache
def _insert_text(p: str, count: int) -> str:
    row = f"({', '.join([p] * 7)}, 'complete', '', '')"
    return _INSERT + ", ".join([row] * count)


def _insert(p: str, pk: int, last_seq: int, batch: Batch) -> tuple[str, tuple[Any, ...]]:
    count = len(batch)
    params: tuple[Any, ...] = ()
    for place, text in enumerate(batch):
        first = (uuid.uuid4().hex, count) if place == 0 else (None, None)
        seq = last_seq - count + 1 + place
        params += (pk, seq, role_of(place), text, *first, _tokens(text))
    return _insert_text(p, count), params


def _tokens(text: str) -> int:
    return len(text) // 4
