"""The open streams of a process, as the hub and the sweep know them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakValueDictionary

from chatmemory.conf import settings
from chatmemory.errors import ChatMemoryError
from chatmemory.live.connections import connections
from chatmemory.live.hub import hub
from chatmemory.live.texts import SessionRef
from chatmemory.models import Change
from chatmemory.services import Login
from chatmemory.streams.reads import SharedReads, numbers

COMMENT_SECONDS = 10.0
"""A comment is sent after this time without news, so that proxies keep the connection."""
SEND_SECONDS = 30.0
"""How long a client may not read what was sent to it."""
CLOSE_SECONDS = 2.0
"""How long a stream may take to end before its connection is broken."""


class StreamClosed(Exception):
    """The stream ends before what it shows."""

    def __init__(self, reason: str, after_ms: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_ms = after_ms


class Stream:
    """One response that shows a session. Only its event loop calls the methods."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._wake = asyncio.Event()
        self._closed: StreamClosed | None = None
        self._sent_at: float | None = None
        """When the client was given what it has not read yet; None while the stream waits."""
        # Random: clients that connected at the same time must not reconnect at the same time.
        age = settings.CONNECTION_AGE * random.uniform(0.9, 1)  # noqa: S311  # no secret
        self._timers = {"age": self._loop.call_later(age, self.close, StreamClosed("rotating"))}
        self._check_later()

    def notify(self) -> None:
        self._wake.set()

    def close(self, closed: StreamClosed) -> None:
        """End the stream; the first reason stays."""
        if self._closed is None:
            self._closed = closed
            self._wake.set()
            self._timers["close"] = self._loop.call_later(CLOSE_SECONDS, self._break)

    def check(self) -> None:
        """Raise StreamClosed if the stream must end."""
        if self._closed is not None:
            raise self._closed

    async def wait(self, seconds: float = COMMENT_SECONDS) -> bool:
        """Wait for news; return False after this time. Raises StreamClosed."""
        self.check()
        is_news = True
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:  # Note [Timeouts]
            is_news = False
        self._wake.clear()
        self.check()
        return is_news

    async def pause(self, seconds: float) -> None:
        """Wait for this time, whatever the news. Raises StreamClosed."""
        end = self._loop.time() + seconds
        while (left := end - self._loop.time()) > 0:
            await self.wait(left)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Measure the time until the client has read what it is given."""
        self._sent_at = time.monotonic()
        yield
        self._sent_at = None

    def end(self) -> None:
        """Bound the sends that are left: of the last texts, and of the response's end."""
        self._timers.pop("age").cancel()
        self._timers.pop("reader").cancel()
        if self._closed is None:
            self._timers["last"] = self._loop.call_later(SEND_SECONDS, self._break)
        if self._task is not None:
            self._task.add_done_callback(self._end_timers)

    def _end_timers(self, _: object) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _check_later(self) -> None:
        self._timers["reader"] = self._loop.call_later(SEND_SECONDS / 3, self._check_reader)

    def _check_reader(self) -> None:
        if self._sent_at is not None and time.monotonic() - self._sent_at > SEND_SECONDS:
            self._break()
        else:
            self._check_later()

    def _break(self) -> None:
        """Break the connection: the client does not read, so the stream cannot end by itself."""
        if self._task is not None:
            self._task.cancel()


class Watch:
    """The streams of one login and session: one socket of the hub, and one connection.

    A browser has few connections to a server, so a person's tabs with the same chat count once.
    """

    def __init__(self, login: Login, reads: SharedReads) -> None:
        self.login = login
        self.reads = reads
        self.news = next(numbers)
        """The number of the last notification: Note [News] in reads.py."""
        self._closed: StreamClosed | None = None
        self._lock = threading.Lock()
        self._streams: dict[Stream, asyncio.AbstractEventLoop] = {}

    @property
    def owner(self) -> str:
        return self.login.actor.owner

    @property
    def is_closed(self) -> bool:
        """Whether its streams end, so that a new stream needs another watch."""
        return self._closed is not None

    def add(self, stream: Stream) -> None:
        with self._lock:
            self._streams[stream] = asyncio.get_running_loop()
        if self._closed is not None:  # by another thread, which may not have seen the stream
            stream.close(self._closed)

    def remove(self, stream: Stream) -> bool:
        """Remove a stream; return whether no other is left."""
        with self._lock:
            self._streams.pop(stream, None)
            return not self._streams

    # The methods of `Socket` and `Connection`, which any thread may call.

    def notify(self, change: Change | None = None) -> None:
        self.news = next(numbers)
        self._each(lambda stream: stream.notify)

    def notify_text(self) -> None:
        self._each(lambda stream: stream.notify)

    def close_unauthorized(self) -> None:
        self._close("unauthenticated")

    def close_refused(self, error: ChatMemoryError) -> None:
        self._close(error.code)

    def close_for_restart(self, reason: str, after_ms: int) -> None:
        self._close(reason, after_ms)

    def close_as_oldest(self) -> None:
        self._close("too_many_connections")

    def _close(self, reason: str, after_ms: int | None = None) -> None:
        self._closed = closed = StreamClosed(reason, after_ms)
        self._each(lambda stream: partial(stream.close, closed))

    def _each(self, call: Callable[[Stream], Callable[[], None]]) -> None:
        with self._lock:
            streams = tuple(self._streams.items())
        for stream, loop in streams:
            with contextlib.suppress(RuntimeError):  # the server's loop has ended
                loop.call_soon_threadsafe(call(stream))


class Watches:
    """The watches of a process; any thread may call each method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[tuple[Login, SessionRef], Watch] = {}
        self._reads: WeakValueDictionary[tuple[SessionRef, int], SharedReads] = (
            WeakValueDictionary()
        )

    @contextmanager
    def watching(self, login: Login, ref: SessionRef) -> Iterator[tuple[Watch, Stream]]:
        """Yield a new stream of the running task and its watch, which the hub notifies."""
        stream = Stream()
        with self._lock:
            watch = self._of.get((login, ref))
            is_new = watch is None or watch.is_closed
            if watch is None or is_new:
                watch = self._of[login, ref] = Watch(login, self._reads_of(ref))
            watch.add(stream)
        if is_new:
            connections.add(watch)
            hub.join(ref, watch)
        try:
            yield watch, stream
        finally:
            stream.end()
            with self._lock:
                is_last = watch.remove(stream)
                if is_last and self._of.get((login, ref)) is watch:
                    del self._of[login, ref]
            if is_last:
                hub.leave(ref.session_pk, watch)
                connections.remove(watch)

    def _reads_of(self, ref: SessionRef) -> SharedReads:
        """Return the reads that all streams of a session share in this event loop."""
        key = (ref, id(asyncio.get_running_loop()))
        if (reads := self._reads.get(key)) is None:
            reads = self._reads[key] = SharedReads()
        return reads


watches = Watches()
"""The watches of this process."""
