"""`chatmemory_action`: each action, its preview, its refusals, and its bounds."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.management.commands.chatmemory_action import PARAMS
from chatmemory.models import AuditEntry, Message, Session, SessionTag, Turn
from chatmemory.services import SERVER
from chatmemory.services.jobs.actions import ACTIONS
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.management.commanding import WHO, run, run_json
from tests.servers import DEADLINE
from tests.services.jobs.ordering import make_talks

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
OPTIONS = {"trim": ["--keep-last=2"], "tag": ["--tag=spam"], "untag": ["--tag=spam"]}


def prepare(action):
    """Store a session that this action changes."""
    (talk,) = make_talks(1)
    at = {"session_key": talk.key, "scope": SERVER, "by": BY}
    match action:
        case "restore":
            services.purge_session(**at, reason="")
        case "release":
            services.hold_session(**at, reason="")
        case "unarchive":
            services.archive_session(**at, reason="")
        case "untag":
            services.tag_session(**at, reason="", tag="spam")
        case "stop" | "end":
            services.admit_turn(**at, client_id="c1", content="and?", owner="dead")
    if action == "end":
        Turn.objects.update(lease_until=LONG_AGO)
    return talk


def stored():
    """Return all that an action may change."""
    tables = (Session, Message, Turn, SessionTag, AuditEntry)
    return [list(table._base_manager.order_by("pk").values()) for table in tables]


@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("action", ACTIONS)
def test_a_dry_run_changes_nothing_and_states_what_the_action_then_does(action):
    talk = prepare(action)
    before = stored()
    selected = ["--session", talk.pk, *OPTIONS.get(action, [])]
    planned = run_json("chatmemory_action", action, *selected, dry_run=True, **WHO)
    assert stored() == before
    status, (line, total) = run_json("chatmemory_action", action, *selected, **WHO)
    assert (status, line["outcome"], total["done"]) == (0, "done", 1)
    assert planned[0] == 0
    assert (planned[1][0]["outcome"], planned[1][0]["messages"]) == ("done", line["messages"])
    entry = AuditEntry.objects.get(pk=line["entry"])
    assert (entry.session_pk, entry.actor_kind, entry.actor_id) == (talk.pk, "command", "olga")
    assert (entry.reason, entry.actor_label) == ("request of 4 May", "olga, chatmemory_action")


@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("action", ["trim", "purge", "hold", "release", "tag", "archive"])
def test_a_repeated_run_changes_nothing_and_succeeds(action):
    talk = prepare(action)
    selected = [action, "--session", talk.pk, *OPTIONS.get(action, [])]
    assert run("chatmemory_action", *selected, **WHO)[0] == 0
    before = stored()
    status, (line, _) = run_json("chatmemory_action", *selected, **WHO)
    assert (status, line["entry"]) == (0, None)
    assert line["outcome"] in ("unchanged", "purged")
    assert stored() == before


@pytest.mark.django_db
def test_what_cannot_be_changed_is_named_and_the_rest_is_done():
    free, held = make_talks(2)
    services.hold_session(session_key=held.key, scope=SERVER, by=BY, reason="")
    arguments = ["purge", "--session", free.pk, held.pk]
    for dry_run in (True, False):
        status, text = run("chatmemory_action", *arguments, **WHO, dry_run=dry_run)
        assert status == 1
        assert f"conversation {held.pk} (server, talk-1): " in text
        assert "purge: 1 conversation, 4 messages, 1 held" in text
    purged = Session.objects.filter(removed_at__isnull=False).values_list("pk", flat=True)
    assert list(purged) == [free.pk]


@pytest.mark.django_db
def test_a_dry_run_names_queued_messages_and_the_partial_reply():
    talk = prepare("stop")
    Turn.objects.update(partial="so f", started_at=LONG_AGO)
    at = {"session_key": talk.key, "scope": SERVER, "by": BY}
    services.admit_turn(**at, client_id="c2", content="and then?", owner="dead")
    _, text = run("chatmemory_action", "clear", "--session", talk.pk, dry_run=True, **WHO)
    assert "5 messages, cancel 1 waiting turn, end a reply of 4 characters" in text
    _, (line, _) = run_json("chatmemory_action", "clear", "--session", talk.pk, dry_run=True, **WHO)
    assert (line["waiting"], line["ends_run"], line["partial_chars"]) == (1, True, 4)


@pytest.mark.django_db
def test_sessions_are_selected_by_their_person():
    ann = make_user("ann")
    own = [make_session(key, owner=ann).pk for key in ("a", "b")]
    make_session("a")
    _, lines = run_json("chatmemory_action", "hold", owner="ann", all=True, **WHO)
    assert [line["session"] for line in lines[:-1]] == own
    _, lines = run_json("chatmemory_action", "release", scope=f"user:{ann.pk}", key="b", **WHO)
    assert [line["session"] for line in lines[:-1]] == own[1:]
    assert set(Session.objects.filter(held_at__isnull=False)) == {Session.objects.get(pk=own[0])}


@pytest.mark.django_db
def test_a_key_means_the_stored_session_before_purged_ones_and_the_last_of_these():
    purged = []
    for _ in range(2):
        purged.append(make_session().pk)
        services.purge_session(**TALK, reason="")
    arguments = {"scope": SERVER, "key": "talk", **WHO}
    _, (line, _) = run_json("chatmemory_action", "hold", **arguments)
    assert line["session"] == purged[1]
    new = make_session()
    _, (line, _) = run_json("chatmemory_action", "hold", **arguments)
    assert line["session"] == new.pk


@pytest.mark.database
@pytest.mark.django_db
def test_a_restore_of_an_entry_undoes_the_later_removals_too():
    (talk,) = make_talks(1, messages=8)
    trim = ["trim", "--session", talk.pk]
    _, (first, _) = run_json("chatmemory_action", *trim, "--keep-last=6", **WHO)
    run("chatmemory_action", *trim, "--keep-last=2", **WHO)
    _, (line, _) = run_json(
        "chatmemory_action", "restore", "--session", talk.pk, entry=first["entry"], **WHO
    )
    assert (line["outcome"], line["messages"]) == ("done", 6)


USAGE = [
    ["trim", "--session", "1"],
    ["trim", "--session", "1", "--keep-last=1", "--keep-turns=1"],
    ["trim", "--session", "1", "--keep-last=-1"],
    ["trim", "--session", "1", "--before=yesterday"],
    ["trim", "--session", "1", "--before=2026-05-04"],
    ["tag", "--session", "1"],
    ["tag", "--session", "1", "--tag="],
    ["hold", "--session", "1", "--tag=spam"],
    ["hold", "--session", "1", "--key=a"],
    ["hold", "--session", "1", "--all"],
    ["hold", "--scope=server"],
    ["hold", "--scope=server", "--all", "--key=a"],
    ["hold", "--scope=nonsense", "--all"],
    ["hold", "--session", "1", "--reason= "],
]


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", USAGE)
def test_wrong_options_have_their_own_status(arguments):
    make_session(pk=1)
    before = stored()
    assert run("chatmemory_action", "--by=olga", "--reason=test", *arguments)[0] == 2
    assert stored() == before


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", [["--session", "7", "1"], ["--scope=server", "--key=b"]])
def test_a_session_that_is_not_stored_is_refused_before_anything_is_changed(arguments):
    make_session(pk=1)
    before = stored()
    assert run("chatmemory_action", "hold", *arguments, **WHO) == (1, "")
    assert stored() == before


@pytest.mark.django_db
def test_each_option_belongs_to_an_action():
    assert PARAMS.keys() <= ACTIONS.keys()
    for action in ACTIONS.keys() - PARAMS.keys():
        ACTIONS[action].check({})


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("action", ACTIONS)
def test_a_dry_run_on_a_hundred_sessions_needs_few_statements(action):
    numbers = []
    for count in (2, 98):
        make_talks_more(count)
        with CaptureQueriesContext(connection) as captured:
            _, lines = run_json(
                "chatmemory_action",
                action,
                *OPTIONS.get(action, []),
                scope=SERVER,
                all=True,
                dry_run=True,
                **WHO,
            )
        numbers.append(len(captured))
    assert len(lines) == 101
    assert numbers[1] <= max(numbers[0], 12)


def make_talks_more(count):
    first = Session.objects.count()
    Session.objects.bulk_create(
        Session(scope=SERVER, key=f"talk-{first + number}") for number in range(count)
    )
    for session in Session.objects.filter(last_seq=0):
        at = {"session_key": session.key, "scope": SERVER, "by": BY}
        services.append_messages(**at, messages=make_messages("a", "b"))


@pytest.mark.django_db
def test_the_progress_is_shown_if_wanted():
    make_talks(2)
    err = StringIO()
    arguments = {"scope": SERVER, "all": True, **WHO, "stdout": StringIO(), "stderr": err}
    call_command("chatmemory_action", "hold", **arguments)
    assert err.getvalue() == ""
    call_command("chatmemory_action", "release", **arguments, progress=True)
    assert err.getvalue().splitlines() == ["  0%  0 of 2", "100%  2 of 2"]


@pytest.fixture
def acting(live_database_env):
    """Yield a process that prints more than the buffer of a pipe."""
    Session.objects.bulk_create(Session(scope=SERVER, key=f"{n}-{'x' * 180}") for n in range(1_000))
    options = ["--scope=server", "--all", "--by=test", "--reason=test", "--tag=spam"]
    with subprocess.Popen(  # noqa: S603  # our own command line
        [sys.executable, "manage.py", "chatmemory_action", "tag", "--json", *options],
        env=live_database_env,
        cwd=settings.BASE_DIR,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_ctrl_c_ends_it_and_what_is_done_stays_done(acting):
    acting.send_signal(signal.SIGINT)
    assert acting.wait(DEADLINE) == 128 + signal.SIGINT
    assert acting.stderr.read().splitlines()[-1] == b"Interrupted."
    tagged = SessionTag.objects.count()
    assert 0 < tagged < 1_000
    assert AuditEntry.objects.filter(action="tag").count() == tagged


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_closed_pipe_ends_it_without_an_error(acting):
    acting.stdout.close()
    assert acting.wait(DEADLINE) == 128 + signal.SIGPIPE
    assert acting.stderr.read() == b""
