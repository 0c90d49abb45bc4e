"""`chatmemory_import`: dialogues from JSON lines, once, and whole."""

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
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command

from chatmemory import services
from chatmemory.errors import MemoryUnavailable
from chatmemory.management.commands import chatmemory_import
from chatmemory.models import Message, Session
from chatmemory.services import Actor, user_scope
from tests.factories import make_user

BY = Actor.server("test")


def line(name: str, *texts: str, **more: Any) -> str:
    """A dialogue as a line: the human first, then both in turn."""
    turns = [{"role": ("human", "ai")[n % 2], "text": text} for n, text in enumerate(texts)]
    return json.dumps({"id": name, "turns": turns, **more})


@pytest.fixture
def owner(db: None) -> Any:
    return make_user("mira")


@pytest.fixture
def run(owner, tmp_path, capsys):
    """Import these lines; returns what was printed, and raises what the command raises."""

    def run(*lines: str | bytes, name: str = "talks.jsonl", **options: Any) -> str:
        file = tmp_path / name
        raw = [text if isinstance(text, bytes) else text.encode() for text in lines]
        file.write_bytes(b"\n".join(raw))
        call_command("chatmemory_import", str(file), owner="mira", **options)
        return str(capsys.readouterr().out).strip()

    return run


def texts_of(owner: Any, key: str) -> list[tuple[str, str]]:
    page = services.read_history(session_key=key, by=BY, scope=user_scope(owner))
    return [(row.role, row.text) for row in page.rows]


def test_each_dialogue_becomes_a_session_of_the_owner(run, owner):
    out = run(line("7", "hello", " hi\n", facts=[1]), line("8", "one"))
    assert out == "2 sessions, 3 messages; 2 new, 0 already there"
    assert texts_of(owner, "talks:7") == [("user", "hello"), ("assistant", " hi\n")]
    [session] = Session.objects.filter(key="talks:8")
    assert session.owner == owner


def test_the_same_again_adds_nothing(run):
    run(line("7", "hello", "hi"))
    out = run(line("7", "hello", "hi"), line("8", "one"), line("7", "hello", "hi"))
    assert out == "3 sessions, 5 messages; 1 new, 2 already there"
    assert Message.objects.count() == 3


def test_roles_have_two_names_and_a_prefix_may_be_given(run, owner):
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


def test_a_dry_run_stores_nothing_and_says_what_would_be(run):
    run(line("7", "hello"))
    out = run(line("7", "hello"), line("8", "a", "b"), dry_run=True)
    assert out == "2 sessions, 3 messages; 1 new, 1 already there (nothing was stored)"
    assert Session.objects.count() == 1


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{oops", "Not JSON"),
        (b'{"id": "\xff"}', "Not UTF-8"),
        ("[" * 100, "Nested deeper"),
        ('{"id": "7", "id": "8", "turns": []}', "twice"),
        ("[]", "Not an object"),
        ('{"turns": [{"role": "ai", "text": "x"}]}', "Not an object"),
        ('{"id": 7, "turns": [{"role": "ai", "text": "x"}]}', "Not an object"),
        ('{"id": "7", "turns": []}', "Not an object"),
        ('{"id": "7", "turns": ["x"]}', r"turns\[0\] must have"),
        ('{"id": "7", "turns": [{"role": "tool", "text": "x"}]}', r"turns\[0\] must have"),
        ('{"id": "7", "turns": [{"role": ["ai"], "text": "x"}]}', r"turns\[0\] must have"),
        (line("7", "a", "b", "c\x07"), r"turns\[2\].text has U\+0007"),
        (line("7", "\ud800"), r"turns\[0\].text has U\+D800"),
        (line("7", " "), r"turns\[0\].text is empty"),
        (line("7", "x" * 32_001), "32001 characters"),
        (line("a b", "x"), "id must be"),
        (line("x" * 65, "x"), "id must be"),
    ],
)
def test_a_bad_line_is_named_and_the_good_ones_are_kept(run, capsys, bad, why):
    with pytest.raises(CommandError, match="1 bad lines"):
        run(line("1", "a"), "", bad, line("2", "b"))
    out, err = capsys.readouterr()
    assert out.strip() == "2 sessions, 2 messages; 2 new, 0 already there"
    assert err.startswith("Line 3: ")
    assert len(err) < 200
    assert re.search(why, err)


