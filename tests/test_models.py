"""Tables and the verbs that read them."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError
from django.test.utils import CaptureQueriesContext

from chatmemory.models import CLOCK, DatabaseNow, Message, Session
from chatmemory.services import append_messages
from tests.factories import TALK, make_session, make_user, said

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def refused(**columns) -> bool:
    """Whether the database itself refuses these columns of a session."""
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
def test_floor_and_counter_fit_together(columns, is_refused):
    assert refused(**columns) == is_refused


@pytest.mark.parametrize("again", [{"key": "talk"}, {"key": "talk", "owner": None}])
def test_an_address_is_given_once(again):
    make_session()
    with pytest.raises(IntegrityError), transaction.atomic():
        make_session(**again)


def test_a_client_id_is_given_once_in_a_session():
    session = make_session()
    common = {"session": session, "role": "user", "text": "", "error": "", "model": "", "tokens": 0}
    Message.stored.create(**common, seq=1, client_id="a")
    Message.stored.create(**common, seq=2)
    Message.stored.create(**common, seq=3)
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.stored.create(**common, seq=4, client_id="a")
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.stored.create(**common, seq=3)


def test_a_session_with_messages_can_not_be_deleted_past_the_services():
    session = make_session()
    append_messages(**TALK, messages=said("a"))
    with pytest.raises(ProtectedError):
        session.delete()


def test_deleting_a_user_leaves_the_session_in_its_scope():
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


def test_heads_are_one_statement_and_leave_out_what_is_gone():
    living = make_session("a")
    gone = make_session("b", removed_at=LONG_AGO)
    expired = make_session("c", expires_at=LONG_AGO)
    with CaptureQueriesContext(connection) as queries:
        heads = Session.objects.heads([living.pk, gone.pk, expired.pk])
    assert list(heads) == [living.pk]
    assert len(queries) == 1


def test_a_session_is_named_by_its_title_or_its_key():
    assert [str(make_session("a")), str(make_session("b", title="B!"))] == ["a", "B!"]
