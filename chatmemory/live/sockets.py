"""The open sockets of a process, by session."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Protocol

from chatmemory.errors import ChatMemoryError
from chatmemory.models import Change
from chatmemory.services import Login


class Socket(Protocol):
    """A websocket, as the hub uses it. Any thread may call each method."""

    @property
    def login(self) -> Login:
        """The login with which its user was authenticated."""

    def notify(self, change: Change | None = None) -> None:
        """Show the change of the session; without one, read it again, since it may have changed."""

    def notify_text(self) -> None:
        """Send new text of the run, if there is any."""

    def close_unauthorized(self) -> None:
        """Close, because the login has ended."""

    def close_refused(self, error: ChatMemoryError) -> None:
        """Close, because the function of GATE does not let the user in any more."""

    def close_for_restart(self, reason: str, after_ms: int) -> None:
        """Close, and ask the client to reconnect after this time."""


class Sockets:
    """Adds, removes and finds sockets; any thread may call each method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_session: defaultdict[int, set[Socket]] = defaultdict(set)

    def add(self, session_pk: int, socket: Socket) -> None:
        with self._lock:
            self._of_session[session_pk].add(socket)

    def remove(self, session_pk: int, socket: Socket) -> bool:
        """Remove a socket; return whether the session has no other."""
        with self._lock:
            sockets = self._of_session.get(session_pk, set())
            # The empty set stays until the hub's thread calls `forget`: until then another socket
            # may be added.
            sockets.discard(socket)
            return not sockets

    def forget(self, session_pk: int) -> bool:
        """Remove a session without sockets; return False if it has one again."""
        with self._lock:
            if self._of_session.get(session_pk):
                return False
            self._of_session.pop(session_pk, None)
            return True

    def clear(self) -> None:
        with self._lock:
            self._of_session.clear()

    @property
    def is_empty(self) -> bool:
        with self._lock:
            return not any(self._of_session.values())

    def has(self, session_pk: int) -> bool:
        """Whether the session has sockets."""
        # No lock: these methods are called often, and one operation on a dict is atomic.
        return bool(self._of_session.get(session_pk))

    def count(self, session_pk: int) -> int:
        return len(self._of_session.get(session_pk, ()))

    def session_pks(self) -> tuple[int, ...]:
        return tuple(self._of_session)

    def all(self) -> set[Socket]:
        with self._lock:
            return {socket for group in self._of_session.values() for socket in group}

    def notify(self, session_pk: int, change: Change | None = None) -> None:
        # A copy, because other threads add and remove sockets.
        for socket in tuple(self._of_session.get(session_pk, ())):
            socket.notify(change)

    def notify_text(self, session_pk: int) -> None:
        for socket in tuple(self._of_session.get(session_pk, ())):
            socket.notify_text()

    def close_owner(self, owner: str) -> None:
        """Close the sockets of a person, given by the scope, such as `user:7`."""
        for socket in self.all():
            if owner in (socket.login.actor.owner, socket.login.by.owner):
                socket.close_unauthorized()

    def close_login(self, digest: str) -> None:
        """Close the sockets of a Django session, given by `login_digest`."""
        for socket in self.all():
            key = socket.login.key
            if key is not None and login_digest(key) == digest:
                socket.close_unauthorized()


def close_others(sockets: Iterable[Socket], logins: Collection[Login]) -> None:
    """Close the sockets whose login is not in `logins`."""
    for socket in sockets:
        if socket.login not in logins:
            socket.close_unauthorized()


def login_digest(login_key: str) -> str:
    """Identify a Django session to other processes without its key, which is a credential."""
    return hashlib.sha256(login_key.encode()).hexdigest()
