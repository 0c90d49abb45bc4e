"""The hub: notifications and texts in this process and over the channel layer."""

from __future__ import annotations

import logging
import threading

import pytest
from django.db.models import F

from chatmemory import services
from chatmemory.live import layer as layer_module
from chatmemory.live import sweep as sweep_module
from chatmemory.live.hub import Hub
from chatmemory.live.layer import RUNNERS, Layer, group_of
from chatmemory.live.sockets import Sockets
from chatmemory.live.sweep import Sweep
from chatmemory.live.texts import SessionRef, Texts, pack
from chatmemory.models import Session
from chatmemory.responders import Progress
from tests.factories import TALK, make_session
from tests.layers import FakeLayer, FakeRunner, FakeSocket
from tests.servers import own_threads, wait_for

EPOCH = 11
REF = SessionRef(7, EPOCH)


@pytest.fixture
def hubs(wire):
    """Two hubs, as of two processes."""
    found = Hub(), Hub()
    yield found
    wire.is_frozen = False
    for hub in found:
        hub.shut_down()


def joined(hub, wire, session_pk=7):
    """Add a socket to a hub, and wait until the hub has joined its group."""
    socket = FakeSocket()
    before = len(wire.groups.get(group_of(session_pk), ()))
    hub.join(SessionRef(session_pk, EPOCH), socket)
    wait_for(lambda: len(wire.groups.get(group_of(session_pk), ())) > before, "not joined")
    wait_for(lambda: socket.notifications, "no notification after the join")
    socket.notifications = 0
    return socket


def runs(hub, wire, pieces=("So ", "far"), session_pk=7, turn="c1", step=0):
    """Start a run in a hub's process, with these pieces of text."""
    ref = SessionRef(session_pk, EPOCH)
    text = hub.begin_text(ref, turn, step)
    wait_for(lambda: wire.groups.get(RUNNERS), "the runner has not joined the group")
    if not step:
        hub.announce_run(ref, was_waiting=False)
    grow(hub, text, *pieces, session_pk=session_pk)
    return text


def grow(hub, text, *pieces, session_pk=7):
    for piece in pieces:
        text.pieces.append(piece)
        hub.publish(SessionRef(session_pk, EPOCH))


def seen(hub, session_pk=7, epoch=EPOCH):
    text = hub.text_of(SessionRef(session_pk, epoch))
    return (text.turn, text.step, text.text) if text else None


def packed(hub):
    """The pieces in a hub, whose text arrives joined or apart, as the ticks fall."""
    text = hub.text_of(REF)
    return text and pack(text.pieces)


@pytest.mark.parametrize(("count", "most"), [(100, 1_000), (1_000, 10_000), (7_000, 60_000)])
def test_clients_reconnect_later_the_more_they_are(hubs, count, most):
    hub, _ = hubs
    sockets = [FakeSocket() for _ in range(count)]
    for number, socket in enumerate(sockets):
        hub._sockets.add(number % 10, socket)
    hub.close_for_restart("shutting_down")
    pauses = [socket.after_ms for socket in sockets]
    assert 0 <= min(pauses) < most * 0.2
    assert most * 0.8 < max(pauses) < most
    halves = [sum(pause < most / 2 for pause in pauses), sum(pause >= most / 2 for pause in pauses)]
    assert min(halves) > count / 4
    late = FakeSocket()
    hub.join(REF, late)
    assert 0 <= late.after_ms < most


def test_a_notification_reaches_the_sockets_of_all_processes(hubs, wire):
    here, there = hubs
    sockets = [joined(here, wire), joined(here, wire, 8), joined(there, wire)]
    here.notify(7)
    wait_for(lambda: sockets[2].notifications == 1, "no notification there")
    assert [socket.notifications for socket in sockets] == [1, 0, 1]


