"""The plan of a session states what `expire_sessions` does, and when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chatmemory.database.faults import write_connection
from chatmemory.models import DatabaseNow, Message, Session, database_now
from chatmemory.services import append_messages, hold_session, tag_session
from chatmemory.services.retention.plan import retention_plan
from chatmemory.services.retention.retention import expire_sessions
from chatmemory.services.tags import tags_of
from tests.factories import TALK, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

HOUR = timedelta(hours=1)


def configure(settings, **more):
    settings.CHATMEMORY = {**settings.CHATMEMORY, **more}


def plan():
    session = Session.objects.get()
    oldest = Message.stored.filter(session=session, seq=session.first_seq).first()
    oldest_at = oldest and oldest.created_at
    return retention_plan(session, tags=tags_of(session), oldest_at=oldest_at)


def due_now():
    """Return the reasons of the deadlines that have passed."""
    now = database_now(write_connection())
    return [due.reason for due in plan().deadlines if due.at is None or due.at <= now]


def expired_now():
    return [*expire_sessions(dry_run=True).removed]


RULES = {
    "max_idle": {"max_idle": HOUR},
    "max_age": {"max_age": HOUR},
    "max_messages": {"max_messages": 2},
}


@pytest.mark.parametrize("reason", RULES)
@pytest.mark.parametrize("is_old", [True, False])
def test_a_rule_acts_when_the_plan_states(settings, reason, is_old):
    configure(settings, RETENTION=[RULES[reason]])
    make_session()
    append_messages(**TALK, messages=make_messages("a", "b", "c", "d"))
    if is_old:
        old = DatabaseNow() - 2 * HOUR
        Message.stored.update(created_at=old)
        Session.objects.update(last_message_at=old)
    assert due_now() == expired_now()
    assert bool(due_now()) is (is_old or reason == "max_messages")


@pytest.mark.parametrize("is_old", [True, False])
def test_the_end_of_a_session_is_planned(settings, is_old):
    configure(settings, SESSION_TTL=HOUR)
    make_session()
    if is_old:
        Session.objects.update(created_at=DatabaseNow() - 2 * HOUR)
    assert due_now() == expired_now() == (["expired"] if is_old else [])
    Session.objects.update(expires_at=DatabaseNow() + HOUR)
    assert due_now() == expired_now() == []


@pytest.mark.parametrize("policy", ["purge", "keep"])
def test_the_deletion_of_the_user_is_planned(settings, policy):
    configure(settings, USER_DELETED=policy)
    make_session(owner=make_user())
    Session.objects.update(owner=None)
    assert due_now() == expired_now() == (["owner deleted"] if policy == "purge" else [])


def test_a_hold_prevents_all(settings):
    configure(settings, RETENTION=[{"max_messages": 1}])
    make_session()
    append_messages(**TALK, messages=make_messages("a", "b", "c", "d"))
    assert due_now() == expired_now() == ["max_messages"]
    hold_session(**TALK, reason="")
    assert plan().deadlines == []
    assert expired_now() == []


@pytest.mark.parametrize("column", [{"running": "c1"}, {"waiting": 1}])
def test_a_session_with_a_turn_does_not_end(settings, column):
    configure(settings, SESSION_TTL=HOUR, RETENTION=[{"max_idle": HOUR}])
    make_session()
    Session.objects.update(created_at=DatabaseNow() - 2 * HOUR)
    assert "expired" in due_now()
    assert expired_now() == ["expired"]
    Session.objects.update(**column)
    assert due_now() == expired_now() == []


def test_an_own_end_replaces_the_idle_limit(settings):
    configure(settings, RETENTION=[{"max_idle": HOUR}])
    make_session()
    Session.objects.update(created_at=DatabaseNow() - 2 * HOUR)
    assert due_now() == expired_now() == ["max_idle"]
    Session.objects.update(expires_at=DatabaseNow() + HOUR)
    assert due_now() == expired_now() == []


def test_the_first_rule_that_matches_applies(settings):
    configure(settings, RETENTION=[{"tag": "kept"}, {"max_messages": 2}])
    make_session()
    append_messages(**TALK, messages=make_messages("a", "b", "c", "d"))
    assert (plan().number, due_now()) == (2, ["max_messages"])
    assert plan().deadlines[0].messages == 2
    tag_session(**TALK, tag="kept", reason="")
    assert (plan().number, due_now(), expired_now()) == (1, [], [])
    configure(settings, RETENTION=[{"tag": "other", "max_messages": 2}])
    assert (plan().number, due_now()) == (None, [])


def test_a_wrong_setting_is_an_error(settings):
    configure(settings, RETENTION=[{"max_age": -1}])
    make_session()
    with pytest.raises(ValueError, match=r"RETENTION\[0\]"):
        plan()
