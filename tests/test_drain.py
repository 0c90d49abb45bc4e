"""The end of a process in order: turns end, claims go back, sockets are sent away."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from chatmemory import drain as drain_module
from chatmemory import runner as runner_module
from chatmemory import services, signals
from chatmemory.conf import settings as chatmemory_settings
from chatmemory.drain import Drain
from chatmemory.hub import hub
from chatmemory.layer import RUNNERS
from chatmemory.models import Message, Session, Turn
from chatmemory.runner import runner
from chatmemory.services import pool
from tests import responders_for_tests
from tests.factories import make_session
from tests.servers import DEADLINE, Tab, greeted, own_threads, sign_in, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

HERE = "tests.responders_for_tests"


@pytest.fixture(autouse=True)
def _live(transactional_db, settings, monkeypatch):
    settings.CHATMEMORY = {"RESPONDER": f"{HERE}.slow", "SENDS_PER_MINUTE": None, "DRAIN": 0}
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 0.2)
    with own_threads():
        yield


@pytest.fixture
def ann(transactional_db):
    person = sign_in()
    make_session(owner=person.user)
    return person


def begin(person, client_id="c1"):
    """Send something that this process answers in the middle of a sentence."""
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
def test_a_turn_that_does_not_is_interrupted_with_what_was_said(ann, settings, monkeypatch, name):
    monkeypatch.setattr(responders_for_tests, "BLOCK_SECONDS", 0.5)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{HERE}.{name}"}
    begin(ann)
    wait_for(lambda: all(run.is_started for run in runner._runs.values()), "it does not start")
    drained()
    [(text, status)] = replies()
    assert (text[:8], status, turn().status) == ("So far, ", "interrupted", "interrupted")
    assert not runner._runs


def test_what_waits_is_left_to_others_and_nothing_more_is_claimed(ann):
    begin(ann)
    make_session("other", owner=ann.user)
    drained()
    other = services.admit_turn(**{**ann.talk, "session_key": "other"}, client_id="c2", content="x")
    runner.consider(other.session_pk)
    runner.run(other.session_pk)
    assert (runner.owner, turn("c2").status) == ("", "waiting")
    claim = services.claim_next(session_pk=other.session_pk, owner="another")
    assert claim.client_id == "c2"


def test_what_waits_behind_an_interrupted_turn_is_told_to_the_runners_of_other_processes(ann, wire):
    begin(ann)
    wait_for(lambda: wire.groups.get(RUNNERS), "the runner does not listen")
    session = Session.objects.get()
    Turn.objects.create(session=session, client_id="c2", status="waiting", epoch=session.epoch)
    Session.objects.update(waiting=1)
    assert (RUNNERS, "work") not in wire.sent
    drained()
    wait_for(lambda: (RUNNERS, "work") in wire.sent, "nobody was told")


def test_a_claim_that_is_not_begun_is_given_back_at_once(ann):
    runner.enable()
    services.admit_turn(**ann.talk, client_id="c1", content="hi", owner=runner.owner)
    make_session("other", owner=ann.user)
    others = {**ann.talk, "session_key": "other"}
    services.admit_turn(**others, client_id="c2", content="hi", owner="another")
    drained()
    assert [turn("c1").status, turn("c2").status] == ["waiting", "running"]
    claim = services.claim_next(session_pk=turn().session_id, owner="another")
    assert services.start_turn(claim=claim)


def test_a_claim_that_comes_to_be_run_while_the_process_ends_is_given_back(ann):
    runner.enable()
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner=runner.owner)
    drained()
    Turn.objects.update(status="running", lease_owner=runner.name, fence=admitted.claim.fence)
    runner.launch(admitted.claim)
    wait_for(lambda: turn().status == "waiting", "it is kept")
    assert responders_for_tests.SEEN == []


@pytest.mark.parametrize("runs", [0, 1])
def test_a_database_that_does_not_answer_keeps_no_process_from_its_end(ann, monkeypatch, runs):
    monkeypatch.setattr(runner_module, "GIVE_BACK_SECONDS", 0.1)
    monkeypatch.setattr(runner_module, "END_SECONDS", 0.1)
    if runs:
        begin(ann)
    answers = threading.Event()
    threads = chatmemory_settings.DB_THREADS
    for _ in range(threads):
        pool._executor(threads).submit(answers.wait)
    process = threading.Thread(target=drained, daemon=True)
    process.start()
    process.join(DEADLINE)
    has_ended = not process.is_alive()
    answers.set()
    assert has_ended


def test_the_end_waits_for_who_is_told_of_it(ann, settings):
    told = []

    def note(signal, sender, client_id, **_):
        threading.Event().wait(0.2)
        told.append(client_id)

    signals.turn_finished.connect(note)
    try:
        begin(ann)
        asyncio.run(drain_module._drain())
        assert told == ["c1"]
    finally:
        signals.turn_finished.disconnect(note)


async def test_sockets_are_told_to_come_back_and_so_is_who_comes_late(ann):
    async with greeted(tab := Tab(ann)):
        hub.retire("shutting_down")
        bye, code = await tab.closed()
        assert (code, bye["reason"], bye["reconnect"]) == (4503, "shutting_down", True)
        assert 0 <= bye["after_ms"] < 1_000
    async with Tab(ann) as late:
        await late.say("hello", v=1)
        assert (await late.closed())[1] == 4503
    assert hub.is_empty


@contextmanager
def handled(by):
    """SIGUSR1, which tests may use, has this handler."""
    before = signal.signal(signal.SIGUSR1, by)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_old_handler_is_called_when_all_has_ended(ann):
    states, over = [], threading.Event()

    def old(signum, frame):
        states.append((signum, turn().status, threading.current_thread()))
        over.set()

    begin(ann)
    with handled(old):
        Drain(SimpleQueue().put).watch(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert over.wait(DEADLINE)
    assert states == [(signal.SIGUSR1, "interrupted", threading.main_thread())]


def test_the_second_signal_ends_at_once(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DRAIN": 60}
    heard = []
    begin(ann)
    with handled(lambda *_: heard.append(turn().status)):
        before = set(threading.enumerate())
        Drain(SimpleQueue().put).watch(signal.SIGUSR1)
        begun = set(threading.enumerate()) - before
        signal.raise_signal(signal.SIGUSR1)
        assert heard == []
        signal.raise_signal(signal.SIGUSR1)
        assert heard == ["running"]
        responders_for_tests.GO.set()
        wait_for(lambda: not set(threading.enumerate()) & begun, "the drain does not end")
    assert heard == ["running"]


def test_a_process_exits_although_its_drain_fails(monkeypatch, settings, caplog):
    over, exits = threading.Event(), SimpleQueue()
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DRAIN": 0}

    async def fail():
        raise RuntimeError

    monkeypatch.setattr(drain_module, "_drain", fail)
    monkeypatch.setattr(drain_module, "EXIT_SECONDS", 0)
    with handled(lambda *_: over.set()):
        Drain(exits.put).watch(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert over.wait(DEADLINE)
        assert exits.get(timeout=DEADLINE) == 128 + signal.SIGUSR1
    assert "the drain failed" in caplog.text


def test_what_can_not_be_chained_is_left_alone():
    with handled(signal.SIG_IGN):
        Drain(SimpleQueue().put).watch(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    with handled(print):
        thread = threading.Thread(target=Drain().watch, args=(signal.SIGUSR1,))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGUSR1) is print