def test_a_socket_that_left_gets_no_notifications_and_the_last_socket_leaves_the_group(hubs, wire):
    here, _ = hubs
    first, second = joined(here, wire), FakeSocket()
    here.join(REF, second)
    here.leave(7, first)
    here.notify(7)
    assert (first.notifications, second.notifications) == (0, 1)
    assert wire.groups[group_of(7)]
    here.leave(7, second)
    wait_for(lambda: not wire.groups[group_of(7)], "the group is not left")
    assert not here._sockets.session_pks()


async def test_a_session_that_is_joined_during_a_sweep_and_then_removed_is_noticed(monkeypatch):
    sockets, socket = Sockets(), FakeSocket()

    async def join_meanwhile(pks):
        if not pks:
            sockets.add(7, socket)
        return {}

    monkeypatch.setattr(sweep_module, "_aheads", join_meanwhile)
    sweep = Sweep(sockets, Texts(), *[lambda *_: None] * 3)
    await sweep._sweep_heads()
    socket.notifications = 0
    await sweep._sweep_heads()
    assert socket.notifications == 1


def test_a_socket_that_joins_while_the_last_one_leaves_is_not_lost(hubs, wire):
    here, _ = hubs
    socket = joined(here, wire)
    for _ in range(200):
        new = FakeSocket()
        here.leave(7, socket)
        here.join(REF, new)
        socket = new
    here.notify(7)
    assert socket.notifications >= 1
    wait_for(lambda: wire.groups[group_of(7)], "the group was left")


@pytest.mark.regression
def test_a_socket_that_joins_before_the_layer_has_left_the_group_gets_its_events(hubs, wire):
    here, there = hubs
    text = runs(here, wire)
    old, new = joined(there, wire), FakeSocket()
    wire.is_frozen = True
    there.leave(7, old)
    wait_for(lambda: not there._sockets.session_pks(), "the hub has not left the group")
    there.join(REF, new)
    wire.is_frozen = False
    wait_for(lambda: seen(there) == ("c1", 0, "So far"), "no text arrived")
    grow(here, text, " and on")
    wait_for(lambda: seen(there) == ("c1", 0, text.text), "no more text arrived")


@pytest.mark.slow
def test_joining_a_group_notifies_of_changes_made_in_the_meantime(hubs, wire):
    here, _ = hubs
    wire.is_cut = True
    socket = FakeSocket()
    here.join(REF, socket)
    threading.Event().wait(0.1)
    assert socket.notifications == 0
    wire.is_cut = False
    wait_for(lambda: socket.notifications, "no notification after the join")


def test_text_reaches_sockets_of_other_processes_in_order(hubs, wire):
    here, there = hubs
    socket = joined(there, wire)
    text = runs(here, wire)
    wait_for(lambda: seen(there) == ("c1", 0, "So far"), "no text there")
    grow(here, text, *[f" {n}" for n in range(100)])
    wait_for(lambda: seen(there) == ("c1", 0, text.text), "the text is incomplete")
    assert socket.text_notifications


def test_progress_reaches_other_processes_in_order_with_the_text(hubs, wire):
    here, there = hubs
    joined(there, wire)
    begun, ended = (Progress("tool", "weather", state) for state in ("started", "ended"))
    text = runs(here, wire, ("So ", "far", begun, ended, ", so "))
    wait_for(lambda: packed(there) == pack(text.pieces), "it is not there")
    grow(here, text, begun)
    wait_for(lambda: packed(there) == pack(text.pieces), "no more events arrive")
    assert seen(there) == ("c1", 0, "So far, so ")


def test_a_runner_without_sockets_answers_requests_for_the_whole_text(hubs, wire):
    here, there = hubs
    runs(here, wire)
    wait_for(lambda: (group_of(7), "begun") in wire.sent, "the run is not announced")
    assert not here._sockets.session_pks()
    joined(there, wire)
    wait_for(lambda: seen(there) == ("c1", 0, "So far"), "the text was not requested or not sent")


