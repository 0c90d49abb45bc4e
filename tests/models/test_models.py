"""Constraints of the tables, and querysets."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError
from django.test.utils import CaptureQueriesContext

from chatmemory.models import CLOCK, DatabaseNow, Head, Message, Session
from chatmemory.services import append_messages
from tests.factories import TALK, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def refused(**columns) -> bool:
    """Whether the database itself refuses these values of a session."""
    session = make_session(key=secrets.token_hex(4), last_seq=5)
    try:
        with transaction.atomic():
            Session.objects.filter(pk=session.pk).update(**columns)
    except IntegrityError:
        return True
    return False


@pytest.mark.parametrize(
    ("columns", "is_refused"),
    [
        ({"first_seq": 6}, False),
        ({"first_seq": 7}, True),
        ({"first_seq": 0, "stored_from": 0}, True),
        ({"first_seq": 3, "stored_from": 3}, False),
        ({"first_seq": 3, "stored_from": 4}, True),
    ],
)
def test_the_floor_is_between_the_stored_rows_and_the_counter(columns, is_refused):
    assert refused(**columns) == is_refused


@pytest.mark.parametrize("columns", [{"key": "talk"}, {"key": "talk", "owner": None}])
def test_an_address_is_unique(columns):
    make_session()
    with pytest.raises(IntegrityError), transaction.atomic():
        make_session(**columns)


def test_a_client_id_is_unique_in_its_session():
    session = make_session()
    common = {"session": session, "role": "user", "text": "", "error": "", "model": "", "tokens": 0}
    Message.stored.create(**common, seq=1, client_id="a")
    Message.stored.create(**common, seq=2)
    Message.stored.create(**common, seq=3)
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.stored.create(**common, seq=4, client_id="a")
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.stored.create(**common, seq=3)


def test_a_session_with_messages_cannot_be_deleted_without_a_service():
    session = make_session()
    append_messages(**TALK, messages=make_messages("a"))
    with pytest.raises(ProtectedError):
        session.delete()


def test_deleting_a_user_keeps_the_session_in_its_scope():
    user = make_user()
    session = make_session(owner=user)
    scope = session.scope
    user.delete()
    session.refresh_from_db()
    assert (session.owner, session.scope) == (None, scope)


def test_epochs_are_random_numbers_of_forty_bits():
    epochs = [make_session(str(number)).epoch for number in range(8)]
    assert len(set(epochs)) == 8
    assert max(epochs) < 2**40


def test_the_databases_clock_is_utc_and_moves_within_a_transaction():
    session = make_session()
    first = Session.objects.annotate(now=DatabaseNow()).get(pk=session.pk).now
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.01)")
    second = Session.objects.annotate(now=DatabaseNow()).get(pk=session.pk).now
    assert abs(first - datetime.now(UTC)) < timedelta(minutes=5)
    assert second > first or connection.vendor == "sqlite"  # which counts milliseconds
    assert set(CLOCK) == {"postgresql", "mysql", "sqlite"}


def test_sessions_are_listed_most_recent_first_and_empty_ones_last():
    make_session("empty")
    make_session("old", last_message_at=LONG_AGO)
    make_session("new", last_message_at=LONG_AGO + timedelta(days=1))
    keys = [session.key for session in Session.objects.most_recent_first()]
    assert keys == ["new", "old", "empty"]


def test_heads_are_one_statement_and_exclude_purged_and_expired_sessions():
    active = make_session("a")
    purged = make_session("b", removed_at=LONG_AGO)
    expired = make_session("c", expires_at=LONG_AGO)
    with CaptureQueriesContext(connection) as queries:
        heads = Session.objects.heads([active.pk, purged.pk, expired.pk])
    assert list(heads) == [active.pk]
    assert len(queries) == 1


def test_a_session_is_named_by_its_title_or_its_key():
    assert [str(make_session("a")), str(make_session("b", title="B!"))] == ["a", "B!"]


def test_a_head_reads_each_of_its_fields():
    session = make_session(title="A title", archived_at=LONG_AGO, running="c1", waiting=2)
    session.turns.create(client_id="c1", status="running", epoch=7, started_at=LONG_AGO)
    head = Session.objects.heads([session.pk])[session.pk]
    of_turn = {"turn_status": "running", "turn_since": LONG_AGO}
    read = {name: getattr(head, name) for name in Head.__dataclass_fields__}
    assert read == {name: of_turn.get(name) or getattr(session, name) for name in read}
    assert head.public()["archived"] is True


@pytest.mark.parametrize("microsecond", [0, 500_000, 500_123, None])
def test_a_time_that_was_read_is_equal_to_that_of_its_row(microsecond):
    """SQLite compares times as texts, and its clock writes three digits. None: by the clock."""
    session = make_session()
    if microsecond is not None:
        at = datetime(2026, 5, 4, 12, 30, 1, microsecond, tzinfo=UTC)
        Session.objects.update(created_at=at)
    session.refresh_from_db()
    for comparison in ("exact", "gte", "lte"):
        rows = Session.objects.filter(**{f"created_at__{comparison}": session.created_at})
        assert rows.count() == 1, comparison
    for comparison in ("gt", "lt"):
        rows = Session.objects.filter(**{f"created_at__{comparison}": session.created_at})
        assert rows.count() == 0, comparison


def test_the_clock_of_a_whole_second_is_compared_as_what_it_is():
    session = make_session()
    with connection.cursor() as cursor:
        text = "2026-05-04 12:30:01.000" + ("+00" if connection.vendor == "postgresql" else "")
        cursor.execute("UPDATE chatmemory_session SET created_at = %s", [text])
    session.refresh_from_db()
    assert Session.objects.filter(created_at=session.created_at).exists()
