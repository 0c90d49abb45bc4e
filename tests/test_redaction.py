"""Redact: what was said is gone from the database; the number and its place stay."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from chatmemory.errors import BadInput, Conflict, Held, NotFound
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services import (
    Actor,
    admit_turn,
    append_messages,
    finish_turn,
    read_history,
    redact_message,
    trim_session,
)
from tests.factories import TALK, make_session, make_user, said
from tests.locking import at_once

pytestmark = [pytest.mark.django_db, pytest.mark.database]

SECRET = "4929-1111"
CALL = {"id": "call1", "name": "pay", "args": {"card": SECRET}}
RICH = [
    {"role": "user", "content": f"My card is {SECRET}", "id": "m1", "name": SECRET},
    {"role": "assistant", "content": SECRET, "tool_calls": [CALL], "usage": {"note": SECRET}},
    {"role": "tool", "content": SECRET, "tool_call_id": "call1", "artifact": {"card": SECRET}},
    {"role": "assistant", "content": [{"type": "text", "text": SECRET}]},
]


def redact(seq: int, **changes: Any) -> AuditEntry | None:
    return redact_message(**{**TALK, "seq": seq, "reason": "a card number", **changes})


def everything_stored() -> str:
    return "".join(repr(row) for row in Message.stored.values())


@pytest.mark.parametrize("seq", [1, 2, 3, 4])
def test_nothing_of_what_was_said_stays(seq):
    make_session()
    append_messages(**TALK, messages=RICH)
    Message.stored.exclude(seq=seq).update(text="", body=None)
    assert SECRET in everything_stored()
    redact(seq)
    assert SECRET not in everything_stored()


def test_number_place_time_and_calls_stay():
    make_session()
    append_messages(**TALK, messages=RICH, client_id="batch")
    before = read_history(**TALK).rows
    for seq in (1, 2, 3, 4):
        redact(seq)
    after = read_history(**TALK).rows
    kept = ("seq", "role", "status", "client_id", "turn", "created_at", "model")
    for old, new in zip(before, after, strict=True):
        assert [getattr(old, name) for name in kept] == [getattr(new, name) for name in kept]
        assert (new.text, new.redacted, new.public()["redacted"]) == ("", True, True)
    assert after[1].plain()["tool_calls"] == [{"id": "call1", "name": "pay", "args": {}}]
    assert after[2].plain()["tool_call_id"] == "call1"
    assert Session.objects.get().last_seq == 4


def test_a_redaction_moves_the_revision_of_row_and_session_alike():
    make_session()
    append_messages(**TALK, messages=RICH)
    redact(2)
    assert Message.stored.get(seq=2).revision == Session.objects.get().revision > 0
    assert Message.stored.get(seq=1).revision == 0


def test_a_redaction_leaves_an_entry_without_content():
    make_session()
    append_messages(**TALK, messages=RICH)
    entry = redact(2)
    assert entry is not None
    assert (entry.action, entry.from_seq, entry.to_seq) == ("redact", 2, 2)
    assert (entry.reason, entry.counts) == ("a card number", {"messages": 1})


def test_a_second_redaction_does_nothing():
    make_session()
    append_messages(**TALK, messages=RICH)
    redact(1)
    revision = Session.objects.get().revision
    assert redact(1) is None
    assert Session.objects.get().revision == revision
    assert AuditEntry.objects.count() == 1


def test_a_resend_of_what_was_redacted_is_a_duplicate():
    make_session()
    append_messages(**TALK, messages=RICH, client_id="batch")
    redact(1)
    assert append_messages(**TALK, messages=RICH, client_id="batch").is_duplicate
    with pytest.raises(Conflict):
        append_messages(**TALK, messages=[*RICH[:3], *said("else")], client_id="batch")


def test_a_resend_of_a_turn_whose_message_was_redacted_is_a_duplicate():
    make_session()
    claim = admit_turn(**TALK, client_id="run", content=SECRET, owner="me").claim
    redact(1)
    assert finish_turn(claim=claim, status="complete", message=said("", "done")[1])
    assert admit_turn(**TALK, client_id="run", content=SECRET).is_duplicate


def test_a_trimmed_message_can_be_redacted():
    make_session()
    append_messages(**TALK, messages=RICH)
    trim_session(**TALK, keep_last=0, reason="")
    for seq in (1, 2, 3, 4):
        redact(seq)
    assert SECRET not in everything_stored()


def test_a_row_that_can_not_be_decoded_can_be_redacted():
    make_session()
    append_messages(**TALK, messages=RICH)
    Message.stored.filter(seq=2).update(body="{" + SECRET, quarantined=True)
    Message.stored.filter(seq=4).update(role="nobody", body=SECRET)
    redact(2)
    redact(4)
    assert SECRET not in Message.stored.get(seq=2).text + Message.stored.get(seq=4).text
    assert set(Message.stored.filter(redacted=True).values_list("body", "quarantined")) == {
        (None, False)
    }


@pytest.mark.parametrize("seq", [0, -1, 5, 10**30])
def test_a_message_that_is_not_there_is_refused(seq):
    make_session()
    append_messages(**TALK, messages=RICH)
    with pytest.raises(BadInput):
        redact(seq)


def test_on_hold_nothing_is_redacted():
    make_session(held_at=timezone.now())
    append_messages(**TALK, messages=RICH)
    with pytest.raises(Held):
        redact(1)
    assert not Message.stored.filter(redacted=True).exists()


def test_anothers_message_is_not_found():
    make_session()
    append_messages(**TALK, messages=RICH)
    with pytest.raises(NotFound):
        redact(1, by=Actor.user(make_user()), scope=None)


@pytest.mark.django_db(transaction=True)
def test_of_many_who_redact_at_once_one_acts():
    make_session()
    append_messages(**TALK, messages=RICH)
    entries = at_once(*[lambda: redact(1)] * 4)
    assert sum(entry is not None for entry in entries) == 1
