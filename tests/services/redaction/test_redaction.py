"""Redact: the content is deleted from the database; the message keeps its seq."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone

from chatmemory.errors import BadInput, Conflict, Held, NotFound
from chatmemory.models import AuditAction, AuditEntry, Message, Session
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    append_messages,
    hold_session,
    purge_session,
    read_history,
    redact_message,
    redact_turn,
    release_session,
    restore_session,
    trim_session,
)
from chatmemory.services.audit.entries import record
from chatmemory.services.turns.progress import finish_turn
from tests.factories import TALK, make_messages, make_session, make_user
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
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
def test_no_content_of_a_redacted_message_stays(seq):
    make_session()
    append_messages(**TALK, messages=RICH)
    Message.stored.exclude(seq=seq).update(text="", body=None)
    assert SECRET in everything_stored()
    redact(seq)
    assert SECRET not in everything_stored()


def test_seq_role_time_and_call_ids_stay():
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


def test_no_reader_sees_steps_of_a_redacted_message():
    make_session()
    reasoning = {"additional_kwargs": {"reasoning_content": SECRET}}
    append_messages(**TALK, messages=[RICH[0], {**RICH[1], **reasoning}, RICH[2]])
    _, call, result = (row.public() for row in read_history(**TALK).rows)
    assert (call["calls"][0]["name"], call["reasoning"]["text"]) == ("pay", SECRET)
    for seq in (2, 3):
        redact(seq)
    _, call, result = (row.public() for row in read_history(**TALK).rows)
    assert not call.keys() & {"calls", "reasoning"}
    assert result["result"] == {"call": "call1", "name": "", "failed": False}


def test_a_redaction_changes_the_revisions_of_row_and_session():
    make_session()
    append_messages(**TALK, messages=RICH)
    redact(2)
    assert Message.stored.get(seq=2).revision == Session.objects.get().revision > 0
    assert Message.stored.get(seq=1).revision == 0


def test_a_redaction_is_recorded_without_content():
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


def test_a_resend_of_a_redacted_message_is_a_duplicate():
    make_session()
    append_messages(**TALK, messages=RICH, client_id="batch")
    redact(1)
    assert append_messages(**TALK, messages=RICH, client_id="batch").is_duplicate
    with pytest.raises(Conflict):
        append_messages(**TALK, messages=[*RICH[:3], *make_messages("else")], client_id="batch")


def test_a_resend_of_a_turn_whose_message_was_redacted_is_a_duplicate():
    make_session()
    claim = admit_turn(**TALK, client_id="run", content=SECRET, owner="me").claim
    redact(1)
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    assert admit_turn(**TALK, client_id="run", content=SECRET).is_duplicate


def test_a_trimmed_message_can_be_redacted():
    make_session()
    append_messages(**TALK, messages=RICH)
    trim_session(**TALK, keep_last=0, reason="")
    for seq in (1, 2, 3, 4):
        redact(seq)
    assert SECRET not in everything_stored()


def test_a_purged_session_is_redacted_by_its_primary_key_and_stays_so_after_a_restore():
    session = make_session()
    append_messages(**TALK, messages=RICH)
    entry = purge_session(**TALK, reason="")
    with pytest.raises(NotFound):
        redact(1)
    for seq in (1, 2, 3, 4):
        assert redact(seq, session_pk=session.pk) is not None
    assert SECRET not in everything_stored()
    restore_session(entry_pk=entry.pk, reason="", by=TALK["by"], scope=SERVER)
    assert [row.redacted for row in read_history(**TALK).rows] == [True] * 4


def test_an_expired_session_is_redacted_by_its_primary_key():
    session = make_session(expires_at=LONG_AGO)
    Message.stored.create(session=session, seq=1, role="user", text=SECRET, tokens=1)
    with pytest.raises(NotFound):
        redact(1)
    assert redact(1, session_pk=session.pk) is not None
    assert SECRET not in everything_stored()


def test_the_cancelled_message_of_a_purged_session_is_redacted():
    session = make_session()
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    admit_turn(**TALK, client_id="next", content=SECRET)
    purge_session(**TALK, reason="")
    assert SECRET in str(list(session.turns.values()))
    assert redact_turn(**TALK, turn="next", reason="", session_pk=session.pk) is not None
    assert SECRET not in str(list(session.turns.values()))


@pytest.mark.parametrize("changes", [{"session_key": "other"}, {"scope": "user:1"}])
def test_a_purged_session_has_one_address(changes):
    session = make_session()
    append_messages(**TALK, messages=RICH)
    purge_session(**TALK, reason="")
    with pytest.raises(NotFound):
        redact(1, session_pk=session.pk, **changes)


def test_what_an_erasure_deletes_and_what_is_held_is_not_redacted():
    session = make_session()
    append_messages(**TALK, messages=RICH)
    purge_session(**TALK, reason="")
    at = {**TALK, "session_pk": session.pk, "reason": ""}
    hold_session(**at)
    with pytest.raises(Held):
        redact(1, session_pk=session.pk)
    release_session(**at)
    record(session, AuditAction.ERASE, TALK["by"], "")
    with pytest.raises(NotFound):
        redact(1, session_pk=session.pk)


def test_an_undecodable_row_can_be_redacted():
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
def test_an_unknown_seq_is_refused(seq):
    make_session()
    append_messages(**TALK, messages=RICH)
    with pytest.raises(BadInput):
        redact(seq)


def test_nothing_is_redacted_in_a_session_on_hold():
    make_session(held_at=timezone.now())
    append_messages(**TALK, messages=RICH)
    with pytest.raises(Held):
        redact(1)
    assert not Message.stored.filter(redacted=True).exists()


def test_another_users_message_is_not_found():
    make_session()
    append_messages(**TALK, messages=RICH)
    with pytest.raises(NotFound):
        redact(1, by=Actor.user(make_user()), scope=None)


@pytest.mark.django_db(transaction=True)
def test_one_of_simultaneous_redactions_is_recorded():
    make_session()
    append_messages(**TALK, messages=RICH)
    entries = concurrently(*[lambda: redact(1)] * 4)
    assert sum(entry is not None for entry in entries) == 1
