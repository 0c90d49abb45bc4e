"""`chatmemory_note`: add, list and delete notes of operators."""

from __future__ import annotations

import io
import sys

import pytest

from chatmemory import services
from chatmemory.models import MAX_NOTES, AuditAction, AuditEntry, SessionNote
from chatmemory.services.audit.entries import record
from tests.factories import BY, TALK, make_session, make_user
from tests.management.commanding import WHO, run, run_json

TEXT = "Called back.\nWaits for the refund."


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "note"
    path.write_text(f"{TEXT}\n")
    return str(path)


def notes():
    return list(SessionNote.objects.order_by("pk").values_list("text", "actor_label"))


@pytest.mark.database
@pytest.mark.django_db
def test_a_note_is_added_listed_and_deleted(file):
    talk = make_session()
    at = ["--session", talk.pk]
    dry = run_json("chatmemory_note", "add", *at, text_file=file, dry_run=True, **WHO)
    assert (dry[0], dry[1][0]["outcome"], notes()) == (0, "done", [])
    status, (line,) = run_json("chatmemory_note", "add", *at, text_file=file, **WHO)
    assert (status, line["outcome"]) == (0, "done")
    assert notes() == [(TEXT, "olga, chatmemory_note")]
    entry = AuditEntry.objects.get(pk=line["entry"])
    assert (entry.action, entry.actor_id, entry.reason) == ("note", "olga", "request of 4 May")
    status, (listed, total) = run_json("chatmemory_note", "list", *at)
    assert (status, listed["text"], listed["by"]) == (0, TEXT, "olga, chatmemory_note")
    assert total == {"session": talk.pk, "notes": 1}
    assert TEXT in run("chatmemory_note", "list", *at)[1]
    delete = ["delete", *at, "--note", listed["note"]]
    assert run_json("chatmemory_note", *delete, dry_run=True, **WHO)[1][0]["outcome"] == "done"
    assert len(notes()) == 1
    status, (line,) = run_json("chatmemory_note", *delete, **WHO)
    assert (status, line["outcome"], notes()) == (0, "done", [])
    entry = AuditEntry.objects.get(pk=line["entry"])
    assert (entry.action, entry.reason) == ("delete_note", "request of 4 May")


@pytest.mark.django_db
def test_a_repeated_run_changes_nothing_and_succeeds(file):
    talk = make_session()
    add = ["add", "--session", talk.pk, "--text-file", file]
    run("chatmemory_note", *add, **WHO)
    for dry_run in (True, False):
        status, (line,) = run_json("chatmemory_note", *add, dry_run=dry_run, **WHO)
        assert (status, line["outcome"], len(notes())) == (0, "unchanged", 1)
    run("chatmemory_note", *add, **{**WHO, "by": "otto"})
    assert len(notes()) == 2
    delete = ["delete", "--session", talk.pk, "--note", 2**62]
    for dry_run in (True, False):
        status, (line,) = run_json("chatmemory_note", *delete, dry_run=dry_run, **WHO)
        assert (status, line["outcome"], len(notes())) == (0, "unchanged", 2)


@pytest.mark.django_db
def test_a_note_of_another_session_is_not_deleted():
    make_session("other")
    services.add_note(**{**TALK, "session_key": "other"}, text="a")
    talk = make_session()
    note = SessionNote.objects.get()
    run("chatmemory_note", "delete", "--session", talk.pk, "--note", note.pk, **WHO)
    assert notes() == [("a", "tests")]


@pytest.mark.django_db
def test_a_session_is_named_by_owner_and_key_even_if_purged(file):
    make_session()
    talk = make_session(owner=make_user("ann"))
    services.purge_session(session_key="talk", scope=talk.scope, by=BY, reason="")
    run("chatmemory_note", "add", "--owner=ann", "--key=talk", "--text-file", file, **WHO)
    assert SessionNote.objects.get().session == talk


@pytest.mark.django_db
def test_the_text_is_read_from_standard_input(monkeypatch):
    talk = make_session()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    assert run("chatmemory_note", "add", "--session", talk.pk, text_file="-", **WHO)[0] == 0
    assert notes() == [("from a pipe", "olga, chatmemory_note")]


@pytest.mark.django_db
def test_a_session_has_a_bounded_number_of_notes(file):
    talk = make_session()
    SessionNote.objects.bulk_create(
        SessionNote(session=talk, text=str(n), actor_kind="server") for n in range(MAX_NOTES)
    )
    for dry_run in (True, False):
        add = ["add", "--session", talk.pk, "--text-file", file]
        assert run("chatmemory_note", *add, dry_run=dry_run, **WHO) == (1, "")
    assert len(notes()) == MAX_NOTES


@pytest.mark.django_db
@pytest.mark.parametrize(
    "named",
    [["--session", "7"], ["--scope=user:1", "--key=talk"], ["--owner=nobody", "--key=talk"]],
)
def test_a_session_that_is_not_stored_there_is_refused(file, named):
    make_session(pk=1)
    for action in (["add", "--text-file", file], ["delete", "--note=1"]):
        assert run("chatmemory_note", *action, *named, **WHO) == (1, "")
    assert run("chatmemory_note", "list", *named) == (1, "")


@pytest.mark.django_db
@pytest.mark.parametrize("dry_run", [True, False])
def test_the_notes_of_a_session_that_is_being_erased_do_not_change(file, dry_run):
    talk = make_session()
    services.purge_session(**TALK, reason="")
    record(talk, AuditAction.ERASE, BY, "")
    for action in (["add", "--text-file", file], ["delete", "--note=1"]):
        command = ["chatmemory_note", *action, "--session", talk.pk]
        assert run(*command, dry_run=dry_run, **WHO) == (1, "")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "--by=olga", "--reason=test"],
        ["add", "--by=olga", "--text-file=FILE"],
        ["add", "--reason=test", "--text-file=FILE"],
        ["add", "--by= ", "--reason=test", "--text-file=FILE"],
        ["add", "--by=olga", "--reason=test", "--text-file=FILE", "--note=1"],
        ["delete", "--by=olga", "--reason=test"],
        ["delete", "--by=olga", "--reason=test", "--note=0"],
        ["delete", "--by=olga", "--reason=test", "--note=-1"],
        ["list", "--dry-run"],
        ["list", "--by=olga"],
    ],
)
def test_wrong_options_have_their_own_status(file, arguments):
    make_session(pk=1)
    given = [argument.replace("FILE", file) for argument in arguments]
    assert run("chatmemory_note", *given, "--session", "1") == (2, "")
    assert notes() == []


@pytest.mark.django_db
@pytest.mark.parametrize("text", [b"", b"x" * 2_001, b"a\x1bb", b"\xff"])
def test_a_text_that_cannot_be_a_note_is_refused(tmp_path, text):
    talk = make_session()
    path = tmp_path / "note"
    path.write_bytes(text)
    add = ["add", "--session", talk.pk, "--text-file", path]
    assert run("chatmemory_note", *add, **WHO) == (2, "")
