"""Exports: the sessions of a person, and the audit entry before the first line."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError

from chatmemory.access.actors import importing_scope
from chatmemory.errors import BadInput, NotFound
from chatmemory.formats import write_export
from chatmemory.management.commands import chatmemory_export
from chatmemory.models import AuditAction, AuditEntry, Session, Turn
from chatmemory.services import (
    Actor,
    append_messages,
    begin_export,
    purge_session,
    trim_session,
    user_scope,
)
from chatmemory.services.audit.entries import record_person, record_refusal
from chatmemory.services.audit.keys import key_hash
from chatmemory.services.transfers.exports import begin_export_of_all
from tests.factories import BY, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def mira(db: None) -> Any:
    return make_user("mira")


@pytest.fixture
def run(capsys):
    """Run the command and return its output."""

    def run(**options: Any) -> str:
        call_command("chatmemory_export", **{"by": "olga", "reason": "asked for", **options})
        return str(capsys.readouterr().out)

    return run


def talk(key: str, owner: Any, *texts: str, **columns: Any) -> Session:
    """Create a session with these messages."""
    session = make_session(key, owner=owner)
    append_messages(session_key=key, by=BY, scope=session.scope, messages=make_messages(*texts))
    Session.objects.filter(pk=session.pk).update(**columns)
    return session


def keys_in(text: str) -> list[str]:
    lines = [json.loads(line) for line in text.splitlines()]
    return [line["key"] for line in lines if line["type"] == "session"]


def test_an_export_of_a_person_contains_all_stored_sessions(mira):
    at: dict[str, Any] = {"by": BY, "scope": user_scope(mira), "reason": ""}
    talk("living", mira, "hidden", "b", "c")
    trim_session(session_key="living", keep_last=1, **at)
    talk("archived", mira, "in the archive", archived_at=LONG_AGO)
    talk("expired", mira, "too old", expires_at=LONG_AGO)
    talk("purged", mira, "purged words")
    purge_session(session_key="purged", **at)
    waits = make_session("waits", owner=mira)
    asked = '{"role":"user","content":"asked words"}'
    Turn.objects.create(session=waits, client_id="t", status="waiting", asked=asked, epoch=1)
    make_session("half", scope=importing_scope(user_scope(mira)))
    talk("other", make_user(), "of another")
    make_session("server")
    export = begin_export(format="jsonl", **at)
    text = "".join(write_export(export))
    assert keys_in(text) == ["living", "archived", "expired", "purged", "waits", "half"]
    for words in ("hidden", "in the archive", "too old", "purged words", "asked words"):
        assert words in text
    assert "of another" not in text
    assert (export.session_count, export.message_count) == (6, 6)


def test_a_person_exports_only_their_own_sessions(mira):
    omar = make_user("omar")
    talk("talk", mira, "of mira")
    talk("talk", omar, "of omar")
    text = "".join(write_export(begin_export(format="jsonl", by=Actor.user(omar), reason="")))
    assert "of omar" in text
    assert "of mira" not in text
    make_session("only mira's", owner=mira)
    for key in ("only mira's", "unknown"):
        with pytest.raises(NotFound):
            begin_export(format="jsonl", by=Actor.user(omar), reason="", session_key=key)
    with pytest.raises(TypeError):
        begin_export(format="jsonl", by=Actor.user(omar), reason="", scope=user_scope(mira))
    with pytest.raises(TypeError):
        begin_export_of_all(format="jsonl", by=Actor.user(omar), reason="")
    with pytest.raises(TypeError):
        begin_export(format="jsonl", by=Actor.operator(omar), reason="")


def test_the_entry_is_committed_before_the_first_line(mira):
    session = talk("talk", mira, "a", "b")
    olga = Actor.operator(make_user("olga"))
    scope = user_scope(mira)
    export = begin_export(
        format="csv", by=olga, scope=scope, session_key="talk", reason="asked for"
    )
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor_label, entry.reason) == ("export", "olga", "asked for")
    assert (entry.session_pk, entry.key_hash) == (session.pk, key_hash("talk"))
    assert entry.counts == {"messages": 2, "format": "csv"}
    assert "".join(write_export(export)).count("\r\n") == 3


def test_an_export_of_a_person_records_one_entry_without_their_name(mira):
    talk("one", mira, "a", "b")
    talk("two", mira, "a")
    begin_export(format="jsonl", by=BY, scope=user_scope(mira), reason="asked for")
    begin_export_of_all(format="jsonl", by=BY, reason="")
    of_person, of_all = AuditEntry.objects.order_by("pk")
    assert of_person.session_pk is None
    assert of_person.key_hash == key_hash(user_scope(mira)) != key_hash("user:0")
    assert of_person.counts == {"sessions": 2, "messages": 3, "format": "jsonl"}
    assert (of_all.key_hash, of_all.counts["sessions"]) == ("", 2)


def test_nothing_is_exported_without_the_entry(mira, monkeypatch):
    talk("talk", mira, "a")

    def fails(entry: AuditEntry, **options: Any) -> Any:
        raise IntegrityError

    monkeypatch.setattr(AuditEntry, "save", fails)
    with pytest.raises(Exception, match="memory is unavailable"):
        begin_export(format="jsonl", by=BY, scope=user_scope(mira), reason="")


def test_a_reason_with_control_characters_is_refused(mira):
    with pytest.raises(BadInput):
        begin_export(format="jsonl", by=BY, scope=user_scope(mira), reason="\x07")
    assert not AuditEntry.objects.exists()


def test_the_command_writes_a_session_to_the_standard_output(run, mira):
    talk("talk", mira, "hello")
    talk("other", mira, "unheard")
    text = run(owner="mira", key="talk", reason="because")
    assert keys_in(text) == ["talk"]
    assert json.loads(text.splitlines()[1])["text"] == "hello"
    entry = AuditEntry.objects.get()
    assert (entry.actor_kind, entry.actor_id) == ("command", "olga")
    assert entry.actor_label == "olga, chatmemory_export"
    assert entry.reason == "because"


def test_the_command_writes_all_sessions_or_those_of_a_scope(run, mira):
    talk("talk", mira, "hello")
    make_session("bot")
    assert keys_in(run(owner="mira")) == ["talk"]
    assert keys_in(run(scope="server")) == ["bot"]
    assert keys_in(run(all=True)) == ["talk", "bot"]


def test_a_file_is_complete_and_only_its_owner_can_read_it(run, mira, tmp_path):
    talk("talk", mira, "hello")
    file = tmp_path / "talk.csv"
    file.with_name("talk.csv.part").write_text("left by a run that was killed")
    out = run(owner="mira", format="csv", output=str(file))
    assert out == "1 conversation, 1 message\n"
    assert file.read_bytes().startswith(b'\xef\xbb\xbf"session"')
    assert file.read_bytes().endswith(b"\r\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_an_incomplete_file_does_not_get_its_name(run, mira, tmp_path, monkeypatch):
    talk("talk", mira, "hello")

    def breaks(export: Any, progress: Any) -> Any:
        yield "begun"
        raise NotFound

    monkeypatch.setattr(chatmemory_export.formats, "write_export", breaks)
    with pytest.raises(CommandError, match="output is incomplete"):
        run(owner="mira", output=str(tmp_path / "talk.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["talk.jsonl.part"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"owner": "nobody"}, "User 'nobody' does not exist"),
        ({"owner": "mira\udc80"}, "contains U\\+DC80"),
        ({"owner": "mira", "key": "unknown"}, r"^Session not found\.$"),
        ({"all": True, "key": "talk"}, "--key needs"),
        ({"scope": ""}, "--scope must not be empty"),
        ({"owner": "mira", "key": "nope"}, "Session not found.$"),
        ({"owner": "mira", "output": __file__}, "already exists"),
        ({"owner": "mira", "format": "pdf"}, "invalid choice"),
        ({}, "one of the arguments"),
        ({"owner": "mira"}, "Nothing is stored under user:"),
        ({"scope": "user:99999"}, "Nothing is stored under user:99999"),
        ({"all": True}, "Nothing is stored."),
        ({"scope": "usr:7"}, "'usr:7' is not a scope"),
        ({"scope": "user:seven"}, "'seven' is not a primary key"),
        ({"scope": "user:07"}, "'07' is not a primary key"),
        ({"scope": "visitor:7"}, "64 hex digits"),
        ({"scope": "removed:7"}, "internal scope"),
        ({"owner": "mira", "by": " "}, "--by must not be empty"),
        ({"owner": "mira", "by": "\x07"}, "--by"),
        ({"owner": "mira", "reason": ""}, "--reason must not be empty"),
    ],
)
def test_the_command_reports_what_cannot_be_exported(run, mira, options, why):
    options = {"by": "olga", "reason": "asked for", **options}
    arguments = [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()
    ]
    with pytest.raises(CommandError, match=why):
        call_command("chatmemory_export", *arguments)


def test_the_command_reports_a_file_that_cannot_be_written(run, mira):
    talk("talk", mira, "hello")
    with pytest.raises(CommandError, match="No such file or directory"):
        run(owner="mira", output="/nowhere/x")


@pytest.mark.regression
@pytest.mark.parametrize("missing", ["by", "reason"])
@pytest.mark.parametrize("name", ["chatmemory_export", "chatmemory_erase"])
def test_commands_on_a_persons_data_require_an_actor_and_a_reason(mira, name, missing):
    given = {"owner": "mira", "by": "olga", "reason": "asked for"}
    del given[missing]
    with pytest.raises(CommandError, match=f"--{missing}"):
        call_command(name, *(f"--{option}={value}" for option, value in given.items()))
    assert not AuditEntry.objects.exists()


def test_the_admin_lists_an_entry_of_a_person(admin_client, mira):
    record_person("user:1", AuditAction.EXPORT, BY, "")
    record_refusal(session=make_session(), by=BY, permission="x")
    page = admin_client.get("/admin/chatmemory/auditentry/")
    assert page.status_code == 200
    assert "session/None" not in page.content.decode()
    entry = AuditEntry.objects.earliest("pk")
    assert admin_client.get(f"/admin/chatmemory/auditentry/{entry.pk}/change/").status_code == 200
