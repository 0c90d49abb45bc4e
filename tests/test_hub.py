"""The hub: who is told of what, in this process and over the channel layer."""

from __future__ import annotations

import logging
import threading

import pytest

from chatmemory import layer as layer_module
from chatmemory.hub import Hub, Place
from chatmemory.layer import RUNNERS, group_of
from chatmemory.responders import Progress
from tests.layers import Boss, Ear, FakeLayer
from tests.servers import wait_for

EPOCH = 11
PLACE = Place(7, EPOCH)


@pytest.fixture
def hubs(wire):
    """Two hubs, as of two processes."""
    found = Hub(), Hub()
    yield found
    wire.is_frozen = False
    for hub in found:
        hub.shut_down()


def joined(hub, wire, session_pk=7):
    """A socket of a hub whose group has been joined."""
    ear = Ear()
    before = len(wire.groups.get(group_of(session_pk), ()))
    hub.join(Place(session_pk, EPOCH), ear)
    wait_for(lambda: len(wire.groups.get(group_of(session_pk), ())) > before, "not joined")
    wait_for(lambda: ear.pokes, "not poked after the join")
    ear.pokes = 0
    return ear


def runs(hub, wire, pieces=("So ", "far"), session_pk=7, turn="c1", step=0):
    """A run in a hub's process that has said something."""
    text = hub.begin_text(Place(session_pk, EPOCH), turn, step)
    wait_for(lambda: wire.groups.get(RUNNERS), "the runner does not listen")
    grow(hub, text, *pieces, session_pk=session_pk)
    return text


def grow(hub, text, *pieces, session_pk=7):
    for piece in pieces:
        text.pieces.append(piece)
        hub.grew(Place(session_pk, EPOCH))


def seen(hub, session_pk=7, epoch=EPOCH):
    text = hub.text_of(Place(session_pk, epoch))
    return (text.turn, text.step, text.text) if text else None


def test_news_reach_the_sockets_of_all_processes(hubs, wire):
    here, there = hubs
    ears = [joined(here, wire), joined(here, wire, 8), joined(there, wire)]
    here.poke(7)
    wait_for(lambda: ears[2].pokes == 1, "no news there")
    assert [ear.pokes for ear in ears] == [1, 0, 1]


def test_who_left_is_told_no_more_and_the_last_one_leaves_thegroup_of(hubs, wire):
    here, _ = hubs
    first, second = joined(here, wire), Ear()
    here.join(PLACE, second)
    here.leave(7, first)
    here.poke(7)
    assert (first.pokes, second.pokes) == (0, 1)
    assert wire.groups[group_of(7)]
    here.leave(7, second)
    wait_for(lambda: not wire.groups[group_of(7)], "the group is not left")
    assert not here._sockets


def test_a_socket_that_joins_while_the_last_one_leaves_is_not_lost(hubs, wire):
    here, _ = hubs
    ear = joined(here, wire)
    for _ in range(200):
        new = Ear()
        here.leave(7, ear)
        here.join(PLACE, new)
        ear = new
    here.poke(7)
    assert ear.pokes >= 1
    wait_for(lambda: wire.groups[group_of(7)], "the group was left")


@pytest.mark.slow
def test_a_joined_group_pokes_for_what_was_said_in_the_meantime(hubs, wire):
    here, _ = hubs
    wire.is_cut = True
    ear = Ear()
    here.join(PLACE, ear)
    threading.Event().wait(0.1)
    assert ear.pokes == 0
    wire.is_cut = False
    wait_for(lambda: ear.pokes, "no poke after the join")


def test_text_reaches_sockets_of_other_processes_in_order(hubs, wire):
    here, there = hubs
    ear = joined(there, wire)
    text = runs(here, wire)
    wait_for(lambda: seen(there) == ("c1", 0, "So far"), "no text there")
    grow(here, text, *[f" {n}" for n in range(100)])
    wait_for(lambda: seen(there) == ("c1", 0, text.text), "the text is not whole")
    assert ear.says


def test_progress_reaches_them_in_order_with_the_text(hubs, wire):
    here, there = hubs
    joined(there, wire)
    begun, ended = (Progress("tool", "weather", state) for state in ("started", "ended"))
    runs(here, wire, ("So ", "far", begun, ended, ", so "))
    said = ["So far", begun, ended, ", so "]
    wait_for(lambda: seen(there) and there.text_of(PLACE).pieces == said, "it is not there")
    grow(here, here.text_of(PLACE), begun)
    wait_for(lambda: there.text_of(PLACE).pieces == [*said, begun], "no more comes")
    assert seen(there) == ("c1", 0, "So far, so ")


