"""Turns without progress: counted after a minute, by the index of live turns."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.models import DatabaseNow, Session, Turn
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.stuck import count_stuck_turns
from tests.factories import TALK, make_session, make_user

pytestmark = [pytest.mark.database, pytest.mark.django_db]

LONG_AGO = DatabaseNow() - timedelta(minutes=2)


def stuck():
    found = count_stuck_turns()
    return found.overdue, found.unclaimed


def send(key="talk", by=None):
    address = {**TALK, "session_key": key} if by is None else {"session_key": key, "by": by}
    services.admit_turn(**address, client_id=f"c-{key}", content="hi")


def age():
    Turn.objects.update(created_at=LONG_AGO)
    Session.objects.update(last_message_at=F("last_message_at") - timedelta(minutes=2))


def test_a_turn_that_no_process_claims_is_stuck_after_a_minute():
    make_session()
    send()
    assert stuck() == (0, 0)
    age()
    assert stuck() == (0, 1)


def test_a_turn_that_no_process_ends_is_stuck_after_a_minute():
    session = make_session()
    send()
    claim_next(session_pk=session.pk, owner="one")
    age()
    assert stuck() == (0, 0)
    Turn.objects.update(lease_until=DatabaseNow() - timedelta(seconds=30))
    assert stuck() == (0, 0)
    Turn.objects.update(lease_until=LONG_AGO)
    assert stuck() == (1, 0)


def test_a_turn_behind_another_one_is_not_stuck():
    session = make_session()
    send()
    claim_next(session_pk=session.pk, owner="one")
    services.admit_turn(**TALK, client_id="c2", content="hi")
    age()
    assert stuck() == (0, 0)
    Session.objects.update(running=None, last_message_at=DatabaseNow())
    Turn.objects.filter(client_id="c-talk").update(status=Turn.Status.COMPLETE, scope="")
    assert stuck() == (0, 0)  # the turn before it ended just now


def test_a_turn_that_the_limit_of_its_user_holds_back_is_not_stuck(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TURNS_PER_USER": 1}
    ann = make_user()
    sessions = [make_session(key, owner=ann) for key in ("one", "two")]
    for session in sessions:
        send(session.key, by=services.Actor.user(ann))
    claim_next(session_pk=sessions[0].pk, owner="one")
    age()
    assert stuck() == (0, 0)
    Turn.objects.filter(status=Turn.Status.RUNNING).update(lease_until=LONG_AGO)
    assert stuck() == (1, 1)


@pytest.mark.slow
def test_ended_turns_are_not_read(postgresql):
    sessions = [Session(scope=f"user:{number}", key="talk") for number in range(300)]
    Session.objects.bulk_create(sessions)
    ended = {"status": Turn.Status.COMPLETE, "epoch": 1, "client_id": "c1"}
    Turn.objects.bulk_create(Turn(session=session, **ended) for session in sessions)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE chatmemory_session, chatmemory_turn")
        cursor.execute("SET LOCAL enable_seqscan = off")
    with CaptureQueriesContext(connection) as queries:
        stuck()
    assert len(queries) == 2
    for query in queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {query['sql']}")
            plan = "\n".join(row for (row,) in cursor.fetchall())
        assert "chatmemory_turn_live" in plan
        assert "Seq Scan" not in plan