@pytest.mark.regression
def test_the_whole_text_is_requested_after_the_group_was_joined(hubs, wire):
    here, there = hubs
    sessions = range(1, 21)  # the order of calls for different groups is random
    for session_pk in sessions:
        runs(here, wire, session_pk=session_pk)
        wait_for(lambda pk=session_pk: (group_of(pk), "begun") in wire.sent, "not announced")
    for session_pk in sessions:
        joined(there, wire, session_pk)
    for session_pk in sessions:
        wait_for(lambda pk=session_pk: seen(there, pk) == ("c1", 0, "So far"), "no answer arrived")


def test_a_process_that_joins_the_runners_sends_its_texts(hubs, wire):
    """Its first piece is sent immediately, and requests that came before do not reach it."""
    here, there = hubs
    joined(there, wire)
    text = here._texts.begin(REF, "c1", 0)
    here.announce_run(REF, was_waiting=False)
    wait_for(lambda: (RUNNERS, "whole") in wire.sent[1:], "the text is not requested")
    grow(here, text, "So far")
    here._thread.call(here._layer.join, RUNNERS)
    wait_for(lambda: seen(there) == ("c1", 0, "So far"), "the text does not arrive")


def test_a_lost_piece_is_requested(hubs, wire):
    here, there = hubs
    joined(there, wire)
    text = runs(here, wire)
    wait_for(lambda: seen(there), "no text there")
    wire.losses["text"] = 1
    grow(here, text, " is")
    wait_for(lambda: wire.losses["text"] == 0, "no piece was lost")
    grow(here, text, " good")
    wait_for(lambda: seen(there) == ("c1", 0, "So far is good"), "the lost piece is still missing")


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["whole", "text"])
def test_the_sweep_requests_a_text_again_whose_request_or_answer_was_lost(hubs, wire, kind):
    here, there = hubs
    session = make_session()
    ref = SessionRef(session.pk, session.epoch)
    with own_threads():
        services.admit_turn(**TALK, client_id="c1", content="hi", owner="p1")
    here.begin_text(ref, "c1", 0).pieces.append("So far")
    wait_for(lambda: wire.groups.get(RUNNERS), "the runner has not joined the group")
    wire.losses[kind] = 1
    there.sweep.seconds = 0.1
    there.join(ref, socket := FakeSocket())
    wait_for(lambda: there.text_of(ref), "the text was not requested again")
    assert there.text_of(ref).text == "So far"
    assert wire.losses[kind] == 0
    sent = len(wire.sent)
    for _ in range(2):
        socket.notifications = 0
        Session.objects.filter(pk=session.pk).update(revision=F("revision") + 1)
        wait_for(lambda: socket.notifications, "no further sweep")
    assert (RUNNERS, "whole") not in wire.sent[sent:]


def test_the_start_of_a_text_sends_a_notification(hubs, wire):
    here, there = hubs
    socket = joined(there, wire)
    runs(here, wire)
    wait_for(lambda: socket.notifications, "no notification")
    count_before = socket.notifications
    runs(here, wire, turn="c2")
    wait_for(lambda: socket.notifications > count_before, "no notification for the next turn")


def test_the_next_step_starts_with_an_empty_text(hubs, wire):
    here, there = hubs
    joined(there, wire)
    runs(here, wire)
    wait_for(lambda: seen(there), "no text there")
    runs(here, wire, ("Next",), step=1)
    wait_for(lambda: seen(there) == ("c1", 1, "Next"), "the next step does not arrive")


def test_an_ended_text_is_removed(hubs, wire):
    here, _ = hubs
    runs(here, wire)
    here.end_text(REF, "another")
    assert seen(here)
    here.end_text(REF, "c1")
    assert seen(here) is None


