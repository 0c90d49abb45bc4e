"""The drain of a process: its turns end, its claims are released, its sockets close."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from chatmemory import services, signals
from chatmemory.conf import settings as chatmemory_settings
from chatmemory.database import pool
from chatmemory.live import drain as drain_module
from chatmemory.live.drain import Drain
from chatmemory.live.hub import RECONNECT_MS_PER_SOCKET, hub
from chatmemory.live.layer import RUNNERS
from chatmemory.live.runner import runner
from chatmemory.models import Message, Session, Turn
from chatmemory.services.turns import claims, progress
from tests import responders_for_tests
from tests.factories import make_session
from tests.servers import (
    DEADLINE,
    Tab,
    connected,
    live_process,
    person_with_talk,
    use_responder,
    wait_for,
)

pytestmark = pytest.mark.django_db(transaction=True)


ann = person_with_talk
live = live_process


@pytest.fixture(autouse=True)
def _slow_responder(live, settings, monkeypatch):
    use_responder(settings, "slow", DRAIN=0)
    monkeypatch.setattr(hub.sweep, "seconds", 0.2)


def begin(person, client_id="c1"):
    """Start a turn of this process, and wait until its reply has begun."""
    runner.enable()
    admitted = services.admit_turn(
        **person.talk, client_id=client_id, content="hi", owner=runner.owner
    )
    runner.launch(admitted.claim)
    assert responders_for_tests.BEGUN.wait(DEADLINE)


def drained(seconds=0.0):
    asyncio.run(runner.drain(seconds))


def turn(client_id="c1"):
    return Turn.objects.get(client_id=client_id)


def replies():
    found = Message.objects.filter(role="assistant").in_order()
    return list(found.values_list("text", "status"))


def test_a_turn_that_ends_in_time_is_complete(ann):
    begin(ann)
    threading.Timer(0.2, responders_for_tests.GO.set).start()
    drained(DEADLINE)
    assert replies() == [("So far, so good.", "complete")]


@pytest.mark.parametrize("name", ["slow", "stubborn", "blocking"])
def test_a_turn_that_does_not_end_in_time_is_interrupted_with_its_partial_text(
    ann, settings, monkeypatch, name
):
    use_responder(settings, name)
    begin(ann)
    wait_for(lambda: all(run.is_started for run in runner._runs.values()), "it does not start")
    drained()
    [(text, status)] = replies()
    assert (text[:8], status, turn().status) == ("So far, ", "interrupted", "interrupted")
    assert not runner._runs


def test_a_draining_process_leaves_waiting_turns_to_others_and_claims_none(ann):
    begin(ann)
    make_session("other", owner=ann.user)
    drained()
    other = services.admit_turn(**{**ann.talk, "session_key": "other"}, client_id="c2", content="x")
    runner.run_waiting(other.session_pk)
    runner.run(other.session_pk)
    assert (runner.owner, turn("c2").status) == ("", "waiting")
    claim = claims.claim_next(session_pk=other.session_pk, owner="another")
    assert claim.client_id == "c2"


def test_the_runners_of_other_processes_are_notified_of_the_turn_after_an_interrupted_one(
    ann, wire
):
    begin(ann)
    wait_for(lambda: wire.groups.get(RUNNERS), "the runner has not joined the group")
    session = Session.objects.get()
    Turn.objects.create(session=session, client_id="c2", status="waiting", epoch=session.epoch)
    Session.objects.update(waiting=1)
    assert (RUNNERS, "work") not in wire.sent
    drained()
    wait_for(lambda: (RUNNERS, "work") in wire.sent, "no runner was notified")


def test_an_unstarted_claim_is_released_immediately(ann):
    runner.enable()
    services.admit_turn(**ann.talk, client_id="c1", content="hi", owner=runner.owner)
    make_session("other", owner=ann.user)
    others = {**ann.talk, "session_key": "other"}
    services.admit_turn(**others, client_id="c2", content="hi", owner="another")
    drained()
    assert [turn("c1").status, turn("c2").status] == ["waiting", "running"]
    claim = claims.claim_next(session_pk=turn().session_id, owner="another")
    assert progress.start_turn(claim=claim)


def test_a_claim_that_is_launched_during_the_drain_is_released(ann):
    runner.enable()
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner=runner.owner)
    drained()
    Turn.objects.update(status="running", lease_owner=runner.name, fence=admitted.claim.fence)
    runner.launch(admitted.claim)
    wait_for(lambda: turn().status == "waiting", "the claim is not released")
    assert responders_for_tests.SEEN == []


@pytest.mark.parametrize("runs", [0, 1])
def test_a_database_that_does_not_answer_does_not_prevent_the_end_of_the_process(
    ann, monkeypatch, runs
):
    monkeypatch.setattr(runner, "release_seconds", 0.1)
    monkeypatch.setattr(runner, "end_seconds", 0.1)
    if runs:
        begin(ann)
    answers = threading.Event()
    for _ in range(chatmemory_settings.DB_THREADS):
        pool.threads().executor.submit(answers.wait)
    process = threading.Thread(target=drained, daemon=True)
    process.start()
    process.join(DEADLINE)
    has_ended = not process.is_alive()
    answers.set()
    assert has_ended


def test_the_drain_waits_for_receivers_of_signals(ann, settings):
    received = []

    def note(signal, sender, client_id, **_):
        threading.Event().wait(0.2)
        received.append(client_id)

    signals.turn_finished.connect(note)
    try:
        begin(ann)
        asyncio.run(drain_module._drain())
        assert received == ["c1"]
    finally:
        signals.turn_finished.disconnect(note)


async def test_open_and_new_sockets_are_asked_to_reconnect_later(ann):
    async with connected(tab := Tab(ann)):
        hub.close_for_restart("shutting_down")
        bye, code = await tab.closed()
        assert (code, bye["reason"], bye["reconnect"]) == (4503, "shutting_down", True)
        assert 0 <= bye["after_ms"] < RECONNECT_MS_PER_SOCKET
    async with Tab(ann) as late:
        await late.send_frame("hello", v=1)
        assert (await late.closed())[1] == 4503
    assert hub.has_no_sockets


@contextmanager
def handled(handler):
    """Handle SIGUSR1, which no test needs otherwise, by this function."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_old_handler_is_called_when_all_has_ended(ann):
    states, is_handled = [], threading.Event()

    def old(signum, frame):
        states.append((signum, turn().status, threading.current_thread()))
        is_handled.set()

    begin(ann)
    with handled(old):
        Drain(SimpleQueue().put).watch(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert is_handled.wait(DEADLINE)
    assert states == [(signal.SIGUSR1, "interrupted", threading.main_thread())]


def test_the_second_signal_calls_the_old_handler_immediately(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DRAIN": 60}
    states_at_signal = []
    begin(ann)
    with handled(lambda *_: states_at_signal.append(turn().status)):
        before = set(threading.enumerate())
        Drain(SimpleQueue().put).watch(signal.SIGUSR1)
        begun = set(threading.enumerate()) - before
        signal.raise_signal(signal.SIGUSR1)
        assert states_at_signal == []
        signal.raise_signal(signal.SIGUSR1)
        assert states_at_signal == ["running"]
        responders_for_tests.GO.set()
        wait_for(lambda: not set(threading.enumerate()) & begun, "the drain does not end")
    assert states_at_signal == ["running"]


@pytest.mark.slow
def test_a_process_exits_although_its_drain_fails(monkeypatch, settings, caplog):
    is_handled, exits = threading.Event(), SimpleQueue()
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DRAIN": 0}

    async def fail():
        raise RuntimeError(canary)

    canary = "sk-canary"
    monkeypatch.setattr(drain_module, "_drain", fail)
    with handled(lambda *_: is_handled.set()):
        Drain(exits.put, exit_seconds=0).watch(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert is_handled.wait(DEADLINE)
        assert exits.get(timeout=DEADLINE) == 128 + signal.SIGUSR1
    assert "the drain failed; the process exits without it: builtins.RuntimeError" in caplog.text
    assert canary not in caplog.text


@pytest.mark.regression
@pytest.mark.parametrize("is_signaled", [False, True])
def test_the_end_of_the_lifespan_drains_unless_a_signal_did(ann, caplog, is_signaled):
    caplog.set_level(logging.INFO)
    is_handled, sent, process = threading.Event(), [], Drain(SimpleQueue().put)

    async def receive():
        return {}

    async def send(event):
        sent.append(event["type"].removeprefix("lifespan."))

    with handled(lambda *_: is_handled.set()):
        if is_signaled:
            process.watch(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            assert is_handled.wait(DEADLINE)
        asyncio.run(process.lifespan({}, receive, send))
    assert sent == ["startup.complete", "shutdown.complete"]
    assert caplog.text.count("shutting down: ") == 1


def test_a_handler_that_cannot_be_chained_is_unchanged():
    with handled(signal.SIG_IGN):
        Drain(SimpleQueue().put).watch(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    with handled(print):
        thread = threading.Thread(target=Drain().watch, args=(signal.SIGUSR1,))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGUSR1) is print
