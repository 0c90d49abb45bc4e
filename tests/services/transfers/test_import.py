"""`chatmemory_import`: dialogues and sessions from JSON lines, each once and completely."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import connection, connections

from chatmemory import services
from chatmemory.errors import Archived, Busy, Conflict, MemoryUnavailable, NotFound
from chatmemory.formats import Target, dialogues, export_sessions, import_lines, importing
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import Actor, user_scope
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import Vacuumed, vacuum
from chatmemory.services.retention.retention import expire_sessions
from chatmemory.services.transfers.imports import (
    Import,
    begin_import,
    discard_import,
    finish_import,
    import_rows,
)
from chatmemory.services.turns.versions import list_versions
from tests.factories import make_user
from tests.servers import wait_for

BY = Actor.server("test")


def line(name: str, *texts: str, **more: Any) -> str:
    """Return a dialogue as a line: texts of the user and the assistant by turns."""
    turns = [{"role": ("human", "ai")[n % 2], "text": text} for n, text in enumerate(texts)]
    return json.dumps({"id": name, "turns": turns, **more})


WHO = {"by": "olga", "reason": "a move"}
"""The actor and the reason, as options of the command."""


@pytest.fixture
def owner(db: None) -> Any:
    return make_user("mira")


@pytest.fixture
def run(owner, tmp_path, capsys):
    """Import these lines and return the output."""

    def run(*lines: str | bytes, name: str = "talks.jsonl", **options: Any) -> str:
        file = tmp_path / name
        raw = [text if isinstance(text, bytes) else text.encode() for text in lines]
        file.write_bytes(b"\n".join(raw))
        call_command("chatmemory_import", str(file), owner="mira", **{**WHO, **options})
        return str(capsys.readouterr().out).strip()

    return run


def texts_of(owner: Any, key: str) -> list[tuple[str, str]]:
    page = services.read_history(session_key=key, by=BY, scope=user_scope(owner))
    return [(row.role, row.text) for row in page.rows]


def test_each_dialogue_becomes_a_session_of_the_owner(run, owner):
    out = run(line("7", "hello", " hi\n", facts=[1]), line("8", "one"))
    assert out == "2 conversations, 3 messages; 2 new, 0 already stored"
    assert texts_of(owner, "talks:7") == [("user", "hello"), ("assistant", " hi\n")]
    [session] = Session.objects.filter(key="talks:8")
    assert session.owner == owner


def test_a_repeated_import_adds_nothing(run):
    run(line("7", "hello", "hi"))
    out = run(line("7", "hello", "hi"), line("8", "one"), line("7", "hello", "hi"))
    assert out == "3 conversations, 5 messages; 1 new, 2 already stored"
    assert Message.objects.count() == 3


def test_roles_have_two_names_and_a_prefix_can_be_set(run, owner):
    roles = ("system", "user", "assistant", "human", "ai")
    turns = [{"role": role, "text": role} for role in roles]
    run(json.dumps({"id": "7", "turns": turns}), prefix="bot@2026")
    assert [role for role, _ in texts_of(owner, "bot@2026:7")] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


def test_a_dry_run_stores_nothing_and_prints_what_would_be_imported(run):
    run(line("7", "hello"))
    out = run(line("7", "hello"), line("8", "a", "b"), dry_run=True)
    assert out == "2 conversations, 3 messages; 1 new, 1 already stored (nothing was stored)"
    assert Session.objects.count() == 1


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{oops", "not valid JSON"),
        (b'{"id": "\xff"}', "not valid UTF-8"),
        ("[" * 100, "nested deeper"),
        ('{"id": "7", "id": "8", "turns": []}', "Duplicate key id"),
        ("[]", "must be an object"),
        ('{"messages": [{"role": "user", "content": "x"}], "model": "m"}', "Unknown field model"),
        ('{"messages": [{"role": "user", "content": "x"}], "id": 7}', "id must be"),
        ('{"title": "a", "mapping": {}}', "conversation of another product; see docs"),
        ('{"uuid": "a", "chat_messages": []}', "conversation of another product; see docs"),
        ('{"id": "a", "chat": {}}', "conversation of another product; see docs"),
        ('{"conversationId": "a", "messages": [1]}', "conversation of another product; see docs"),
        ('{"turns": [{"role": "ai", "text": "x"}]}', "must be an object"),
        ('{"id": 7, "turns": [{"role": "ai", "text": "x"}]}', "must be an object"),
        ('{"id": "7", "turns": []}', "must be an object"),
        ('{"id": "7", "turns": ["x"]}', r"turns\[0\] must have"),
        ('{"id": "7", "turns": [{"role": "tool", "text": "x"}]}', r"turns\[0\] must have"),
        ('{"id": "7", "turns": [{"role": ["ai"], "text": "x"}]}', r"turns\[0\] must have"),
        (line("7", "a", "b", "c\x07"), r"turns\[2\].text contains U\+0007"),
        (line("7", "\ud800"), r"turns\[0\].text contains U\+D800"),
        (line("7", " "), r"turns\[0\].text is empty"),
        (line("7", "x" * 32_001), "32001 characters"),
        (line("a b", "x"), "id must be"),
        (line("x" * 65, "x"), "id must be"),
    ],
)
def test_a_bad_line_is_reported_and_the_others_are_imported(run, capsys, bad, why):
    with pytest.raises(CommandError, match="1 invalid line"):
        run(line("1", "a"), "", bad, line("2", "b"))
    out, err = capsys.readouterr()
    assert out.strip() == "2 conversations, 2 messages; 2 new, 0 already stored"
    assert err.startswith("Line 3: ")
    assert len(err) < 200
    assert re.search(why, err)


@pytest.mark.regression
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x1f\x8b\x08\0rest", "compressed by gzip"),
        (line("7", "a").encode("utf-16"), "in UTF-16; convert it to UTF-8"),
        (line("7", "a").encode("utf-16-be"), "in UTF-16; convert it to UTF-8"),
        (b"<!DOCTYPE html>", "HTML or XML"),
        (b"SQLite format 3\0", "a database of SQLite"),
        (b"%PDF-1.7", "a PDF document"),
    ],
    ids=["gzip", "utf-16", "utf-16-be", "html", "sqlite", "pdf"],
)
def test_a_file_of_another_type_is_named(run, capsys, content, why):
    with pytest.raises(CommandError, match=f"^The file is {why}"):
        run(content)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_a_conversation_is_an_error(run, capsys, content):
    with pytest.raises(CommandError, match=r"^The file has no conversation\.$") as caught:
        run(content)
    assert caught.value.__cause__.code == "empty"
    assert capsys.readouterr().out == ""


def test_an_archive_is_named_where_no_app_reads_it(run):
    with pytest.raises(CommandError, match=r"^The file is a ZIP archive; unpack it"):
        run(b"PK\3\4\x14\0rest", format="lines")


@pytest.mark.regression
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_list_of_lines_is_its_lines(run, owner, capsys, indent):
    form = {"type": "human", "data": {"content": "c"}}
    lines = [json.loads(line("7", "a")), json.loads(line("8", "b")), [form], {"id": "9"}]
    with pytest.raises(CommandError, match="1 invalid line"):
        run(json.dumps(lines, indent=indent))
    out, err = capsys.readouterr()
    assert err.startswith("Line 4: ")
    assert out.startswith("3 conversations, 3 messages; 3 new")
    assert texts_of(owner, "talks:8") == [("user", "b")]


@pytest.mark.regression
def test_a_list_of_the_lines_of_an_export_is_the_export(run, owner):
    run(line("7", "a"))
    file = [
        json.loads(text)
        for text in "".join(export_sessions(Session.objects.all(), format="jsonl")).splitlines()
    ]
    Session.objects.update(key="another")
    assert run(json.dumps(file, indent=1)).startswith("1 conversation, 1 message; 1 new")
    assert texts_of(owner, "talks:7") == [("user", "a")]


@pytest.mark.regression
def test_a_pretty_printed_session_is_one_line(run, owner):
    run(json.dumps(json.loads(line("7", "a")), indent=2))
    assert texts_of(owner, "talks:7") == [("user", "a")]


@pytest.mark.regression
def test_the_import_stops_after_ten_errors_of_a_kind_without_a_valid_line(run, capsys):
    with pytest.raises(CommandError, match="Stopped: no line was valid"):
        run(*["{", "x"] * 20, line("7", "a"))
    lines = capsys.readouterr().err.splitlines()
    assert [text.split(":")[0] for text in lines[:-1]] == [f"Line {n}" for n in range(1, 11)]
    assert lines[-1] == "Further errors of this kind (bad_json) are not printed."
    assert not Session.objects.exists()


@pytest.mark.regression
def test_after_a_valid_line_all_lines_are_read_and_ten_errors_of_a_kind_printed(run, capsys):
    with pytest.raises(CommandError, match="31 invalid lines skipped"):
        run(line("7", "a"), *["x"] * 30, "{}", line("8", "a"))
    out, err = capsys.readouterr()
    assert out.startswith("2 conversations")
    assert len(err.splitlines()) == 12
    assert err.splitlines()[-1].startswith("Line 32: ")


@pytest.mark.regression
def test_a_line_of_openai_can_have_an_id_and_tools(run, owner):
    messages = [{"role": "user", "content": "a"}]
    run(json.dumps({"id": "7", "messages": messages, "tools": [], "parallel_tool_calls": False}))
    assert texts_of(owner, "talks:7") == [("user", "a")]


def test_an_id_with_other_messages_is_reported(run, capsys):
    run(line("7", "hello"), prefix="p")
    with pytest.raises(CommandError):
        run(line("7", "hello", "hi"), name="others.jsonl", prefix="p")
    assert capsys.readouterr().err == "Line 1: This id already exists with other messages.\n"


def test_an_import_does_not_restore_cleared_messages(run, owner, capsys):
    run(line("7", "hello"))
    services.clear_session(session_key="talks:7", by=BY, scope=user_scope(owner), reason="because")
    with pytest.raises(CommandError):
        run(line("7", "hello"))
    assert (
        capsys.readouterr().err
        == "Line 1: The history was cleared after this operation started. Reload the session.\n"
    )


def test_a_long_dialogue_continues_where_it_was_interrupted(run, owner, monkeypatch):
    monkeypatch.setattr(dialogues, "BATCH", 2)
    append = services.append_messages
    calls = []

    def fails_at_third(**kwargs: Any) -> Any:
        calls.append(kwargs["client_id"])
        if len(calls) == 3:
            raise MemoryUnavailable
        return append(**kwargs)

    monkeypatch.setattr(services, "append_messages", fails_at_third)
    long = line("7", *"abcdef")
    with pytest.raises(CommandError, match=r"Line 1: .* Run this again to continue\."):
        run(long)
    assert run(long, dry_run=True).startswith("1 conversation, 6 messages; 1 new")
    assert run(long) == "1 conversation, 6 messages; 1 new, 0 already stored"
    assert run(long) == "1 conversation, 6 messages; 0 new, 1 already stored"
    assert "".join(text for _, text in texts_of(owner, "talks:7")) == "abcdef"
    assert calls[:3] == ["7", "7:2", "7:3"]


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(run):
    out = run(b"\xef\xbb\xbf" + line("7", "hello").encode() + b"\r", line("8", "hello"))
    assert out.startswith("2 conversations, 2 messages; 2 new")


def test_a_line_that_is_too_long_is_skipped(run, capsys, monkeypatch):
    monkeypatch.setattr(importing, "MAX_LINE", 100)
    with pytest.raises(CommandError):
        run(line("7", "x" * 1_000), line("8", "hello"))
    out, err = capsys.readouterr()
    assert err == "Line 1: The line is longer than 100 bytes.\n"
    assert out.startswith("1 conversation, 1 message")


def test_the_standard_input_can_be_imported(owner, monkeypatch, capsys):
    stdin = io.TextIOWrapper(io.BytesIO(line("7", "hello").encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    call_command("chatmemory_import", "-", owner="mira", **WHO)
    assert texts_of(owner, "import:7") == [("user", "hello")]


@pytest.mark.parametrize("name", ["my talks (1).jsonl", "my-talks-1-.jsonl"])
def test_any_file_name_gives_a_valid_prefix(owner, tmp_path, name):
    file = tmp_path / name
    file.write_text(line("7", "hello"))
    call_command("chatmemory_import", str(file), owner="mira", **WHO)
    assert texts_of(owner, "my-talks-1-:7") == [("user", "hello")]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"owner": "nobody"}, "User 'nobody' does not exist"),
        ({"owner": "mira\udc80"}, "contains U\\+DC80"),
        ({"owner": "mira", "prefix": "a b"}, "--prefix must be"),
        ({"owner": "mira", "reason": "\x07"}, r"--reason contains U\+0007"),
        ({"scope": ""}, "--scope must not be empty"),
        ({"owner": "mira", "file": "/nowhere.jsonl"}, "can't be read: No such file"),
        ({"owner": "mira", "file": "."}, "can't be read: Is a directory"),
    ],
)
def test_wrong_arguments_are_refused_before_the_import(owner, arguments, why):
    file = arguments.pop("file", os.devnull)
    with pytest.raises(CommandError, match=why):
        call_command("chatmemory_import", file, **{**WHO, **arguments})


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_an_import_is_resumed_after_a_kill_and_shows_its_progress(
    live_database_env, tmp_path, capsys
):
    make_user("mira")
    file = tmp_path / "talks.jsonl"
    total = 250
    file.write_text("\n".join(line(str(n), "hello", "hi") for n in range(total)))
    who = ["--owner=mira", "--by=olga", "--reason=a move"]
    command = [sys.executable, "manage.py", "chatmemory_import", str(file), *who]
    terminal, inside = pty.openpty()
    with subprocess.Popen(  # noqa: S603  # our own code
        command, cwd=django_settings.BASE_DIR, env=live_database_env, stderr=inside
    ) as process:
        deadline = time.monotonic() + 60
        while Message.objects.count() < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    os.close(inside)
    assert re.search(r"conversations?, ", shown)
    # Not the sessions: the last one may have been created without its messages.
    before = Message.objects.values("session").distinct().count()
    assert 10 <= before < total
    call_command("chatmemory_import", str(file), owner="mira", **WHO)
    assert (
        f"{total} conversations, {2 * total} messages; {total - before} new"
        in capsys.readouterr().out
    )
    assert Message.objects.count() == 2 * total


TIME = "2026-03-01T12:30:15.123457+00:00"


NOTE = {
    "text": "He called.",
    "actor_kind": "operator",
    "actor_id": "7",
    "actor_label": "olga",
    "created_at": "2026-03-01T12:30:15.123457+00:00",
}


def head(key: str = "talk", messages: int = 2, **more: Any) -> dict[str, Any]:
    """Return the first line of a session in the app's format."""
    numbers = {"first_seq": 1, "last_seq": messages, "stored_from": 1}
    times = {"created_at": TIME, "last_active_day": "2026-03-01"}
    return {
        "type": "session",
        "version": 1,
        "scope": "user:0",
        "key": key,
        **numbers,
        **times,
    } | more


