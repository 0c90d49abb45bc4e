"""Locks in other connections, and calls in other threads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from chatmemory.models import Session

T = TypeVar("T")


@contextmanager
def second_connection() -> Iterator[BaseDatabaseWrapper]:
    """Open another connection to the test's database, in autocommit."""
    other = connection.copy()
    try:
        yield other
    finally:
        other.close()


@contextmanager
def held(*sessions: Session) -> Iterator[None]:
    """Hold the locks of these sessions in another connection."""
    with second_connection() as other:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            if other.vendor == "postgresql":
                # So that a wait without a limit fails the test and does not stop it.
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '20s'")
            for session in sessions:
                cursor.execute(
                    "UPDATE chatmemory_session SET fence = fence WHERE id = %s", [session.pk]
                )
        try:
            yield
        finally:
            other.rollback()


@contextmanager
def locked(*rows: Model) -> Iterator[None]:
    """Lock these rows in another connection. PostgreSQL or MariaDB only: SQLite locks no rows."""
    with second_connection() as other:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            if other.vendor == "postgresql":
                # So that a wait without a limit fails the test and does not stop it.
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '20s'")
            for row in rows:
                table, column = row._meta.db_table, row._meta.pk.column
                cursor.execute(
                    f"SELECT 1 FROM {table} WHERE {column} = %s FOR UPDATE",  # noqa: S608  # names only
                    [row.pk],
                )
        try:
            yield
        finally:
            other.rollback()


@contextmanager
def locked_messages() -> Iterator[None]:
    """Hold the lock of the message table in another connection: no statement on it returns."""
    with second_connection() as other, other.cursor() as cursor:
        if other.vendor == "mysql":
            cursor.execute("LOCK TABLES chatmemory_message WRITE")
        else:
            other.set_autocommit(False)
            cursor.execute("LOCK TABLE chatmemory_message IN ACCESS EXCLUSIVE MODE")
        yield  # the end of the connection releases the lock


@asynccontextmanager
async def database_stalled() -> AsyncIterator[None]:
    """Use `locked_messages` in an event loop."""
    lock = locked_messages()
    await sync_to_async(lock.__enter__)()
    try:
        yield
    finally:
        await sync_to_async(lock.__exit__)(None, None, None)


@contextmanager
def table_locked(table: str) -> Iterator[None]:
    """Lock this table in another connection. PostgreSQL only."""
    with second_connection() as other:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '20s'")
            cursor.execute(f"LOCK TABLE {table}")
        try:
            yield
        finally:
            other.rollback()


@contextmanager
def thread() -> Iterator[Callable[..., Future[Any]]]:
    """Start a thread with its own connection; yield a function that calls others in it."""
    with ThreadPoolExecutor(1) as executor:
        try:
            yield executor.submit
        finally:
            executor.submit(connections.close_all).result()


def concurrently(*calls: Callable[[], T]) -> list[T]:
    """Make all calls at the same time, each in its own thread; return their results."""

    def with_own_connection(call: Callable[[], T]) -> T:
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as executor:
        return list(executor.map(with_own_connection, calls))


WAITING = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND datname = current_database()",
    "mysql": "SELECT id FROM information_schema.innodb_trx "
    "JOIN information_schema.processlist ON id = trx_mysql_thread_id "
    "WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()",
}
KILL = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL CONNECTION %s"}


def waits_for_a_lock() -> bool:
    """Whether any connection to the test's database waits for a lock."""
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute(WAITING[other.vendor])
        return bool(cursor.fetchall())


def kill_waiting_connections() -> None:
    """Wait until a connection waits for a lock, and end all that do."""
    deadline = time.monotonic() + 10
    with second_connection() as other, other.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(WAITING[other.vendor])
            waiting = cursor.fetchall()
            for row in waiting:
                cursor.execute(KILL[other.vendor], row)
            if waiting:
                return
            time.sleep(0.2)  # MariaDB renews its list only if it was not read for 0.1 s
    raise AssertionError("no connection waits for a lock")
