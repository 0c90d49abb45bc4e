"""Redaction from the page of a session: the message, its echo, and what refuses it."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from chatmemory import services
from chatmemory.models import AuditAction, AuditEntry, Feedback, Message, Session, Turn
from chatmemory.services import Actor
from chatmemory.services.audit.entries import record
from chatmemory.services.turns.progress import finish_turn, save_partial, start_turn
from tests.admin.test_admin import LONG_AGO, at, notices, operator, shown, talk_of
from tests.factories import BY, make_messages, make_user

pytestmark = pytest.mark.django_db

KEY = "sk-Secret"


@pytest.fixture
def privacy():
    return operator("view_session", "view_transcript", "redact_message")


@pytest.fixture
def leak():
    """Return a session whose second message repeats the key of the first."""
    return talk_of(make_user("ann"), f"My key is {KEY}.", "I use SK-SECRET now.", "ok", "bye")


def where(session):
    return {"session_key": session.key, "scope": session.scope, "by": BY}


def matches(answer):
    """Return the texts that the page offers, and whether each is selected."""
    assert answer.status_code == 200
    return {(match.name, match.value): match.is_chosen for match in answer.context["matches"]}


def redacted():
    found = Message.stored.filter(redacted=True).order_by("seq")
    return list(found.values_list("seq", flat=True))


def test_a_message_and_its_echo_are_redacted_together(privacy, leak):
    page = at("redact", leak, 1)
    assert f"My key is {KEY}" in shown(privacy.get(page))
    assert "autofocus" in str(privacy.get(page).context["form"].form["text"])
    found = privacy.post(page, {"text": KEY, "find": "1"})
    assert matches(found) == {("also", 2): True}
    assert "I use <mark>SK-SECRET</mark> now" in found.content.decode()
    assert "This field is required" not in shown(found)
    assert "autofocus" in str(found.context["form"].form["reason"])
    assert redacted() == []
    given = {"text": KEY, "reason": "a leaked key", "count": 2, "also": [2]}
    answer = privacy.post(page, given, follow=True)
    assert notices(answer) == ["2 texts were redacted."]
    assert redacted() == [1, 2]
    entries = AuditEntry.objects.filter(action="redact").order_by("pk")
    assert [(e.from_seq, e.reason, e.actor_label) for e in entries] == [
        (1, "a leaked key", "olga"),
        (2, "a leaked key", "olga"),
    ]
    assert LogEntry.objects.get().change_message == "Redacted: 2"
    stored = [*AuditEntry.objects.values(), *LogEntry.objects.values(), *Message.stored.values()]
    assert KEY.lower() not in str(stored).lower()


def test_only_selected_messages_are_redacted(privacy, leak):
    given = {"text": KEY, "reason": "key", "count": 1}
    privacy.post(at("redact", leak, 1), given)
    assert redacted() == [1]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"count": ""}, "This field is required"),
        ({"count": 1}, "Selected now: 2."),
        ({"count": 3}, "Selected now: 2."),
        ({"count": "x"}, "Enter a whole number"),
        ({"reason": " "}, "This field is required"),
        ({"text": "x" * 1_001}, "at most 1000 characters"),
    ],
)
def test_nothing_is_redacted_without_the_reason_and_the_typed_number(privacy, leak, changed, error):
    given = {"text": KEY, "reason": "key", "count": 2, "also": [2], **changed}
    page = privacy.post(at("redact", leak, 1), given)
    assert error in shown(page)
    assert "Nothing was redacted" in shown(page)
    assert redacted() == []


def test_a_rejected_form_keeps_the_selection(privacy, leak):
    services.append_messages(**where(leak), messages=make_messages(f"again {KEY}"))
    given = {"text": KEY, "reason": "", "count": 2, "also": [5]}
    page = privacy.post(at("redact", leak, 1), given)
    assert matches(page) == {("also", 2): False, ("also", 5): True}


def test_tool_arguments_are_found_too(privacy, leak):
    call = {"name": "pay", "args": {"keys": [f'"{KEY}"']}, "id": "1"}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    services.append_messages(**where(leak), messages=[calling])
    page = privacy.post(at("redact", leak, 1), {"text": f'"{KEY}"', "find": "1"})
    assert matches(page) == {("also", 5): True}


def test_trimmed_messages_are_found_too(privacy, leak):
    services.trim_session(**where(leak), keep_last=2, reason="")
    page = privacy.post(at("redact", leak, 3), {"text": KEY, "find": "1"})
    assert matches(page) == {("also", 1): True, ("also", 2): True}
    given = {"text": KEY, "reason": "key", "count": 3, "also": [1, 2]}
    privacy.post(at("redact", leak, 3), given)
    assert redacted() == [1, 2, 3]


def test_a_long_session_is_searched_in_steps_that_keep_the_matches(privacy, leak, monkeypatch):
    monkeypatch.setattr("chatmemory.admin.sessions.conversation.search.SCANNED_ROWS", 3)
    services.append_messages(**where(leak), messages=make_messages(f"again {KEY}", "end"))
    page = at("redact", leak, 1)
    first = privacy.post(page, {"text": KEY, "find": "1"})
    assert matches(first) == {("also", 5): True}
    assert "Messages 4 to 6 were searched" in shown(first)
    second = privacy.post(page, {"text": KEY, "older": "4", "also": [5]})
    assert matches(second) == {("also", 2): True, ("also", 5): True}
    assert "Search older messages" not in shown(second)


def test_the_unstored_text_of_turns_is_found_and_redacted(privacy, leak, caplog):
    claim = services.admit_turn(**where(leak), client_id="r", content="go", owner="me").claim
    start_turn(claim=claim)
    save_partial(claim=claim, text=f"Using {KEY}", step=1)
    services.admit_turn(**where(leak), client_id="q", content=f"or {KEY}")
    entry = services.clear_session(**where(leak), reason="")
    services.restore_session(entry_pk=entry.pk, by=BY, scope=leak.scope, reason="")
    run, queued = Turn.objects.order_by("pk")
    page = privacy.post(at("redact", leak, 1), {"text": KEY, "find": "1"})
    expected = {("also", 2): True, ("turns", run.pk): True, ("turns", queued.pk): True}
    assert matches(page) == expected
    privacy.get(at("redact_turn", leak, run.pk))
    assert "cannot be decoded" not in caplog.text  # its question is a message, so it has no text
    given = {"text": KEY, "reason": "key", "count": 4, "also": 2, "turns": [run.pk, queued.pk]}
    privacy.post(at("redact", leak, 1), given)
    assert redacted() == [1, 2]
    assert KEY not in str(list(Turn.objects.values("asked", "partial")))


@pytest.mark.slow
def test_a_turn_without_a_message_has_its_own_page(privacy, leak):
    services.admit_turn(**where(leak), client_id="r", content="go", owner="me")
    services.admit_turn(**where(leak), client_id="q", content=f"or {KEY}")
    entry = services.clear_session(**where(leak), reason="")
    services.restore_session(entry_pk=entry.pk, by=BY, scope=leak.scope, reason="")
    turn = Turn.objects.get(client_id="q")
    page = at("redact_turn", leak, turn.pk)
    assert page in privacy.get(at("change", leak)).content.decode()
    assert f"or {KEY}" in shown(privacy.get(page))
    privacy.post(page, {"reason": "key", "count": 1})
    assert KEY not in str(list(Turn.objects.values("asked", "partial")))
    assert privacy.get(page).status_code == 404


def test_a_running_reply_must_be_stopped_first(privacy, leak):
    claim = services.admit_turn(**where(leak), client_id="r", content="go", owner="me").claim
    start_turn(claim=claim)
    save_partial(claim=claim, text=f"Using {KEY}", step=1)
    turn = Turn.objects.get()
    page = privacy.post(at("redact", leak, 1), {"text": KEY, "find": "1"})
    assert matches(page) == {("also", 2): True, ("turns", turn.pk): False}
    assert "stop it first" in shown(page)
    given = {"text": KEY, "reason": "key", "count": 2, "turns": turn.pk}
    answer = privacy.post(at("redact", leak, 1), given, follow=True)
    assert len(notices(answer)) == 2
    assert redacted() == [1]
    turn.refresh_from_db()
    assert KEY in turn.partial


def test_the_page_names_other_places_of_the_text(privacy, leak):
    Session.objects.update(title=f"About {KEY}", metadata={"a": [KEY]})
    services.add_note(**where(leak), text=f"He sent {KEY}")
    page = privacy.post(at("redact", leak, 1), {"text": KEY, "find": "1"})
    assert "also in the title, the metadata, the notes, which" in shown(page)


def test_another_sessions_messages_and_turns_are_not_redacted(privacy, leak):
    other = talk_of(leak.owner, f"own {KEY}", key="other")
    turn = Turn.objects.create(
        session=other, client_id="t", status="cancelled", partial=KEY, epoch=1, ended_at=LONG_AGO
    )
    page = privacy.post(at("redact", leak, 1), {"text": KEY, "find": "1"})
    assert matches(page) == {("also", 2): True}
    given = {"text": KEY, "reason": "key", "count": 1, "turns": turn.pk}
    privacy.post(at("redact", leak, 1), given)
    turn.refresh_from_db()
    assert turn.partial == KEY
    assert not Message.stored.filter(session=other, redacted=True).exists()
    assert privacy.get(at("redact_turn", leak, turn.pk)).status_code == 404


def test_a_held_session_is_not_redacted(privacy, leak):
    services.hold_session(**where(leak), reason="a dispute")
    assert at("redact", leak, 1) not in privacy.get(at("change", leak)).content.decode()
    given = {"text": "", "reason": "key", "count": 1}
    answer = privacy.post(at("redact", leak, 1), given, follow=True)
    assert "on hold" in notices(answer)[0]
    assert redacted() == []


@pytest.mark.slow
def test_a_purged_session_is_redacted_too(privacy, leak):
    claim = services.admit_turn(**where(leak), client_id="r", content="go", owner="me").claim
    start_turn(claim=claim)
    services.admit_turn(**where(leak), client_id="q", content=f"or {KEY}")
    entry = services.purge_session(**where(leak), reason="")
    page = privacy.get(at("change", leak), {"removed": 1})
    assert at("redact", leak, 1) in page.content.decode()
    turn = Turn.objects.get(client_id="q")
    found = privacy.post(at("redact", leak, 1), {"text": KEY, "find": "1"})
    assert matches(found) == {("also", 2): True, ("turns", turn.pk): True}
    given = {"text": KEY, "reason": "key", "count": 3, "also": 2, "turns": turn.pk}
    privacy.post(at("redact", leak, 1), given)
    services.restore_session(entry_pk=entry.pk, by=BY, scope=leak.scope, reason="")
    assert redacted() == [1, 2]
    assert KEY.lower() not in str([*Message.stored.values(), *Turn.objects.values()]).lower()


def test_a_session_that_is_being_erased_has_no_page_of_redaction(privacy, leak):
    services.purge_session(**where(leak), reason="")
    record(leak, AuditAction.ERASE, BY, "")
    page = privacy.get(at("change", leak), {"removed": 1})
    assert at("redact", leak, 1) not in page.content.decode()
    assert privacy.get(at("redact", leak, 1)).status_code == 404


def test_the_reason_of_feedback_is_found_and_redacted(privacy, leak):
    claim = services.admit_turn(**where(leak), client_id="r", content="go", owner="me").claim
    finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    user = Actor.user(leak.owner)
    services.set_feedback(session_key="talk", turn="r", by=user, value=-1, reason=f"used {KEY}")
    turn = Turn.objects.get()
    page = privacy.post(at("redact", leak, 1), {"text": KEY, "find": "1"})
    assert matches(page) == {("also", 2): True, ("turns", turn.pk): True}
    assert "Feedback on the reply to message 5" in shown(page)
    given = {"text": KEY, "reason": "key", "count": 2, "turns": turn.pk}
    privacy.post(at("redact", leak, 1), given)
    assert Feedback.objects.get().reason == ""


def test_a_waiting_message_is_redacted_and_cancelled(privacy, leak):
    services.admit_turn(**where(leak), client_id="r", content="go", owner="me")
    services.admit_turn(**where(leak), client_id="q", content=f"or {KEY}")
    turn = Turn.objects.get(client_id="q")
    page = privacy.post(at("redact", leak, 1), {"text": KEY, "find": "1"})
    assert matches(page) == {("also", 2): True, ("turns", turn.pk): True}
    privacy.post(at("redact", leak, 1), {"reason": "key", "count": 2, "turns": turn.pk})
    turn.refresh_from_db()
    assert (turn.status, turn.asked) == ("cancelled", "")


@pytest.mark.slow
def test_the_page_of_a_redacted_or_unknown_message(privacy, leak):
    services.redact_message(**where(leak), seq=1, reason="")
    assert at("redact", leak, 1) not in privacy.get(at("change", leak)).content.decode()
    answer = privacy.post(at("redact", leak, 1), {"reason": "again", "count": 1}, follow=True)
    assert notices(answer) == ["0 texts were redacted."]
    for seq in (0, 5, 10**18):
        assert privacy.get(at("redact", leak, seq)).status_code == 404


@pytest.mark.parametrize("rights", [["redact_message"], ["view_transcript"]])
def test_both_permissions_are_required(leak, rights):
    client = operator("view_session", *rights)
    assert client.get(at("redact", leak, 1)).status_code == 403
    given = {"reason": "key", "count": 1}
    assert client.post(at("redact", leak, 1), given).status_code == 403
    assert redacted() == []
    assert at("redact", leak, 1) not in client.get(at("change", leak)).content.decode()


def test_the_preview_is_an_audited_reading(privacy, leak):
    privacy.get(at("redact", leak, 3))
    entry = AuditEntry.objects.get(action="read")
    assert (entry.from_seq, entry.to_seq) == (3, 3)