def test_an_id_that_stands_for_other_messages_is_named(run, capsys):
    run(line("7", "hello"), prefix="p")
    with pytest.raises(CommandError):
        run(line("7", "hello", "hi"), name="others.jsonl", prefix="p")
    assert capsys.readouterr().err == "Line 1: This id is there already, with other messages.\n"


def test_what_was_cleared_does_not_come_back(run, owner, capsys):
    run(line("7", "hello"))
    services.clear_session(session_key="talks:7", by=BY, scope=user_scope(owner), reason="because")
    with pytest.raises(CommandError):
        run(line("7", "hello"))
    assert capsys.readouterr().err == "Line 1: The history was cleared in the meantime.\n"


def test_a_long_dialogue_goes_on_where_it_stopped(run, owner, monkeypatch):
    monkeypatch.setattr(chatmemory_import, "BATCH", 2)
    append = services.append_messages
    calls = []

    def fails_at_third(**kwargs: Any) -> Any:
        calls.append(kwargs["client_id"])
        if len(calls) == 3:
            raise MemoryUnavailable
        return append(**kwargs)

    monkeypatch.setattr(services, "append_messages", fails_at_third)
    long = line("7", *"abcdef")
    with pytest.raises(CommandError, match=r"Line 1: .* Run it again to go on\."):
        run(long)
    assert run(long, dry_run=True).startswith("1 sessions, 6 messages; 1 new")
    assert run(long) == "1 sessions, 6 messages; 1 new, 0 already there"
    assert run(long) == "1 sessions, 6 messages; 0 new, 1 already there"
    assert "".join(text for _, text in texts_of(owner, "talks:7")) == "abcdef"
    assert calls[:3] == ["7", "7:2", "7:3"]


def test_a_byte_order_mark_and_windows_line_ends_are_no_harm(run):
    out = run(b"\xef\xbb\xbf" + line("7", "hello").encode() + b"\r", line("8", "hello"))
    assert out.startswith("2 sessions, 2 messages; 2 new")


def test_a_line_that_is_too_long_is_passed_over(run, capsys, monkeypatch):
    monkeypatch.setattr(chatmemory_import, "MAX_LINE", 100)
    with pytest.raises(CommandError):
        run(line("7", "x" * 1_000), line("8", "hello"))
    out, err = capsys.readouterr()
    assert err == "Line 1: Longer than 100 bytes.\n"
    assert out.startswith("1 sessions, 1 messages")


def test_the_standard_input_is_a_file(owner, monkeypatch, capsys):
    stdin = io.TextIOWrapper(io.BytesIO(line("7", "hello").encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    call_command("chatmemory_import", "-", owner="mira")
    assert texts_of(owner, "import:7") == [("user", "hello")]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"owner": "nobody"}, "no user 'nobody'"),
        ({"owner": "mira", "prefix": "a b"}, "--prefix must be"),
        ({"owner": "mira", "file": "/nowhere.jsonl"}, "can't be read: No such file"),
    ],
)
def test_what_cannot_be_imported_is_said_at_once(owner, arguments, why):
    file = arguments.pop("file", os.devnull)
    with pytest.raises(CommandError, match=why):
        call_command("chatmemory_import", file, **arguments)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_it_is_resumed_after_a_kill_and_shows_its_progress(live_database_env, tmp_path, capsys):
    make_user("mira")
    file = tmp_path / "talks.jsonl"
    total = 500
    file.write_text("\n".join(line(str(n), "hello", "hi") for n in range(total)))
    command = [sys.executable, "manage.py", "chatmemory_import", str(file), "--owner=mira"]
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
    assert "sessions, " in shown
    before = Session.objects.count()
    assert 10 <= before < total
    call_command("chatmemory_import", str(file), owner="mira")
    assert f"{total} sessions, 1,000 messages; {total - before} new" in capsys.readouterr().out
    assert Message.objects.count() == 2 * total