def message(seq: int, **more: Any) -> dict[str, Any]:
    role = ("assistant", "user")[seq % 2]
    columns = {"seq": seq, "role": role, "text": f"text {seq}", "tokens": 3, "created_at": TIME}
    return {"type": "message", **columns} | more


def a_turn(**more: Any) -> dict[str, Any]:
    columns = {"client_id": "t1", "status": "complete", "user_seq": 1, "created_at": TIME}
    return {"type": "turn", **columns} | more


def a_feedback(**more: Any) -> dict[str, Any]:
    columns = {"turn": "t1", "user_seq": 1, "value": 1, "created_at": TIME, "changed_at": TIME}
    return {"type": "feedback", **columns} | more


def end(messages: int = 2, turns: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "end", "turns": turns, "messages": messages, **more}


def session_lines(key: str = "talk", messages: int = 2) -> list[str]:
    lines = [head(key, messages), *map(message, range(1, messages + 1)), end(messages)]
    return [json.dumps(line) for line in lines]


def without(line: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != name}


@pytest.mark.parametrize(
    ("bad", "number", "why"),
    [
        ([head(version=2)], 1, "not supported; version 1 is"),
        ([without(head(), "version")], 1, "not supported"),
        ([without(head(), "created_at")], 1, "created_at is required"),
        ([head(colour="red")], 1, "Unknown field colour"),
        ([head(created_at="2026-03-01T12:30:15")], 1, "created_at must be a time"),
        ([head(created_at="0001-01-01T00:00:00+10:00")], 1, "created_at must be a time"),
        ([head(created_at=5)], 1, "created_at must be a time"),
        ([head(last_active_day="today")], 1, "last_active_day must be a date"),
        ([head(title="x" * 201)], 1, "title must be a text of up to 200 ch"),
        ([head(title="a\0")], 1, r"title contains U\+0000"),
        ([head(metadata=[])], 1, "metadata must be an object"),
        ([head(tags="a")], 1, "tags must be a list"),
        ([head(tags=["a", "a"])], 1, "tags must be a list of texts"),
        ([head(tags=["a", 5])], 1, "tags must be a list"),
        ([head(tags=["x" * 101])], 1, "tag must have 1 to 100"),
        ([head(tags=["a\0"])], 1, r"tag contains U\+0000"),
        ([head(notes="a")], 1, "notes must be a list"),
        ([head(notes=["a"])], 1, "notes must be a list of objects"),
        ([head(notes=[{"text": "a"}])], 1, "actor_kind is required"),
        ([head(notes=[{**NOTE, "text": ""}])], 1, "text must have 1 to 2000"),
        ([head(notes=[NOTE] * 101)], 1, "A session can have 100 notes"),
        ([head(metadata={"a\0": 1})], 1, r"U\+0000"),
        ([head(metadata={"a": [[[[]]]]}, key="")], 1, "key must have 1 to 200"),
        ([head(scope="")], 1, "scope is empty"),
        ([head(first_seq=4)], 1, "stored_from must be from 1"),
        ([head(stored_from=2)], 1, "stored_from must be from 1"),
        ([head(stored_from=0)], 1, "stored_from must be from 1"),
        ([head(last_seq=2**53 + 1)], 1, "last_seq must be a whole number"),
        ([head(last_seq=True)], 1, "last_seq must be a whole number"),
        ([head(last_seq=2.0)], 1, "last_seq must be a whole number"),
        ([head(), message(2)], 2, "seq must be 1, and at most 2; it is 2"),
        ([head(), message(1), message(1)], 3, "seq must be 2, and at most 2; it is 1"),
        ([head(), message(1), message(2), message(3)], 4, "seq must be 3, and at most 2; it is 3"),
        (
            [head(), message(1, role="robot")],
            2,
            "role must be one of system, user, assistant, tool",
        ),
        ([head(), message(1, status="lost")], 2, "status must be one of"),
        ([head(), message(1, text=None)], 2, "text must be a text"),
        ([head(), message(1, text="a\0b")], 2, r"text contains U\+0000 at position 1"),
        ([head(), message(1, body="\ud800")], 2, r"body contains U\+D800"),
        (
            [head(), message(1, tokens=2**31)],
            2,
            "tokens must be a whole number from 0 to 2147483647",
        ),
        ([head(), message(1, redacted=1)], 2, "redacted must be true or false"),
        ([head(), message(1, feedback=0)], 2, "feedback must be one of 1, -1"),
        ([head(), message(1, feedback=True)], 2, "feedback must be one of 1, -1"),
        ([head(), a_feedback(value=None)], 2, "value must be one of 1, -1"),
        ([head(), a_feedback(value=2)], 2, "value must be one of 1, -1"),
        ([head(), a_feedback(reason="x" * 1_001)], 2, "reason must be a text of up to 1000"),
        ([head(), a_feedback(reason="a\0")], 2, r"reason contains U\+0000"),
        ([head(), a_feedback(turn="a b")], 2, "turn must be"),
        ([head(), a_feedback(user_seq=0)], 2, "user_seq must be the seq of a message"),
        ([head(), a_feedback(user_seq=3)], 2, "user_seq must be the seq of a message"),
        ([head(), a_feedback(), a_feedback()], 3, "user_seq must be .* higher than"),
        ([head(), a_feedback(colour="red")], 2, "Unknown field colour"),
        ([head(), message(1), message(2), a_feedback(), end()], 5, "Lines are missing"),
        ([head(), message(1), message(2), end(feedback=1)], 4, "Lines are missing"),
        (
            [head(), message(1), message(2), a_feedback(), end(feedback=1)],
            5,
            "The feedback does not match the turns",
        ),
        (
            [head(), a_turn(), message(1, turn=1), message(2), a_feedback(), end(2, 1, feedback=1)],
            6,
            "The feedback does not match the turns",
        ),
        ([head(), message(1, turn=2)], 2, "turn must be the seq of this message"),
        ([head(), message(1, client_id="a b")], 2, "client_id must be"),
        ([head(), message(1, client_id="a"), message(2, client_id="a"), end()], 4, "client_id a i"),
        ([head(), a_turn(status="lost")], 2, "status must be one of"),
        ([head(), a_turn(user_seq=3)], 2, "user_seq must be the seq of a message"),
        ([head(), a_turn(replaces_from=1)], 2, "replaces_from and replaces_to"),
        ([head(), a_turn(replaces_from=2, replaces_to=1)], 2, "replaces_from and replaces_to"),
        ([head(), a_turn(replaces_from=1, replaces_to=1)], 2, "replaces_from and replaces_to"),
        ([head(), a_turn(status="running"), a_turn(status="running")], 3, "Only one turn"),
        (
            [head(), a_turn(), a_turn(), message(1), message(2), end(turns=2)],
            6,
            "client_id t1 is a duplicate",
        ),
        ([head(), message(1), end(1)], 3, "Lines are missing: found 0 turns and 1 messages"),
        ([head(), message(1), message(2), end(3)], 4, "Lines are missing"),
        ([head(), message(1), message(2), end(turns=1)], 4, "Lines are missing"),
        ([head(), message(1), message(2), end(missing=1)], 4, "Lines are missing"),
        ([head(), message(1), message(2)], 4, "The session of line 1 is truncated"),
        ([message(1)], 1, "does not follow a session line"),
        ([end()], 1, "does not follow a session line"),
    ],
)
@pytest.mark.database
def test_a_bad_session_is_reported_and_not_stored(run, capsys, bad, number, why):
    lines = [*map(json.dumps, bad), *session_lines("good")]
    with pytest.raises(CommandError, match="1 invalid line"):
        run(*lines)
    out, err = capsys.readouterr()
    assert err.startswith(f"Line {number}: ")
    assert re.search(why, err)
    assert out == "1 conversation, 2 messages; 1 new, 0 already stored\n"
    assert list(Session.objects.values_list("key", flat=True)) == ["good"]
    assert Message.stored.count() == 2
    assert not Turn.objects.exists()