@pytest.mark.regression
def test_a_text_belongs_to_one_epoch_of_a_primary_key(hubs, wire):
    here, there = hubs
    joined(there, wire)
    runs(here, wire, ("stale",))
    wait_for(lambda: seen(there), "no text there")
    restored = here.begin_text(SessionRef(7, EPOCH + 1), "c1", 0)
    here.announce_run(SessionRef(7, EPOCH + 1), was_waiting=False)
    restored.pieces.append("new")
    here.publish(SessionRef(7, EPOCH + 1))
    wait_for(lambda: seen(there, epoch=EPOCH + 1) == ("c1", 0, "new"), "the new text is missing")
    assert seen(here) == seen(there) == ("c1", 0, "stale")
    here.end_text(SessionRef(7, EPOCH + 1), "c1")
    assert seen(here) == ("c1", 0, "stale")


def test_the_mirrors_of_all_epochs_are_removed_with_the_last_socket(hubs, wire):
    here, there = hubs
    socket = joined(there, wire)
    runs(here, wire)
    wait_for(lambda: seen(there), "no text there")
    there.leave(7, socket)
    wait_for(lambda: not there._texts._mirrors, "a mirror was not removed")


def test_a_text_is_not_mirrored_in_a_process_without_sockets(hubs, wire):
    here, there = hubs
    joined(there, wire, 8)
    runs(here, wire)
    runs(here, wire, session_pk=8)
    wait_for(lambda: seen(there, 8), "no text there")
    assert seen(there, 7) is None


def test_the_runners_of_all_processes_are_notified_of_work_stops_and_jobs(hubs, wire):
    here, there = hubs
    there.listener = FakeRunner()
    there.serve()
    wait_for(lambda: wire.groups.get(RUNNERS), "the runner has not joined the group")
    here.notify_runners(7)
    here.notify_stop(9)
    here.notify_job(5)
    wait_for(lambda: len(there.listener.calls) == 3, "the runner was not notified")
    assert set(there.listener.calls) == {("work", 7), ("stop", 9), ("jobs", 0)}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["is_cut", "is_frozen"])
def test_a_failing_layer_delays_no_caller_and_is_used_again(hubs, wire, fault, caplog):
    here, there = hubs
    socket, far = joined(here, wire), joined(there, wire)
    setattr(wire, fault, True)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            here.notify(7)
        assert socket.notifications == 5
        wait_for(lambda: "channel layer fails" in caplog.text, "nothing is logged")
        setattr(wire, fault, False)

        def heard() -> bool:
            here.notify(7)
            return bool(far.notifications)

        wait_for(heard, "the layer is not used again")
        assert caplog.text.count("channel layer fails") == 1


GARBAGE = [
    None,
    7,
    {},
    {"type": 7},
    {"type": "chatmemory.news"},
    {"type": "chatmemory.news", "session": [7]},
    {"type": "chatmemory.work", "session": {}},
    {"type": "chatmemory.text", "session": 7},
    {"type": "chatmemory.text", "session": 7, "epoch": []},
    {
        "type": "chatmemory.text",
        "session": 7,
        "epoch": 11,
        "turn": "c",
        "step": 0,
        "from": 0,
        "to": "x",
    },
    {
        "type": "chatmemory.text",
        "session": 7,
        "epoch": 11,
        "turn": "c",
        "step": 0,
        "from": 0,
        "to": 1,
        "pieces": [["shout", "", ""], 5],
    },
    {"type": "chatmemory.stop", "turn": [[]]},
    {"type": "chatmemory.login", "login": 10**400},
]


def test_an_invalid_event_is_ignored(hubs, wire, caplog):
    here, there = hubs
    there.listener = FakeRunner()
    socket = joined(there, wire)
    joined(here, wire)
    channels = len(wire.queues)
    for event in GARBAGE:
        for loop, queue in tuple(wire.queues.values()):
            loop.call_soon_threadsafe(queue.put_nowait, event)
    here.notify(7)
    wait_for(lambda: socket.notifications == 1, "the next event was not received")
    assert "is invalid" in caplog.text
    assert there.is_layer_working
    assert len(wire.queues) == channels


