"""Statements are built once, prepared where that is safe, and always give what the ORM gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import CharField
from django.db.models.sql.compiler import SQLCompiler, SQLUpdateCompiler
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.database import retries, statements
from chatmemory.database.reads import read_page_at, read_row_digests
from chatmemory.database.retries import durably
from chatmemory.errors import Busy
from chatmemory.live import keeper
from chatmemory.logs import forget_logged
from chatmemory.models import Message, Session, row_digest_of
from chatmemory.models.values import page_columns
from chatmemory.services.turns.claims import claim_values
from chatmemory.services.turns.progress import finish_turn, renew_leases, start_turn
from tests.factories import TALK, make_messages, make_session
from tests.locking import second_connection
from tests.pooling import reconnect, through_pgbouncer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture
def postgresql() -> Iterator[None]:
    if connection.vendor != "postgresql":
        pytest.skip("statements are prepared on PostgreSQL alone")
    reconnect()  # other tests may have prepared statements
    forget_logged()
    yield
    reconnect()


def prepared() -> list[str]:
    """The texts that are prepared on this connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements ORDER BY prepare_time")
        return [sql for (sql,) in cursor.fetchall()]


def read(**position: int | None) -> Any:
    return read_page_at("server", "talk", **{"after": None, "limit": 20, **position})


def answer(client_id: str, key: str = "talk") -> None:
    """Run a whole turn."""
    address = {**TALK, "session_key": key}
    claim = services.admit_turn(**address, client_id=client_id, content="hi", owner="p1").claim
    assert claim is not None
    assert start_turn(claim=claim)
    assert finish_turn(
        claim=claim, status="complete", message={"role": "assistant", "content": "ho"}
    )


# Built once


@pytest.mark.slow
def test_a_compiled_page_is_the_page_of_the_orm():
    make_session()
    services.append_messages(**TALK, messages=make_messages("a", "b", "c", "d"))
    services.append_messages(**TALK, messages=make_messages("e", "f", "g", "h"))
    services.trim_session(**TALK, keep_last=6, reason="test")
    talk = Session.objects.at("server", "talk")
    for after in (None, 0, 1, 3, 7, 8, 100):
        for before in (None, 1, 4, 9) if after is None else (None,):
            for limit in (None, 1, 3, 20):
                position = {"after": after, "before": before, "limit": limit}
                assert read(**position) == talk.page(**position), position
    assert read_page_at("server", "other", after=None, limit=1) is None


@pytest.mark.parametrize("use_tz", [True, False])
def test_the_times_of_a_compiled_page_are_those_of_the_orm(postgresql, use_tz):
    """PostgreSQL sends the page in binary form, which Django does not convert."""
    make_session()
    services.append_messages(**TALK, messages=make_messages("a"))
    with override_settings(USE_TZ=use_tz):
        reconnect()
        [row], [expected] = read().rows, Message.objects.all()
        assert row.created_at == expected.created_at
        assert row.created_at.isoformat() == expected.created_at.isoformat()


def test_each_row_of_a_page_has_the_client_id_of_its_turn():
    make_session()
    services.append_messages(**TALK, messages=make_messages("a", "b"))
    for number in range(3):
        answer(f"c{number}")
    Message.stored.filter(seq=2).update(turn=3)  # damage: its user row is a later one
    Message.stored.filter(seq=6).update(turn=100)
    client_ids = dict(Message.stored.values_list("seq", "client_id"))
    turns = dict(Message.stored.values_list("seq", "turn"))
    for before in range(2, 10):
        for limit in (1, 2, 3, 8):
            for row in read(before=before, limit=limit).rows:
                assert row.turn_client_id == client_ids.get(turns[row.seq])


def test_a_page_searches_no_user_row_that_it_contains():
    make_session()
    answer("c1"), answer("c2")
    talk = Session.objects.at("server", "talk")
    columns = page_columns(has_digest=True)
    for after, expected in [(0, [None] * 4), (1, ["c1", None, None]), (3, ["c2"])]:
        rows = talk.page_rows(after=after, before=None, limit=20)
        found = [dict(zip(columns, row, strict=True))["earlier_client_id"] for row in rows]
        assert found == expected


def test_after_its_first_use_a_turn_and_a_page_compile_nothing(monkeypatch, caplog):
    caplog.set_level("WARNING", "chatmemory.turns")  # its line needs another query
    make_session()
    answer("c1")
    head = read(after=1).head
    read(), read_row_digests(head, [1, 2])
    compiled: list[object] = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            compiled.append(args or self.query)
            return function(self, *args, **kwargs)

        return wrapper

    for compiler, name in [
        (SQLCompiler, "as_sql"),
        (SQLCompiler, "compile"),
        (SQLUpdateCompiler, "as_sql"),
    ]:
        monkeypatch.setattr(compiler, name, counting(getattr(compiler, name)))
    read(), read(after=1)
    assert set(read_row_digests(head, [1, 2])) == {1, 2}
    if connection.vendor == "postgresql":  # elsewhere the turn's row is written by the ORM
        answer("c2")
    assert compiled == []


