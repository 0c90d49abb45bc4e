"""Audit entries: each action is recorded, without content."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command

from chatmemory.models import AuditEntry, Reading, Session
from chatmemory.services import (
    SERVER,
    Actor,
    append_messages,
    clear_session,
    open_session,
    purge_session,
    trim_session,
)
from chatmemory.services.audit.entries import record_refusal
from chatmemory.services.audit.keys import key_hash
from chatmemory.services.audit.readings import close_readings, record_reading
from chatmemory.services.audit.seals import seal_audit, verify_audit
from chatmemory.services.integrity.sessions import check_integrity
from tests.factories import age_audit, make_messages, make_session, make_user
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]

TALK: dict[str, Any] = {"session_key": "talk", "scope": SERVER}


def test_each_action_is_recorded_with_actor_reason_and_counts():
    session = make_session()
    operator = Actor.operator(make_user("olga"))
    append_messages(**TALK, by=operator, messages=make_messages(*"abcd"))
    trim_session(**TALK, by=operator, keep_last=2, reason="too long")
    clear_session(**TALK, by=operator, reason="asked for")
    purge_session(**TALK, by=operator, reason="")
    entries = AuditEntry.objects.order_by("pk")
    assert list(entries.values_list("action", "reason", "from_seq", "to_seq", "counts")) == [
        ("trim", "too long", 1, 2, {"messages": 2}),
        ("clear", "asked for", 3, 4, {"messages": 2}),
        ("purge", "", 5, 4, {"messages": 0}),
    ]
    assert set(entries.values_list("actor_kind", "actor_id", "actor_label", "session_pk")) == {
        ("operator", operator.id, "olga", session.pk)
    }
    assert abs(entries[0].created_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_an_entry_contains_no_content_and_no_key():
    make_session("secret-key")
    at = {"session_key": "secret-key", "scope": SERVER, "by": Actor.server("tests")}
    append_messages(**at, messages=make_messages("secret words"))
    clear_session(**at, reason="")
    [entry] = AuditEntry.objects.values()
    assert "secret" not in repr(entry)
    assert entry["key_hash"] == key_hash("secret-key") != key_hash("secret-kez")


def test_an_entry_outlives_the_account_of_its_actor():
    make_session()
    olga = make_user("olga")
    clear_session(**TALK, by=Actor.operator(olga), reason="")
    olga.delete()
    assert AuditEntry.objects.get().actor_label == "olga"


def test_a_long_reason_is_truncated():
    make_session()
    clear_session(**TALK, by=Actor.server("tests"), reason="ä" * 10_000)
    assert AuditEntry.objects.get().reason == "ä" * 500


def test_a_reading_is_recorded_once_an_hour_for_each_operator_and_session():
    one, two = make_session("one"), make_session("two")
    olga, omar = Actor.operator(make_user()), Actor.operator(make_user())
    for session, operator in ((one, olga), (one, olga), (two, olga), (one, omar)):
        record_reading(session=session, by=operator)
    assert AuditEntry.objects.filter(action="read").count() == 3


def test_a_reading_more_than_an_hour_later_is_recorded_again():
    session, olga = make_session(), Actor.operator(make_user())
    record_reading(session=session, by=olga)
    AuditEntry.objects.update(created_at=datetime.now(UTC) - timedelta(minutes=61))
    record_reading(session=session, by=olga)
    assert AuditEntry.objects.count() == 2


def pages(session: Session, by: Actor, *ranges: tuple[int, int]) -> None:
    for from_seq, to_seq in ranges:
        record_reading(session=session, by=by, from_seq=from_seq, to_seq=to_seq)


def readings() -> list[Any]:
    """Return the first seq, the last seq and the ranges of each entry of a reading."""
    entries = AuditEntry.objects.filter(action="read").order_by("pk")
    return [(entry.from_seq, entry.to_seq, entry.counts.get("ranges")) for entry in entries]


@pytest.mark.regression
def test_messages_read_within_the_hour_are_recorded_in_one_more_entry():
    session, olga = make_session(), Actor.operator(make_user("olga"))
    pages(session, olga, (451, 500), (401, 450), (1, 50), (430, 460), (1, 50))
    assert readings() == [(451, 500, None)]
    assert close_readings() == 0
    age_audit(timedelta(minutes=61))
    assert close_readings() == 1
    assert readings() == [(451, 500, None), (1, 500, [[1, 50], [401, 500]])]
    first, last = AuditEntry.objects.order_by("pk")
    assert last.counts["first_entry"] == first.pk
    assert (last.actor_id, last.actor_label, last.key_hash) == (olga.id, "olga", first.key_hash)
    assert close_readings() == 0
    assert list(verify_audit()) == []


@pytest.mark.regression
def test_the_next_reading_records_the_ranges_of_the_previous_hour():
    session, olga = make_session(), Actor.operator(make_user())
    pages(session, olga, (51, 100), (1, 50))
    age_audit(timedelta(minutes=61))
    pages(session, olga, (51, 100))
    assert readings() == [(51, 100, None), (1, 100, [[1, 100]]), (51, 100, None)]


@pytest.mark.regression
def test_a_single_page_is_one_entry():
    session, olga = make_session(), Actor.operator(make_user())
    pages(session, olga, (1, 50), (1, 50), (10, 20))
    age_audit(timedelta(minutes=61))
    assert close_readings() == 1
    assert readings() == [(1, 50, None)]


@pytest.mark.regression
def test_sealing_records_the_ranges_first(capsys):
    session, olga = make_session(), Actor.operator(make_user())
    pages(session, olga, (51, 100), (1, 50))
    age_audit(timedelta(minutes=61))
    call_command("chatmemory_audit_verify")
    assert "Sealed now: 2" in capsys.readouterr().out


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_pages_read_at_the_same_time_are_one_reading():
    session, olga = make_session(), Actor.operator(make_user())
    concurrently(*(lambda n=n: pages(session, olga, (n, n)) for n in (1, 3, 5, 7)))
    assert len(readings()) == 1
    assert Reading.objects.get().ranges == [[1, 1], [3, 3], [5, 5], [7, 7]]


ACTIONS = {
    "open": lambda by: open_session(session_key="new", scope=SERVER, by=by),
    "append": lambda by: append_messages(**TALK, by=by, messages=make_messages("e", "f")),
    "read": lambda by: record_reading(session=Session.objects.get(key="talk"), by=by),
    "refuse": lambda by: record_refusal(
        session=Session.objects.get(key="talk"), by=by, permission="x"
    ),
    "repair": lambda by: list(check_integrity(repair_by=by)),
    "seal": lambda by: seal_audit(),
    "verify": lambda by: list(verify_audit()),
    "trim": lambda by: trim_session(**TALK, by=by, keep_last=2, reason=""),
    "clear": lambda by: clear_session(**TALK, by=by, reason=""),
    "purge": lambda by: purge_session(**TALK, by=by, reason=""),
}


def test_services_only_add_entries():
    make_session()
    olga = Actor.operator(make_user("olga"))
    append_messages(**TALK, by=olga, messages=make_messages(*"abcd"))
    before: list[Any] = []
    for name, act in ACTIONS.items():
        Session.objects.filter(key="talk").update(waiting=int(name == "repair"))
        act(olga)
        after = list(AuditEntry.objects.order_by("pk").values())
        assert after[: len(before)] == before, name
        before = after
    actions = [entry["action"] for entry in before]
    assert actions == ["read", "refused", "repair", "trim", "clear", "purge"]
