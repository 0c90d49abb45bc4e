"""The rate of a client's frames."""

from __future__ import annotations

import time

from chatmemory.consumers.limits import SocketLimits


class Bucket:
    """A token bucket for the frames of one client."""

    def __init__(self, limits: SocketLimits) -> None:
        self._rate, self._burst = limits.frames_per_second, limits.burst
        self._left = float(self._burst)
        self._updated_at = time.monotonic()

    def consume(self) -> float:
        """Count a frame; return 0 if it is accepted, otherwise when to repeat it, in seconds."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._updated_at) * self._rate) - 1
        self._updated_at = now
        # The refused frame counts too, so its repetition needs one more.
        return 0.0 if self._left >= 0 else (1 - self._left) / self._rate

    def refund(self) -> None:
        """Do not count the last frame, because a ping requested it."""
        self._left += 1

    @property
    def is_overdrawn(self) -> bool:
        """Whether the client ignored as many refusals as `burst`."""
        return self._left < -self._burst