def test_marks_are_those_of_the_existing_rows_of_the_session():
    make_session()
    make_session("other")
    for key in ("talk", "other"):
        services.append_messages(
            **{**TALK, "session_key": key}, messages=make_messages("a", "b", "c")
        )
    head = read().head
    expected = {row.seq: row_digest_of(*row.identity) for row in read().rows}
    for seqs in ([1], [3, 2], [1, 2, 3], [3, 4, 1, 5, 2]):
        found = read_row_digests(head, seqs)
        assert found == {seq: digest for seq, digest in expected.items() if seq in seqs}
    assert read_row_digests(replace(head, epoch=head.epoch + 1), [1]) == {}


def test_psycopg_caches_each_statement_of_the_keeper(postgresql):
    """Longer ones are converted again at each call."""
    from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH, MAX_CACHED_STATEMENT_PARAMS

    claims = []
    for number in range(keeper.KEEPER_BATCH):
        make_session(str(number))
        address = {**TALK, "session_key": str(number)}
        claims.append(
            services.admit_turn(**address, client_id="c1", content="hi", owner="p1").claim
        )
        assert start_turn(claim=claims[-1])
    seen: list[tuple[str, Any]] = []

    def note(execute, sql, params, *args):
        seen.append((sql, params))
        return execute(sql, params, *args)

    with connection.execute_wrapper(note):
        renew_leases(claims=claims)
        count, identities = claim_values(claims)
        keeper._CLAIMED.rows(count, **identities)
    assert len(seen) == 2
    for sql, params in seen:
        assert len(sql) <= MAX_CACHED_STATEMENT_LENGTH
        assert len(params) <= MAX_CACHED_STATEMENT_PARAMS


def test_a_changed_setting_changes_the_statement():
    session = make_session()
    services.append_messages(**TALK, messages=make_messages("a"))
    hour_ago = session.created_at - timedelta(hours=1)
    Session.objects.filter(pk=session.pk).update(last_message_at=hour_ago)
    assert read() is not None
    with override_settings(CHATMEMORY={"SESSION_TTL": 60}):
        assert read() is None
    with override_settings(CHATMEMORY={"SESSION_TTL": 7200}):
        assert read() is not None
    assert read() is not None


class Prefixed(CharField):
    """A field of a host that stores a text without its prefix."""

    def get_prep_value(self, value):
        return value.removeprefix("t-")


def test_a_field_of_the_host_converts_its_texts():
    make_session()
    key = statements.Parameter("key", Prefixed())
    rows = statements.CompiledSelect(lambda: Session.objects.filter(key=key).values("key"))
    assert rows.rows(key="t-talk") == [{"key": "talk"}]


def test_the_log_of_queries_shows_the_text(settings):
    make_session()
    read()
    for _ in range(3):
        with CaptureQueriesContext(connection) as log:
            read()
        (query,) = log.captured_queries
        assert "chatmemory_session" in query["sql"]


# Prepared


def test_a_statement_is_prepared_at_its_second_use(postgresql):
    make_session()
    answer("c0")  # the first fence of a session is a constant, since it is 1
    reconnect()
    answer("c1")
    read()
    assert prepared() == []
    for number in (2, 3):
        answer(f"c{number}")
        read()
        assert len(prepared()) == 4


def test_the_texts_of_a_connection_are_bounded(postgresql, monkeypatch):
    make_session()
    monkeypatch.setattr(statements, "MAX_TEXTS", 3)
    for number in range(10):
        rows = statements.CompiledSelect(lambda n=number: Session.objects.values("key")[: n + 1])
        rows.rows()
    assert len(statements._states[connection.connection].used) == 1


def test_the_hosts_own_statements_are_not_prepared(postgresql):
    make_session()
    for _ in range(10):
        read()
        list(Session.objects.filter(key="talk"))
    assert len(prepared()) == 1


@pytest.mark.parametrize("method", ["cursor", "_cursor", "create_cursor"])
def test_a_backend_of_the_host_opens_each_cursor(postgresql, monkeypatch, method):
    """Backends for tenants set the search path there."""
    backend: Any = connections["default"]
    original, opened = getattr(backend, method), []

    def opening(*args: Any) -> Any:
        opened.append(args)
        return original(*args)

    make_session()
    monkeypatch.setattr(backend, method, opening)
    for number in range(1, 4):
        read()
        assert len(opened) == number