@pytest.mark.slow
def test_a_hub_keeps_its_channel_after_an_error_of_receive(hubs, wire):
    here, there = hubs
    socket = joined(there, wire)
    joined(here, wire)
    channels = len(wire.queues)
    wire.unreadable = 2
    here.notify(7)
    wait_for(lambda: not there.is_layer_working, "the change is not detected")

    def heard() -> bool:
        here.notify(7)
        return bool(socket.notifications)

    wait_for(heard, "it receives nothing more")
    assert len(wire.queues) == channels


@pytest.mark.slow
def test_a_failed_notification_does_not_block_others(hubs, wire):
    here, there = hubs
    sockets = [joined(there, wire, session_pk) for session_pk in (7, 8, 9)]
    joined(here, wire)
    wire.broken.add(group_of(7))
    for session_pk in (7, 8, 9):
        here.notify(session_pk)
    wait_for(
        lambda: sockets[1].notifications and sockets[2].notifications, "a notification was dropped"
    )
    assert sockets[0].notifications == 0
    wire.broken.clear()
    wait_for(lambda: sockets[0].notifications, "it is not retried")


@pytest.mark.regression
def test_a_notification_that_is_being_sent_counts_as_unsent(hubs, wire):
    here, there = hubs
    socket = joined(there, wire)
    wire.stuck.add(group_of(7))
    here.notify(7)
    wait_for(lambda: (group_of(7), "news") in wire.attempts, "the notification is not sent")
    assert not here.is_everything_sent
    wire.stuck.clear()
    wait_for(lambda: here.is_everything_sent, "the notification remains")
    wait_for(lambda: socket.notifications, "the notification is lost")


def test_a_notification_that_is_repeated_while_it_is_sent_is_sent_again(hubs, wire):
    here, there = hubs
    joined(there, wire)
    joined(here, wire)
    wire.stuck.add(group_of(7))
    here.notify(7)
    wait_for(lambda: (group_of(7), "news") in wire.attempts, "the notification is not sent")
    event = here._layer._outbox[group_of(7), "news", 7]
    here.notify(7)
    wait_for(lambda: here._layer._outbox.get((group_of(7), "news", 7)) is not event, "not queued")
    wire.stuck.clear()
    wait_for(lambda: here.is_everything_sent, "the notification remains")
    assert wire.attempts.count((group_of(7), "news")) == 2


@pytest.mark.slow
def test_a_layer_that_works_again_is_noticed_without_new_notifications(hubs, wire):
    here, _ = hubs
    wire.broken.add(group_of(7))
    runs(here, wire)
    wait_for(lambda: not here.is_layer_working, "the change is not detected")
    wire.broken.clear()
    wait_for(lambda: here.is_layer_working, "the change is not detected")


def test_a_layer_that_fails_sometimes_is_not_reported_as_working_in_between(
    hubs, wire, monkeypatch
):
    monkeypatch.setattr(Layer, "retry_seconds", 600)
    here, _ = hubs
    socket = joined(here, wire)
    wire.broken.add(group_of(7))
    here.notify(7)
    wait_for(lambda: not here.is_layer_working, "the change is not detected")
    count_before = socket.text_notifications
    wire.broken.clear()

    def has_sent() -> bool:
        here.notify(8)
        return (group_of(8), "news") in wire.sent

    wait_for(has_sent, "nothing is sent")
    assert (here.is_layer_working, socket.text_notifications) == (False, count_before)


def test_layers_created_by_several_threads_simultaneously_do_not_disconnect_the_hub(monkeypatch):
    monkeypatch.setattr(layer_module, "get_channel_layer", FakeLayer)
    hub = Hub()
    hub.join(REF, socket := FakeSocket())
    wait_for(lambda: socket.notifications, "the group cannot be joined")
    hub.shut_down()


