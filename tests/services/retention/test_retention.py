"""Retention: expired sessions, the rules of RETENTION, and deleted users."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory.database.locks import lock_pk
from chatmemory.errors import BadInput, NotFound
from chatmemory.models import AuditEntry, Message, Session, SessionTag
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    append_messages,
    clear_session,
    deleting_users,
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
)
from chatmemory.services.erasure.past_erasures import find_erasures
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.retention import accounts
from chatmemory.services.retention import retention as service
from chatmemory.services.retention.retention import Expired, RemovalCount, expire_sessions
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.locking import held

pytestmark = [pytest.mark.django_db, pytest.mark.database]

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NOTHING = Expired(removed={}, left=0)


def append(*texts: str, key: str = "talk") -> None:
    append_messages(**{**TALK, "session_key": key}, messages=make_messages(*texts))


def age_all(time: timedelta) -> None:
    """Move all stored times back."""
    Message.stored.update(created_at=F("created_at") - time)
    Session.objects.update(
        created_at=F("created_at") - time, last_message_at=F("last_message_at") - time
    )


def ttl(time: timedelta | None = HOUR):
    return override_settings(CHATMEMORY={"SESSION_TTL": time})


def retention(*rules: dict[str, object], **settings: Any):
    return override_settings(CHATMEMORY={"RETENTION": list(rules), **settings})


def visible_seqs(key: str = "talk") -> list[int]:
    return [row.seq for row in read_history(**{**TALK, "session_key": key}).rows]


@ttl()
def test_an_idle_session_is_hidden_immediately():
    make_session()
    append("a")
    age_all(HOUR * 0.9)
    assert visible_seqs() == [1]
    age_all(HOUR * 0.2)
    with pytest.raises(NotFound):
        visible_seqs()
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
def test_each_message_postpones_the_end():
    make_session()
    for number in range(1, 4):
        append("a")
        age_all(HOUR * 0.9)
        assert len(visible_seqs()) == number


@ttl()
def test_a_session_without_messages_expires_too():
    make_session()
    age_all(HOUR * 0.9)
    assert visible_seqs() == []
    age_all(HOUR * 0.2)
    with pytest.raises(NotFound):
        visible_seqs()


@ttl()
def test_expires_at_replaces_the_ttl():
    later = timezone.now() + DAY
    open_session(**TALK, expires_at=later)
    make_session("soon", expires_at=timezone.now() - HOUR)
    append("a")
    age_all(HOUR * 2)
    assert visible_seqs() == [1]
    assert Session.objects.get(key="talk").ends_at == later
    with pytest.raises(NotFound):
        visible_seqs("soon")


@pytest.mark.parametrize("wrong", ["past", "naive"])
def test_an_invalid_expires_at_is_refused(wrong):
    end = {"past": timezone.now() - HOUR, "naive": (timezone.now() + DAY).replace(tzinfo=None)}
    with pytest.raises(BadInput):
        open_session(**TALK, expires_at=end[wrong])


@ttl()
def test_no_session_expires_during_a_turn_or_on_hold():
    make_session()
    claim = admit_turn(**TALK, client_id="run", content="hi", owner="me").claim
    make_session("waits")
    admit_turn(**{**TALK, "session_key": "waits"}, client_id="next", content="hi")
    make_session("held", held_at=timezone.now())
    age_all(HOUR * 2)
    assert visible_seqs() == [1]
    assert visible_seqs("waits") == visible_seqs("held") == []
    assert expire_sessions() == NOTHING
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    assert visible_seqs() == [1, 2]


@ttl()
def test_a_write_to_an_expired_session_creates_a_new_one():
    old = make_session()
    append("a")
    age_all(HOUR * 2)
    append_messages(**TALK, messages=make_messages("new"), create=True)
    assert visible_seqs() == [1]
    entry = AuditEntry.objects.get()
    assert (entry.session_pk, entry.action, entry.reason) == (old.pk, "purge", "expired")


def test_without_a_ttl_no_session_expires():
    make_session()
    append("a")
    age_all(DAY * 9_999)
    assert visible_seqs() == [1]
    assert expire_sessions() == NOTHING


@ttl()
def test_expire_sessions_purges_expired_sessions():
    make_session("fixed", expires_at=timezone.now() - HOUR)
    make_session()
    append("a", "b")
    age_all(HOUR * 2)
    make_session("young")
    due = Expired(removed={"expired": RemovalCount(sessions=2, messages=2)}, left=0)
    assert expire_sessions(dry_run=True) == due
    assert not AuditEntry.objects.exists()
    assert expire_sessions() == due
    assert expire_sessions() == NOTHING
    assert set(AuditEntry.objects.values_list("action", "reason")) == {("purge", "expired")}
    assert Session.objects.get(removed_at=None).key == "young"


@ttl()
def test_a_session_purged_by_age_can_be_restored():
    make_session()
    append("a", "b")
    age_all(HOUR * 2)
    expire_sessions()
    restore_session(
        entry_pk=AuditEntry.objects.get(action="purge").pk, by=BY, scope=SERVER, reason=""
    )
    assert visible_seqs() == [1, 2]
    assert expire_sessions() == NOTHING


def test_old_messages_are_removed_in_complete_turns():
    make_session()
    append("a", "b")
    age_all(DAY * 2)
    append("c", "d")
    with retention({"max_age": DAY}):
        due = Expired(removed={"max_age": RemovalCount(sessions=1, messages=2)}, left=0)
        assert expire_sessions(dry_run=True) == due
        assert expire_sessions() == due
        assert expire_sessions() == NOTHING
    assert visible_seqs() == [3, 4]
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.actor_label) == ("trim", "max_age", "retention")


@pytest.mark.regression
def test_an_age_limit_reads_no_old_row_under_the_lock():
    make_session()
    append("a", "b", "c")
    age_all(DAY * 2)
    append("d", "e")
    with retention({"max_age": DAY}), CaptureQueriesContext(connection) as queries:
        expire_sessions()
    assert visible_seqs() == [4, 5]
    by_time = [q["sql"] for q in queries if "created_at" in q["sql"] and "LIMIT 1" in q["sql"]]
    searches = [sql for sql in by_time if "ORDER BY" in sql and ">=" in sql]
    assert len(searches) == 2
    assert "THEN 4" in searches[1]  # this row and the later ones are read under the lock
    assert "THEN 4" not in searches[0]


def test_ages_are_computed_by_the_databases_clock(monkeypatch):
    make_session()
    append("a", "b")
    age_all(DAY * 2)
    append("c", "d")
    ahead = timezone.now() + DAY * 9
    monkeypatch.setattr(timezone, "now", lambda: ahead)
    with retention({"max_age": DAY}):
        expire_sessions()
    assert visible_seqs() == [3, 4]


def test_a_session_whose_messages_are_all_too_old_stays():
    make_session()
    append("a", "b")
    age_all(DAY * 2)
    with retention({"max_age": DAY}):
        expire_sessions()
    assert visible_seqs() == []


def test_messages_above_max_messages_are_removed():
    make_session()
    append(*"abcdef")
    with retention({"max_messages": 3}):
        assert expire_sessions().removed == {"max_messages": RemovalCount(sessions=1, messages=2)}
        assert expire_sessions() == NOTHING
    assert visible_seqs() == [3, 4, 5, 6]


def test_the_stricter_of_two_limits_applies():
    make_session()
    append("a", "b")
    age_all(DAY * 2)
    append("c", "d", "e", "f")
    with retention({"max_age": DAY, "max_messages": 2}):
        assert expire_sessions().removed == {"max_messages": RemovalCount(sessions=1, messages=4)}
    assert visible_seqs() == [5, 6]


def test_idle_sessions_are_removed():
    make_session()
    append("a")
    make_session("empty")
    age_all(DAY * 2)
    make_session("young")
    with retention({"max_idle": DAY}):
        assert expire_sessions().removed == {"max_idle": RemovalCount(sessions=2, messages=1)}
        assert expire_sessions() == NOTHING
    assert Session.objects.get(removed_at=None).key == "young"


def test_a_session_with_expires_at_is_not_idle():
    make_session(expires_at=timezone.now() + DAY)
    age_all(DAY * 2)
    with retention({"max_idle": DAY}):
        assert expire_sessions() == NOTHING


def test_no_rule_removes_an_active_turn():
    make_session()
    append("a", "b")
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    age_all(DAY * 2)
    with retention({"max_age": DAY, "max_idle": DAY, "max_messages": 1}):
        assert expire_sessions().removed == {"max_age": RemovalCount(sessions=1, messages=2)}
    assert visible_seqs() == [3]


@pytest.mark.regression
def test_the_first_rule_that_matches_applies():
    """Rules match by tags, not by metadata."""
    for key, tags in {"a": ["vip"], "b": ["vip", "short"], "c": ["short"], "d": ["Vip"]}.items():
        make_session(key, metadata={"tags": ["vip"]})
        append(*"abcdef", key=key)
        for tag in tags:
            tag_session(**TALK | {"session_key": key}, tag=tag, reason="")
    with retention({"tag": "vip"}, {"tag": "short", "max_messages": 2}, {"max_messages": 4}):
        assert expire_sessions().removed == {
            "max_messages": RemovalCount(sessions=2, messages=4 + 2)
        }
    assert {key: len(visible_seqs(key)) for key in "abcd"} == {"a": 6, "b": 6, "c": 2, "d": 4}


def test_nothing_is_removed_from_a_session_on_hold():
    make_session(expires_at=timezone.now() - DAY)
    session = Session.objects.get()
    hold_session(**TALK, session_pk=session.pk, reason="")
    append(*"abcd")
    age_all(DAY * 2)
    with retention({"max_age": DAY, "max_idle": DAY, "max_messages": 1}):
        assert expire_sessions(dry_run=True) == expire_sessions() == NOTHING


@pytest.mark.parametrize("late", ["held", "said", "running", "purged", "tagged"])
def test_the_condition_is_rechecked_under_the_lock(late, monkeypatch):
    """A change between the list of sessions and the lock prevents the removal."""
    session = make_session()
    append("a")
    age_all(HOUR * 2)

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

    def in_batches(sessions, progress):
        pks = list(sessions.values_list("pk", flat=True))
        change()
        yield from pks

    monkeypatch.setattr("chatmemory.services.retention.retention.in_batches", in_batches)
    with retention({"tag": "kept"}, {"max_idle": HOUR}) if late == "tagged" else ttl():
        assert expire_sessions() == NOTHING
    assert not AuditEntry.objects.exists()


@pytest.mark.regression
def test_a_session_that_is_tagged_before_it_is_locked_is_trimmed_by_its_new_rule(monkeypatch):
    session = make_session()
    append(*"ab")
    age_all(HOUR * 2)

    def tag_and_lock(session_pk: int) -> Session:
        SessionTag.objects.create(session=session, tag="contract")
        return lock_pk(session_pk)

    monkeypatch.setattr("chatmemory.services.retention.retention.lock_pk", tag_and_lock)
    with retention({"tag": "contract", "max_age": DAY}, {"max_age": HOUR}):
        assert expire_sessions() == NOTHING
    assert visible_seqs() == [1, 2]


def test_a_wrong_rule_removes_nothing():
    make_session(expires_at=timezone.now() - DAY)
    with retention({"max_age": DAY}, {"age": 5}), pytest.raises(ValueError, match=r"\[1\]"):
        expire_sessions()
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_locked_session_is_left_for_the_next_call(settings):
    if connection.vendor == "sqlite":
        pytest.skip("one lock for all sessions")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LOCK_TIMEOUT": 0.2}
    stuck = make_session("stuck", expires_at=timezone.now() - DAY)
    make_session(expires_at=timezone.now() - DAY)
    with held(stuck):
        assert expire_sessions() == Expired(removed={"expired": RemovalCount(sessions=1)}, left=1)
    assert expire_sessions().left == 0


def run_command(*args: str) -> str:
    out = StringIO()
    call_command("chatmemory_expire", *args, stdout=out)
    return out.getvalue()


def test_the_command_reports():
    make_session(expires_at=timezone.now() + HOUR)
    append("a", "b")
    Session.objects.update(expires_at=timezone.now() - HOUR)
    assert run_command("--dry-run") == "expired: 1 conversation, 2 messages\nNothing was removed.\n"
    assert run_command() == "expired: 1 conversation, 2 messages\n"
    assert run_command() == "Nothing is due.\n"


def test_the_command_reports_a_wrong_rule():
    with retention({"age": 5}), pytest.raises(CommandError, match="'age'"):
        run_command()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("what", ["purge", "erase", "keep"])
def test_user_deleted_decides_what_happens_to_the_sessions(what, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": what}
    ann, bob = make_user("ann"), make_user("bob")
    for user in (ann, bob):
        make_session(owner=user)
        append_messages(session_key="talk", by=Actor.user(user), messages=make_messages("a", "b"))
    scope = user_scope(ann)
    ann.delete()
    assert Message.stored.count() == {"purge": 4, "erase": 2, "keep": 4}[what]
    assert sessions_of(BY, scope).count() == (what == "keep")
    actions = {
        "purge": ["user_deleted", "purge"],
        "erase": ["user_deleted", "erasure_started", "erase", "erase"],
        "keep": [],
    }[what]
    entries = AuditEntry.objects.order_by("pk")
    assert list(entries.values_list("action", flat=True)) == actions
    assert len(read_history(session_key="talk", by=Actor.user(bob)).rows) == 2
    assert expire_sessions() == NOTHING


@pytest.mark.django_db(transaction=True)
def test_a_restored_session_of_a_deleted_user_stays_for_undo_days():
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
def test_expire_sessions_completes_the_deletion_of_a_user(what, settings, monkeypatch):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": what}
    monkeypatch.setattr(
        "chatmemory.services.retention.accounts.in_batches", lambda _sessions: 1 / 0
    )
    monkeypatch.setattr("chatmemory.services.erasure.erasure.in_batches", lambda _sessions: 1 / 0)
    ann = make_user("ann")
    make_session(owner=ann)
    append_messages(session_key="talk", by=Actor.user(ann), messages=make_messages("a"))
    scope = user_scope(ann)
    ann.delete()  # the failure is logged and not raised
    monkeypatch.undo()
    assert sessions_of(BY, scope).exists()
    assert expire_sessions().removed == {"owner deleted": RemovalCount(sessions=1, messages=1)}
    vacuum()
    assert Message.stored.count() == (what == "purge")


@pytest.mark.regression
def test_an_expired_session_of_a_deleted_user_is_erased(settings):
    """A purge would let it be restored."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "erase", "SESSION_TTL": HOUR}
    make_session(owner=make_user("ann"))
    Session.objects.update(owner=None)  # as after a deletion in SQL
    age_all(DAY)
    assert expire_sessions().removed == {"owner deleted": RemovalCount(sessions=1, messages=0)}
    assert not Session.objects.exists()


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_expire_sessions_completes_an_interrupted_erasure_of_an_account(settings, monkeypatch):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "erase"}
    monkeypatch.setattr("chatmemory.services.erasure.erasure.in_batches", lambda _sessions: 1 / 0)
    ann = make_user("ann")
    for key in ("talk", "purged"):
        make_session(key, owner=ann)
    make_session("own end", owner=ann, expires_at=timezone.now() + DAY)
    purge_session(session_key="purged", by=Actor.user(ann), reason="")
    scope = user_scope(ann)
    ann.delete()
    monkeypatch.undo()
    later = make_session("later", scope=scope, expires_at=timezone.now() + DAY)
    assert expire_sessions().removed == {"owner deleted": RemovalCount(sessions=3, messages=0)}
    assert Session.objects.get() == later
    assert find_erasures(by=BY, scope=scope).erasures[0].completed_at is not None


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_the_actor_who_deleted_an_account_is_read_before_the_lock(settings, monkeypatch):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "purge"}
    ann = make_user("ann")
    talk = make_session(owner=ann)
    monkeypatch.setattr(accounts, "forget_person", lambda *, scope: None)
    with deleting_users(by=Actor.operator(make_user("olga"))):
        ann.delete()
    lock_pk, before = service.lock_pk, []

    def locked(session_pk):
        before.extend(query["sql"] for query in queries.captured_queries)
        return lock_pk(session_pk)

    monkeypatch.setattr(service, "lock_pk", locked)
    with CaptureQueriesContext(connection) as queries:
        assert service.remove_due(talk.pk)
    of_entry = [sql for sql in before if "user_deleted" in sql]
    assert len(of_entry) == 1
    assert sum("user_deleted" in query["sql"] for query in queries.captured_queries) == 1
    assert AuditEntry.objects.get(action="purge").actor_label == "olga"


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_a_session_whose_account_is_deleted_meanwhile_is_left_for_the_next_call(
    settings, monkeypatch
):
    """The next call removes it as the actor who deleted the account."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "purge"}
    ann, olga = make_user("ann"), Actor.operator(make_user("olga"))
    talk = make_session(owner=ann)
    older = service._is_ownerless

    def deleted_meanwhile(session):
        found = older(session)
        monkeypatch.setattr(service, "_is_ownerless", older)
        monkeypatch.setattr(accounts, "forget_person", lambda *, scope: None)
        with deleting_users(by=olga):
            ann.delete()
        return found

    monkeypatch.setattr(service, "_is_ownerless", deleted_meanwhile)
    assert service.remove_due(talk.pk) is None
    assert Session.objects.filter(removed_at=None).exists()
    assert expire_sessions().removed == {"owner deleted": RemovalCount(sessions=1, messages=0)}
    assert AuditEntry.objects.get(action="purge").actor_label == "olga"


@pytest.mark.django_db(transaction=True)
def test_a_session_on_hold_outlives_its_user():
    ann = make_user("ann")
    make_session(owner=ann, held_at=timezone.now())
    scope = user_scope(ann)
    ann.delete()
    assert sessions_of(BY, scope).exists()
    assert expire_sessions() == NOTHING