@pytest.mark.parametrize("bad", ["{oops", b'{"type": "message", "text": "\xff"}', "[" * 100])
def test_a_session_with_a_line_that_is_no_json_is_not_stored(run, bad):
    first, one, *rest = session_lines()
    with pytest.raises(CommandError):
        run(first, one, bad, *rest)
    assert not Session.objects.exists()


def test_a_session_with_a_line_that_is_too_long_is_not_stored(run, capsys, monkeypatch):
    monkeypatch.setattr(importing, "MAX_LINE", 1_000)
    first, _, *rest = session_lines()
    with pytest.raises(CommandError):
        run(first, json.dumps(message(1, text="x" * 2_000)), *rest)
    assert capsys.readouterr().err == "Line 2: The line is longer than 1000 bytes.\n"
    assert not Session.objects.exists()


@pytest.mark.database
def test_metadata_is_accepted_as_deep_as_each_database_stores_it(run, capsys):
    deep: Any = 2**70
    for _ in range(30):
        deep = [deep]
    metadata = {"deep": deep}
    run(json.dumps(head("deep", 0, metadata=metadata)), json.dumps(end(0)))
    assert Session.objects.get().metadata == metadata
    with pytest.raises(CommandError):
        run(json.dumps(head("deeper", 0, metadata={"more": metadata})))
    assert capsys.readouterr().err == "Line 1: The JSON is nested deeper than 32 levels.\n"


