"""What a database error means: told by real errors of real databases."""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, ProgrammingError, connection, transaction

from chatmemory.errors import BadInput, MemoryUnavailable, NotFound
from chatmemory.models import Message, Session
from chatmemory.services import admit_turn, append_messages, faults, start_turn
from chatmemory.services.faults import Fault, durably, fault_of
from tests.factories import TALK, make_session, said
from tests.locking import KILL, held, second_connection, thread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def fault_in(call, *arguments: Any) -> Fault:
    """The kind of the error that the call ends with."""
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
    """The test changes its connection; the next one gets another."""
    yield
    connection.close()


@pytest.fixture
def only():
    def skip_elsewhere(*vendors: str) -> None:
        if connection.vendor not in vendors:
            pytest.skip(f"an error of {' and '.join(vendors)}")

    return skip_elsewhere


def test_a_second_address_is_a_duplicate():
    make_session()
    assert fault_in(make_session) is Fault.DUPLICATE


def test_a_message_without_a_session_is_an_orphan():
    columns = {"role": "user", "text": "", "error": "", "model": "", "tokens": 0}
    orphan = Message(session_id=1, seq=1, created_at=NOW, **columns)
    assert fault_in(orphan.save) is Fault.ORPHAN


def test_a_text_that_is_too_long_is_bad_data(only):
    only("postgresql", "mysql")
    assert fault_in(lambda: make_session(title="a" * 201)) is Fault.BAD_DATA


def test_a_text_with_nul_is_bad_data(only):
    only("postgresql")
    assert fault_in(lambda: make_session(title="\0")) is Fault.BAD_DATA


def test_what_is_larger_than_the_database_takes_is_too_large(own_connection, only):
    only("sqlite", "postgresql")
    if connection.vendor == "postgresql":
        assert fault_in(execute, "SELECT repeat('a', 1100000000)") is Fault.TOO_LARGE
        return
    connection.ensure_connection()
    connection.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    assert fault_in(execute, "SELECT %s", "a" * 20_000) is Fault.TOO_LARGE


def test_a_violated_check_is_none_of_the_known():
    session = make_session()
    update = Session.objects.filter(pk=session.pk).update
    assert fault_in(lambda: update(first_seq=5)) is Fault.OTHER


@pytest.mark.slow
def test_a_lock_not_had_in_time_is_waited_for(own_connection):
    session = make_session()
    patience = {
        "postgresql": "SET LOCAL lock_timeout = '50ms'",
        "mysql": "SET innodb_lock_wait_timeout = 1",
        "sqlite": "SELECT 1",  # it waits before this, at BEGIN
    }
    if connection.vendor == "sqlite":
        execute("PRAGMA busy_timeout = 50")

    def wait() -> None:
        with transaction.atomic(durable=True):
            execute(patience[connection.vendor])
            Session.objects.filter(pk=session.pk).update(title="a")

    with held(session):
        fault = fault_in(wait)
    # SQLite doesn't tell a wait from a conflict; both may be tried again.
    assert fault is (Fault.CONFLICT if connection.vendor == "sqlite" else Fault.WAITED)


@pytest.mark.slow
def test_one_of_two_that_wait_for_each_other_is_a_conflict(only):
    only("postgresql", "mysql")
    one, two = make_session("one"), make_session("two")

    def lock_both(first: Session, then: Session, met: Future[None]) -> None:
        with transaction.atomic():
            Session.objects.filter(pk=first.pk).update(title="a")
            met.set_result(None)
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


def test_a_row_changed_since_the_snapshot_is_a_conflict(only):
    only("postgresql")
    session = make_session()

    def write_on_an_old_view() -> None:
        with transaction.atomic():
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            Session.objects.get()
            with second_connection() as other, other.cursor() as cursor:
                cursor.execute("UPDATE chatmemory_session SET title = 'b'")
            Session.objects.filter(pk=session.pk).update(title="c")

    assert fault_in(write_on_an_old_view) is Fault.CONFLICT


def test_a_write_after_an_old_read_is_a_conflict_on_sqlite(own_connection, only):
    only("sqlite")
    session = make_session()
    connection.ensure_connection()
    connection.transaction_mode = None

    def write_on_an_old_view() -> None:
        with transaction.atomic():
            Session.objects.get()
            with second_connection() as other, other.cursor() as cursor:
                cursor.execute("UPDATE chatmemory_session SET title = 'b'")
            Session.objects.filter(pk=session.pk).update(title="c")

    assert fault_in(write_on_an_old_view) is Fault.CONFLICT


