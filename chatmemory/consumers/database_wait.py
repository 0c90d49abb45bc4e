"""How long a client has waited for the database."""

from __future__ import annotations

import math
import random
import time

RETRY_SECONDS = 1.0
"""The average pause before a failed read is repeated."""


class DatabaseWait:
    """Measures the wait, to notify the client once."""

    def __init__(self, notice_seconds: float) -> None:
        self._notice_seconds = notice_seconds
        self._is_waiting = False
        self.notice_at = math.inf

    def begin(self) -> None:
        """Start to wait, unless the client already waits."""
        if not self._is_waiting:
            self._is_waiting = True
            self.notice_at = time.monotonic() + self._notice_seconds

    def end(self) -> None:
        """Stop waiting: the database has answered."""
        self._is_waiting, self.notice_at = False, math.inf

    def is_notice_due(self, now: float) -> bool:
        """Return True once for each wait, when it has become too long."""
        # Repeated notices would count as sent frames and so prevent the pings that detect silence.
        if now < self.notice_at:
            return False
        self.notice_at = math.inf
        return True


def retry_seconds() -> float:
    """Return a random pause, so that the sockets do not repeat their reads simultaneously."""
    return RETRY_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311  # no secret
