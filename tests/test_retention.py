"""Age: expired sessions are hidden at once and purged by the job; RETENTION; deleted users."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from chatmemory.errors import BadInput, NotFound
from chatmemory.models import AuditEntry, Message, Session, SessionTag
from chatmemory.services import (
    SERVER,
    Actor,
    Expired,
    Went,
    admit_turn,
    append_messages,
    clear_session,
    expire_sessions,
    find_erasures,
    finish_turn,
    hold_session,
    open_session,
    purge_session,
    read_history,
    redact_message,
    restore_session,
    sessions_of,
    tag_session,
    trim_session,
    user_scope,
    vacuum,
)
from chatmemory.services.locks import lock_pk
from tests.factories import BY, TALK, make_session, make_user, said
from tests.locking import held

pytestmark = [pytest.mark.django_db, pytest.mark.database]

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NOTHING = Expired(went={}, left=0)


def append(*texts: str, key: str = "talk") -> None:
    append_messages(**{**TALK, "session_key": key}, messages=said(*texts))


def let_pass(time: timedelta) -> None:
    """As if all that is stored had been stored so much earlier."""
    Message.stored.update(created_at=F("created_at") - time)
    Session.objects.update(
        created_at=F("created_at") - time, last_message_at=F("last_message_at") - time
    )


def ttl(time: timedelta | None = HOUR):
    return override_settings(CHATMEMORY={"SESSION_TTL": time})


def retention(*rules: dict[str, object], **settings: Any):
    return override_settings(CHATMEMORY={"RETENTION": list(rules), **settings})


def left(key: str = "talk") -> list[int]:
    return [row.seq for row in read_history(**{**TALK, "session_key": key}).rows]


# The sliding end


@ttl()
def test_a_session_without_a_message_for_too_long_is_hidden_at_once():
    make_session()
    append("a")
    let_pass(HOUR * 0.9)
    assert left() == [1]
    let_pass(HOUR * 0.2)
    with pytest.raises(NotFound):
        left()
    assert not sessions_of(BY, SERVER).exists()
    for act in (clear_session, lambda **of: trim_session(keep_last=0, **of)):
        with pytest.raises(NotFound):
            act(**TALK, reason="")
    with pytest.raises(NotFound):
        append("b")
    with pytest.raises(NotFound):
        admit_turn(**TALK, client_id="run", content="hi")
    with pytest.raises(NotFound):
        redact_message(**TALK, seq=1, reason="")


@ttl()
def test_each_message_puts_the_end_off():
    make_session()
    for number in range(1, 4):
        append("a")
        let_pass(HOUR * 0.9)
        assert len(left()) == number


@ttl()
def test_a_session_that_nobody_wrote_to_ends_too():
    make_session()
    let_pass(HOUR * 0.9)
    assert left() == []
    let_pass(HOUR * 0.2)
    with pytest.raises(NotFound):
        left()


@ttl()
def test_an_end_of_its_own_stands_in_for_the_sliding_one():
    later = timezone.now() + DAY
    open_session(**TALK, expires_at=later)
    make_session("soon", expires_at=timezone.now() - HOUR)
    append("a")
    let_pass(HOUR * 2)
    assert left() == [1]
    assert Session.objects.get(key="talk").ends_at == later
    with pytest.raises(NotFound):
        left("soon")


@pytest.mark.parametrize("wrong", ["past", "naive"])
def test_an_end_that_can_not_be_is_refused(wrong):
    end = {"past": timezone.now() - HOUR, "naive": (timezone.now() + DAY).replace(tzinfo=None)}
    with pytest.raises(BadInput):
        open_session(**TALK, expires_at=end[wrong])


@ttl()
def test_no_session_ends_in_mid_turn_nor_on_hold():
    make_session()
    claim = admit_turn(**TALK, client_id="run", content="hi", owner="me").claim
    make_session("waits")
    admit_turn(**{**TALK, "session_key": "waits"}, client_id="next", content="hi")
    make_session("held", held_at=timezone.now())
    let_pass(HOUR * 2)
    assert left() == [1]
    assert left("waits") == left("held") == []
    assert expire_sessions() == NOTHING
    assert finish_turn(claim=claim, status="complete", message=said("", "done")[1])
    assert left() == [1, 2]


@ttl()
def test_who_writes_to_an_ended_session_begins_a_new_one():
    old = make_session()
    append("a")
    let_pass(HOUR * 2)
    append_messages(**TALK, messages=said("new"), create=True)
    assert left() == [1]
    entry = AuditEntry.objects.get()
    assert (entry.session_pk, entry.action, entry.reason) == (old.pk, "purge", "expired")


def test_without_a_ttl_nothing_ends():
    make_session()
    append("a")
    let_pass(DAY * 9_999)
    assert left() == [1]
    assert expire_sessions() == NOTHING


# The job


@ttl()
def test_the_job_purges_what_has_ended():
    make_session("fixed", expires_at=timezone.now() - HOUR)
    make_session()
    append("a", "b")
    let_pass(HOUR * 2)
    make_session("young")
    due = Expired(went={"expired": Went(sessions=2, messages=2)}, left=0)
    assert expire_sessions(dry_run=True) == due
    assert not AuditEntry.objects.exists()
    assert expire_sessions() == due
    assert expire_sessions() == NOTHING
    assert set(AuditEntry.objects.values_list("action", "reason")) == {("purge", "expired")}
    assert Session.objects.get(removed_at=None).key == "young"


@ttl()
def test_what_the_job_purged_can_be_restored():
    make_session()
    append("a", "b")
    let_pass(HOUR * 2)
    expire_sessions()
    restore_session(
        entry_pk=AuditEntry.objects.get(action="purge").pk, by=BY, scope=SERVER, reason=""
    )
    assert left() == [1, 2]
    assert expire_sessions() == NOTHING


def test_old_messages_go_by_turns():
    make_session()
    append("a", "b")
    let_pass(DAY * 2)
    append("c", "d")
    with retention({"max_age": DAY}):
        due = Expired(went={"max_age": Went(sessions=1, messages=2)}, left=0)
        assert expire_sessions(dry_run=True) == due
        assert expire_sessions() == due
        assert expire_sessions() == NOTHING
    assert left() == [3, 4]
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.actor_label) == ("trim", "max_age", "retention")


def test_ages_are_by_the_clock_of_the_database(monkeypatch):
    make_session()
    append("a", "b")
    let_pass(DAY * 2)
    append("c", "d")
    ahead = timezone.now() + DAY * 9
    monkeypatch.setattr(timezone, "now", lambda: ahead)
    with retention({"max_age": DAY}):
        expire_sessions()
    assert left() == [3, 4]


def test_all_messages_may_be_too_old_and_the_session_stays():
    make_session()
    append("a", "b")
    let_pass(DAY * 2)
    with retention({"max_age": DAY}):
        expire_sessions()
    assert left() == []


def test_messages_over_the_number_go():
    make_session()
    append(*"abcdef")
    with retention({"max_messages": 3}):
        assert expire_sessions().went == {"max_messages": Went(sessions=1, messages=2)}
        assert expire_sessions() == NOTHING
    assert left() == [3, 4, 5, 6]


def test_of_two_limits_the_stricter_one_decides():
    make_session()
    append("a", "b")
    let_pass(DAY * 2)
    append("c", "d", "e", "f")
    with retention({"max_age": DAY, "max_messages": 2}):
        assert expire_sessions().went == {"max_messages": Went(sessions=1, messages=4)}
    assert left() == [5, 6]


def test_idle_sessions_go():
    make_session()
    append("a")
    make_session("empty")
    let_pass(DAY * 2)
    make_session("young")
    with retention({"max_idle": DAY}):
        assert expire_sessions().went == {"max_idle": Went(sessions=2, messages=1)}
        assert expire_sessions() == NOTHING
    assert Session.objects.get(removed_at=None).key == "young"


def test_a_session_with_an_end_of_its_own_is_not_idle():
    make_session(expires_at=timezone.now() + DAY)
    let_pass(DAY * 2)
    with retention({"max_idle": DAY}):
        assert expire_sessions() == NOTHING


def test_no_rule_touches_a_live_turn():
    make_session()
    append("a", "b")
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    let_pass(DAY * 2)
    with retention({"max_age": DAY, "max_idle": DAY, "max_messages": 1}):
        assert expire_sessions().went == {"max_age": Went(sessions=1, messages=2)}
    assert left() == [3]


@pytest.mark.regression
def test_the_first_rule_that_applies_decides():
    """By the tags of host and operators; metadata decides nothing."""
    for key, tags in {"a": ["vip"], "b": ["vip", "short"], "c": ["short"], "d": ["Vip"]}.items():
        make_session(key, metadata={"tags": ["vip"]})
        append(*"abcdef", key=key)
        for tag in tags:
            tag_session(**TALK | {"session_key": key}, tag=tag, reason="")
    with retention({"tag": "vip"}, {"tag": "short", "max_messages": 2}, {"max_messages": 4}):
        assert expire_sessions().went == {"max_messages": Went(sessions=2, messages=4 + 2)}
    assert {key: len(left(key)) for key in "abcd"} == {"a": 6, "b": 6, "c": 2, "d": 4}


def test_on_hold_nothing_goes():
    make_session(expires_at=timezone.now() - DAY)
    session = Session.objects.get()
    hold_session(**TALK, session_pk=session.pk, reason="")
    append(*"abcd")
    let_pass(DAY * 2)
    with retention({"max_age": DAY, "max_idle": DAY, "max_messages": 1}):
        assert expire_sessions(dry_run=True) == expire_sessions() == NOTHING


@pytest.mark.parametrize("late", ["held", "said", "running", "purged", "tagged"])
def test_the_condition_is_looked_at_again_under_the_lock(late, monkeypatch):
    """What changes between the list and the lock counts."""
    session = make_session()
    append("a")
    let_pass(HOUR * 2)

    def change() -> None:
        same = Session.objects.filter(pk=session.pk)
        match late:
            case "held":
                same.update(held_at=timezone.now())
            case "said":
                same.update(last_message_at=timezone.now())
            case "running":
                same.update(running="run")
            case "purged":
                same.update(removed_at=timezone.now())
            case "tagged":
                SessionTag.objects.create(session=session, tag="kept")

    def walk(sessions):
        pks = list(sessions.values_list("pk", flat=True))
        change()
        yield from pks

    monkeypatch.setattr("chatmemory.services.retention.walk", walk)
    with retention({"tag": "kept"}, {"max_idle": HOUR}) if late == "tagged" else ttl():
        assert expire_sessions() == NOTHING
    assert not AuditEntry.objects.exists()


@pytest.mark.regression
def test_a_session_that_is_tagged_before_it_is_locked_is_trimmed_by_its_new_rule(monkeypatch):
    session = make_session()
    append(*"ab")
    let_pass(HOUR * 2)

    def tag_and_lock(session_pk: int) -> Session:
        SessionTag.objects.create(session=session, tag="contract")
        return lock_pk(session_pk)

    monkeypatch.setattr("chatmemory.services.retention.lock_pk", tag_and_lock)
    with retention({"tag": "contract", "max_age": DAY}, {"max_age": HOUR}):
        assert expire_sessions() == NOTHING
    assert left() == [1, 2]


def test_a_wrong_rule_removes_nothing():
    make_session(expires_at=timezone.now() - DAY)
    with retention({"max_age": DAY}, {"age": 5}), pytest.raises(ValueError, match=r"\[1\]"):
        expire_sessions()
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_session_that_can_not_be_reached_waits_for_the_next_time(settings):
    if connection.vendor == "sqlite":
        pytest.skip("one lock for all sessions")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LOCK_TIMEOUT": 0.2}
    stuck = make_session("stuck", expires_at=timezone.now() - DAY)
    make_session(expires_at=timezone.now() - DAY)
    with held(stuck):
        assert expire_sessions() == Expired(went={"expired": Went(sessions=1)}, left=1)
    assert expire_sessions().left == 0


def told(*args: str) -> str:
    out = StringIO()
    call_command("chatmemory_expire", *args, stdout=out)
    return out.getvalue()


def test_the_command_reports():
    make_session(expires_at=timezone.now() + HOUR)
    append("a", "b")
    Session.objects.update(expires_at=timezone.now() - HOUR)
    assert told("--dry-run") == "expired: 1 session, 2 messages\nNothing was removed.\n"
    assert told() == "expired: 1 session, 2 messages\n"
    assert told() == "Nothing is due.\n"


def test_the_command_says_what_is_wrong_with_a_rule():
    with retention({"age": 5}), pytest.raises(CommandError, match="'age'"):
        told()


# A deleted user


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("what", ["purge", "erase", "keep"])
def test_what_becomes_of_a_deleted_users_sessions_is_a_setting(what, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": what}
    ann, bob = make_user("ann"), make_user("bob")
    for user in (ann, bob):
        make_session(owner=user)
        append_messages(session_key="talk", by=Actor.user(user), messages=said("a", "b"))
    scope = user_scope(ann)
    ann.delete()
    assert Message.stored.count() == {"purge": 4, "erase": 2, "keep": 4}[what]
    assert sessions_of(BY, scope).count() == (what == "keep")
    actions = {
        "purge": ["user_deleted", "purge"],
        "erase": ["user_deleted", "erase_begun", "erase", "erase"],
        "keep": [],
    }[what]
    assert list(AuditEntry.objects.values_list("action", flat=True)) == actions
    assert len(read_history(session_key="talk", by=Actor.user(bob)).rows) == 2
    assert expire_sessions() == NOTHING


@pytest.mark.django_db(transaction=True)
def test_a_deleted_users_session_that_was_restored_stays_for_a_while():
    ann = make_user("ann")
    make_session(owner=ann)
    scope = user_scope(ann)
    ann.delete()
    restore_session(
        entry_pk=AuditEntry.objects.get(action="purge").pk, by=BY, scope=scope, reason=""
    )
    assert expire_sessions() == NOTHING
    session = sessions_of(BY, scope).get()
    assert session.expires_at is not None
    assert session.expires_at > timezone.now() + DAY * 29


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("what", ["purge", "erase"])
def test_what_the_deletion_of_a_user_left_the_job_does(what, settings, monkeypatch):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": what}
    monkeypatch.setattr("chatmemory.services.retention.walk", lambda _sessions: 1 / 0)
    monkeypatch.setattr("chatmemory.services.erasure.walk", lambda _sessions: 1 / 0)
    ann = make_user("ann")
    make_session(owner=ann)
    append_messages(session_key="talk", by=Actor.user(ann), messages=said("a"))
    scope = user_scope(ann)
    ann.delete()  # the failure is logged and stops nobody
    monkeypatch.undo()
    assert sessions_of(BY, scope).exists()
    assert expire_sessions().went == {"owner deleted": Went(sessions=1, messages=1)}
    vacuum()
    assert Message.stored.count() == (what == "purge")


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_the_job_completes_an_interrupted_erasure_of_an_account(settings, monkeypatch):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "erase"}
    monkeypatch.setattr("chatmemory.services.erasure.walk", lambda _sessions: 1 / 0)
    ann = make_user("ann")
    for key in ("talk", "purged"):
        make_session(key, owner=ann)
    make_session("own end", owner=ann, expires_at=timezone.now() + DAY)
    purge_session(session_key="purged", by=Actor.user(ann), reason="")
    scope = user_scope(ann)
    ann.delete()
    monkeypatch.undo()
    later = make_session("later", scope=scope, expires_at=timezone.now() + DAY)
    assert expire_sessions().went == {"owner deleted": Went(sessions=3, messages=0)}
    assert Session.objects.get() == later
    assert find_erasures(by=BY, scope=scope).erasures[0].completed_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_held_session_outlives_its_user():
    ann = make_user("ann")
    make_session(owner=ann, held_at=timezone.now())
    scope = user_scope(ann)
    ann.delete()
    assert sessions_of(BY, scope).exists()
    assert expire_sessions() == NOTHING
