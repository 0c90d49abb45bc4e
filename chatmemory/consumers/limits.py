"""What bounds a connection: how often it speaks, and how many of them a person has."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from chatmemory.conf import settings

FRAMES_PER_SECOND = 20.0
"""How often a client may speak in the long run."""
BURST = 100
"""How many frames it may send at once; after as many refused ones it is sent away."""


class Bucket:
    """How often a client has spoken."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._looked_at = time.monotonic()

    def take(self) -> float:
        """Count a frame; return how many seconds too early it is, 0 if it may pass."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._looked_at) * FRAMES_PER_SECOND) - 1
        self._looked_at = now
        return max(0.0, -self._left / FRAMES_PER_SECOND)

    def give_back(self) -> None:
        """The last frame does not count: it was asked for."""
        self._left += 1

    @property
    def is_overdrawn(self) -> bool:
        """Whether the client went on and on."""
        return self._left < -BURST


class Guest(Protocol):
    """A socket of a person."""

    user_pk: str

    def crowd_out(self) -> None:
        """The person opened too many newer ones; called from any thread."""


class Guests:
    """The sockets of each person in this process, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, dict[Guest, None]] = {}

    def add(self, guest: Guest) -> None:
        """Take a socket in; the person's oldest goes where there are too many."""
        limit = settings.CONNECTIONS_PER_USER
        with self._lock:
            own = self._of.setdefault(guest.user_pk, {})
            own[guest] = None
            surplus = [] if limit is None else list(own)[: max(0, len(own) - limit)]
        for oldest in surplus:
            self.remove(oldest)
            oldest.crowd_out()

    def remove(self, guest: Guest) -> None:
        """The socket is gone, or about to go."""
        with self._lock:
            own = self._of.get(guest.user_pk, {})
            own.pop(guest, None)
            if not own:
                self._of.pop(guest.user_pk, None)


guests = Guests()
"""This process's."""
