"""Notes: read by operators, recorded without their text, and deleted with their session."""

from __future__ import annotations

import pytest

from chatmemory.errors import BadInput, NotFound
from chatmemory.models import AuditEntry, Message, SessionNote
from chatmemory.services import (
    Actor,
    add_note,
    append_messages,
    delete_note,
    erase_person,
    purge_session,
    restore_session,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from tests.factories import TALK, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def texts(session):
    return list(session.notes.order_by("pk").values_list("text", flat=True))


def test_a_note_is_added_and_deleted_and_recorded_without_its_text():
    session = make_session()
    entry = add_note(**TALK, text="He called.")
    assert (entry.action, entry.session_pk, entry.counts) == ("note", session.pk, {"chars": 10})
    note = SessionNote.objects.get()
    assert (note.actor_kind, note.actor_id, note.text) == (
        TALK["by"].kind,
        TALK["by"].id,
        "He called.",
    )
    assert delete_note(**TALK, note_pk=note.pk).action == "delete_note"
    assert delete_note(**TALK, note_pk=note.pk) is None
    assert texts(session) == []
    assert AuditEntry.objects.count() == 2
    assert "called" not in str(list(AuditEntry.objects.values()))


def test_a_repeated_note_is_stored_once():
    session = make_session()
    assert add_note(**TALK, text="a")
    assert add_note(**TALK, text="a") is None
    assert add_note(**TALK | {"by": Actor.server("other")}, text="a")
    assert add_note(**TALK, text="b")
    assert add_note(**TALK, text="a")
    assert texts(session) == ["a", "a", "b", "a"]


def test_a_note_of_another_session_is_not_deleted():
    make_session()
    other = make_session("other")
    add_note(**TALK | {"session_key": "other"}, text="a")
    assert delete_note(**TALK, note_pk=other.notes.get().pk) is None
    assert texts(other) == ["a"]


def test_users_and_visitors_write_no_notes():
    ann = make_user()
    make_session(owner=ann)
    for by in (Actor.user(ann), Actor.visitor("token")):
        with pytest.raises(TypeError, match="cannot write notes"):
            add_note(session_key="talk", by=by, text="mine")
        with pytest.raises(TypeError, match="cannot write notes"):
            delete_note(session_key="talk", by=by, note_pk=1)
    assert not SessionNote.objects.exists()


@pytest.mark.parametrize("text", ["", "x" * 2_001, "a\0b", "\ud800"])
def test_a_note_that_a_database_cannot_store_is_refused(text):
    make_session()
    with pytest.raises(BadInput):
        add_note(**TALK, text=text)


def test_the_number_of_notes_is_limited(monkeypatch):
    monkeypatch.setattr("chatmemory.services.notes.MAX_NOTES", 2)
    session = make_session()
    for text in "ab":
        add_note(**TALK, text=text)
    with pytest.raises(BadInput) as caught:
        add_note(**TALK, text="c")
    assert (caught.value.code, caught.value.limit) == ("too_many", 2)
    assert texts(session) == ["a", "b"]


def test_an_unknown_session_is_not_found():
    with pytest.raises(NotFound):
        add_note(**TALK, text="a")


def test_a_purged_session_keeps_its_notes_for_its_restore():
    session = make_session()
    add_note(**TALK, text="early")
    entry = purge_session(**TALK, reason="")
    assert add_note(**TALK, session_pk=session.pk, text="late").action == "note"
    restore_session(entry_pk=entry.pk, by=TALK["by"], scope=TALK["scope"], reason="")
    assert texts(session) == ["early", "late"]


def test_vacuum_deletes_the_notes_of_a_session_that_it_deletes(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    make_session()
    add_note(**TALK, text="a")
    purge_session(**TALK, reason="")
    assert vacuum().sessions == 1
    assert not SessionNote.objects.exists()
    assert list(check_integrity()) == []


def test_an_erasure_deletes_the_notes():
    session = make_session(owner=make_user())
    at = {"scope": session.scope, "by": TALK["by"]}
    append_messages(session_key="talk", messages=make_messages("a"), **at)
    add_note(session_key="talk", text="a", **at)
    assert erase_person(reason="asked", **at).sessions == 1
    assert not SessionNote.objects.exists()


def test_a_note_is_no_message():
    make_session()
    add_note(**TALK, text="a")
    assert not Message.stored.exists()
