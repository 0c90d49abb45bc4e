"""Text of turns that waited or ran when their session was cleared or purged."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse

from chatmemory import services
from chatmemory.errors import Busy, UnknownTurn
from chatmemory.formats.people import write_markdown
from chatmemory.formats.reading import read_sessions
from chatmemory.models import AuditEntry, Session, Turn
from chatmemory.services import Actor, user_scope
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.turns import claims, progress
from chatmemory.services.turns.unstored import read_unstored
from tests.factories import make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

REMOVALS = {"clear": services.clear_session, "purge": services.purge_session}
ASKED, PARTIAL = "What about Sunday?", "On Saturday it"


@pytest.fixture
def ann():
    """A user whose session has a running turn with a partial text, and a waiting turn."""
    user = make_user("ann")
    make_session(owner=user)
    talk = {"session_key": "talk", "by": Actor.user(user)}
    first = services.admit_turn(**talk, client_id="r1", content="Rain?", owner="p1")
    progress.start_turn(claim=first.claim)
    progress.save_partial(claim=first.claim, text=PARTIAL, step=0)
    services.admit_turn(**talk, client_id="r2", content=ASKED)
    return user


@pytest.fixture(params=REMOVALS)
def remove(request, ann):
    at = {"session_key": "talk", "by": Actor.user(ann), "reason": ""}
    return lambda: REMOVALS[request.param](**at)


def restore(entry):
    ann = user_scope(Session.objects.get().owner)
    by = Actor.server("tests")
    return services.restore_session(entry_pk=entry.pk, by=by, scope=ann, reason="")


def unstored():
    """Return the visible and the hidden unstored text."""
    found = read_unstored(session=Session.objects.get())
    return [u.turn.asked_text if u.turn.asked else u.turn.partial for u in found if not u.is_hidden]


@pytest.mark.regression
def test_a_restore_shows_waiting_messages_and_partial_text_again(remove):
    entry = remove()
    assert unstored() == []
    restore(entry)
    assert unstored() == [PARTIAL, ASKED]
    assert list(Turn.objects.order_by("pk").values_list("status", "partial")) == [
        ("interrupted", PARTIAL),
        ("cancelled", ""),
    ]


@pytest.mark.regression
def test_a_restore_runs_nothing_by_itself(remove):
    restore(remove())
    session = Session.objects.get()
    assert (session.running, session.waiting) == (None, 0)
    assert claims.claim_next(session_pk=session.pk, owner="p1") is None


@pytest.mark.regression
def test_preview_and_audit_entry_count_what_a_removal_ends(remove):
    preview = services.preview_removal(Session.objects.get())
    assert (preview.waiting, preview.ends_run, preview.partial_chars) == (1, True, len(PARTIAL))
    assert remove().counts == {"messages": 1, "waiting": 1, "partial_chars": len(PARTIAL)}


@pytest.mark.regression
def test_the_admin_shows_what_a_removal_ends(ann, admin_client):
    page = reverse("admin:chatmemory_session_action", args=["purge"])
    answer = admin_client.get(page, {"session": Session.objects.get().pk}).content.decode()
    assert "1 waiting message" in answer
    assert f"an unfinished reply of {len(PARTIAL)} characters" in answer


@pytest.mark.regression
def test_the_transcript_shows_restored_text_separately(remove, admin_client):
    page = reverse("admin:chatmemory_session_change", args=[Session.objects.get().pk])
    entry = remove()
    assert ASKED not in admin_client.get(page).content.decode()
    restore(entry)
    answer = admin_client.get(page).content.decode()
    assert (
        answer.index(PARTIAL) < answer.index("Turns without stored messages") < answer.index(ASKED)
    )


def test_a_later_removal_hides_restored_text_again(remove, ann):
    restore(remove())
    services.clear_session(session_key="talk", by=Actor.user(ann), reason="")
    assert unstored() == []


def test_a_markdown_export_contains_unstored_text_and_marks_hidden_text(remove):
    entry = remove()
    hidden = "".join(*map(write_markdown, read_sessions(Session.objects.all())))
    assert ASKED in hidden
    assert "cancelled; hidden" in hidden
    restore(entry)
    shown = "".join(*map(write_markdown, read_sessions(Session.objects.all())))
    assert PARTIAL in shown
    assert "cancelled; hidden" not in shown


@pytest.mark.regression
def test_vacuum_deletes_unstored_text_with_the_messages(remove):
    remove()
    long_ago = timedelta(days=40)
    for entry in AuditEntry.objects.all():
        AuditEntry.objects.filter(pk=entry.pk).update(created_at=entry.created_at - long_ago)
    for turn in Turn.objects.all():
        Turn.objects.filter(pk=turn.pk).update(ended_at=turn.ended_at - long_ago)
    vacuum()
    assert not Turn.objects.exists()


@pytest.mark.regression
def test_erasure_deletes_unstored_text_immediately(remove, ann, monkeypatch):
    remove()
    services.erase_person(by=Actor.server("tests"), scope=user_scope(ann), reason="")
    assert not Turn.objects.exists()


@pytest.mark.regression
def test_an_interrupted_erasure_leaves_no_unstored_text(remove, ann, monkeypatch):
    remove()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", interrupt)
    with pytest.raises(KeyboardInterrupt):
        services.erase_person(by=Actor.server("tests"), scope=user_scope(ann), reason="")
    assert set(Turn.objects.values_list("asked", "partial")) == {("", "")}


@pytest.mark.regression
def test_unstored_text_can_be_redacted_by_turn(remove, ann):
    restore(remove())
    at = {"session_key": "talk", "by": Actor.user(ann), "reason": ""}
    assert services.redact_turn(**at, turn="r2").counts == {"turns": 1}
    assert unstored() == [PARTIAL]
    assert services.redact_turn(**at, turn="r2") is None


@pytest.mark.regression
def test_redacting_a_message_deletes_the_partial_text_of_its_turn(remove, ann):
    restore(remove())
    services.redact_message(session_key="talk", by=Actor.user(ann), seq=1, reason="")
    assert unstored() == [ASKED]


def test_the_text_of_a_running_turn_is_not_redacted(ann):
    at = {"session_key": "talk", "by": Actor.user(ann), "reason": ""}
    for turn, error in (("r1", Busy), ("r3", UnknownTurn)):
        with pytest.raises(error):
            services.redact_turn(**at, turn=turn)


def test_a_waiting_turn_is_cancelled_by_its_redaction(ann):
    at = {"session_key": "talk", "by": Actor.user(ann), "reason": ""}
    assert services.redact_turn(**at, turn="r2").counts == {"turns": 1}
    turn = Turn.objects.get(client_id="r2")
    assert (turn.status, turn.asked) == ("cancelled", "")
    session = Session.objects.get()
    assert (session.running, session.waiting) == ("r1", 0)
    assert services.redact_turn(**at, turn="r2") is None


def test_a_requeued_turn_is_not_redacted(ann):
    Turn.objects.filter(client_id="r1").update(status="waiting")
    with pytest.raises(Busy):
        services.redact_turn(session_key="talk", by=Actor.user(ann), turn="r1", reason="")


def test_a_resend_of_a_cancelled_message_is_a_duplicate(remove, ann):
    restore(remove())
    talk = {"session_key": "talk", "by": Actor.user(ann)}
    again = services.admit_turn(**talk, client_id="r2", content=ASKED)
    assert (again.is_duplicate, again.status) == (True, "cancelled")


@pytest.mark.parametrize("end", ["stop", "archive"])
def test_a_turn_that_a_person_cancels_keeps_no_text(ann, end):
    at = {"session_key": "talk", "by": Actor.user(ann)}
    if end == "stop":
        services.stop_turn(**at, turn="r2")
    else:
        services.archive_session(**at, reason="")
    assert Turn.objects.get(client_id="r2").asked == ""
