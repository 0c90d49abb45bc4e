"""A vacuum and an erasure count what they delete, once; an error of the count prevents neither."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.models import Feedback, Maintenance, Message, Session, Turn
from chatmemory.services.removal.vacuum import vacuum, vacuum_session
from chatmemory.statistics.models import DailyActivity, DailyTurns
from chatmemory.statistics.roll_up import roll_up_statistics
from tests.factories import BY, make_messages, make_session, make_user
from tests.locking import concurrently
from tests.statistics.counted import NOON, activity, counted, end_a_turn, later, pass_time

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_undo(settings: Any) -> None:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}


def address_of(session: Session) -> dict[str, Any]:
    return {"session_key": session.key, "scope": session.scope, "by": BY}


def make_talk(name: str = "ann") -> Session:
    """Store a session with three messages, a turn and its feedback."""
    session = make_session(owner=make_user(name))
    services.append_messages(**address_of(session), messages=make_messages("a"))
    end_a_turn(**address_of(session))
    services.set_feedback(**address_of(session), turn="c1", value=-1)
    return session


def figures() -> tuple[int, ...]:
    """Return the counted turns, messages, sessions and feedback."""
    return (counted(), *(activity(column) for column in ("messages", "sessions", "good", "bad")))


ONE_TALK = (1, 3, 1, 0, 1)


def erase(session: Session) -> None:
    services.erase_person(scope=session.scope, by=BY, reason="asked")


def erase_by_command(session: Session) -> None:
    call_command("chatmemory_erase", owner="ann", by="olga", reason="asked")


def erase_with_account(session: Session) -> None:
    assert session.owner is not None
    session.owner.delete()


def purge_and_vacuum(session: Session) -> None:
    services.purge_session(**address_of(session), reason="")
    vacuum()


DELETIONS = (erase, erase_by_command, erase_with_account, purge_and_vacuum)


@commits
@pytest.mark.parametrize("delete", DELETIONS)
def test_each_kind_of_row_is_counted_before_its_deletion(settings, delete):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "erase"}
    delete(make_talk())
    assert not Session.objects.exists() | Turn.objects.exists() | Feedback.objects.exists()
    assert figures() == ONE_TALK
    roll_up_statistics()
    assert figures() == ONE_TALK


@pytest.mark.parametrize("delete", [erase, purge_and_vacuum])
def test_what_a_roll_up_has_counted_is_not_counted_again(delete):
    session = make_talk()
    pass_time(0)
    roll_up_statistics()  # leaves the last minutes to the next call
    assert figures() == (0, 0, 0, 0, 0)
    pass_time()
    roll_up_statistics()
    assert figures() == ONE_TALK
    services.append_messages(**address_of(session), messages=make_messages("later"))
    delete(session)
    assert figures() == (1, 4, 1, 0, 1)


def test_rows_count_for_their_day():
    session = make_talk()
    Message.stored.filter(seq=1).update(created_at=NOON)
    Turn.objects.update(ended_at=NOON - timedelta(days=1))
    erase(session)
    days = DailyActivity.objects.order_by("day").values_list("day", "messages")
    assert list(days) == [(NOON.date(), 1), (later().date(), 2)]
    assert DailyTurns.objects.get().day == NOON.date() - timedelta(days=1)


def test_a_trim_is_counted_by_its_vacuum():
    session = make_talk()
    services.trim_session(**address_of(session), keep_last=0, reason="")
    assert vacuum_session(session.pk)[0].messages == 3
    assert figures() == (1, 3, 0, 0, 0)
    erase(session)
    assert figures() == ONE_TALK


def test_imported_rows_are_counted_only_before_the_first_roll_up():
    first = make_talk()
    Message.stored.update(created_at=NOON)
    erase(first)
    assert figures() == ONE_TALK
    roll_up_statistics()
    second = make_talk("bob")
    Message.stored.update(created_at=NOON)
    Session.objects.update(created_at=NOON)
    Feedback.objects.update(created_at=NOON.replace(year=2999))
    Turn.objects.update(ended_at=NOON)
    erase(second)
    assert figures() == ONE_TALK


def test_rows_outside_the_counters_of_a_damaged_session_are_counted():
    session = make_talk()
    Session.objects.filter(pk=session.pk).update(first_seq=2, stored_from=2)
    erase(session)
    assert figures() == ONE_TALK


@pytest.mark.slow
@commits
def test_an_erasure_during_a_roll_up_counts_once():
    talks = [make_talk(name) for name in ("ann", "bob", "eve")]
    pass_time(0)
    roll_up_statistics()
    pass_time()
    concurrently(
        *(lambda talk=talk: erase(talk) for talk in talks),
        *[lambda: roll_up_statistics(chunk=1)] * 2,
    )
    assert figures() == tuple(3 * count for count in ONE_TALK)


def broken(table: str) -> Any:
    """Return a wrapper that fails each statement on this table."""

    def fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if table in sql:
            raise OperationalError("broken")
        return execute(sql, params, many, context)

    return connection.execute_wrapper(fail)


@pytest.mark.parametrize("delete", [erase, purge_and_vacuum])
@pytest.mark.parametrize("table", ["statistics_watermark", "statistics_dailyactivity"])
@commits
def test_a_count_that_fails_prevents_no_deletion(
    caplog: Any, delete: Callable[[Session], None], table: str
) -> None:
    session = make_talk()
    with broken(f"chatmemory_{table}"):
        delete(session)
    assert not Session.objects.exists() | Message.stored.exists() | Turn.objects.exists()
    assert "rows are deleted that chatmemory_statistics did not count" in caplog.text
    assert figures() == (0, 0, 0, 0, 0)
    if delete is purge_and_vacuum:
        # The roll-up counts nothing yet, but needs the watermark.
        is_broken = table == "statistics_watermark"
        assert Maintenance.objects.get(name="statistics").is_ok is not is_broken
        assert Maintenance.objects.get(name="vacuum").is_ok is True


def test_a_deletion_costs_the_same_with_any_number_of_rows():
    costs = []
    for size in (1, 3, 60):
        session = make_session(f"s{size}", owner=make_user(f"u{size}"))
        services.append_messages(**address_of(session), messages=make_messages(*"a" * size))
        services.trim_session(**address_of(session), keep_last=0, reason="")
        with CaptureQueriesContext(connection) as queries:
            assert vacuum_session(session.pk)[0].messages == size
        costs.append(len(queries))
    assert costs[1] == costs[2]  # the first one creates the row of the day


def test_a_deletion_of_counted_rows_takes_no_lock_of_the_figures():
    session = make_talk()
    roll_up_statistics()
    pass_time()
    roll_up_statistics()
    services.trim_session(**address_of(session), keep_last=0, reason="")
    with CaptureQueriesContext(connection) as queries:
        vacuum_session(session.pk)
    touched = [one["sql"] for one in queries if "chatmemory_statistics" in one["sql"]]
    assert len(touched) == 1
    assert "UPDATE" not in touched[0]