def test_who_runs_a_turn_needs_no_socket_to_be_asked_for_the_whole_text(hubs, wire):
    here, there = hubs
    runs(here, wire)
    wait_for(lambda: (group_of(7), "text") in wire.sent, "the text is not told")
    assert not here._sockets
    joined(there, wire)
    wait_for(lambda: seen(there) == ("c1", 0, "So far"), "nobody asked, or nobody answered")


def test_a_lost_piece_is_asked_for(hubs, wire):
    here, there = hubs
    joined(there, wire)
    text = runs(here, wire)
    wait_for(lambda: seen(there), "no text there")
    wire.losses["text"] = 1
    grow(here, text, " is")
    wait_for(lambda: wire.losses["text"] == 0, "no piece was lost")
    grow(here, text, " good")
    wait_for(lambda: seen(there) == ("c1", 0, "So far is good"), "the hole stays")


def test_the_beginning_of_a_text_pokes(hubs, wire):
    here, there = hubs
    ear = joined(there, wire)
    runs(here, wire)
    wait_for(lambda: ear.pokes, "no poke")
    poked = ear.pokes
    runs(here, wire, turn="c2")
    wait_for(lambda: ear.pokes > poked, "no poke for the next turn")


def test_the_next_step_begins_anew(hubs, wire):
    here, there = hubs
    joined(there, wire)
    runs(here, wire)
    wait_for(lambda: seen(there), "no text there")
    runs(here, wire, ("Next",), step=1)
    wait_for(lambda: seen(there) == ("c1", 1, "Next"), "the next step does not come")


def test_an_ended_text_is_no_more(hubs, wire):
    here, _ = hubs
    runs(here, wire)
    here.end_text(PLACE, "another")
    assert seen(here)
    here.end_text(PLACE, "c1")
    assert seen(here) is None


@pytest.mark.regression
def test_a_text_belongs_to_one_epoch_of_a_primary_key(hubs, wire):
    here, there = hubs
    joined(there, wire)
    runs(here, wire, ("stale",))
    wait_for(lambda: seen(there), "no text there")
    restored = here.begin_text(Place(7, EPOCH + 1), "c1", 0)
    restored.pieces.append("new")
    here.grew(Place(7, EPOCH + 1))
    wait_for(lambda: seen(there, epoch=EPOCH + 1) == ("c1", 0, "new"), "the new text is missing")
    assert seen(here) == seen(there) == ("c1", 0, "stale")
    here.end_text(Place(7, EPOCH + 1), "c1")
    assert seen(here) == ("c1", 0, "stale")


def test_mirrors_of_all_epochs_go_with_the_last_socket(hubs, wire):
    here, there = hubs
    ear = joined(there, wire)
    runs(here, wire)
    wait_for(lambda: seen(there), "no text there")
    there.leave(7, ear)
    wait_for(lambda: not there._mirrors, "a mirror is kept")


def test_a_text_without_sockets_there_is_not_mirrored(hubs, wire):
    here, there = hubs
    joined(there, wire, 8)
    runs(here, wire)
    runs(here, wire, session_pk=8)
    wait_for(lambda: seen(there, 8), "no text there")
    assert seen(there, 7) is None


def test_runners_of_all_processes_hear_of_work_and_stops(hubs, wire):
    here, there = hubs
    there.listener = Boss()
    there.serve()
    wait_for(lambda: wire.groups.get(RUNNERS), "the runner does not listen")
    here.call_runners(7)
    here.call_stop(9)
    wait_for(lambda: len(there.listener.told) == 2, "nobody heard")
    assert set(there.listener.told) == {("work", 7), ("stop", 9)}


@pytest.mark.parametrize("fault", ["is_cut", "is_frozen"])
def test_a_layer_that_fails_holds_up_nobody_here_and_is_used_again(hubs, wire, fault, caplog):
    here, there = hubs
    ear, far = joined(here, wire), joined(there, wire)
    setattr(wire, fault, True)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            here.poke(7)
        assert ear.pokes == 5
        wait_for(lambda: "channel layer fails" in caplog.text, "nothing is logged")
        setattr(wire, fault, False)

        def heard() -> bool:
            here.poke(7)
            return bool(far.pokes)

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


