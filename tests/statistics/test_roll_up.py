"""The roll-up counts each row once: by chunks, concurrently, after a kill and a late commit."""

from __future__ import annotations

from datetime import date, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.models import (
    Feedback,
    Maintenance,
    Message,
    Session,
    Turn,
)
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.statistics import watermark
from chatmemory.statistics.models import DailyActivity, DailyTurns
from chatmemory.statistics.roll_up import roll_up_statistics
from chatmemory.statistics.tables import MAX_TOKENS
from tests.factories import TALK, make_messages, make_session
from tests.locking import concurrently, second_connection
from tests.statistics.counted import DAY, NOON, activity, add_turn, counted, later, pass_time

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)


@pytest.fixture
def talk() -> Session:
    return make_session()


def turns_of_days() -> dict[Any, int]:
    """Return the counted turns by day, model, status and error."""
    columns = ("day", "model", "status", "error")
    return {tuple(row[:4]): row[4] for row in DailyTurns.objects.values_list(*columns, "turns")}


def test_turns_are_counted_by_day_model_status_and_error(talk):
    add_turn(talk)
    add_turn(talk, ended_at=NOON + timedelta(seconds=8))
    add_turn(talk, model="M")
    add_turn(talk, status="failed", error="model_error")
    add_turn(talk, ended_at=NOON + timedelta(hours=12))
    assert roll_up_statistics().turns == 5
    assert turns_of_days() == {
        (DAY, "m", "complete", ""): 2,
        (DAY, "M", "complete", ""): 1,
        (DAY, "m", "failed", "model_error"): 1,
        (date(2026, 3, 2), "m", "complete", ""): 1,
    }


def test_tokens_and_times_are_added_up(talk):
    usage = '{"input_tokens":12,"output_tokens":5,"total_tokens":17}'
    add_turn(talk, usage=usage, first_text_ms=900)
    add_turn(talk, usage=usage, first_text_ms=905)
    roll_up_statistics()
    add_turn(talk, usage=usage, first_text_ms=10, started_at=None, ended_at=later())
    pass_time()
    roll_up_statistics()
    first, second = DailyTurns.objects.order_by("day")
    assert (first.tokens_in, first.tokens_out) == (24, 10)
    assert (first.first_text, first.duration) == ({"861": 2}, {"1722": 2})
    assert (second.tokens_in, second.first_text, second.duration) == (12, {"10": 1}, {})


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ("", 0),
        ("{", 0),
        ("[]", 0),
        ('{"input_tokens":"7"}', 0),
        ('{"input_tokens":-7}', 0),
        ('{"input_tokens":9007199254740991}', MAX_TOKENS),
    ],
)
def test_a_usage_that_makes_no_sense_stops_no_roll_up(talk, usage, expected):
    add_turn(talk, usage=usage)
    roll_up_statistics()
    assert DailyTurns.objects.get().tokens_in == expected


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_each_row_is_counted_once_in_chunks_of_any_size(talk, chunk):
    services.append_messages(**TALK, messages=make_messages(*"abcde"))
    for seconds in (0, 0, 0, 1, 2, 2, 3):
        add_turn(talk, ended_at=NOON + timedelta(seconds=seconds))
    pass_time()
    counts = roll_up_statistics(chunk=chunk)
    assert (counts.turns, counts.messages, counts.sessions) == (7, 5, 1)
    again = roll_up_statistics(chunk=chunk)
    assert (again.turns, again.messages, again.sessions) == (0, 0, 0)
    assert (counted(), activity("messages"), activity("sessions")) == (7, 5, 1)


def test_a_turn_is_counted_when_it_has_ended_days_later(talk):
    waiting = add_turn(talk, status="waiting", started_at=None, ended_at=None)
    add_turn(talk)
    roll_up_statistics()
    assert counted() == 1
    Turn.objects.filter(pk=waiting.pk).update(status="cancelled", ended_at=later())
    pass_time()
    roll_up_statistics()
    assert counted() == 2


def test_the_last_minutes_are_left_to_the_next_call(talk):
    services.append_messages(**TALK, messages=make_messages("a"))
    add_turn(talk, ended_at=later())
    assert (roll_up_statistics().turns, counted(), activity("messages")) == (0, 0, 0)
    pass_time(4)
    roll_up_statistics()
    assert (counted(), activity("messages")) == (0, 0)
    pass_time(2)
    roll_up_statistics()
    assert (counted(), activity("messages")) == (1, 1)


def test_activity_is_counted_by_day(talk):
    make_session("other", created_at=NOON)
    services.append_messages(**TALK, messages=make_messages("a", "b"))
    Message.stored.filter(seq=1).update(created_at=NOON)
    for seq, value in ((1, 1), (2, -1), (3, -1)):
        Feedback.objects.create(session=talk, turn="t", user_seq=seq, value=value, created_at=NOON)
    pass_time(0)
    Session.objects.filter(pk=talk.pk).update(created_at=NOON - timedelta(days=1))
    Message.stored.filter(seq=2).update(created_at=NOON)
    assert roll_up_statistics().feedback == 3
    days = list(DailyActivity.objects.order_by("day").values_list())
    assert [row[1:] for row in days] == [(date(2026, 2, 28), 1, 0, 0, 0), (DAY, 1, 2, 1, 2)]


def test_imported_rows_are_counted_by_the_first_call_alone(talk):
    add_turn(talk)
    services.append_messages(**TALK, messages=make_messages("a", "b"))
    Message.stored.update(created_at=NOON)
    roll_up_statistics()
    assert (counted(), activity("messages")) == (1, 2)
    services.append_messages(**TALK, messages=make_messages("c", "d", "e"))
    pass_time()
    Message.stored.filter(seq=3).update(created_at=NOON)
    Message.stored.filter(seq=4).update(created_at=NOON.replace(year=2999))
    add_turn(talk)
    roll_up_statistics()
    assert (counted(), activity("messages")) == (1, 3)


