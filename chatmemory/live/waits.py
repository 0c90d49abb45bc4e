"""Limits and wakes the REST requests of this process that wait for the end of a turn."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from chatmemory.conf import settings
from chatmemory.errors import RateLimited

RETRY_SECONDS = 5.0
"""The `retry_after` of a rejected request; the duration of a turn is unknown."""


class Waits:
    """Counts the requests that wait, and wakes them when their session changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count_by_user: Counter[str] = Counter()
        self._events: dict[int, set[threading.Event]] = {}

    @contextmanager
    def slot(self, scope: str) -> Iterator[None]:
        """Count a request of this user as waiting.

        Raises RateLimited if WAITS_PER_USER or WAITS_PER_PROCESS requests already wait.
        """
        with self._lock:
            self._check_slots(scope)
            self._count_by_user[scope] += 1
        try:
            yield
        finally:
            with self._lock:
                self._count_by_user[scope] -= 1
                if not self._count_by_user[scope]:
                    del self._count_by_user[scope]

    def _check_slots(self, scope: str) -> None:
        """Raise RateLimited if no slot is free. The caller has locked `_lock`."""
        per_user, per_process = settings.WAITS_PER_USER, settings.WAITS_PER_PROCESS
        if per_user is not None and self._count_by_user[scope] >= per_user:
            message = (
                f"{per_user} of your requests already wait. Send without wait, or retry later."
            )
            raise RateLimited(message, retry_after=RETRY_SECONDS)
        if per_process is not None and self._count_by_user.total() >= per_process:
            message = f"{per_process} requests already wait. Send without wait, or retry later."
            raise RateLimited(message, retry_after=RETRY_SECONDS)

    @contextmanager
    def change_of(self, session_pk: int) -> Iterator[threading.Event]:
        """Yield an event that each change of the session by this process sets."""
        # The caller reads the turn inside this block, so no change before the read is missed.
        event = threading.Event()
        with self._lock:
            self._events.setdefault(session_pk, set()).add(event)
        try:
            yield event
        finally:
            with self._lock:
                waiting = self._events[session_pk]
                waiting.discard(event)
                if not waiting:
                    del self._events[session_pk]

    def wake(self, session_pk: int) -> None:
        """Wake the requests that wait for a turn of this session. Any thread may call it."""
        with self._lock:
            waiting = tuple(self._events.get(session_pk, ()))
        # Without the lock, which each request that wakes up acquires.
        for event in waiting:
            event.set()


waits = Waits()
"""The waiting requests of this process."""
