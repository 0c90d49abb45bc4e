"""`chatmemory_redact`: one message, or a text everywhere; what is left, and its bounds."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from io import StringIO

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.utils import timezone

from chatmemory import services
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services.redaction import find_text as finding
from chatmemory.services.turns.progress import save_partial, start_turn
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.management.commanding import WHO, run, run_json
from tests.servers import DEADLINE

KEY = "sk-Secret-4711"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return str(path)


def store(*texts, session=None, **columns):
    """Store a session with these messages."""
    session = session or make_session(**columns)
    at = {"session_key": session.key, "scope": session.scope, "by": BY}
    services.append_messages(**at, messages=make_messages(*texts))
    return session


def redacted():
    return list(Message.stored.filter(redacted=True).order_by("pk").values_list("seq", flat=True))


def everything():
    return str([*Message.stored.values(), *Turn.objects.values(), *AuditEntry.objects.values()])


def at(session):
    return ["--session", session.pk]


@pytest.mark.database
@pytest.mark.django_db
def test_one_message_is_redacted_after_a_dry_run_that_changes_nothing():
    talk = store(KEY, "ok")
    status, (line,) = run_json("chatmemory_redact", *at(talk), "--seq=1", dry_run=True, **WHO)
    assert (status, line["outcome"], line["entry"], redacted()) == (0, "done", None, [])
    status, (line,) = run_json("chatmemory_redact", *at(talk), "--seq=1", **WHO)
    assert (status, line["outcome"], redacted()) == (0, "done", [1])
    entry = AuditEntry.objects.get(pk=line["entry"])
    assert (entry.actor_kind, entry.actor_label) == ("command", "olga, chatmemory_redact")
    assert (entry.reason, entry.from_seq) == ("request of 4 May", 1)
    assert KEY not in everything()
    for dry_run in (True, False):
        again = run_json("chatmemory_redact", *at(talk), "--seq=1", dry_run=dry_run, **WHO)
        assert (again[0], again[1][0]["outcome"]) == (0, "unchanged")


@pytest.mark.django_db
def test_a_message_is_named_by_owner_and_key_even_of_a_purged_session():
    ann = make_user("ann")
    talk = store(KEY, owner=ann)
    store("mine", key="talk")
    services.purge_session(session_key="talk", scope=talk.scope, by=BY, reason="")
    named = ["--owner=ann", "--key=talk", "--seq=1"]
    _, (line,) = run_json("chatmemory_redact", *named, **WHO)
    assert (line["session"], line["scope"], line["state"]) == (talk.pk, talk.scope, "purged")
    assert KEY not in everything()


@pytest.mark.django_db
def test_a_turn_without_a_message_is_redacted_and_cancelled():
    talk = store("hi")
    services.admit_turn(**TALK, client_id="run", content="go", owner="me")
    services.admit_turn(**TALK, client_id="wait", content=KEY)
    assert run("chatmemory_redact", *at(talk), "--turn=run", **WHO)[0] == 1
    status, (line,) = run_json("chatmemory_redact", *at(talk), "--turn=wait", **WHO)
    assert (status, line["outcome"], line["state"]) == (0, "done", "waiting")
    assert KEY not in everything()
    assert run_json("chatmemory_redact", *at(talk), "--turn=wait", **WHO)[0] == 0


@pytest.mark.django_db
@pytest.mark.parametrize(
    "named",
    [
        ["--session", "1", "--seq=9"],
        ["--session", "1", "--turn=no"],
        ["--session", "7", "--seq=1"],
        ["--scope=user:1", "--key=talk", "--seq=1"],
        ["--scope=server", "--key=other", "--seq=1"],
        ["--owner=nobody", "--key=talk", "--seq=1"],
    ],
)
def test_what_is_not_stored_there_is_refused(named):
    store(KEY, pk=1)
    assert run("chatmemory_redact", *named, **WHO) == (1, "")
    assert redacted() == []


@pytest.mark.django_db
def test_a_held_session_is_not_redacted(file):
    talk = store(KEY, held_at=timezone.now())
    for what in (["--seq=1"], ["--find-file", file, "--yes"]):
        for dry_run in (True, False):
            status, lines = run_json("chatmemory_redact", *at(talk), *what, dry_run=dry_run, **WHO)
            assert (status, lines[0]["outcome"]) == (1, "held")
    assert redacted() == []


USAGE = [
    ["--session", "1", "--seq=1", "--yes"],
    ["--session", "1", "2", "--seq=1"],
    ["--scope=server", "--all", "--seq=1"],
    ["--all", "--seq=1"],
    ["--seq=1"],
    ["--key=talk", "--seq=1"],
    ["--scope=nonsense", "--key=talk", "--seq=1"],
    ["--session", "1", "--seq=1", "--by= "],
    ["--session", "1", "--seq=1", "--reason= "],
    ["--session", "1", "--find-file=FILE", "--yes=0"],
    ["--session", "1", "--find-file=FILE", "--yes", f"--reason=leak of {KEY.lower()}"],
    ["--all", "--key=talk", "--find-file=FILE"],
]


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", USAGE)
def test_wrong_options_have_their_own_status(file, arguments):
    store(KEY, pk=1)
    store(KEY, pk=2, key="second")
    given = [argument.replace("FILE", file) for argument in arguments]
    assert run("chatmemory_redact", "--by=olga", "--reason=test", *given) == (2, "")
    assert redacted() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("stored", "status"),
    [(b"", 2), (b" \n", 2), (b"\xff", 2), (b"a\0b", 2), (b"x" * 10_001, 2), (b"x" * 10**6, 2)],
)
def test_a_text_that_cannot_be_searched_is_refused(tmp_path, stored, status):
    talk = store(KEY)
    path = tmp_path / "key"
    path.write_bytes(stored)
    find = ["--find-file", path, "--yes"]
    assert run("chatmemory_redact", *at(talk), *find, **WHO) == (status, "")
    assert run("chatmemory_redact", *at(talk), "--find-file", tmp_path / "no", **WHO)[0] == 1


@pytest.mark.database
@pytest.mark.django_db
def test_a_text_is_listed_without_its_content_and_redacted_only_with_yes(file):
    talk = store(f"My key is {KEY}.", f"I use {KEY.upper()}", "ok")
    for dry_run, expected in ((False, 1), (True, 0)):
        status, lines = run_json(
            "chatmemory_redact", *at(talk), find_file=file, dry_run=dry_run, **WHO
        )
        assert (status, redacted()) == (expected, [])
        assert [(line["seq"], line["role"]) for line in lines[:-1]] == [
            (1, "user"),
            (2, "assistant"),
        ]
        assert lines[-1] == {"done": 2, "skipped": {}, "replying": 0, "dry_run": True}
        assert KEY.lower() not in str(lines).lower()
    status, lines = run_json("chatmemory_redact", *at(talk), "--yes", find_file=file, **WHO)
    assert (status, redacted(), lines[-1]["done"]) == (0, [1, 2], 2)
    assert [line["entry"] for line in lines[:-1]] == list(
        AuditEntry.objects.order_by("pk").values_list("pk", flat=True)
    )
    assert KEY.lower() not in everything().lower()
    assert run("chatmemory_redact", *at(talk), "--yes", find_file=file, **WHO) == (
        0,
        "0 texts found\n",
    )


@pytest.mark.django_db
def test_the_error_states_how_to_confirm(file):
    talk = store(KEY, KEY, KEY)
    with pytest.raises(CommandError, match="run this with --yes 3"):
        call_command(
            "chatmemory_redact", session=[talk.pk], find_file=file, stdout=StringIO(), **WHO
        )
    out = StringIO()
    with pytest.raises(CommandError, match="3 texts found; --yes confirms 2"):
        call_command(
            "chatmemory_redact", session=[talk.pk], find_file=file, yes=2, stdout=out, **WHO
        )
    assert (redacted(), out.getvalue()) == ([], "")
    run("chatmemory_redact", *at(talk), "--yes=3", find_file=file, **WHO)
    assert redacted() == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.django_db
def test_more_than_a_hundred_texts_need_their_number(file):
    talk = store(*[KEY] * 101)
    assert run("chatmemory_redact", *at(talk), "--yes", find_file=file, **WHO) == (1, "")
    assert redacted() == []
    assert run("chatmemory_redact", *at(talk), "--yes=101", find_file=file, **WHO)[0] == 0
    assert len(redacted()) == 101


@pytest.mark.database
@pytest.mark.django_db
def test_trimmed_replaced_and_purged_messages_and_the_queue_are_redacted(file):
    talk = store(KEY, "1", KEY, "2")
    services.trim_session(**TALK, keep_last=2, reason="")
    store(KEY, session=talk)
    replaced = {"replaces": 3, "expect_seq": 5, "owner": "me"}
    services.admit_turn(**TALK, client_id="e", content=KEY, **replaced)
    services.admit_turn(**TALK, client_id="q", content=KEY)
    services.purge_session(**TALK, reason="")
    new = store(KEY)
    status, lines = run_json(
        "chatmemory_redact", "--scope=server", "--all", "--yes", find_file=file, **WHO
    )
    assert (status, lines[-1]["skipped"]) == (0, {})
    places = [(line["session"], line["field"], line["seq"], line["state"]) for line in lines[:-1]]
    assert places == [
        *[(talk.pk, "message", seq, "purged") for seq in (1, 3, 5, 6)],
        (talk.pk, "turn", None, "purged"),
        (new.pk, "message", 1, "shown"),
    ]
    assert KEY not in everything()


@pytest.mark.django_db
def test_all_people_or_one_person_or_some_sessions(file):
    ann = make_user("ann")
    talks = [store(KEY, key=f"t{n}", owner=ann if n < 2 else None) for n in range(4)]

    def listed(*which):
        _, lines = run_json("chatmemory_redact", *which, find_file=file, dry_run=True, **WHO)
        return [line["session"] for line in lines[:-1]]

    assert listed("--all") == [talk.pk for talk in talks]
    assert listed("--owner=ann", "--all") == [talk.pk for talk in talks[:2]]
    assert listed("--owner=ann", "--key=t1") == [talks[1].pk]
    assert listed("--session", talks[0].pk, talks[3].pk) == [talks[0].pk, talks[3].pk]


@pytest.mark.django_db
def test_what_cannot_be_redacted_is_named_and_the_status_is_not_zero(file):
    talk = store(KEY, title=KEY)
    services.add_note(**TALK, text=KEY)
    claim = services.admit_turn(**TALK, client_id="run", content="go", owner="me").claim
    start_turn(claim=claim)
    save_partial(claim=claim, text=KEY, step=1)
    err = StringIO()
    with pytest.raises(CommandError) as refused:
        call_command(
            "chatmemory_redact",
            session=[talk.pk],
            find_file=file,
            yes=100,
            stdout=err,
            **WHO,
        )
    assert err.getvalue().splitlines()[1:] == [
        f"conversation {talk.pk} (server, talk), turn run, running: busy",
        f"conversation {talk.pk} (server, talk), title: manual",
        f"conversation {talk.pk} (server, talk), note {talk.notes.get().pk}: manual",
        "4 texts found: 1 redacted, 1 busy, 2 manual",
    ]
    assert str(refused.value) == (
        "3 texts cannot be redacted; the outcomes state why. "
        "A turn runs in 1 conversation: run this again when it has ended."
    )
    assert redacted() == [1]


@pytest.mark.django_db
def test_a_running_turn_without_the_text_may_repeat_it(file):
    talk = store(KEY)
    services.admit_turn(**TALK, client_id="run", content="go", owner="me")
    status, lines = run_json("chatmemory_redact", *at(talk), "--yes", find_file=file, **WHO)
    assert (status, lines[-1]["replying"], redacted()) == (1, 1, [1])
    assert run_json("chatmemory_redact", *at(talk), "--yes", find_file=file, **WHO)[0] == 0


@pytest.mark.django_db
def test_a_hold_since_the_search_is_an_outcome(file, monkeypatch):
    talk = store(KEY, KEY)
    redact = services.redact_message

    def hold_then_redact(**arguments):
        Session.objects.update(held_at=timezone.now())
        return redact(**arguments)

    monkeypatch.setattr(services, "redact_message", hold_then_redact)
    status, lines = run_json("chatmemory_redact", *at(talk), "--yes", find_file=file, **WHO)
    assert (status, lines[-1]["skipped"], redacted()) == (1, {"held": 2}, [])


@pytest.mark.django_db
def test_the_text_is_read_from_standard_input(monkeypatch):
    talk = store(KEY, "ok")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(KEY.encode() + b"\r\n")))
    assert run("chatmemory_redact", *at(talk), "--yes", find_file="-", **WHO)[0] == 0
    assert redacted() == [1]


@pytest.mark.django_db
def test_the_progress_counts_the_searched_messages(file, monkeypatch):
    monkeypatch.setattr(finding, "SEARCHED_ROWS", 2)
    talk = store(KEY, "a", "b", "c")
    err = StringIO()
    options = {"stdout": StringIO(), "stderr": err, "dry_run": True, "progress": True}
    call_command("chatmemory_redact", session=[talk.pk], find_file=file, **options, **WHO)
    assert err.getvalue().splitlines() == ["  0%  0 of 4", "100%  4 of 4"]


def process(env, *options, **streams):
    command = [sys.executable, "manage.py", "chatmemory_redact", "--by=olga", "--reason=leak"]
    return subprocess.Popen([*command, *options], env=env, cwd=settings.BASE_DIR, **streams)  # noqa: S603  # our own command line


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_terminal_does_not_show_the_text(live_database_env):
    talk = store(KEY, "ok")
    terminal, stdin = pty.openpty()
    options = [f"--session={talk.pk}", "--find-file=-", "--yes"]
    streams = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with process(live_database_env, *options, **streams, start_new_session=True) as asking:
        deadline = threading.Timer(DEADLINE, asking.kill)
        deadline.start()
        prompt = b"Text to find (not shown): "
        assert asking.stderr.read(len(prompt)) == prompt
        os.write(terminal, f"{KEY}\n".encode())
        out, err = asking.communicate(timeout=DEADLINE)
        deadline.cancel()
        assert asking.returncode == 0, err
    os.close(stdin)
    assert KEY.encode() not in out + err
    os.set_blocking(terminal, False)
    echoed = b""
    with suppress(OSError):  # nothing was written to the terminal, or it was closed
        echoed = os.read(terminal, 1_000)
    os.close(terminal)
    assert KEY.encode() not in echoed
    assert redacted() == [1]


@pytest.fixture
def redacting(live_database_env, file):
    """Yield a process that redacts more texts than the buffer of a pipe has lines."""
    sessions = [make_session(f"{n}-{'x' * 180}") for n in range(10)]
    for session in sessions:
        store(*[KEY] * 30, session=session)
    options = ["--all", f"--find-file={file}", "--yes=300", "--json"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with process(live_database_env, *options, **streams) as running:
        assert running.stdout.readline()
        yield running
        running.kill()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_after_ctrl_c_the_same_command_redacts_the_rest(redacting, file):
    redacting.send_signal(signal.SIGINT)
    assert redacting.wait(DEADLINE) == 128 + signal.SIGINT
    assert redacting.stderr.read().splitlines()[-1] == b"Interrupted."
    done = len(redacted())
    assert 0 < done < 300
    assert AuditEntry.objects.filter(action="redact").count() == done
    status, lines = run_json("chatmemory_redact", "--all", "--yes=300", find_file=file, **WHO)
    assert (status, lines[-1]["done"]) == (0, 300 - done)
    assert KEY not in everything()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_closed_pipe_ends_it_without_an_error(redacting):
    redacting.stdout.close()
    assert redacting.wait(DEADLINE) == 128 + signal.SIGPIPE
    assert redacting.stderr.read() == b""
    assert AuditEntry.objects.filter(action="redact").count() == len(redacted()) < 300
