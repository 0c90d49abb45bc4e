"""The system prompt of a turn: the session's own, else that of the settings, read at each turn."""

from __future__ import annotations

import logging
import threading

import pytest
from django.db import connections

from chatmemory import services
from chatmemory.live.runner import runner
from chatmemory.models import Message, Session, Turn
from tests import instructions_for_tests, responders_for_tests
from tests.servers import DEADLINE, live_process, person_with_talk, use_responder, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


@pytest.fixture
def ask(live, ann, settings):
    """Send a message with these settings; return the messages that the responder received."""

    def send(client_id="c1", status="complete", **more):
        use_responder(settings, "echo", **more)
        runner.enable()
        at = {**ann.talk, "client_id": client_id, "content": "hi"}
        runner.launch(services.admit_turn(**at, owner=runner.owner).claim)
        turns = Turn.objects.filter(client_id=client_id, ended_at__isnull=False)
        wait_for(turns.exists, "the turn does not end")
        assert turns.get().status == status
        return responders_for_tests.SEEN[-1] if responders_for_tests.SEEN else []

    return send


def function(name):
    return f"tests.instructions_for_tests.{name}"


def prompt(text):
    return {"role": "system", "content": text}


def question(text):
    return {"role": "user", "content": text}


def test_a_setting_is_the_prompt_of_all_sessions_and_is_not_stored(ask):
    assert ask(INSTRUCTIONS="Be short.") == [prompt("Be short."), question("hi")]
    assert ask("c2", INSTRUCTIONS="Be long.")[0] == prompt("Be long.")
    assert not Message.objects.filter(role="system").exists()
    assert Session.objects.get().instructions == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("owners_name", "Greet {user}, after 1 message."),
        ("of_metadata", "You serve the group gold."),
        ("nothing", "Be short."),
    ],
)
def test_a_function_selects_the_prompt_of_each_session(ask, ann, name, text):
    Session.objects.update(metadata={"group": "gold"})
    given = ask(INSTRUCTIONS_FOR=function(name), INSTRUCTIONS="Be short.")
    assert given == [prompt(text.format(user=ann.user)), question("hi")]


def test_the_instructions_of_a_session_take_precedence(ask):
    Session.objects.update(instructions="Be kind.")
    given = ask(INSTRUCTIONS_FOR=function("failing"), INSTRUCTIONS="Be short.")
    assert given == [prompt("Be kind."), question("hi")]


def test_the_prompt_is_arranged_with_the_other_messages(ask, ann):
    services.append_messages(**ann.talk, messages=[prompt("Say you.")])
    given = ask(INSTRUCTIONS="Be short.", WINDOW_JOIN=True)
    assert given == [prompt("Be short.\n\nSay you."), question("hi")]


@pytest.mark.parametrize(("name", "error"), [("failing", "LookupError"), ("a_list", "TypeError")])
def test_a_function_that_fails_ends_the_turn(ask, caplog, name, error):
    with caplog.at_level(logging.ERROR, "chatmemory"):
        assert ask(status="failed", INSTRUCTIONS_FOR=function(name)) == []
    assert Turn.objects.get().error == "instructions_failed"
    assert "turn c1 ends as instructions_failed" in caplog.text
    assert f"builtins.{error}" in caplog.text
    assert "secret word" not in caplog.text
    assert ask("c2", INSTRUCTIONS_FOR=None) == [question("hi")] * 2


@pytest.mark.parametrize("name", ["slow", "blocking"])
@pytest.mark.parametrize("ends_by", ["stop", "timeout"])
def test_a_slow_function_can_be_stopped_and_has_the_time_of_the_turn(ask, ann, name, ends_by):
    instructions_for_tests.BEGUN.clear()
    instructions_for_tests.GO.clear()
    seconds = 300 if ends_by == "stop" else 1
    status = {"stop": "interrupted", "timeout": "failed"}[ends_by]

    def stop():
        try:
            assert instructions_for_tests.BEGUN.wait(DEADLINE)
            services.stop_turn(**ann.talk, turn="c1")
        finally:
            connections.close_all()

    stopping = threading.Thread(target=stop)
    if ends_by == "stop":
        stopping.start()
    try:
        ask(status=status, INSTRUCTIONS_FOR=function(name), TURN_TIMEOUT=seconds)
    finally:
        instructions_for_tests.GO.set()
    if ends_by == "stop":
        stopping.join()
    assert not responders_for_tests.SEEN
    assert Turn.objects.get().error == {"stop": "", "timeout": "model_timeout"}[ends_by]


def test_staff_see_the_cause_of_a_failed_prompt(ask, ann):
    ann.user.is_staff = True
    ann.user.save()
    ask(status="failed", INSTRUCTIONS_FOR=function("failing"))
    assert "LookupError: secret word" in Message.objects.latest("seq").text
