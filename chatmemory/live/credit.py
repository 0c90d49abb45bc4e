"""Flow control: how many unconfirmed bytes may be sent to a client."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Note [Flow control]
#
# The `send` of a server does not protect against a client that never reads: some servers buffer
# without a limit, others block. So clients confirm bytes with pongs to the server's pings, and the
# writer sends only while credit is left.
# - Rows and text are read when they are sent, and never queued: a slow client later gets one longer
#   delta.
# - Frames are not split, so the last one may exceed the credit, by at most protocol.MAX_FRAME_OUT.
# - Answers are queued. So the reader of a socket stops at MAX_UNANSWERED frames, and `fetch` is
#   refused above MAX_UNSENT_CHARS characters.


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditLimits:
    """When a client must confirm what it was sent."""

    silence_seconds: float = 20.0
    """A ping is sent after this time without a frame."""
    pong_seconds: float = 30.0
    """A ping must be answered within this time."""
    ping_bytes: int = 64 * 1024
    """After this number of bytes a ping asks the client to confirm."""
    credit_bytes: int = 256 * 1024
    """How many bytes may be unconfirmed."""


class Credit:
    """Counts sent and confirmed bytes, and computes the deadline of the next confirmation."""

    def __init__(self, limits: CreditLimits) -> None:
        self._limits = limits
        self._sent = 0
        self._confirmed = 0
        self._pings: deque[tuple[int, int, float]] = deque()
        """The unanswered pings: number, bytes sent before it, and time."""
        self._count = 0
        self._last_sent_at = time.monotonic()
        self._is_paused = False

    def is_left(self) -> bool:
        return self._sent - self._confirmed < self._limits.credit_bytes

    def is_spent(self) -> bool:
        return not self.is_left()

    def spend(self, size: int) -> bool:
        """Count a frame; return whether a ping is due because of the bytes since the last one."""
        self._sent += size
        self._last_sent_at = time.monotonic()
        pinged = self._pings[-1][1] if self._pings else self._confirmed
        return self._sent - pinged >= self._limits.ping_bytes

    def ping(self) -> int:
        """Return the number of a new ping, and start its deadline."""
        self._count += 1
        self._pings.append((self._count, self._sent, time.monotonic()))
        self._last_sent_at = time.monotonic()
        return self._count

    def confirm(self, n: int) -> bool:
        """Confirm all bytes before ping `n`; return False if it was already answered."""
        before = len(self._pings)
        while self._pings and self._pings[0][0] <= n:
            self._confirmed = self._pings.popleft()[1]
        return len(self._pings) < before

    def is_ping_due(self) -> bool:
        """Whether nothing was sent for `silence_seconds`, and no ping is unanswered."""
        silent = time.monotonic() - self._last_sent_at >= self._limits.silence_seconds
        return silent and not self._pings

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the deadlines while the reader waits: arrived pongs are not read in this time."""
        self._is_paused, began = True, time.monotonic()
        try:
            yield
        finally:
            self._is_paused, now = False, time.monotonic()
            # The pause, or the part of it after a ping, does not count.
            self._pings = deque((n, sent, at + now - max(at, began)) for n, sent, at in self._pings)

    def is_overdue(self, now: float) -> bool:
        return not self._is_paused and now >= self._pong_deadline()

    def next_deadline(self) -> float:
        """Return when the writer must check again, on the monotonic clock."""
        if not self._pings:
            return self._last_sent_at + self._limits.silence_seconds
        return math.inf if self._is_paused else self._pong_deadline()

    def _pong_deadline(self) -> float:
        return self._pings[0][2] + self._limits.pong_seconds if self._pings else math.inf
