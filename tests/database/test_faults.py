"""The kinds of database errors and what follows from them, tested with real errors."""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)

from chatmemory.database import retries
from chatmemory.database.faults import Fault, fault_of, ignored_duplicate
from chatmemory.database.retries import durably
from chatmemory.errors import BadInput, MemoryUnavailable, NotFound
from chatmemory.models import Message, Session
from chatmemory.services import admit_turn, append_messages
from chatmemory.services.turns.progress import start_turn
from tests.factories import TALK, make_messages, make_session
from tests.locking import KILL, held, second_connection, thread
from tests.pooling import reconnect
from tests.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def fault_in(call, *arguments: Any) -> Fault:
    """Return the kind of the error that the call raises."""
    with pytest.raises((DatabaseError, InterfaceError)) as caught:
        call(*arguments)
    error: Any = caught.value
    return fault_of(error)


def execute(sql: str, *params: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def own_connection():
    """Close the connection after a test that changes it; a pool would give it to another test."""
    yield
    reconnect()


@pytest.fixture
def only():
    """Return a function that skips the test on other databases."""

    def skip_elsewhere(*vendors: str) -> None:
        if connection.vendor not in vendors:
            pytest.skip(f"an error of {' and '.join(vendors)}")

    return skip_elsewhere


def test_an_address_that_exists_is_a_duplicate():
    make_session()
    assert fault_in(make_session) is Fault.DUPLICATE


def test_a_client_id_that_exists_is_a_duplicate():
    session = make_session()
    values = {"session": session, "role": "user", "client_id": "a", "tokens": 1}
    Message.stored.create(**values, seq=1)
    assert fault_in(lambda: Message.stored.create(**values, seq=2)) is Fault.DUPLICATE
    with ignored_duplicate():
        Message.stored.create(**values, seq=2)


def test_only_a_duplicate_is_ignored():
    session = make_session()
    with ignored_duplicate():
        make_session()
    with pytest.raises(IntegrityError), ignored_duplicate():
        Session.objects.filter(pk=session.pk).update(first_seq=5)  # a check constraint
    with pytest.raises(ValueError, match="ours"), ignored_duplicate():
        raise ValueError("ours")


def test_a_message_without_a_session_has_a_missing_parent():
    columns = {"role": "user", "text": "", "error": "", "model": "", "tokens": 0}
    orphan = Message(session_id=1, seq=1, created_at=NOW, **columns)
    assert fault_in(orphan.save) is Fault.MISSING_PARENT


def test_a_text_longer_than_its_column_is_bad_data(only):
    only("postgresql", "mysql")
    assert fault_in(lambda: make_session(title="a" * 201)) is Fault.BAD_DATA


def test_a_text_with_nul_is_bad_data(only):
    only("postgresql")
    assert fault_in(lambda: make_session(title="\0")) is Fault.BAD_DATA


def test_a_value_above_the_limit_of_the_database_is_too_large(own_connection, only):
    only("sqlite", "postgresql")
    if connection.vendor == "postgresql":
        assert fault_in(execute, "SELECT repeat('a', 1100000000)") is Fault.TOO_LARGE
        return
    connection.ensure_connection()
    connection.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    assert fault_in(execute, "SELECT %s", "a" * 20_000) is Fault.TOO_LARGE


def test_a_violated_check_constraint_has_no_kind_of_its_own():
    session = make_session()
    update = Session.objects.filter(pk=session.pk).update
    assert fault_in(lambda: update(first_seq=5)) is Fault.OTHER


@pytest.mark.slow
def test_a_lock_that_is_held_too_long_is_a_lock_timeout(own_connection):
    session = make_session()
    lock_timeouts = {
        "postgresql": "SET LOCAL lock_timeout = '50ms'",
        "mysql": "SET innodb_lock_wait_timeout = 1",
        "sqlite": "SELECT 1",  # it waits before this, at BEGIN
    }
    if connection.vendor == "sqlite":
        execute("PRAGMA busy_timeout = 50")

    def wait() -> None:
        with transaction.atomic(durable=True):
            execute(lock_timeouts[connection.vendor])
            Session.objects.filter(pk=session.pk).update(title="a")

    with held(session):
        fault = fault_in(wait)
    # SQLite has one code for a wait and a conflict; both can be retried.
    assert fault is (Fault.CONFLICT if connection.vendor == "sqlite" else Fault.LOCK_TIMEOUT)


@pytest.mark.slow
def test_one_of_two_transactions_in_a_deadlock_is_a_conflict(only):
    only("postgresql", "mysql")
    one, two = make_session("one"), make_session("two")

    def lock_both(first: Session, then: Session, has_locked: Future[None]) -> None:
        with transaction.atomic():
            Session.objects.filter(pk=first.pk).update(title="a")
            has_locked.set_result(None)
            others.pop().result(timeout=10)
            Session.objects.filter(pk=then.pk).update(title="a")

    mine: Future[None] = Future()
    theirs: Future[None] = Future()
    others = [mine, theirs]
    found = []
    with thread() as call:
        other = call(lock_both, one, two, mine)
        mine.result(timeout=10)
        others[:] = [mine, theirs]
        for wait in (lambda: lock_both(two, one, theirs), lambda: other.result(timeout=20)):
            try:
                wait()
            except DatabaseError as error:
                found.append(fault_of(error))
    assert found == [Fault.CONFLICT]


def write_on_an_old_snapshot(session: Session, *begin: str) -> None:
    """Update a session that another transaction changed after this one has read it."""
    with transaction.atomic():
        for statement in begin:
            execute(statement)
        Session.objects.get()
        with second_connection() as other, other.cursor() as cursor:
            cursor.execute("UPDATE chatmemory_session SET title = 'b'")
        Session.objects.filter(pk=session.pk).update(title="c")


def test_a_row_changed_since_the_snapshot_is_a_conflict(only):
    only("postgresql")
    isolation = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    assert fault_in(write_on_an_old_snapshot, make_session(), isolation) is Fault.CONFLICT


def test_a_write_after_an_old_read_is_a_conflict_on_sqlite(own_connection, only):
    only("sqlite")
    session = make_session()
    connection.ensure_connection()
    connection.transaction_mode = None
    assert fault_in(write_on_an_old_snapshot, session) is Fault.CONFLICT


def use_killed_connection() -> None:
    """Use a connection whose server process another connection has killed."""
    if connection.vendor == "sqlite":
        pytest.skip("no server")
    own = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
    [pid] = execute(own[connection.vendor])
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute(KILL[connection.vendor], pid)
    execute("SELECT 1")


def test_a_killed_connection_is_lost(own_connection):
    assert fault_in(use_killed_connection) is Fault.CONNECTION_LOST


LOST_STATES = (
    *("08000", "08001", "08003", "08004", "08006", "08007", "08P01"),
    *("25P03", "25P04", "57P01", "57P02", "57P03", "57P04", "57P05"),
)
LOST_ERRNOS = (
    *(1043, 1047, 1053, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031),
    *(2002, 2003, 2005, 2006, 2012, 2013, 2026, 2027, 2055),
)
CANCELED = ("57014", 1317, 1969, 3024)
"""Codes of a canceled statement, whose connection stays."""


def error_with(code: str | int) -> OperationalError:
    """Return an error as PostgreSQL's driver (a text) or MariaDB's (a number) gives it."""
    error = OperationalError()
    driver_error = Exception(code)
    if isinstance(code, str):
        driver_error.sqlstate = code  # type: ignore[attr-defined]  # as psycopg's errors
    error.__cause__ = driver_error
    return error


@pytest.mark.parametrize("code", [*LOST_STATES, *LOST_ERRNOS])
def test_each_code_of_a_lost_connection_is_known(code):
    assert fault_of(error_with(code)) is Fault.CONNECTION_LOST


@pytest.mark.parametrize("code", CANCELED)
def test_a_canceled_statement_loses_no_connection(code):
    assert fault_of(error_with(code)) is Fault.LOCK_TIMEOUT


def test_a_statement_above_the_time_limit_is_canceled(own_connection, only):
    only("postgresql", "mysql")
    if connection.vendor == "postgresql":
        execute("SET statement_timeout = '10ms'")
        slow = "SELECT pg_sleep(9)"
    else:
        execute("SET SESSION max_statement_time = 0.01")
        tables = ", ".join(f"information_schema.collations AS c{n}" for n in range(4))
        slow = f"SELECT SUM(c0.id * c1.id * c2.id * c3.id) FROM {tables}"  # noqa: S608  # constants
    assert fault_in(execute, slow) is Fault.LOCK_TIMEOUT
    execute("SELECT 1")


@pytest.mark.slow
@pytest.mark.regression
@pytest.mark.parametrize("keeps", ["a pool", "CONN_MAX_AGE"])
def test_the_first_message_after_the_idle_timeout_is_stored(only, keeps, monkeypatch):
    only("postgresql", "mysql")
    backend: Any = connection
    reconnect()
    if keeps == "CONN_MAX_AGE":
        options = {**backend.settings_dict["OPTIONS"]}
        options.pop("pool", None)
        monkeypatch.setitem(backend.settings_dict, "OPTIONS", options)
        monkeypatch.setitem(backend.settings_dict, "CONN_MAX_AGE", None)
    make_session()
    if connection.vendor == "postgresql":
        [pid] = execute("SELECT pg_backend_pid()")
        execute("SET idle_session_timeout = '10ms'")
        is_ended = "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %s)"
    else:
        [pid] = execute("SELECT CONNECTION_ID()")
        execute("SET SESSION wait_timeout = 1")
        is_ended = "SELECT NOT EXISTS (SELECT 1 FROM information_schema.processlist WHERE id = %s)"

    def has_ended() -> bool:
        with second_connection() as other, other.cursor() as cursor:
            cursor.execute(is_ended, pid)
            return bool(cursor.fetchone()[0])

    wait_for(has_ended, "the server does not end the connection")
    append_messages(**TALK, messages=make_messages("a"))
    assert Message.objects.get().text == "a"
    reconnect()


def test_a_closed_connection_is_lost(only):
    only("postgresql")
    connection.ensure_connection()
    connection.connection.close()
    assert fault_in(execute, "SELECT 1") is Fault.CONNECTION_LOST
    connection.close()


def test_a_server_that_only_reads_is_read_only(own_connection):
    session = make_session()
    read_only = {
        "postgresql": "SET TRANSACTION READ ONLY",
        "mysql": "SET SESSION TRANSACTION READ ONLY",
        "sqlite": "PRAGMA query_only = 1",
    }
    if connection.vendor == "mysql":
        execute(read_only["mysql"])

    def write() -> None:
        with transaction.atomic():
            if connection.vendor != "mysql":
                execute(read_only[connection.vendor])
            Session.objects.filter(pk=session.pk).update(title="a")

    fault = fault_in(write)
    # A new connection may reach another server, but never another file.
    assert fault is (Fault.OUT_OF_SPACE if connection.vendor == "sqlite" else Fault.READ_ONLY)


def test_a_full_disk_is_out_of_space(own_connection, only):
    only("sqlite")
    [[pages]], [[free]] = execute("PRAGMA page_count"), execute("PRAGMA freelist_count")
    [[size]] = execute("PRAGMA page_size")
    execute(f"PRAGMA max_page_count = {pages}")
    assert (
        fault_in(lambda: make_session(instructions="a" * (free + 1) * size)) is Fault.OUT_OF_SPACE
    )


def test_a_missing_table_has_a_kind_of_its_own_but_on_sqlite():
    kind = Fault.OTHER if connection.vendor == "sqlite" else Fault.NO_TABLES
    assert fault_in(execute, "SELECT * FROM nothing") is kind


@pytest.mark.parametrize("code", ["3D000", "42P01", 1046, 1049, 1146])
def test_each_code_of_a_missing_table_or_database_is_known(code):
    assert fault_of(error_with(code)) is Fault.NO_TABLES


def failing(times: int, call) -> tuple[list[int], Any]:
    """Return work that calls `call` in its first `times` calls and then returns their number."""
    calls: list[int] = []

    def work() -> int:
        calls.append(1)
        if len(calls) <= times:
            call()
        return len(calls)

    return calls, work


def test_repeatable_work_is_retried_after_a_lost_connection():
    _, work = failing(2, use_killed_connection)
    assert durably(work, is_repeatable=True) == 3


def test_work_that_is_not_repeatable_is_called_once():
    calls, work = failing(1, use_killed_connection)
    with pytest.raises(MemoryUnavailable):
        durably(work, is_repeatable=False)
    assert len(calls) == 1


def test_a_call_that_never_succeeds_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr(retries, "DEADLINE_SECONDS", 0.1)
    calls, work = failing(1_000_000, use_killed_connection)
    with pytest.raises(MemoryUnavailable):
        durably(work, is_repeatable=True)
    assert len(calls) >= 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: execute("SELECT CAST('x' AS integer)"), BadInput),
        (lambda: execute("SELECT nothing FROM chatmemory_session"), ProgrammingError),
    ],
    ids=["data", "bug"],
)
def test_a_permanent_error_is_not_retried(call, error, only):
    only("postgresql")
    calls, work = failing(9, call)
    with pytest.raises(error):
        durably(work, is_repeatable=True)
    assert len(calls) == 1


