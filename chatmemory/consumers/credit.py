"""How much may be under way to a client that has not confirmed it.

A client that never reads is buffered without limit by one server and blocks another, so only what
it confirms bounds what is sent to it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

SILENCE_SECONDS = 20.0
"""After how long without a frame a ping is sent."""
PONG_SECONDS = 30.0
"""By when a ping must be answered."""
PING_EVERY = 64 * 1024
"""Bytes after which the client is asked to confirm."""
CREDIT = 256 * 1024
"""Bytes that may be under way unconfirmed."""


class Credit:
    """How much the client has confirmed, and by when it must."""

    def __init__(self) -> None:
        self._sent = 0
        self._confirmed = 0
        self._pings: deque[tuple[int, int, float]] = deque()
        self._count = 0
        self._last_sent_at = time.monotonic()
        self._is_paused = False

    def is_left(self) -> bool:
        return self._sent - self._confirmed < CREDIT

    def is_spent(self) -> bool:
        return not self.is_left()

    def spend(self, size: int) -> bool:
        """Count a frame; whether a ping is due for the bytes since the last."""
        self._sent += size
        self._last_sent_at = time.monotonic()
        asked = self._pings[-1][1] if self._pings else self._confirmed
        return self._sent - asked >= PING_EVERY

    def ping(self) -> int:
        """The number of a new ping."""
        self._count += 1
        self._pings.append((self._count, self._sent, time.monotonic()))
        self._last_sent_at = time.monotonic()
        return self._count

    def confirm(self, n: int) -> bool:
        """All up to ping `n` has arrived; whether that is news."""
        before = len(self._pings)
        while self._pings and self._pings[0][0] <= n:
            self._confirmed = self._pings.popleft()[1]
        return len(self._pings) < before

    def is_ping_due(self) -> bool:
        """After a silence, and not while one is unanswered."""
        silent = time.monotonic() - self._last_sent_at >= SILENCE_SECONDS
        return silent and not self._pings

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No deadline passes meanwhile: pongs may have arrived, and are not read."""
        self._is_paused, began = True, time.monotonic()
        try:
            yield
        finally:
            self._is_paused, now = False, time.monotonic()
            self._pings = deque((n, sent, at + now - max(at, began)) for n, sent, at in self._pings)

    def is_overdue(self, now: float) -> bool:
        return not self._is_paused and now >= self._pong_deadline()

    def next_deadline(self) -> float:
        """When the writer must check again, on the monotonic clock."""
        if not self._pings:
            return self._last_sent_at + SILENCE_SECONDS
        return math.inf if self._is_paused else self._pong_deadline()

    def _pong_deadline(self) -> float:
        return self._pings[0][2] + PONG_SECONDS if self._pings else math.inf
