"""Frames with the HTML of finished blocks, for sockets that ask for it."""

from __future__ import annotations

import json

import pytest
from asgiref.sync import sync_to_async as db

from chatmemory import protocol, services
from chatmemory.live import cursors
from chatmemory.live.blocks import LiveBlocks
from chatmemory.live.cursors import MAX_TEXT_FRAMES, BlockCursor
from chatmemory.live.hub import hub
from chatmemory.live.texts import LiveText, SessionRef
from chatmemory.models import Session
from chatmemory.rendering import budget
from tests import responders_for_tests
from tests.factories import make_session
from tests.live.test_blocks import REPLY, grow, html_of, in_pieces, stored_html
from tests.servers import Tab, connected, live_process, sign_in, use_responder

live = live_process


def sent_by(cursor, chars):
    """Return the new frames of a cursor."""
    sent = []
    while (frame := cursor.next_frame(chars)) is not None:
        sent.append(json.loads(frame))
    return sent


@pytest.fixture
def streamed() -> tuple[LiveText, LiveBlocks]:
    text = LiveText("c1", 3)
    return text, text.blocks_in("en", lambda: None)


def add(text, blocks, *pieces):
    grow(text, *pieces)
    blocks._render()


def test_a_frame_has_the_blocks_of_the_text_that_was_sent(streamed):
    text, blocks = streamed
    cursor = BlockCursor()
    cursor.follow(text, blocks)
    add(text, blocks, "# a\n# 😀\n# c\n\n")
    assert cursor.next_frame(3) is None
    frame = {"type": "block", "turn": "c1", "step": 3}
    first = {**frame, "start": 0, "end": 8, "html": "<h1>a</h1>\n<h1>😀</h1>\n"}
    assert sent_by(cursor, 9) == [first]
    assert sent_by(cursor, 12) == [{**frame, "start": 8, "end": 12, "html": "<h1>c</h1>\n"}]
    assert sent_by(cursor, 12) == []


def test_a_frame_is_encoded_once_and_the_ones_that_are_kept_are_bounded(streamed, monkeypatch):
    text, blocks = streamed
    encoded = []
    dump = protocol.dump

    def counted(kind, /, **fields):
        encoded.append(kind)
        return dump(kind, **fields)

    monkeypatch.setattr(protocol, "dump", counted)
    watchers = [BlockCursor() for _ in range(9)]
    for number in range(4):
        add(text, blocks, f"# {number}\n")
        for cursor in watchers:
            cursor.follow(text, blocks)
            assert len(sent_by(cursor, len(text.text))) == 1
    assert encoded == ["block"] * 4
    add(text, blocks, "# a\n" * 100)
    for chars in range(16, len(text.text), 4):
        late = BlockCursor()
        late.follow(text, blocks)
        sent_by(late, chars)
    assert len(blocks.frames) == MAX_TEXT_FRAMES


def test_a_late_reader_gets_a_few_long_frames(streamed, monkeypatch):
    monkeypatch.setattr(cursors, "MAX_HTML_CHARS", 100)
    text, blocks = streamed
    add(text, blocks, "# a\n" * 100)
    cursor = BlockCursor()
    cursor.follow(text, blocks)
    frames = sent_by(cursor, len(text.text))
    assert "".join(frame["html"] for frame in frames) == html_of(blocks)
    assert [frame["start"] for frame in frames] == [0, *(frame["end"] for frame in frames[:-1])]
    assert max(len(frame["html"]) for frame in frames) <= 100
    assert len(frames) == 12


def test_the_last_frame_has_all_that_is_left_if_it_fits(streamed, monkeypatch):
    text, blocks = streamed
    cursor = BlockCursor()
    cursor.follow(text, blocks)
    add(text, blocks, "# a\n")
    sent_by(cursor, 4)
    assert blocks.complete("# a\n# b")
    last = {"type": "block", "turn": "c1", "step": 3, "start": 4, "end": 7, "last": True}
    assert json.loads(cursor.last_frame()) == {**last, "html": "<h1>b</h1>\n"}
    assert cursor.blocks_of("c1", 3) is blocks
    assert cursor.blocks_of("c1", 2) is cursor.blocks_of("c2", 3) is None
    monkeypatch.setattr(cursors, "MAX_HTML_CHARS", 5)
    assert cursor.last_frame() is None


# Sockets


@pytest.fixture
def ann(live, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 600}
    ann = sign_in()
    make_session(owner=ann.user)
    return ann


