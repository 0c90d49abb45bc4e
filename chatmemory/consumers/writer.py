"""The task that sends frames to a client."""

from __future__ import annotations

import asyncio
import contextlib
import time

from chatmemory import protocol
from chatmemory.consumers.database_wait import DatabaseWait, retry_seconds
from chatmemory.consumers.lifecycle import CLOSE_SECONDS, Lifecycle, reconnect_ms
from chatmemory.consumers.output import Output
from chatmemory.consumers.source import FrameSource
from chatmemory.consumers.watcher import Watcher
from chatmemory.errors import MemoryUnavailable
from chatmemory.live.credit import Credit
from chatmemory.live.feed import Feed


class Writer:
    """Sends answers, the frames of the feed, pings and the last frame, and checks the deadlines."""

    def __init__(
        self,
        *,
        credit: Credit,
        database_wait: DatabaseWait,
        lifecycle: Lifecycle,
        output: Output,
        wake: asyncio.Event,
        watcher: Watcher,
    ) -> None:
        self._credit = credit
        self._database_wait = database_wait
        self._lifecycle = lifecycle
        self._output = output
        self._wake = wake
        self._watcher = watcher
        self._source: FrameSource | None = None

    async def write(self) -> None:
        """Send what is ready, until this side closes the socket."""
        while True:
            # Note [Timeouts]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_deadline()):
                    await self._wake.wait()
            self._wake.clear()  # first: what becomes ready from now on wakes the writer again
            self._check_deadlines()
            try:
                await self._send_all()
            except TimeoutError:
                return  # a client that does not read cannot receive the bye either
            if self._lifecycle.is_closing and not self._output.has_ready_answers:
                await self.close()
                return

    async def close(self) -> None:
        """Send the bye and close the socket. Without a bye, the reason is an internal error."""
        if self._lifecycle.is_closed:
            return
        self._lifecycle.end()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._output.close(self._lifecycle.bye, self._lifecycle.close_code)

    def cancel_read(self) -> None:
        """Cancel the current read of the feed."""
        if self._source is not None:
            self._source.close()

    def _seconds_to_deadline(self) -> float:
        until = min(
            self._credit.next_deadline(),
            self._lifecycle.next_deadline(),
            self._database_wait.notice_at,
        )
        return max(0.01, until - time.monotonic())

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._database_wait.is_notice_due(now):
            self._output.queue(protocol.dump_error(MemoryUnavailable()))
        if self._lifecycle.is_hello_overdue(now):
            self._lifecycle.begin_close("no_hello", close_code=4408)
        elif self._credit.is_overdue(now):
            code = 4410 if self._credit.is_spent() else 4408
            self._lifecycle.begin_close("no_pong", close_code=code)
        elif self._lifecycle.is_rotation_due(now):
            self._lifecycle.begin_close("rotating", after_ms=reconnect_ms())

    async def _send_all(self) -> None:
        """Send what is ready. Raises TimeoutError if the client does not read."""
        await self._output.send_answers()
        feed = self._watcher.feed
        if not self._lifecycle.is_closing and feed is not None:
            await self._send_feed(feed)
            if feed.is_removed:
                self._lifecycle.begin_close("not_found")
            else:
                self._watcher.join_hub(feed)
        if not self._lifecycle.is_closing and self._credit.is_ping_due():
            await self._output.send(protocol.dump("ping", n=self._credit.ping()))

    async def _send_feed(self, feed: Feed) -> None:
        """Send the frames of the feed until it has none or waits for the database."""
        if self._source is None:
            self._source = FrameSource(feed, self._credit, self._wake.set)
        source = self._source
        try:
            while (frame := await source.next_ready()) is not None:
                await self._output.send(frame)
                await self._output.send_answers()
        except MemoryUnavailable:
            self._database_wait.begin()
            asyncio.get_running_loop().call_later(retry_seconds(), self._watcher.request_read)
        else:
            if source.is_reading:
                self._database_wait.begin()
            else:
                self._database_wait.end()
