"""Streamed text: a few frames for many pieces, which are encoded once for all sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from asgiref.sync import sync_to_async as db

from chatmemory import protocol, services
from chatmemory.live import cursors
from chatmemory.live import hub as hub_module
from chatmemory.live.cursors import TextCursor
from chatmemory.live.hub import hub
from chatmemory.live.texts import LiveText, SessionRef
from chatmemory.models import Session
from chatmemory.responders import Progress
from tests.factories import make_session
from tests.servers import Tab, connected, eventually, live_process, sign_in

EVENT = Progress("tool", "weather", "started")
SHOWN = {"kind": "tool", "name": "weather", "state": "started"}

live = live_process


def grow(text, *pieces):
    """Release new pieces, as a tick does."""
    text.pieces += pieces
    text.publish()


def sent_by(cursor):
    """Return the new frames of a cursor: type, text and event."""
    sent = []
    while (frame := cursor.next_frame()) is not None:
        fields = json.loads(frame or "{}")
        sent.append((fields.get("type"), fields.get("text"), fields.get("event")))
    return sent


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """The types of all frames that are encoded."""
    kinds: list[str] = []
    dump = protocol.dump

    def counted(kind, /, **fields):
        kinds.append(kind)
        return dump(kind, **fields)

    monkeypatch.setattr(protocol, "dump", counted)
    return kinds


def test_text_and_events_keep_their_order():
    cursor = TextCursor()
    cursor.follow(text := LiveText("c1", 0))
    grow(text, "So ")
    assert sent_by(cursor) == [("snapshot", "So ", None)]
    grow(text, "far", EVENT, ", so", EVENT)
    assert sent_by(cursor) == [
        ("delta", "far", None),
        ("delta", None, SHOWN),
        ("delta", ", so", None),
        ("delta", None, SHOWN),
    ]


def test_a_snapshot_has_the_last_of_the_events_before_it():
    cursor, ended = TextCursor(), Progress("tool", "weather", "ended")
    cursor.follow(text := LiveText("c1", 0))
    grow(text, "So ", EVENT, "far", ended)
    assert sent_by(cursor) == [("snapshot", "So far", {**SHOWN, "state": "ended"})]


def test_text_is_sent_up_to_the_released_piece():
    cursor = TextCursor()
    cursor.follow(text := LiveText("c1", 0))
    text.pieces.append("So ")
    assert cursor.next_frame() is None
    grow(text, "far")
    text.pieces.append("later")
    assert sent_by(cursor) == [("snapshot", "So far", None)]


def test_sockets_at_the_same_position_share_the_frames(encoded):
    text = LiveText("c1", 0)
    watchers = [TextCursor() for _ in range(9)]
    late, slow = watchers[-2:]
    shown = dict.fromkeys(watchers, "")
    for number in range(20):
        grow(text, f"{number}a", EVENT, f"{number}b" * 20_000)
        for cursor in watchers:
            if (cursor is late and number < 10) or (cursor is slow and number % 7 != 5):
                continue
            cursor.follow(text)
            shown[cursor] += "".join(part or "" for _, part, _ in sent_by(cursor))
        if number == 0:
            # The snapshot ends at the limit of a frame. One delta has the rest.
            assert encoded == ["snapshot", "delta"]
        elif number == 4:
            # Then text, an event, and two frames for the long text, in each tick.
            assert encoded[2:] == ["delta"] * 16
    assert {shown[cursor] for cursor in watchers if cursor is not slow} == {text.text}
    assert text.text.startswith(shown[slow])
    assert len(shown[slow]) > 600_000


def test_the_frames_that_are_kept_are_bounded():
    text = LiveText("c1", 0)
    watchers = [TextCursor() for _ in range(100)]
    for number, cursor in enumerate(watchers):
        grow(text, str(number))
        cursor.follow(text)
        cursor.next_frame()
    grow(text, "end")
    assert [sent_by(cursor)[-1][1][-3:] for cursor in watchers] == ["end"] * 100
    assert 1 < len(text.frames) <= cursors.MAX_TEXT_FRAMES


# The tick


@pytest.fixture
def watched(live, settings) -> Iterator[tuple[object, LiveText]]:
    """A user with a turn that runs in this process without a responder, and its text."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 600}
    ann = sign_in()
    make_session(owner=ann.user)
    services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me")
    session = Session.objects.get()
    ref = SessionRef(session.pk, session.epoch)
    text = hub.begin_text(ref, "c1", 0)
    yield ann, text
    hub.end_text(ref, "c1")


def add(text, *pieces):
    """Add pieces as a run does."""
    session = Session.objects.get()
    for piece in pieces:
        text.pieces.append(piece)
        hub.publish(SessionRef(session.pk, session.epoch))


def tick():
    """Release new pieces now."""
    session = Session.objects.get()
    hub._thread.loop().call_soon_threadsafe(hub._tick, SessionRef(session.pk, session.epoch))


@pytest.mark.django_db(transaction=True)
async def test_the_first_piece_is_sent_immediately_and_the_rest_on_a_tick(
    watched, monkeypatch, encoded
):
    monkeypatch.setattr(hub_module, "TICK_SECONDS", 600)
    ann, text = watched
    tabs = [Tab(ann) for _ in range(4)]
    async with connected(*tabs):
        encoded.clear()
        await db(add)(text, "first")
        for tab in tabs:
            assert (await tab.until("snapshot"))["text"] == "first"
        pieces = [f" {number}" for number in range(50)]
        await db(add)(text, *pieces)
        assert text.published == 1
        await db(tick)()
        for tab in tabs:
            assert (await tab.until("delta"))["text"] == "".join(pieces)
        assert [kind for kind in encoded if kind in ("snapshot", "delta")] == ["snapshot", "delta"]


@pytest.mark.django_db(transaction=True)
async def test_an_event_waits_at_most_for_the_tick(watched):
    ann, text = watched
    async with connected(tab := Tab(ann)):
        await db(add)(text, "first", EVENT, "more")
        while "event" not in await tab.next():
            pass


@pytest.mark.django_db(transaction=True)
async def test_a_socket_that_opens_later_gets_text_that_no_other_socket_awaited(watched):
    ann, text = watched
    await db(add)(text, "So ", "far")
    assert text.published == 0
    async with connected(tab := Tab(ann)):
        assert (await tab.until("snapshot"))["text"] == "So far"


@pytest.mark.django_db(transaction=True)
async def test_no_tick_remains_after_the_last_piece(watched):
    ann, text = watched
    async with connected(tab := Tab(ann)):
        await db(add)(text, "So ", "far")
        await tab.until("snapshot")
        await eventually(lambda: text.published == 2)
        await eventually(lambda: not hub._texts._scheduled, "it ticks on")
        await db(add)(text, " so good")
        while tab.streamed() != "So far so good":
            await tab.next()