def kill_own() -> None:
    """Use a connection whose server process was ended."""
    if connection.vendor == "sqlite":
        pytest.skip("no server")
    own = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
    [pid] = execute(own[connection.vendor])
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute(KILL[connection.vendor], pid)
    execute("SELECT 1")


def test_a_killed_connection_is_lost(own_connection):
    assert fault_in(kill_own) is Fault.LOST


def test_a_closed_connection_is_lost(only):
    only("postgresql")
    connection.ensure_connection()
    connection.connection.close()
    assert fault_in(execute, "SELECT 1") is Fault.LOST
    connection.close()


def test_a_server_that_only_reads_is_the_wrong_one(own_connection):
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
    # Another connection may lead to another server, but never to another file.
    assert fault is (Fault.FULL if connection.vendor == "sqlite" else Fault.READ_ONLY)


def test_a_full_disk_is_full(own_connection, only):
    only("sqlite")
    [[pages]], [[free]] = execute("PRAGMA page_count"), execute("PRAGMA freelist_count")
    [[size]] = execute("PRAGMA page_size")
    execute(f"PRAGMA max_page_count = {pages}")
    assert fault_in(lambda: make_session(instructions="a" * (free + 1) * size)) is Fault.FULL


def test_a_missing_table_is_none_of_the_known():
    assert fault_in(execute, "SELECT * FROM nothing") is Fault.OTHER


# What is done about it


def failing(times: int, call) -> tuple[list[int], Any]:
    """Work that fails so often with a real error, and then returns its number of calls."""
    calls: list[int] = []

    def work() -> int:
        calls.append(1)
        if len(calls) <= times:
            call()
        return len(calls)

    return calls, work


def test_what_can_be_repeated_is_after_a_lost_connection():
    _, work = failing(2, kill_own)
    assert durably(work, is_repeatable=True) == 3


def test_what_can_not_be_repeated_is_called_once():
    calls, work = failing(1, kill_own)
    with pytest.raises(MemoryUnavailable):
        durably(work, is_repeatable=False)
    assert len(calls) == 1


def test_a_call_that_never_succeeds_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr(faults, "DEADLINE", 0.1)
    calls, work = failing(1_000_000, kill_own)
    with pytest.raises(MemoryUnavailable):
        durably(work, is_repeatable=True)
    assert len(calls) >= 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: execute("SELECT CAST('x' AS integer)"), BadInput),
        (lambda: execute("SELECT nothing FROM chatmemory_session"), ProgrammingError),
    ],
    ids=["data", "mistake"],
)
def test_what_would_fail_again_is_not_tried_again(call, error, only):
    only("postgresql")
    calls, work = failing(9, call)
    with pytest.raises(error):
        durably(work, is_repeatable=True)
    assert len(calls) == 1


def test_a_parent_that_is_gone_is_not_found():
    columns = {"role": "user", "text": "", "error": "", "model": "", "tokens": 0}
    orphan = Message(session_id=1, seq=1, created_at=NOW, **columns)
    with pytest.raises(NotFound):
        durably(orphan.save, is_repeatable=True)


def test_within_a_callers_block_it_is_called_once_and_the_block_is_marked(own_connection):
    calls, work = failing(1, kill_own)
    with transaction.atomic():
        with pytest.raises(MemoryUnavailable):
            durably(work, is_repeatable=True)
        assert transaction.get_rollback()
    assert len(calls) == 1


DEMOTED = 4


@pytest.fixture
def demote_pool(only):
    """Let the pool's connections lead to a server that has become a standby, which only reads."""
    only("postgresql")
    here: Any = connection

    def demote() -> None:
        here.close()
        pooled = [here.pool.getconn() for _ in range(DEMOTED)]
        for one in pooled:
            one.execute("SET default_transaction_read_only = on")
            one.commit()
            here.pool.putconn(one)

    yield demote
    here.close()
    here.close_pool()


@pytest.mark.regression
def test_the_first_write_after_a_failover_succeeds(demote_pool):
    demote_pool()
    append_messages(**TALK, messages=said("a"), create=True)
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
    failed = 0
    while not Message.objects.exists() and failed <= DEMOTED:
        try:
            with transaction.atomic():
                append_messages(**TALK, messages=said("a"), create=True)
        except MemoryUnavailable:
            failed += 1
        connection.close()
    assert 0 < failed <= DEMOTED
