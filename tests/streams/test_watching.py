"""Streams of clients that do not read, and the waits of a stream."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

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
    DEADLINE,
    Person,
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


def request_of(person: Person, path: str) -> dict[str, Any]:
    """Return the scope of a GET request."""
    cookie = f"{django_settings.SESSION_COOKIE_NAME}={person.cookie}".encode()
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"cookie", cookie)],
        "client": ("127.0.0.1", 5),
    }


class Reader:
    """The server's side of a client that reads up to a message for which `stops` is true."""

    def __init__(self, stops: Callable[[dict[str, Any]], bool]) -> None:
        self._stops = stops
        self.body = b""
        self.has_stopped = asyncio.Event()
        self.is_synced = asyncio.Event()
        self._messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive(self) -> Any:
        for message in self._messages:
            return message
        return await asyncio.Event().wait()

    async def send(self, message: dict[str, Any]) -> None:
        self.body += message.get("body", b"")
        if b'"synced"' in self.body:
            self.is_synced.set()
        if self._stops(message):
            self.has_stopped.set()
            await asyncio.Event().wait()


def is_end(message: dict[str, Any]) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body")


async def test_the_end_of_a_response_that_is_not_read_is_bounded(ann, live, monkeypatch):
    from project.asgi import application

    async with serving() as address, Front(address, ann) as page, page.send("hi") as stream:
        await stream.rest()
    monkeypatch.setattr(watching, "SEND_SECONDS", 0.3)
    reader = Reader(is_end)
    async with asyncio.timeout(DEADLINE):
        request = request_of(ann, "/api/ui/chat/talk/stream")
        await application(request, reader.receive, reader.send)
    assert reader.has_stopped.is_set()
    assert b"[DONE]" in reader.body


async def test_a_last_event_that_is_not_read_is_bounded(ann, live, monkeypatch):
    from project.asgi import application

    monkeypatch.setattr(watching, "CLOSE_SECONDS", 0.3)
    reader = Reader(lambda message: b'"bye"' in message.get("body", b""))
    request = request_of(ann, "/api/ui/events/talk")
    async with asyncio.timeout(DEADLINE):
        call = asyncio.ensure_future(application(request, reader.receive, reader.send))
        await reader.is_synced.wait()
        [watch] = watching.watches._of.values()
        watch.close_unauthorized()
        await reader.has_stopped.wait()
        await call


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
