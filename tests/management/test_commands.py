"""The commands that run turns and recover the turns of dead processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command

from chatmemory import services
from chatmemory.models import Session, Turn
from chatmemory.services.turns import progress
from tests.factories import make_session
from tests.servers import DEADLINE, sign_in, wait_for

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def ann(db):
    person = sign_in()
    make_session(owner=person.user)
    return person


@pytest.fixture
def runner_process(live_database_env, tmp_path):
    """Return a function that starts `chatmemory_runner`, which the fixture kills at the end."""
    begun = []

    def start(**chatmemory):
        env = {
            **live_database_env,
            "DJANGO_SETTINGS_MODULE": "tests.server_settings",
            "REDIS_URL": "",
            "CHATMEMORY": json.dumps({"RESPONDER": "tests.speaker.answer", **chatmemory}),
        }
        process = subprocess.Popen(  # our own command line
            [sys.executable, "manage.py", "chatmemory_runner"],
            cwd=django_settings.BASE_DIR,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        assert process.stdout.readline().startswith("Running turns as ")
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_a_runner_process_drains_at_a_signal_and_ends_at_the_second(ann, runner_process):
    make_session("other", owner=ann.user)
    others = {**ann.talk, "session_key": "other"}
    services.admit_turn(**ann.talk, client_id="c1", content="good morning")
    services.admit_turn(**others, client_id="c2", content="count 300")
    process = runner_process(DRAIN=60)
    wait_for(lambda: Turn.objects.filter(client_id="c1", status="complete"), "it is not run")
    wait_for(
        lambda: Turn.objects.filter(client_id="c2").exclude(partial=""), "the turn has no text"
    )
    process.send_signal(signal.SIGTERM)
    services.admit_turn(**ann.talk, client_id="c3", content="good night")
    before = Turn.objects.get(client_id="c2").partial
    wait_for(
        lambda: Turn.objects.get(client_id="c2").partial != before, "the turn does not continue"
    )
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE) == 0
    assert Turn.objects.get(client_id="c3").status == "waiting"


def test_a_runner_needs_threads(settings):
    settings.CHATMEMORY = {"DB_THREADS": 0}
    with pytest.raises(CommandError, match="DB_THREADS"):
        call_command("chatmemory_runner")


def recovered():
    out = StringIO()
    call_command("chatmemory_recover", stdout=out)
    return out.getvalue().strip()


def abandoned_turn(person, key, *, has_begun):
    """Make a turn whose process has died."""
    make_session(key, owner=person.user)
    at = {**person.talk, "session_key": key}
    claim = services.admit_turn(**at, client_id=key, content="hi", owner="dead").claim
    if has_begun:
        progress.start_turn(claim=claim)


@pytest.mark.database
@pytest.mark.django_db
def test_the_turns_of_dead_processes_are_ended_and_counted(ann):
    assert recovered() == "0 turns interrupted, 0 returned to the queue, 0 cancelled"
    abandoned_turn(ann, "begun", has_begun=True)
    abandoned_turn(ann, "claimed", has_begun=False)
    assert recovered() == "0 turns interrupted, 0 returned to the queue, 0 cancelled"
    Turn.objects.update(lease_until=LONG_AGO)
    assert recovered() == "1 turn interrupted, 1 returned to the queue, 0 cancelled"
    statuses = dict(Turn.objects.values_list("client_id", "status"))
    assert statuses == {"begun": "interrupted", "claimed": "waiting"}


@pytest.mark.django_db(transaction=True)
def test_a_turn_that_cannot_be_ended_makes_the_command_fail(ann, settings, caplog):
    abandoned_turn(ann, "begun", has_begun=True)
    Turn.objects.update(lease_until=LONG_AGO)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_REPLY_CHARS": "many"}
    with pytest.raises(CommandError, match="turns of 1 conversation could not be ended"):
        recovered()
    assert "cannot be ended: builtins.TypeError" in caplog.text
    assert "not supported between" not in caplog.text


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("running", [None, "other"])
def test_a_running_turn_that_its_session_does_not_name_makes_the_command_fail(ann, caplog, running):
    abandoned_turn(ann, "begun", has_begun=True)
    abandoned_turn(ann, "sound", has_begun=True)
    Turn.objects.update(lease_until=LONG_AGO)
    Session.objects.filter(key="begun").update(running=running)
    with pytest.raises(CommandError, match="turns of 1 conversation could not be ended"):
        recovered()
    assert "chatmemory_check --fix" in caplog.text
    assert Turn.objects.get(client_id="sound").status == "interrupted"
    call_command("chatmemory_check", "--fix", stdout=StringIO())
    assert recovered() == "0 turns interrupted, 0 returned to the queue, 0 cancelled"