def test_numbers_of_all_sizes_use_the_same_statement(postgresql):
    make_session()
    for after in (1, 40_000, 2**40):
        read(after=after)
        read(after=after)
    assert len(prepared()) == 1


def test_large_batches_of_all_sizes_use_the_same_statement(postgresql):
    make_session()
    for size in (5, 6, 50):  # each once
        services.append_messages(**TALK, messages=make_messages(*map(str, range(size))))
    assert len(prepared()) == 1


def test_a_refusal_keeps_what_is_prepared(postgresql):
    """psycopg forgets all statements at a ROLLBACK."""
    make_session()
    answer("c1"), answer("c2")
    before = prepared()
    services.admit_turn(**TALK, client_id="c3", content="hi", owner="p1")
    for _ in range(2):
        with pytest.raises(Busy):
            services.append_messages(**TALK, messages=make_messages("a"))
        assert services.admit_turn(**TALK, client_id="c3", content="hi", owner="p1").is_duplicate
    assert set(before) <= set(prepared())


@pytest.mark.parametrize("is_set", [False, True])
def test_a_setting_prevents_preparing(postgresql, is_set):
    make_session()
    with override_settings(CHATMEMORY={"PREPARED_STATEMENTS": is_set}):
        for _ in range(3):
            read()
    assert len(prepared()) == is_set


def test_a_page_of_an_altered_table_is_read(postgresql, caplog):
    make_session()
    for _ in range(3):
        assert read() is not None
    alter("varchar(201)")
    try:
        assert read() is not None
        assert "A prepared statement was lost" in caplog.text
    finally:
        alter("varchar(200)")


@pytest.mark.parametrize("text", ["", "(int, int, int) AS SELECT $1 + $2 + $3"])
def test_a_transaction_that_loses_a_statement_is_retried(postgresql, text):
    """With a text, another client's statement has the name, and more parameters."""
    make_session()
    rows = statements.CompiledSelect(lambda: Session.objects.values("key"))
    for _ in range(2):
        rows.rows()
    attempts = []

    def work() -> list[dict[str, Any]]:
        with transaction.atomic():
            attempts.append(1)
            if len(attempts) == 1:
                lose_statements(text)
            found: list[dict[str, Any]] = rows.rows()
            return found

    assert durably(work, is_repeatable=False) == [{"key": "talk"}]
    assert len(attempts) == 2


def test_a_lost_connection_to_another_database_is_replaced(postgresql, monkeypatch):
    """The users may be there."""
    monkeypatch.setitem(connections.databases, "people", connection.settings_dict)
    people = connection.copy()
    connections["people"] = people
    monkeypatch.setattr(retries, "DEADLINE_SECONDS", 0.5)

    def work() -> int:
        with people.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
            return int(pid)

    try:
        first = work()
        with second_connection() as other, other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [first])
        assert durably(work, is_repeatable=True) != first
    finally:
        people.close()
        del connections["people"]


def lose_statements(other: str = "") -> None:
    """Deallocate each statement, as psycopg does not notice, and prepare another by its name."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        for (name,) in cursor.fetchall():
            cursor.execute(f'DEALLOCATE "{name}"')
            if other:
                cursor.execute(f'PREPARE "{name}" {other}')


def alter(kind: str) -> None:
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute(f"ALTER TABLE chatmemory_session ALTER COLUMN title TYPE {kind}")


# Behind a pooler


@pytest.fixture
def pooler(postgresql: None, tmp_path: Path) -> Iterator[None]:
    with through_pgbouncer(tmp_path):
        yield


def answer_alternately() -> None:
    """Run turns of two connections alternately: PgBouncer exchanges their server connections."""
    make_session("talk")
    make_session("other")
    barrier = threading.Barrier(2, timeout=60)

    def run(key: str) -> None:
        try:
            for number in range(6):
                barrier.wait()
                answer(f"c{number}", key)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, ["talk", "other"]))
    assert set(Session.objects.values_list("last_seq", flat=True)) == {12}


def test_behind_a_pooler_nothing_is_prepared_and_that_is_reported_once(pooler, caplog):
    caplog.set_level("INFO", "chatmemory")
    answer_alternately()
    reports = [message for message in caplog.messages if "pooler" in message]
    assert len(reports) == 1
    assert "no statement is prepared" in reports[0]


def test_a_pooler_that_loses_statements_is_reported_once_and_no_turn_fails(pooler, caplog):
    """Newer PgBouncers keep them, and then nothing is reported."""
    with override_settings(CHATMEMORY={"PREPARED_STATEMENTS": True}):
        answer_alternately()
    reports = [message for message in caplog.messages if "prepared statement was lost" in message]
    assert len(reports) <= 1
