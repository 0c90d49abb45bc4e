"""The frames of a feed, while its reads run in a task."""

from __future__ import annotations

import asyncio

import pytest

from chatmemory.consumers.source import FrameSource
from chatmemory.live.credit import Credit, CreditLimits
from tests.servers import DEADLINE


class Feed:
    """A feed whose reads end when the test wants it, with what a hub shows it."""

    is_next_ready = has_changes = False

    def __init__(self) -> None:
        self.is_read_due = True
        self.text = ""
        self.may_read = asyncio.Event()

    async def frames(self, credit):
        while self.is_read_due:
            self.is_read_due = False
            await self.may_read.wait()
        if self.text:
            text, self.text = self.text, ""
            yield text


def announce_rows(feed):
    feed.is_read_due = True


def announce_text(feed):
    feed.text = "hello"


@pytest.mark.parametrize("text_of_read", ["", "a frame"])
@pytest.mark.parametrize("announce", [announce_rows, announce_text])
async def test_what_arrives_at_the_end_of_a_read_is_shown(announce, text_of_read):
    """Both wake the writer once, before it asks for the next frame."""
    feed, woken = Feed(), asyncio.Event()
    source = FrameSource(feed, Credit(CreditLimits()), woken.set)
    assert await source.next_ready() is None
    assert source.is_reading
    feed.text = text_of_read
    feed.may_read.set()
    async with asyncio.timeout(DEADLINE):
        await woken.wait()
    announce(feed)
    if text_of_read:
        assert await source.next_ready() == text_of_read
    frame = await source.next_ready()
    assert (feed.is_read_due, feed.text, source.is_reading) == (False, "", False)
    assert frame == ("hello" if announce is announce_text else None)
