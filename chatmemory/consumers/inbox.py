"""The frames of a client that wait for their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from chatmemory.protocol import FrameId, Request

MAX_UNANSWERED = 8
"""Frames of a client that may wait for an answer; above this no more are read."""


@dataclass(frozen=True, slots=True)
class Received:
    """A frame that waits for its answer."""

    frame: Request | Exception
    """The frame, or the error for it."""
    id: FrameId | None
    retry_after: float
    """After how many seconds the client may repeat it; 0 within the client's rate."""


class Inbox:
    """A bounded queue from the reader to the handler."""

    def __init__(self) -> None:
        self._received: deque[Received] = deque()
        self._has_room = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return len(self._received) >= MAX_UNANSWERED

    async def wait_for_room(self) -> None:
        """Wait until fewer than `MAX_UNANSWERED` frames wait for an answer."""
        while self.is_full:
            self._has_room.clear()
            await self._has_room.wait()

    def append(self, received: Received) -> None:
        self._received.append(received)

    def first(self) -> Received | None:
        """Return the oldest frame, which stays until its answer is queued; None without one."""
        return self._received[0] if self._received else None

    def remove_first(self) -> None:
        self._received.popleft()
        self._has_room.set()
