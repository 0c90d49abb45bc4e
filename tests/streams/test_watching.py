"""Streams of clients that do not read, and the waits of a stream."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User

from chatmemory.errors import MemoryUnavailable
from chatmemory.live.hub import hub
from chatmemory.services import Login
from chatmemory.streams import watching
from chatmemory.streams.reads import SharedReads
from chatmemory.streams.watching import Stream, StreamClosed, Watch
from tests.servers import (
    eventually,
    live_process,
    person_with_talk,
    serving,
    use_responder,
)
from tests.streams.front import Front

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ann = person_with_talk
live = live_process


@pytest.fixture
def no_collector() -> Iterator[None]:
    """No garbage collector, which would end what was left."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("path", ["events/talk", "chat/talk/stream"])
async def test_a_client_that_does_not_read_is_disconnected(
    ann, live, settings, monkeypatch, no_collector, path
):
    use_responder(settings, "flooding", MAX_REPLY_CHARS=20_000_000)
    monkeypatch.setattr(watching, "SEND_SECONDS", 0.3)
    cookie = f"{django_settings.SESSION_COOKIE_NAME}={ann.cookie}"
    async with serving() as address, Front(address, ann) as page:
        host, _, port = address.removeprefix("http://").partition(":")
        async with page.send("hi") as stream:
            await stream.until("text-delta")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            head = f"GET /api/ui/{path} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n\r\n"
            writer.write(head.encode())
            assert b"200" in await reader.readline()
        await eventually(lambda: hub.has_no_sockets)
        writer.close()


async def test_news_do_not_end_a_pause():
    stream = Stream()
    pause = asyncio.ensure_future(stream.pause(3600))
    for _ in range(5):
        stream.notify()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not pause.done()
    stream.close(StreamClosed("rotating"))
    with pytest.raises(StreamClosed):
        await pause
    stream.end()


async def test_a_stream_that_joins_a_watch_while_it_is_closed_ends():
    watch = Watch(Login.of(User(pk=1), None), SharedReads())
    watch.close_unauthorized()
    stream = Stream()
    watch.add(stream)
    with pytest.raises(StreamClosed):
        stream.check()
    stream.end()


async def test_a_read_that_failed_is_repeated_for_the_next_stream():
    reads = SharedReads()
    answers = iter([MemoryUnavailable(), "rows"])

    def read():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(MemoryUnavailable):
        await reads.read("key", 0, read)
    assert [await reads.read("key", 0, read) for _ in range(2)] == ["rows", "rows"]