def test_a_missing_parent_is_not_found():
    columns = {"role": "user", "text": "", "error": "", "model": "", "tokens": 0}
    orphan = Message(session_id=1, seq=1, created_at=NOW, **columns)
    with pytest.raises(NotFound):
        durably(orphan.save, is_repeatable=True)


def test_in_a_callers_transaction_work_is_called_once_and_the_transaction_is_marked(own_connection):
    calls, work = failing(1, use_killed_connection)
    with transaction.atomic():
        with pytest.raises(MemoryUnavailable):
            durably(work, is_repeatable=True)
        assert transaction.get_rollback()
    assert len(calls) == 1


DEMOTED_CONNECTIONS = 4


@pytest.fixture
def demote_pool(only, monkeypatch):
    """Make the server of the pool's connections a standby, which only reads."""
    only("postgresql")
    backend: Any = connection
    # Of a fixed size: a growing pool opens more connections than are requested, which would write.
    size = {"min_size": DEMOTED_CONNECTIONS, "max_size": DEMOTED_CONNECTIONS}
    options = backend.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "pool", {**options["pool"], **size})
    backend.close()
    backend.close_pool()

    def demote() -> None:
        backend.ensure_connection()  # opens the pool
        backend.close()
        pooled = [backend.pool.getconn() for _ in range(DEMOTED_CONNECTIONS)]
        for each in pooled:
            each.execute("SET default_transaction_read_only = on")
            each.commit()
            backend.pool.putconn(each)

    yield demote
    backend.close()
    backend.close_pool()


@pytest.mark.regression
def test_the_first_write_after_a_failover_succeeds(demote_pool):
    demote_pool()
    append_messages(**TALK, messages=make_messages("a"), create=True)
    assert Message.objects.get().text == "a"


@pytest.mark.regression
def test_the_first_run_after_a_failover_starts(demote_pool):
    make_session()
    claim = admit_turn(**TALK, client_id="c1", content="hi", owner="p1").claim
    demote_pool()
    assert start_turn(claim=claim)


@pytest.mark.regression
def test_a_read_only_connection_is_discarded_after_a_callers_transaction(demote_pool):
    demote_pool()
    pool: Any = connection.pool
    max_size = pool.max_size
    failed = 0
    while not Message.objects.exists() and failed <= max_size:
        try:
            with transaction.atomic():
                append_messages(**TALK, messages=make_messages("a"), create=True)
        except MemoryUnavailable:
            failed += 1
        connection.close()
    assert 0 < failed <= max_size
