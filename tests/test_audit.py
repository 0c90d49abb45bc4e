"""The record of who did what: complete, and without the content."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chatmemory.models import AuditEntry, Session
from chatmemory.services import (
    SERVER,
    Actor,
    append_messages,
    check_integrity,
    clear_session,
    open_session,
    purge_session,
    record_reading,
    record_refusal,
    seal_audit,
    trim_session,
    verify_audit,
)
from chatmemory.services.keys import key_hash
from tests.factories import make_session, make_user, said

pytestmark = [pytest.mark.django_db, pytest.mark.database]

TALK: dict[str, Any] = {"session_key": "talk", "scope": SERVER}


def test_each_act_leaves_who_what_why_and_how_much():
    session = make_session()
    operator = Actor.operator(make_user("olga"))
    append_messages(**TALK, by=operator, messages=said(*"abcd"))
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


def test_an_entry_has_neither_content_nor_key():
    make_session("secret-key")
    at = {"session_key": "secret-key", "scope": SERVER, "by": Actor.server("tests")}
    append_messages(**at, messages=said("secret words"))
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


def test_a_long_reason_is_cut():
    make_session()
    clear_session(**TALK, by=Actor.server("tests"), reason="ä" * 10_000)
    assert AuditEntry.objects.get().reason == "ä" * 500


def test_a_reading_is_written_down_once_an_hour_for_each_operator_and_session():
    one, two = make_session("one"), make_session("two")
    olga, omar = Actor.operator(make_user()), Actor.operator(make_user())
    for session, operator in ((one, olga), (one, olga), (two, olga), (one, omar)):
        record_reading(session=session, by=operator)
    assert AuditEntry.objects.filter(action="read").count() == 3


def test_a_reading_more_than_an_hour_later_is_written_down_again():
    session, olga = make_session(), Actor.operator(make_user())
    record_reading(session=session, by=olga)
    AuditEntry.objects.update(created_at=datetime.now(UTC) - timedelta(minutes=61))
    record_reading(session=session, by=olga)
    assert AuditEntry.objects.count() == 2


ACTS = {
    "open": lambda by: open_session(session_key="new", scope=SERVER, by=by),
    "append": lambda by: append_messages(**TALK, by=by, messages=said("e", "f")),
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


def test_whatever_is_done_entries_are_only_added():
    make_session()
    olga = Actor.operator(make_user("olga"))
    append_messages(**TALK, by=olga, messages=said(*"abcd"))
    before: list[Any] = []
    for name, act in ACTS.items():
        Session.objects.filter(key="talk").update(waiting=int(name == "repair"))
        act(olga)
        after = list(AuditEntry.objects.order_by("pk").values())
        assert after[: len(before)] == before, name
        before = after
    actions = [entry["action"] for entry in before]
    assert actions == ["read", "refused", "repair", "trim", "clear", "purge"]
