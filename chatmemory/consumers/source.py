"""The frames of a feed, for a writer that must not wait for the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from chatmemory.live.credit import Credit
from chatmemory.live.feed import Feed


class FrameSource:
    """Returns the frames that are ready while the feed's reads run in a task."""

    def __init__(self, feed: Feed, credit: Credit, wake: Callable[[], object]) -> None:
        self._feed = feed
        self._credit = credit
        self._wake = wake
        self._frames: AsyncGenerator[str, None] | None = None
        self._may_read = False
        self._next_frame: asyncio.Future[str | None] | None = None
        self._has_read = False
        """Whether the feed has waited for the database since it last began."""
        self.is_reading = False
        """Whether the feed waits for the database."""

    async def next_ready(self) -> str | None:
        """Return the next frame; None if none is ready.

        Calls `wake` later, when the database has answered. Raises the errors of the feed.
        """
        frame = await self._next_if_ready()
        while frame is None and self._has_read and not self.is_reading:
            # What arrived at the end of a read has shared its wake, and the feed may not have seen
            # it: begin again.
            self._has_read = False
            frame = await self._next_if_ready()
        return frame

    async def _next_if_ready(self) -> str | None:
        if self._next_frame is None:
            is_ready = self._frames is not None and self._feed.is_next_ready
            if self._frames is None:
                self._frames = self._feed.frames(self._credit)
                self._may_read = self._feed.is_read_due or self._feed.has_changes
            # Streamed text and the rows that were read never wait, so they need no task.
            if is_ready or not self._may_read:
                return await self._next()
            self._next_frame = asyncio.ensure_future(self._next())
            await asyncio.sleep(0)  # lets the task start: without a read it ends in its first step
        if not self._next_frame.done():
            if not self.is_reading:
                self.is_reading = self._has_read = True
                self._next_frame.add_done_callback(lambda _: self._wake())
            return None
        frame, self._next_frame, self.is_reading = self._next_frame, None, False
        return frame.result()

    async def _next(self) -> str | None:
        """Return the next frame. After the last one, or an error, the feed starts again."""
        assert self._frames is not None  # noqa: S101  # `next_ready` sets it
        frame, frames = None, self._frames
        try:
            frame = await anext(frames, None)
        finally:
            if frame is None:
                self._frames = None
        return frame

    def close(self) -> None:
        """Cancel the current read."""
        if self._next_frame is not None:
            self._next_frame.cancel()