def test_what_is_no_hint_is_passed_over(hubs, wire, caplog):
    here, there = hubs
    there.listener = Boss()
    ear = joined(there, wire)
    joined(here, wire)
    channels = len(wire.queues)
    for event in GARBAGE:
        for loop, queue in tuple(wire.queues.values()):
            loop.call_soon_threadsafe(queue.put_nowait, event)
    here.poke(7)
    wait_for(lambda: ear.pokes == 1, "what came behind it was not heard")
    assert "is no hint" in caplog.text
    assert there.is_live
    assert len(wire.queues) == channels


@pytest.mark.slow
def test_a_hub_whose_receiving_fails_stays_in_its_channel(hubs, wire):
    here, there = hubs
    ear = joined(there, wire)
    joined(here, wire)
    channels = len(wire.queues)
    wire.unreadable = 2
    here.poke(7)
    wait_for(lambda: not there.is_live, "it is not noticed")

    def heard() -> bool:
        here.poke(7)
        return bool(ear.pokes)

    wait_for(heard, "it hears no more")
    assert len(wire.queues) == channels


@pytest.mark.slow
def test_a_hint_that_fails_keeps_no_other_from_its_way(hubs, wire):
    here, there = hubs
    ears = [joined(there, wire, session_pk) for session_pk in (7, 8, 9)]
    joined(here, wire)
    wire.broken.add(group_of(7))
    for session_pk in (7, 8, 9):
        here.poke(session_pk)
    wait_for(lambda: ears[1].pokes and ears[2].pokes, "a hint was dropped")
    assert ears[0].pokes == 0
    wire.broken.clear()
    wait_for(lambda: ears[0].pokes, "it is not tried again")


@pytest.mark.slow
def test_a_layer_that_works_again_is_noticed_though_there_is_nothing_to_tell(hubs, wire):
    here, _ = hubs
    wire.broken.add(group_of(7))
    runs(here, wire)
    wait_for(lambda: not here.is_live, "it is not noticed")
    wire.broken.clear()
    wait_for(lambda: here.is_live, "it is not noticed")


def test_a_layer_that_fails_now_and_then_is_not_said_to_work_in_between(hubs, wire, monkeypatch):
    monkeypatch.setattr(layer_module, "RETRY_SECONDS", 600)
    here, _ = hubs
    ear = joined(here, wire)
    wire.broken.add(group_of(7))
    here.poke(7)
    wait_for(lambda: not here.is_live, "it is not noticed")
    says = ear.says
    wire.broken.clear()

    def has_told() -> bool:
        here.poke(8)
        return (group_of(8), "news") in wire.sent

    wait_for(has_told, "nothing is sent")
    assert (here.is_live, ear.says) == (False, says)


def test_layers_made_by_several_threads_at_once_do_not_cut_off_the_hub(monkeypatch):
    monkeypatch.setattr(layer_module, "get_channel_layer", FakeLayer)
    hub = Hub()
    hub.join(PLACE, ear := Ear())
    wait_for(lambda: ear.pokes, "the group can't be joined")
    hub.shut_down()


def test_without_a_shared_layer_nothing_is_kept_for_it():
    hub = Hub()
    hub.join(PLACE, Ear())
    hub.grew(PLACE)
    hub.poke(7)
    hub.shut_down()
    hub = Hub()
    for session_pk in range(50):
        hub.join(Place(session_pk, EPOCH), ear := Ear())
        hub.leave(session_pk, ear)
    wait_for(lambda: not hub._sockets, "a socket is kept")
    assert (hub._layer._outbox, hub._layer._texts) == ({}, [])
    hub.shut_down()


def test_hints_for_a_layer_that_is_gone_for_long_are_bounded(hubs, wire, monkeypatch):
    monkeypatch.setattr(layer_module, "MAX_HINTS", 10)
    wire.is_cut = True
    here, _ = hubs
    for session_pk in range(100):
        here.poke(session_pk)
    wait_for(lambda: (group_of(99), "news", 99) in here._layer._outbox, "not told")
    assert len(here._layer._outbox) == 10


def test_the_thread_ends_when_told(hubs, wire):
    here, there = hubs
    joined(here, wire)
    here.shut_down()
    there.shut_down()
    assert "chatmemory-hub" not in {thread.name for thread in threading.enumerate()}
    joined(here, wire)