@pytest.mark.database
def test_a_repeated_import_of_a_changed_session_adds_nothing(run, owner):
    lines = session_lines()
    assert run(*lines) == "1 conversation, 2 messages; 1 new, 0 already stored"
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(owner)}
    services.append_messages(**at, messages=[{"role": "user", "content": "more"}])
    Message.stored.filter(seq=1).update(text="", redacted=True)
    before = list(Message.stored.order_by("seq").values())
    assert run(*lines) == "1 conversation, 2 messages; 0 new, 1 already stored"
    Message.stored.filter(seq=1).delete()
    Session.objects.update(stored_from=2, first_seq=2)
    assert run(*lines) == "1 conversation, 2 messages; 0 new, 1 already stored"
    assert list(Message.stored.order_by("seq").values()) == before[1:]


@pytest.mark.database
def test_superseded_rows_are_superseded_after_the_import(run, owner):
    turns = [a_turn(), a_turn(client_id="t2", user_seq=3, replaces_from=1, replaces_to=2)]
    rows = [
        message(1, turn=1, client_id="t1"),
        message(2, turn=1),
        message(3, turn=3, client_id="t2"),
        message(4, turn=3),
    ]
    run(*map(json.dumps, [head(messages=4), *turns, *rows, end(4, turns=2)]))
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(owner)}
    page = services.read_history(**at, superseded=False)
    assert [row.seq for row in page.rows] == [3, 4]
    assert [version.seq for version in list_versions(**at, seq=1)] == [1, 3]
    assert "superseded_to" not in {finding.code for finding in check_integrity()}


