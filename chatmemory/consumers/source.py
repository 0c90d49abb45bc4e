"""The frames of a feed, taken without waiting for the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from chatmemory.consumers.credit import Credit
from chatmemory.consumers.feed import Feed


class FrameSource:
    """Lets a writer take the frames that are ready, and do other work while the feed reads."""

    def __init__(self, feed: Feed, credit: Credit, wake: Callable[[], object]) -> None:
        self._feed = feed
        self._credit = credit
        self._wake = wake
        self._frames: AsyncGenerator[str, None] | None = None
        self._may_read = False
        self._coming: asyncio.Future[str | None] | None = None
        self.is_waiting = False
        """Whether the feed waits for the database."""

    async def take(self) -> str | None:
        """Return the next frame; None if there is none now. `wake` is called when one may be ready.

        Raises what the feed raises.
        """
        if self._coming is None:
            if self._frames is None:
                self._frames = self._feed.frames(self._credit)
                self._may_read = self._feed.has_news
            if not self._may_read:  # only text: spare the task
                return await self._next()
            self._coming = asyncio.ensure_future(self._next())
            await asyncio.sleep(0)  # it may be ready after its first step
        if not self._coming.done():
            if not self.is_waiting:
                self.is_waiting = True
                self._coming.add_done_callback(lambda _: self._wake())
            return None
        coming, self._coming, self.is_waiting = self._coming, None, False
        return coming.result()

    async def _next(self) -> str | None:
        """Return the next frame. After the last one, or an error, the feed begins again."""
        assert self._frames is not None  # noqa: S101  # `take` sets it
        frame, frames = None, self._frames
        try:
            frame = await anext(frames, None)
        finally:
            if frame is None:
                self._frames = None
        return frame

    def close(self) -> None:
        """End the read that is under way."""
        if self._coming is not None:
            self._coming.cancel()
