"""A turn that can start is claimed by one process after another, and announced by few events."""

from __future__ import annotations

from collections import Counter

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.live import hub as hub_module
from chatmemory.live import peers as peers_module
from chatmemory.live.hub import Hub
from chatmemory.live.layer import RUNNERS, group_of
from chatmemory.live.peers import Peers
from chatmemory.live.runner import runner
from chatmemory.live.texts import SessionRef
from chatmemory.services.turns.claims import claim_next
from tests.factories import TALK, make_session
from tests.layers import FakeRunner, FakeSocket
from tests.servers import live_process, wait_for

REF = SessionRef(7, 11)
LATER = 3_600
STATEMENTS = 10
live = live_process


@pytest.fixture
def processes(wire):
    """The hubs of six processes: one that runs no turns, and five that do."""
    found = [Hub() for _ in range(6)]
    for each in found[1:]:
        each.listener = FakeRunner()
        each.serve()
    wait_for(lambda: len(wire.groups.get(RUNNERS, ())) == 5, "a runner has not joined")
    yield found
    for each in found:
        each.shut_down()


def acquaint(processes, wire):
    """Let each process start a turn that waited, so that the others know it."""
    for each in processes[1:]:
        each.announce_run(SessionRef(999, 1), was_waiting=True)
    wait_for(lambda: all(len(p._peers._seen_at) == 4 for p in processes[1:]), "not all are known")


def claimers(processes, session_pk=7):
    return [p for p in processes[1:] if ("work", session_pk) in p.listener.calls]


def test_one_process_claims_a_turn_and_the_others_wait_until_it_is_started(
    processes, wire, monkeypatch
):
    monkeypatch.setattr(hub_module, "CLAIM_STEP_SECONDS", LATER)
    acquaint(processes, wire)
    processes[0].notify_runners(7)
    wait_for(lambda: sum(7 in p._delayed for p in processes) == 4, "not all others wait")
    wait_for(lambda: claimers(processes), "no process claims it")
    [first] = claimers(processes)
    delayed = [p._delayed[7] for p in processes if p._delayed]
    first.announce_run(REF, was_waiting=True)
    wait_for(lambda: not any(p._delayed for p in processes), "a process still waits")
    assert claimers(processes) == [first]
    assert all(each.cancelled() for each in delayed)


def test_sessions_are_shared_among_the_processes():
    """By different numbers, whatever the names."""
    names = [f"specific.{n:032x}" for n in range(5)]
    peers = Peers()
    for name in names:
        peers.add(name)
    first = Counter(
        name for session_pk in range(500) for name in names if not peers.rank(name, session_pk)
    )
    assert first.total() == 500
    assert min(first.values()) > 50
    assert len({peers.rank(name, 7) for name in names}) == 5


def test_a_process_that_starts_no_more_turns_is_forgotten(monkeypatch):
    peers = Peers()
    peers.add("dead")
    session_pk = next(n for n in range(100) if peers.rank("me", n))
    monkeypatch.setattr(peers_module, "PEER_SECONDS", -1)
    assert peers.rank("me", session_pk) == 0


def test_the_others_claim_a_turn_that_the_first_process_does_not_start(
    processes, wire, monkeypatch
):
    monkeypatch.setattr(hub_module, "CLAIM_STEP_SECONDS", 0.01)
    acquaint(processes, wire)
    processes[0].notify_runners(7)
    wait_for(lambda: len(claimers(processes)) == 5, "a process does not claim it")


def test_the_process_of_the_sender_claims_before_all_others(processes, wire, monkeypatch):
    monkeypatch.setattr(hub_module, "CLAIM_STEP_SECONDS", LATER)
    processes[0].notify_runners(7, is_first=False)
    wait_for(lambda: sum(7 in p._delayed for p in processes) == 5, "a process does not wait")
    assert claimers(processes) == []


def test_a_notification_of_work_reaches_the_sockets_of_other_processes(processes, wire):
    processes[1].join(REF, socket := FakeSocket())
    wait_for(lambda: socket.notifications, "not joined")
    socket.notifications = 0
    processes[0].notify_runners(7)
    wait_for(lambda: socket.notifications, "no notification")
    assert (group_of(7), "news") not in wire.sent


def test_a_text_is_published_only_to_a_process_that_requested_it(processes, wire):
    here, there = processes[1:3]
    here.join(REF, socket := FakeSocket())
    text = here.begin_text(REF, "c1", 0)
    text.pieces.append("So far")
    here.publish(REF)
    wait_for(lambda: socket.text_notifications, "not shown here")
    here.announce_run(REF, was_waiting=True)
    wait_for(lambda: (RUNNERS, "begun") in wire.sent, "not announced")
    assert "text" not in {kind for _, kind in wire.sent}
    here.leave(REF.session_pk, socket)
    there.join(REF, FakeSocket())
    wait_for(lambda: there.text_of(REF), "the text is not sent")
    wait_for(lambda: not here._texts.is_scheduled(REF), "a tick is due")
    text.pieces.append(" and on")
    here.publish(REF)
    wait_for(lambda: there.text_of(REF).text == "So far and on", "no more text arrives")
    here.end_text(REF, "c1")
    here.begin_text(REF, "c2", 0)
    assert not here._texts.is_requested(REF)


@pytest.mark.django_db(transaction=True)
def test_a_waiting_turn_takes_three_events(live, wire):
    """Its admission, its start and its end, if no other process shows the session."""
    session = make_session()
    runner.enable()
    wait_for(lambda: wire.groups.get(RUNNERS), "the runner has not joined the group")
    services.admit_turn(**TALK, client_id="c1", content="a b c")
    wait_for(lambda: (group_of(session.pk), "news") in wire.sent, "the end is not announced")
    assert wire.sent == [(RUNNERS, "work"), (RUNNERS, "begun"), (group_of(session.pk), "news")]


@pytest.mark.django_db(transaction=True)
def test_a_turn_behind_another_one_is_no_work_for_other_processes(live, wire):
    session = make_session()
    services.admit_turn(**TALK, client_id="c1", content="a", owner="elsewhere")
    # Else one notification is for both.
    wait_for(lambda: len(wire.sent) == 1, "the turn is not announced")
    services.admit_turn(**TALK, client_id="c2", content="b")
    wait_for(lambda: len(wire.sent) == 2, "the second turn is not announced")
    assert wire.sent == [(group_of(session.pk), "news")] * 2


@pytest.mark.django_db(transaction=True)
def test_a_waiting_turn_takes_a_fixed_number_of_statements(postgresql):
    """A later claim is one statement, without a lock."""
    session = make_session()
    services.admit_turn(**TALK, client_id="c1", content="a b c")
    with CaptureQueriesContext(connection) as first:
        claim = claim_next(session_pk=session.pk, owner="me")
    assert claim is not None
    with CaptureQueriesContext(connection) as later:
        assert claim_next(session_pk=session.pk, owner="other") is None
    assert (len(first), len(later)) == (STATEMENTS, 1)
    assert "FOR NO KEY UPDATE" not in later.captured_queries[0]["sql"]
