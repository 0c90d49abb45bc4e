"""The sessions that sockets of this process show: their writes return what the sockets need."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Mapping


class WatchedSessions:
    """Counts sockets by session; any thread may call each method.

    A socket that is not counted, or no longer, reads the change.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: Counter[Hashable] = Counter()

    def add(self, session_pk: int, scope: str, key: str) -> None:
        with self._lock:
            self._sockets.update((session_pk, (scope, key)))

    def remove(self, session_pk: int, scope: str, key: str) -> None:
        with self._lock:
            self._sockets.subtract((session_pk, (scope, key)))
            self._sockets = +self._sockets

    def has(self, address: Mapping[str, object]) -> bool:
        """Whether a socket shows the session with this `id`, or this `scope` and `key`."""
        name = address["id"] if "id" in address else (address["scope"], address["key"])
        return name in self._sockets


watched = WatchedSessions()
"""The watched sessions of this process."""
