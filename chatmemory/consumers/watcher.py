"""The part of a socket that other threads know: the hub and the user's other connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from chatmemory.consumers.lifecycle import Lifecycle
from chatmemory.database.watched import watched
from chatmemory.errors import ChatMemoryError
from chatmemory.live.connections import connections
from chatmemory.live.feed import Feed
from chatmemory.live.hub import hub
from chatmemory.models import Change
from chatmemory.services import Login


class Watcher:
    """Receives what happens to the session, the login and the process, and wakes the writer."""

    def __init__(self, *, lifecycle: Lifecycle, wake: Callable[[], object]) -> None:
        self._lifecycle = lifecycle
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._login: Login | None = None
        self.feed: Feed | None = None
        """The position in the session; None before `hello`."""
        self._joined_pk: int | None = None
        """The primary key under which the hub knows the session."""

    # The methods of `Socket` and `Connection`, which any thread may call.

    @property
    def login(self) -> Login:
        assert self._login is not None  # noqa: S101  # known to the hub only after `connect`
        return self._login

    @property
    def owner(self) -> str:
        return self._login.actor.owner if self._login is not None else ""

    def notify(self, change: Change | None = None) -> None:
        self._from_thread(self._show_change, change)

    def notify_text(self) -> None:
        self._from_thread(self._wake)

    def close_unauthorized(self) -> None:
        self._from_thread(self._lifecycle.begin_close, "unauthenticated")

    def close_refused(self, error: ChatMemoryError) -> None:
        self._from_thread(self._lifecycle.begin_close_for, error)

    def close_for_restart(self, reason: str, after_ms: int) -> None:
        self._from_thread(partial(self._lifecycle.begin_close, reason, after_ms=after_ms))

    def close_as_oldest(self) -> None:
        self._from_thread(self._lifecycle.begin_close, "too_many_connections")

    def _from_thread(self, function: Callable[..., object], *args: object) -> None:
        # Only the server's loop changes a socket, so it needs no lock. Note [Threads and loops].
        with contextlib.suppress(RuntimeError):  # the server's loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    # The methods for the tasks of the socket.

    def connect(self, login: Login) -> None:
        """Count the socket as one of the user."""
        self._login = login
        connections.add(self)

    def follow(self, feed: Feed) -> None:
        """Receive the notifications of the feed's session."""
        self.feed = feed
        self.join_hub(feed)

    def join_hub(self, feed: Feed) -> None:
        """Subscribe to changes of the feed's session. A restore may change its primary key."""
        if self._joined_pk == feed.ref.session_pk:
            return
        self._leave_hub()
        self._joined_pk = feed.ref.session_pk
        watched.add(self._joined_pk, *feed.address)
        hub.join(feed.ref, self)
        self.request_read()  # for changes between the feed's last read and the subscription

    def request_read(self) -> None:
        """Read the session again."""
        self._show_change(None)

    def leave(self) -> None:
        """Unregister the socket."""
        connections.remove(self)
        self._leave_hub()

    def _show_change(self, change: Change | None) -> None:
        """Show a change of the session; without one, read it."""
        if self.feed is not None:
            self.feed.receive(change)
        self._wake()

    def _leave_hub(self) -> None:
        if self._joined_pk is not None and self.feed is not None:
            hub.leave(self._joined_pk, self)
            watched.remove(self._joined_pk, *self.feed.address)