def test_without_a_shared_layer_no_events_are_queued():
    hub = Hub()
    hub.join(REF, FakeSocket())
    hub.publish(REF)
    hub.notify(7)
    hub.shut_down()
    hub = Hub()
    for session_pk in range(50):
        hub.join(SessionRef(session_pk, EPOCH), socket := FakeSocket())
        hub.leave(session_pk, socket)
    wait_for(lambda: not hub._sockets.session_pks(), "a socket was not removed")
    assert (hub._layer._outbox, hub._layer._texts) == ({}, [])
    hub.shut_down()


def test_the_number_of_notifications_for_an_unreachable_layer_is_bounded(hubs, wire, monkeypatch):
    monkeypatch.setattr(Layer, "max_notifications", 10)
    wire.is_cut = True
    here, _ = hubs
    for session_pk in range(100):
        here.notify(session_pk)
    wait_for(lambda: (group_of(99), "news", 99) in here._layer._outbox, "not queued")
    assert len(here._layer._outbox) == 10


@pytest.mark.slow
@pytest.mark.regression
def test_a_failed_group_is_skipped_until_a_probe_succeeds(hubs, wire):
    here, there = hubs
    lost, healthy = joined(there, wire, 7), joined(there, wire, 8)
    joined(here, wire, 9)
    wire.broken.add(group_of(7))
    here.notify(7)
    wait_for(lambda: group_of(7) in here._layer._unreachable, "the failure is not detected")
    for _ in range(20):
        count_before = healthy.notifications
        here.notify(8)
        wait_for(
            lambda before=count_before: healthy.notifications > before, "another group is delayed"
        )
    assert wire.attempts.count((group_of(7), "news")) == 1
    wire.broken.clear()
    wait_for(lambda: lost.notifications, "the notification is lost")
    wait_for(lambda: here.is_layer_working, "the recovery is not detected")


@pytest.mark.regression
def test_a_group_that_is_reachable_again_does_not_wait_for_others(hubs, wire, monkeypatch):
    monkeypatch.setattr(Layer, "retry_seconds", 0.05)
    here, there = hubs
    back = joined(there, wire, 8)
    joined(here, wire, 9)
    for session_pk in (7, 8):
        wire.broken.add(group_of(session_pk))
        here.notify(session_pk)
        group = group_of(session_pk)
        wait_for(lambda name=group: name in here._layer._unreachable, "no failure is detected")
    wire.broken.remove(group_of(8))
    wait_for(lambda: back.notifications, "only the first group is probed")


@pytest.mark.slow
@pytest.mark.regression
def test_a_layer_fails_as_long_as_one_group_does(hubs, wire, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Layer, "retry_seconds", 0.05)
    here, there = hubs
    healthy = joined(there, wire, 8)
    joined(here, wire, 9)
    wire.stuck.add(group_of(7))
    here.notify(7)
    wait_for(lambda: (group_of(7), "probe") in wire.attempts, "no group is probed")
    for _ in range(3):  # so that the first call has ended
        count_before = healthy.notifications
        here.notify(8)
        wait_for(
            lambda before=count_before: healthy.notifications > before, "another group is delayed"
        )
    assert "works again" not in caplog.text
    wire.stuck.clear()
    wait_for(lambda: here.is_layer_working, "the recovery is not detected")
    assert caplog.text.count("works again") == 1


def test_shut_down_ends_the_thread(hubs, wire):
    here, there = hubs
    joined(here, wire)
    here.shut_down()
    there.shut_down()
    assert "chatmemory-hub" not in {thread.name for thread in threading.enumerate()}
    joined(here, wire)


@pytest.mark.regression
def test_an_error_in_the_hubs_loop_is_logged_without_its_text(hubs, caplog):
    here, _ = hubs
    canary = "sk-canary"

    def fail():
        raise RuntimeError(canary)

    here.join(REF, FakeSocket())
    here._thread.call(fail)
    wait_for(lambda: "error in a background task" in caplog.text, "nothing is logged")
    assert "builtins.RuntimeError" in caplog.text
    assert canary not in caplog.text