@pytest.mark.database
@pytest.mark.parametrize(
    "change",
    [
        {"text": "changed"},
        {"role": "system"},
        {"body": "{}"},
        {"created_at": "2026-03-01T12:30:15.123458+00:00"},
    ],
)
def test_a_session_with_other_messages_is_a_conflict(run, owner, capsys, change):
    run(*session_lines())
    before = list(Message.stored.order_by("seq").values())
    lines = [head(), message(1), message(2, **change), end()]
    with pytest.raises(CommandError):
        run(*map(json.dumps, lines))
    assert capsys.readouterr().err == "Line 4: Another session already has this key.\n"
    assert list(Message.stored.order_by("seq").values()) == before


@pytest.mark.database
def test_an_imported_session_without_one_of_its_messages_is_a_conflict(run, capsys):
    run(*session_lines())
    Message.stored.filter(seq=1).delete()
    with pytest.raises(CommandError):
        run(*session_lines())
    assert capsys.readouterr().err == "Line 4: Another session already has this key.\n"


def test_an_import_with_debug_keeps_no_statements(run, settings, monkeypatch):
    settings.DEBUG = True
    monkeypatch.setattr(importing, "CHUNK_ROWS", 1)
    run(*session_lines(messages=20))
    assert len(connection.queries_log) < 30


@pytest.mark.database
def test_a_key_of_another_session_is_a_conflict(run, owner, capsys):
    services.open_session(session_key="talk", by=BY, scope=user_scope(owner))
    for options in ({}, {"dry_run": True}):
        with pytest.raises(CommandError):
            run(*session_lines(), **options)
        assert capsys.readouterr().err == "Line 1: Another session already has this key.\n"
    assert Session.objects.count() == 1
    assert run(*session_lines(), prefix="moved").startswith("1 conversation, 2 messages; 1 new")
    assert Session.objects.filter(scope=user_scope(owner), key="moved:talk").exists()


@pytest.mark.database
def test_a_longer_export_of_the_same_session_is_a_conflict(run, capsys):
    run(*session_lines())
    with pytest.raises(CommandError):
        run(*session_lines(messages=3))
    assert capsys.readouterr().err == "Line 5: Another session already has this key.\n"
    assert Message.stored.count() == 2


@pytest.mark.database
def test_an_unfinished_import_is_not_found_and_accepts_no_message(owner, monkeypatch):
    monkeypatch.setattr(importing, "CHUNK_ROWS", 1)
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(owner)}
    lines = [line.encode() for line in session_lines()]
    outcomes = import_lines(interrupted_midway(lines, at), target=Target(by=BY, scope=at["scope"]))
    assert [one.is_new for one in outcomes] == [True]
    assert services.read_history(**at).head.last_seq == 2
    assert services.append_messages(**at, messages=[{"role": "user", "content": "x"}])