def test_old_rows_behind_a_recent_one_are_counted_after_the_first_run_too(talk):
    services.append_messages(**TALK, messages=make_messages("new", "old", "older"))
    Message.stored.filter(seq__gt=1).update(created_at=NOON)
    roll_up_statistics()
    assert activity("messages") == 0
    pass_time()
    roll_up_statistics()
    assert activity("messages") == 3


def test_a_killed_run_leaves_nothing_and_the_next_one_counts_all(talk):
    for seconds in range(4):
        add_turn(talk, ended_at=NOON + timedelta(seconds=seconds))
    moves = []

    def kill(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and '"marks"' in sql.replace("`", '"').split("WHERE")[0]:
            moves.append(sql)
            if len(moves) == 2:
                raise KeyboardInterrupt
        return execute(sql, params, many, context)

    with pytest.raises(KeyboardInterrupt), connection.execute_wrapper(kill):
        roll_up_statistics(chunk=2)
    assert counted() == 2
    record = Maintenance.objects.get()
    assert (record.is_ok, record.counts) == (False, {"error": "KeyboardInterrupt"})
    roll_up_statistics(chunk=2)
    assert counted() == 4


def test_a_run_is_recorded(talk):
    add_turn(talk)
    roll_up_statistics()
    found = Maintenance.objects.get(name="statistics")
    counts = {"turns": 1, "messages": 0, "sessions": 0, "feedback": 0}
    assert (found.is_ok, found.counts) == (True, counts)


@commits
def test_concurrent_calls_count_each_row_once():
    session = make_session()
    services.append_messages(**TALK, messages=make_messages(*"abcdefgh"))
    for seconds in range(20):
        add_turn(session, ended_at=NOON + timedelta(seconds=seconds))
    pass_time()
    concurrently(*[lambda: roll_up_statistics(chunk=3)] * 4)
    assert (counted(), activity("messages"), activity("sessions")) == (20, 8, 1)


@pytest.mark.parametrize("digits", ["", ".000", ".123", ".123000", ".123456"])
def test_a_time_of_any_number_of_digits_is_counted_once(talk, digits):
    """SQLite's clock writes three, a parameter three or six, and `F() + timedelta` six or none."""
    add_turn(talk)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chatmemory_turn SET ended_at = %s", [f"2026-03-01 12:00:00{digits}"])
    statements = []

    def stop_a_loop(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        assert len(statements) < 100, "the roll-up does not end"
        return execute(sql, params, many, context)

    with connection.execute_wrapper(stop_a_loop):
        roll_up_statistics(chunk=1)
    assert (counted(), roll_up_statistics(chunk=1).turns) == (1, 0)


@commits
def test_what_a_transaction_commits_late_is_counted(postgresql, monkeypatch):
    """The oldest open transaction that wrote is the limit, without any margin."""
    monkeypatch.setattr(watermark, "MARGIN", timedelta(0))
    monkeypatch.setattr("chatmemory.statistics.roll_up.MARGIN", timedelta(0))
    session = make_session()
    first = add_turn(session, status="running", ended_at=None)
    roll_up_statistics()
    with second_connection() as other:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(
                "UPDATE chatmemory_turn SET status = 'complete', ended_at = clock_timestamp() "
                "WHERE id = %s",
                [first.pk],
            )
            cursor.execute(
                "INSERT INTO chatmemory_message (session_id, seq, role, text, tokens, status, "
                "error, model) VALUES (%s, 900, 'user', '', 1, 'complete', '', '')",
                [session.pk],
            )
        add_turn(session, ended_at=later())
        services.append_messages(**TALK, messages=make_messages("a"))
        roll_up_statistics()
        assert (counted(), activity("messages")) == (0, 0)
        other.commit()
    roll_up_statistics()
    assert (counted(), activity("messages")) == (2, 2)


def test_a_vacuum_rolls_up_first(talk, settings):
    services.append_messages(**TALK, messages=make_messages("a", "b"))
    services.trim_session(**TALK, keep_last=0, reason="")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    pass_time()
    assert vacuum(dry_run=True).messages == 2
    assert activity("messages") == 0
    assert vacuum().messages == 2
    assert activity("messages") == 2


def test_a_chunk_costs_the_same_with_any_number_of_rows(talk):
    counts = []
    for size in (2, 40):
        for _ in range(size):
            add_turn(talk, ended_at=later())
        pass_time()
        with CaptureQueriesContext(connection) as queries:
            assert roll_up_statistics().turns == size
        counts.append(len(queries))
    assert counts[1] <= counts[0]


@commits
def test_the_roll_up_finds_turns_by_their_index(postgresql):
    for number in range(50):
        add_turn(make_session(f"s{number}"))
    with CaptureQueriesContext(connection) as queries:
        roll_up_statistics()
    reads = [q["sql"] for q in queries if '"chatmemory_turn"' in q["sql"]]
    assert len(reads) == 2
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("SET LOCAL enable_seqscan = off")
        for sql in reads:
            cursor.execute(f"EXPLAIN {sql}")
            assert "chatmemory_turn_ended" in str(cursor.fetchall())


def test_the_command_prints_what_it_counted(talk):
    add_turn(talk)
    pass_time()
    out = StringIO()
    call_command("chatmemory_statistics", stdout=out)
    assert out.getvalue().startswith(
        "1 turn, 0 messages, 1 conversation, 0 with feedback, up to 20"
    )
    with pytest.raises(CommandError, match="--chunk must be 1 or more"):
        call_command("chatmemory_statistics", chunk=0)
