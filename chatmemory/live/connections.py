"""The number of a user's connections."""

from __future__ import annotations

import threading
from typing import Protocol

from chatmemory.conf import settings


class Connection(Protocol):
    """A socket of a person."""

    @property
    def owner(self) -> str:
        """The scope of the person, such as `user:7`."""

    def close_as_oldest(self) -> None:
        """Close, because the user opened too many newer sockets. Any thread may call this."""


class Connections:
    """The sockets of each user in this process, oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, dict[Connection, None]] = {}

    def add(self, connection: Connection) -> None:
        """Add a socket; close the user's oldest sockets above CONNECTIONS_PER_USER."""
        limit = settings.CONNECTIONS_PER_USER
        with self._lock:
            own = self._of.setdefault(connection.owner, {})
            own[connection] = None
            surplus = [] if limit is None else list(own)[: max(0, len(own) - limit)]
        for oldest in surplus:  # without the lock, which `remove` acquires
            self.remove(oldest)
            oldest.close_as_oldest()

    def remove(self, connection: Connection) -> None:
        """Remove a socket that is closed or closing."""
        with self._lock:
            own = self._of.get(connection.owner, {})
            own.pop(connection, None)
            if not own:
                self._of.pop(connection.owner, None)


connections = Connections()
"""The connections of this process."""