def interrupted_midway(lines: list[bytes], at: dict[str, Any]) -> Any:
    """Yield lines; before the last one, check that the session is not found."""
    yield from enumerate(lines[:-1], 1)
    assert Message.stored.count() == 2
    for read in (services.get_session, services.read_history):
        with pytest.raises(NotFound):
            read(**at)
    staged = Session.objects.get()
    there = {"session_key": staged.key, "by": BY, "scope": staged.scope}
    with pytest.raises(Archived):
        services.append_messages(**there, messages=[{"role": "user", "content": "x"}])
    yield len(lines), lines[-1]


@pytest.mark.database
def test_a_key_that_is_used_before_the_import_ends_is_a_conflict(owner):
    scope = user_scope(owner)

    def lines() -> Any:
        *first, last = session_lines()
        yield from enumerate((line.encode() for line in first), 1)
        services.open_session(session_key="talk", by=BY, scope=scope)
        yield 4, last.encode()

    [outcome] = import_lines(lines(), target=Target(by=BY, scope=scope))
    assert isinstance(outcome.error, Conflict)
    assert Session.objects.count() == 1
    assert not Message.stored.exists()


@pytest.mark.database
def test_an_interrupted_import_of_a_session_continues(owner, monkeypatch):
    monkeypatch.setattr(importing, "CHUNK_ROWS", 2)
    target = Target(by=BY, scope=user_scope(owner))
    lines = [json.dumps(head(messages=5)), json.dumps(a_turn())]
    lines += [*map(json.dumps, map(message, range(1, 6))), json.dumps(end(5, 1))]
    numbered = list(enumerate((line.encode() for line in lines), 1))

    def breaks() -> Any:
        yield from numbered[:7]
        raise MemoryUnavailable

    with pytest.raises(MemoryUnavailable):
        list(import_lines(breaks(), target=target))
    pks = list(Message.stored.values_list("pk", flat=True))
    assert len(pks) == 4
    assert [one.is_new for one in import_lines(numbered, target=target)] == [True]
    assert set(pks) < set(Message.stored.values_list("pk", flat=True))
    session = Session.objects.get(scope=target.scope)
    assert (session.last_seq, session.messages.count(), session.turns.count()) == (5, 5, 1)


@pytest.mark.database
def test_an_unfinished_import_of_other_messages_blocks_no_import(owner, monkeypatch):
    monkeypatch.setattr(importing, "CHUNK_ROWS", 1)
    target = Target(by=BY, scope=user_scope(owner))
    first, *rest = enumerate((line.encode() for line in session_lines()), 1)

    def breaks() -> Any:
        yield first
        yield 2, json.dumps(message(1, text="before it was mended")).encode()
        raise MemoryUnavailable

    with pytest.raises(MemoryUnavailable):
        list(import_lines(breaks(), target=target))
    tries = [list(import_lines([first, *rest], target=target))[-1] for _ in range(2)]
    assert "had other messages" in str(tries[0].error)
    assert tries[1].is_new


@pytest.mark.database
def test_an_import_that_is_never_finished_expires(owner):
    target = Target(by=BY, scope=user_scope(owner))
    first, one, *_ = enumerate((line.encode() for line in session_lines()), 1)

    def breaks() -> Any:
        yield first
        yield one
        raise MemoryUnavailable

    with pytest.raises(MemoryUnavailable):
        list(import_lines(breaks(), target=target))
    staged = Session.objects.get()
    assert timedelta(days=6) < staged.expires_at - datetime.now(UTC) < timedelta(days=8)
    Session.objects.update(expires_at=datetime.now(UTC) - timedelta(days=1))
    lines = enumerate((line.encode() for line in session_lines()), 1)
    assert [one.is_new for one in import_lines(lines, target=target)] == [True]
    assert Session.objects.get(pk=staged.pk).removed_at is not None


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_two_simultaneous_imports_of_a_file_store_it_once(monkeypatch):
    monkeypatch.setattr(importing, "CHUNK_ROWS", 1)
    scope = user_scope(make_user("mira"))
    lines = list(enumerate((line.encode() for line in session_lines(messages=20)), 1))

    def run() -> str:
        try:
            [one] = import_lines(lines, target=Target(by=BY, scope=scope))
        except (Busy, MemoryUnavailable):
            return "busy"
        return "new" if one.is_new else str(one.error or "known")

    def run_and_close() -> str:
        try:
            return run()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        done = [one.result() for one in [pool.submit(run_and_close) for _ in range(3)]]
    assert set(done) <= {"new", "known", "busy"}
    assert run() in ("new", "known")
    session = Session.objects.get()
    assert (session.scope, session.last_seq) == (scope, 20)
    assert [row.seq for row in Message.stored.order_by("seq")] == list(range(1, 21))


@pytest.mark.database
def test_purged_and_partially_imported_sessions_are_skipped(run, owner):
    purged = {"removed_at": TIME, "removed_scope": "user:0", "scope": "removed:7"}
    lines = [head(**purged), message(1), message(2), end()]
    half = [head(scope="importing:user:0"), message(1), end(1)]
    out = run(*map(json.dumps, [*lines, *half]), *session_lines("good"))
    assert out == "1 conversation, 2 messages; 1 new, 0 already stored; 2 skipped"
    assert list(Session.objects.values_list("key", flat=True)) == ["good"]


def test_sessions_can_be_imported_into_the_scopes_in_the_file(owner, tmp_path, capsys):
    file = tmp_path / "all.jsonl"
    of_user = [head("a", 0, scope=user_scope(owner)), end(0)]
    of_server = [head("b", 0, scope="server"), end(0)]
    of_nobody = [head("c", 0, scope="user:999999"), end(0), head("d", 0, scope="user:x"), end(0)]
    file.write_text("\n".join(map(json.dumps, [*of_user, *of_server, *of_nobody])))
    with pytest.raises(CommandError, match="2 invalid lines"):
        call_command("chatmemory_import", str(file), own_scopes=True, dry_run=True, **WHO)
    assert capsys.readouterr().err.count("The user of this scope does not exist.") == 2
    with pytest.raises(CommandError, match="2 invalid lines"):
        call_command("chatmemory_import", str(file), own_scopes=True, **WHO)
    assert capsys.readouterr().err.splitlines() == [
        "Line 5: The user of this scope does not exist.",
        "Line 7: The user of this scope does not exist.",
    ]
    found = Session.objects.order_by("key").values_list("scope", "key", "owner")
    assert list(found) == [(user_scope(owner), "a", owner.pk), ("server", "b", None)]