class HtmlTab(Tab):
    """A socket that asks for HTML."""

    async def hello(self, **fields):
        return await super().hello(**{"html": "en", **fields})

    def blocks(self):
        return [frame for frame in self.frames if frame["type"] == "block"]

    def html(self):
        """Return the HTML; the parts must follow each other."""
        blocks, end = self.blocks(), 0
        for frame in blocks:
            assert frame["start"] == end
            end = frame["end"]
        return "".join(frame["html"] for frame in blocks)


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
async def test_the_blocks_of_a_reply_are_complete_before_its_message(ann, settings):
    responders_for_tests.reset()
    use_responder(settings, "echo_with_pause")
    async with connected(tab := HtmlTab(ann), plain := Tab(ann)):
        await tab.send(REPLY)
        await tab.until("block")
        responders_for_tests.GO.set()
        await tab.idle(2)
        await plain.idle(2)
        kinds = [frame["type"] for frame in tab.frames]
        (message,) = (frame for frame in tab.frames if frame.get("role") == "assistant")
        assert tab.blocks()[-1]["last"] is True
        assert tab.html() == stored_html(message["text"])
        assert tab.frames.index(tab.blocks()[-1]) == tab.frames.index(message) - 1
        assert kinds.index("snapshot") < kinds.index("block")
        assert "block" not in [frame["type"] for frame in plain.frames]


@pytest.mark.django_db(transaction=True)
async def test_a_reply_with_footnotes_has_no_last_block(ann, settings):
    responders_for_tests.reset()
    use_responder(settings, "echo_with_pause")
    async with connected(tab := HtmlTab(ann)):
        await tab.send("# a[^1]\n\n*c*\n\n[^1]: b")
        await tab.until("block")
        responders_for_tests.GO.set()
        await tab.idle(2)
        assert not any(frame.get("last") for frame in tab.blocks())


@pytest.fixture
def watched(ann):
    """A turn that runs in this process without a responder, and its text."""
    services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me")
    text = hub.begin_text(ref(), "c1", 0)
    yield text
    hub.end_text(ref(), "c1")


def ref():
    session = Session.objects.get()
    return SessionRef(session.pk, session.epoch)


def publish(text, *pieces):
    text.pieces += pieces
    hub.publish(ref())


@pytest.mark.django_db(transaction=True)
async def test_a_socket_that_joins_or_reconnects_gets_the_text_and_then_all_blocks(ann, watched):
    async with connected(first := HtmlTab(ann)):
        await db(publish)(watched, *in_pieces(REPLY, 5))
        while not first.html().endswith("</pre>\n"):
            await first.until("block")
        cursor = [frame for frame in first.frames if frame["type"] == "synced"][-1]["cursor"]
        for fields in ({}, {"cursor": cursor}):
            async with HtmlTab(ann) as late:
                await late.hello(**fields)
                await late.until("block")
                assert late.streamed() == REPLY
                assert [frame["html"] for frame in late.blocks()] == [first.html()]
        assert list(watched.blocks) == ["en"]


@pytest.mark.django_db(transaction=True)
async def test_blocks_have_the_language_of_the_socket(ann, watched):
    async with connected(tab := HtmlTab(ann), plain := Tab(ann)):
        async with HtmlTab(ann) as german:
            await german.hello(html="de-AT")
            await db(publish)(watched, "# a\n")
            await german.until("block")
            await tab.until("block")
            await plain.until("snapshot")
        assert sorted(watched.blocks) == ["de", "en"]


@pytest.mark.django_db(transaction=True)
async def test_without_such_a_socket_nothing_is_rendered(ann, watched):
    async with connected(tab := Tab(ann)):
        await db(publish)(watched, "# a\n")
        await tab.until("snapshot")
        assert watched.blocks == {}


@pytest.mark.django_db(transaction=True)
async def test_blocks_are_escaped_when_the_time_of_their_person_is_spent(
    ann, settings, monkeypatch
):
    monkeypatch.setattr(budget, "PERSON_SECONDS", 0.0)
    responders_for_tests.reset()
    use_responder(settings, "echo_with_pause")
    async with connected(tab := HtmlTab(ann)):
        await tab.send("# a\n\n*b* and more")
        await tab.until("block")  # a reply that ends before needs no blocks
        responders_for_tests.GO.set()
        await tab.idle(2)
        assert tab.html() == "<p># a</p>\n<p>*b* and more</p>\n"