def test_a_dialogue_of_another_format_needs_an_owner(owner, tmp_path, capsys):
    file = tmp_path / "talks.jsonl"
    file.write_text(line("7", "hello"))
    with pytest.raises(CommandError):
        call_command("chatmemory_import", str(file), own_scopes=True, **WHO)
    assert (
        capsys.readouterr().err == "Line 1: scope is required for a dialogue of another program.\n"
    )


def test_a_dry_run_reports_duplicates_in_the_file(run, capsys):
    out = run(
        line("7", "hello"), line("7", "hello"), *session_lines(), *session_lines(), dry_run=True
    )
    assert out == "4 conversations, 6 messages; 2 new, 2 already stored (nothing was stored)"
    with pytest.raises(CommandError):
        run(line("7", "hello"), line("7", "other"), dry_run=True)
    assert capsys.readouterr().err == "Line 2: This id already exists with other messages.\n"
    assert not Session.objects.exists()


def test_a_dry_run_checks_each_line_of_a_session(run, capsys):
    with pytest.raises(CommandError):
        run(json.dumps(head()), json.dumps(message(2)), dry_run=True)
    assert capsys.readouterr().err.startswith("Line 2: seq must be 1")


@pytest.mark.parametrize(
    ("dialogue", "texts"),
    [
        (
            {
                "messages": [
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "yo"},
                ]
            },
            [("user", "hi"), ("assistant", "yo")],
        ),
        (
            [
                {"type": "human", "data": {"content": "hi"}},
                {"type": "ai", "data": {"content": "yo", "id": "1"}},
            ],
            [("user", "hi"), ("assistant", "yo")],
        ),
    ],
)
def test_a_conversation_of_another_format_is_imported_once(run, owner, dialogue, texts):
    text = json.dumps(dialogue)
    assert run(text, text) == "2 conversations, 4 messages; 1 new, 1 already stored"
    [session] = Session.objects.all()
    assert session.key.startswith("talks:")
    assert texts_of(owner, session.key) == texts


@pytest.mark.parametrize(
    ("dialogue", "why"),
    [
        ({"messages": []}, "must be an object"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages\[0\] must have a role"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "must have an id"),
        ([{"type": "robot", "data": {}}], r"\[0\] is not a LangChain message"),
        ([{"type": "human", "data": 5}], r"\[0\] is not a LangChain message"),
        ([{"type": "human"}], "must be an object with id"),
        (["x"], "must be an object with id"),
        ([{"type": "remove", "data": {"id": "1", "content": ""}}], r"\[0\] is a RemoveMessage"),
        ([{"type": "human", "data": {"content": "a\0"}}], r"U\+0000"),
    ],
)
def test_a_conversation_that_cannot_be_imported_is_reported(run, capsys, dialogue, why):
    with pytest.raises(CommandError):
        run(json.dumps(dialogue))
    assert re.search(why, capsys.readouterr().err)
    assert not Session.objects.exists()


@pytest.mark.parametrize("scope", ["importing:server", "removed:7", "user:" + "x" * 136])
def test_nothing_is_imported_into_an_internal_scope_or_that_of_a_missing_user(db, scope):
    lines = enumerate((line.encode() for line in session_lines()), 1)
    [outcome] = import_lines(lines, target=Target(by=BY, scope=scope))
    assert str(outcome.error) == "Nothing can be imported into this scope."


@pytest.mark.database
@pytest.mark.parametrize(
    "lost", [{"stored_from": 2, "first_seq": 2}, {"last_seq": 3}], ids=["first", "last"]
)
def test_an_import_whose_rows_were_deleted_is_not_finished(owner, monkeypatch, lost):
    monkeypatch.setattr(importing, "CHUNK_ROWS", 1)
    scope = user_scope(owner)

    def lines() -> Any:
        *first, last = session_lines(messages=4)
        yield from enumerate((line.encode() for line in first), 1)
        Session.objects.update(**lost)
        yield 6, last.encode()

    [outcome] = import_lines(lines(), target=Target(by=BY, scope=scope))
    assert str(outcome.error) == "Rows of this session are missing."
    assert not Session.objects.exists()


@pytest.mark.database
def test_a_duplicate_turn_in_another_chunk_is_found(owner, monkeypatch):
    monkeypatch.setattr(importing, "CHUNK_ROWS", 1)
    lines = [head(messages=1), a_turn(), message(1), a_turn(), end(1, turns=2)]
    numbered = enumerate((json.dumps(line).encode() for line in lines), 1)
    [outcome] = import_lines(numbered, target=Target(by=BY, scope=user_scope(owner)))
    assert str(outcome.error) == "The session contains a duplicate turn."
    assert not Session.objects.exists()


@pytest.mark.database
@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_the_import_of_a_long_session_continues_after_a_kill(live_database_env, tmp_path, capsys):
    make_user("mira")
    file = tmp_path / "talks.jsonl"
    total = 5_000
    lines = [text.encode() + b"\n" for text in session_lines(messages=total)]
    file.write_bytes(b"".join(lines))
    who = ["--owner=mira", "--by=olga", "--reason=a move"]
    command = [sys.executable, "manage.py", "chatmemory_import", "-", *who]
    with subprocess.Popen(  # noqa: S603  # our own code
        command, cwd=django_settings.BASE_DIR, env=live_database_env, stdin=subprocess.PIPE
    ) as process:
        process.stdin.write(b"".join(lines[: total // 2]))  # and the process waits for more
        process.stdin.flush()
        wait_for(lambda: Message.stored.count() >= 1_000, "nothing is stored")
        process.send_signal(signal.SIGKILL)
    stored = Message.stored.count()
    assert 1_000 <= stored < total
    first = Message.stored.earliest("seq").pk
    assert Session.objects.get().scope.startswith("importing:")
    call_command("chatmemory_import", str(file), owner="mira", **WHO)
    assert "1 conversation, 5,000 messages; 1 new" in capsys.readouterr().out
    session = Session.objects.get()
    assert (session.key, session.messages.count()) == ("talk", total)
    assert Message.stored.earliest("seq").pk == first


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_lines(owner, monkeypatch):
    monkeypatch.setattr(importing, "CHUNK_ROWS", 50)

    def peak_of(key: str, total: int) -> int:
        rows = (message(seq, text="x" * 2_000) for seq in range(1, total + 1))
        lines = (
            json.dumps(line).encode() for line in chain([head(key, total)], rows, [end(total)])
        )
        target = Target(by=BY, scope=user_scope(owner))
        outcomes = import_lines(enumerate(lines, 1), target=target)
        tracemalloc.start()
        [outcome] = outcomes
        assert outcome.messages == total
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    # The lower of two: other threads and growing caches of the process only ever add.
    few, many = (min(peak_of(f"{total}-{n}", total) for n in range(2)) for total in (200, 1_000))
    assert many < 2 * few


@pytest.mark.database
def test_an_import_that_another_process_finished_stores_nothing_more(owner):
    scope = user_scope(owner)
    columns = {"first_seq": 1, "stored_from": 1, "last_seq": 1, "created_at": datetime.now(UTC)}
    at: dict[str, Any] = {"session_key": "talk", "session": columns, "digest": "0", "scope": scope}
    one, other = (begin_import(**at, by=BY) for _ in range(2))
    rows = [{**message(seq), "created_at": columns["created_at"], "error": ""} for seq in (1, 2)]
    for row in rows:
        row |= {"body": None, "status": "complete", "model": ""}
        row.pop("type")
    import_rows(found=one, turns=[], rows=rows[:1])
    assert finish_import(found=one, turns=0, running=None, by=BY, reason="")
    with pytest.raises(Busy):
        import_rows(found=other, turns=[], rows=rows[1:])
    assert not finish_import(found=other, turns=0, running=None, by=BY, reason="")
    discard_import(found=other)
    assert Message.objects.count() == 1


@pytest.mark.database
def test_an_import_that_another_process_deleted_can_be_repeated(owner):
    columns = {"first_seq": 1, "stored_from": 1, "last_seq": 0, "created_at": datetime.now(UTC)}
    at: dict[str, Any] = {"session_key": "talk", "session": columns, "digest": "0"}
    found = begin_import(**at, scope=user_scope(owner), by=BY)
    discard_import(found=found)
    with pytest.raises(MemoryUnavailable, match="deleted while"):
        import_rows(found=found, turns=[], rows=[{"seq": 1}])
    with pytest.raises(MemoryUnavailable, match="deleted while"):
        finish_import(found=found, turns=0, running=None, by=BY, reason="")


def staged(owner: Any, **more: Any) -> Import:
    """Import a session of one message up to `finish_import`."""
    at = datetime.now(UTC)
    columns = {"first_seq": 1, "stored_from": 1, "last_seq": 1, "created_at": at, **more}
    there: dict[str, Any] = {"session_key": "talk", "session": columns, "digest": "0"}
    found = begin_import(**there, scope=user_scope(owner), by=BY)
    row = {"seq": 1, "role": "user", "text": "secret", "body": None, "created_at": at}
    row |= {"tokens": 1, "status": "complete", "error": "", "model": "", "client_id": None}
    import_rows(found=found, turns=[], rows=[row])
    return found


@pytest.mark.database
def test_an_import_is_not_finished_after_its_erasure_started(owner, monkeypatch):
    found = staged(owner)
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        services.erase_person(by=BY, scope=found.scope, reason="asked for")
    monkeypatch.undo()
    with pytest.raises(MemoryUnavailable, match="deleted while"):
        finish_import(found=found, turns=0, running=None, by=BY, reason="")
    assert services.erase_person(by=BY, scope=found.scope, reason="asked for").messages == 1
    assert not Session.objects.exists()


@pytest.mark.database
def test_an_import_on_hold_is_not_discarded(owner):
    found = staged(owner)
    Session.objects.update(held_at=datetime.now(UTC))
    discard_import(found=found)
    assert Message.stored.count() == 1


@pytest.mark.database
def test_an_import_on_hold_is_on_hold_when_it_is_finished(owner):
    found = staged(owner, held_at=None)
    Session.objects.update(held_at=datetime.now(UTC))
    assert finish_import(found=found, turns=0, running=None, by=BY, reason="")
    assert Session.objects.get().held_at is not None


@pytest.mark.database
@pytest.mark.regression
def test_no_rule_of_retention_applies_to_an_unfinished_import(owner, settings):
    """Its tags, by which a rule can skip it, are stored at its end."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RETENTION": [{"max_age": 60}]}
    found = staged(owner)
    Message.stored.update(created_at=datetime.now(UTC) - timedelta(days=1))
    assert expire_sessions().removed == {}
    assert finish_import(found=found, turns=0, running=None, by=BY, reason="")
    assert AuditEntry.objects.get().action == "import"


@pytest.mark.database
@pytest.mark.regression
def test_vacuum_deletes_no_turn_of_an_unfinished_import(owner):
    found = staged(owner)
    ended_at = datetime.now(UTC) - timedelta(days=31)
    turn = {"client_id": "c1", "status": "cancelled", "user_seq": None, "ended_at": ended_at}
    import_rows(found=found, turns=[turn], rows=[])
    assert vacuum() == Vacuumed()
    assert finish_import(found=found, turns=1, running=None, by=BY, reason="")
