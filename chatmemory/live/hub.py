"""The hub of a process: its sockets, the texts of runs, and notifications between processes.

It has its own thread and event loop, so that a server's busy loop and a channel layer that hangs do
not delay each other. It stores nothing: the data is in the database. The next sweep finds what a
lost notification announced, and the finished row replaces lost text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Protocol

from chatmemory.live.blocks import LiveBlocks
from chatmemory.live.layer import RUNNERS, Layer, group_of
from chatmemory.live.loops import LoopThread
from chatmemory.live.peers import Peers
from chatmemory.live.sockets import Socket, Sockets, login_digest
from chatmemory.live.sweep import SWEEP_SECONDS, Sweep
from chatmemory.live.texts import LiveText, Mirrored, SessionRef, Texts
from chatmemory.models import Change
from chatmemory.startup import are_threads_patched

TICK_SECONDS = 0.04
"""How often new text of a run is sent. See Note [Ticks]."""
# Note [Ticks]
#
# Models emit single tokens. A frame for each of them would cost each watcher's server and client
# more than the text itself, and an event for each would overload the layer. So new text is released
# on a tick, at most once in `TICK_SECONDS` for a session. The first piece after a pause is released
# immediately.
# - Sockets read a text only up to `LiveText.published`, so all that are up to date send the same
#   frame, which is encoded once.
# - Only the hub's thread releases text. It forgets the tick first, so that a piece that arrives
#   meanwhile starts another one.
RECONNECT_MS_PER_SOCKET = 10
"""The clients of a process that ends reconnect within this time, multiplied by their number."""
LAYER_WAIT_SECONDS = 1.0
"""How long a caller waits for a probe of the channel layer."""
MAX_RECONNECT_MS = 60_000
"""The longest time within which they reconnect."""


# Note [Claiming in turn]
#
# All processes that run turns are notified that a turn can start. If all tried to claim it, each
# would read, and wait for the session's lock, to find that another one was faster. So they try
# one after another: first the one that notified the others, if it runs turns, then the others in an
# order that depends on the session, by steps of CLAIM_STEP_SECONDS. The process that starts the
# turn announces it, which ends the others' wait, and shows them who runs turns. A process that does
# not know the others tries immediately, which only costs the statements.
CLAIM_STEP_SECONDS = 0.1


class Listener(Protocol):
    """The runner, as the hub uses it. The hub's thread calls it, so it must not wait."""

    def run_waiting(self, session_pk: int) -> None:
        """Claim and run the next waiting turn of the session, if there is one."""

    def stop(self, turn_pk: int) -> None:
        """Stop the turn, if this process runs it."""

    def run_jobs(self) -> None:
        """Execute the jobs that wait."""


class Hub:
    """Any thread may call its public methods. None waits for the database.

    Only `is_layer_reachable` waits for the layer.
    """

    def __init__(self, *, sweep_seconds: float = SWEEP_SECONDS) -> None:
        self.listener: Listener | None = None
        self._thread = LoopThread("chatmemory-hub", background=self._background)
        self._sockets = Sockets()
        self._texts = Texts()
        self.sweep = Sweep(
            self._sockets,
            self._texts,
            self._run_waiting,
            self._request_text,
            self._run_jobs,
            seconds=sweep_seconds,
        )
        self._peers = Peers()
        self._delayed: dict[int, asyncio.TimerHandle] = {}
        """The claims that wait for other processes, by session."""
        self._restart_reason = ""
        self._reconnect_ms = RECONNECT_MS_PER_SOCKET
        self._layer = self._new_layer()

    def _new_layer(self) -> Layer:
        return Layer(self._on_event, self._on_join, self._on_change)

    def shut_down(self) -> None:
        """End the thread and drop all state; the next use starts a new one."""
        self._thread.stop()
        self._delayed.clear()
        for part in (self._sockets, self._texts, self.sweep, self._peers):
            part.clear()
        self._restart_reason = ""
        self._layer = self._new_layer()

    def _background(self) -> list[Coroutine[Any, Any, None]]:
        return [self._layer.run(), *self.sweep.loops()]

    def join(self, ref: SessionRef, socket: Socket) -> None:
        """Subscribe the socket to the notifications of the session."""
        self.sweep.enable()
        # Before the group is joined: `_on_join` then notifies this socket of missed changes.
        self._sockets.add(ref.session_pk, socket)
        self._thread.call(self._join_group, ref)
        if self._restart_reason:
            self._close_one_for_restart(socket)

    def leave(self, session_pk: int, socket: Socket) -> None:
        """Unsubscribe the socket from the notifications of the session."""
        if self._sockets.remove(session_pk, socket):
            self._thread.call(self._leave_group, session_pk)

    def close_owner_sockets(self, owner: str) -> None:
        """Close the sockets of a user or visitor, given by the scope, in all processes."""
        self._sockets.close_owner(owner)
        self._notify_group(RUNNERS, "owner", owner=owner)

    def close_login_sockets(self, login_key: str) -> None:
        """Close the sockets of a Django session in all processes."""
        digest = login_digest(login_key)
        self._sockets.close_login(digest)
        self._notify_group(RUNNERS, "login", login=digest)

    def close_for_restart(self, reason: str) -> None:
        """Close the sockets of this process, including those that join later."""
        # Each client that reconnects needs a few milliseconds of another process.
        count = max(1, len(self._sockets.all()))
        self._reconnect_ms = min(count * RECONNECT_MS_PER_SOCKET, MAX_RECONNECT_MS)
        # Set before the loop, so that `join` closes a socket that the loop misses.
        self._restart_reason = reason
        for socket in self._sockets.all():
            self._close_one_for_restart(socket)

    def _close_one_for_restart(self, socket: Socket) -> None:
        after_ms = random.randrange(self._reconnect_ms)  # noqa: S311  # no secret
        socket.close_for_restart(self._restart_reason, after_ms)

    def has_several_sockets(self, session_pk: int) -> bool:
        return self._sockets.count(session_pk) > 1

    @property
    def has_no_sockets(self) -> bool:
        return self._sockets.is_empty

    @property
    def is_layer_working(self) -> bool:
        """Whether other processes can notify this one; otherwise only the sweep finds changes."""
        return not self._layer.is_failing

    def is_layer_reachable(self) -> bool | None:
        """Return whether the channel layer answers; None if it uses no shared one."""
        if not self._layer.is_shared or are_threads_patched():
            return None
        probe = self._thread.submit(self._layer.is_reachable())
        try:
            return probe.result(LAYER_WAIT_SECONDS)
        except (TimeoutError, CancelledError):  # the hub is busy, or shuts down
            return False

    @property
    def is_everything_sent(self) -> bool:
        """Whether all notifications were sent to other processes."""
        return not self._layer.has_notifications

    def serve(self) -> None:
        """Receive the notifications for runners, and sweep the turns now and periodically."""
        if are_threads_patched():
            return
        self.sweep.enable()
        self._thread.call(self._layer.join, RUNNERS)
        self._thread.call(self.sweep.request_turns)

    def start_sweeps(self) -> None:
        """Sweep even if this process runs no turns. A repeated call does nothing."""
        if not self.sweep.is_enabled:
            self.serve()

    def notify(
        self, session_pk: int, change: Change | None = None, *, is_local: bool = False
    ) -> None:
        """Notify the session's sockets, by default in all processes, that it changed.

        Sockets of this process show a given change without reading it.
        """
        self._sockets.notify(session_pk, change)
        if not is_local:
            self._notify_group(group_of(session_pk), "news", session=session_pk)

    def notify_runners(self, session_pk: int, *, is_first: bool = True) -> None:
        """Notify the runners and sockets of other processes that a turn can start.

        Without `is_first` this process tries to claim it before the others.
        """
        self._notify_group(RUNNERS, "work", session=session_pk, first=is_first)

    def notify_stop(self, turn_pk: int) -> None:
        """Notify the runners of other processes that a turn must stop."""
        self._notify_group(RUNNERS, "stop", turn=turn_pk)

    def notify_job(self, job_pk: int) -> None:
        """Notify other processes that a job waits."""
        self._notify_group(RUNNERS, "job", job=job_pk)

    def _notify_group(self, group: str, kind: str, **fields: object) -> None:
        if self._layer.is_shared:
            self._thread.call(self._layer.send, group, kind, fields)

    def announce_run(self, ref: SessionRef, *, was_waiting: bool) -> None:
        """Notify other processes that a run has started here: see Note [Claiming in turn]."""
        group = RUNNERS if was_waiting else group_of(ref.session_pk)
        self._notify_group(group, "begun", session=ref.session_pk)

    def begin_text(self, ref: SessionRef, turn: str, step: int) -> LiveText:
        """Start the text of a step of a run in this process."""
        text = self._texts.begin(ref, turn, step)
        if self._layer.is_shared:
            # Other processes send requests for the text to this group.
            self._thread.call(self._layer.join, RUNNERS)
        return text

    def publish(self, ref: SessionRef) -> None:
        """Send new pieces of a text of this process to all sockets of the session: Note [Ticks].

        To other processes only if one of them requested the text.
        """
        is_read = self._texts.is_requested(ref) or self._sockets.has(ref.session_pk)
        if is_read and not self._texts.is_scheduled(ref):
            self._thread.call(self._release_text, ref)

    def end_text(self, ref: SessionRef, turn: str) -> None:
        """Drop the text of a turn that ended: its rows contain it."""
        self._texts.end(ref, turn)

    def text_of(self, ref: SessionRef) -> LiveText | None:
        """Return the text of the session's run, in this or another process."""
        return self._texts.get(ref)

    def blocks_of(
        self, ref: SessionRef, text: LiveText, language: str, *, person: str
    ) -> LiveBlocks:
        """Return the blocks of a text; new ones wake the sockets of the session."""
        notify = partial(self._sockets.notify_text, ref.session_pk)
        return text.blocks_in(language, notify, person)

    # Only the hub's thread calls the methods below.

    def _run_waiting(self, session_pk: int) -> None:
        if self.listener is not None:
            self.listener.run_waiting(session_pk)

    def _run_jobs(self) -> None:
        if self.listener is not None:
            self.listener.run_jobs()

    def _join_group(self, ref: SessionRef) -> None:
        self._release_text(ref)  # `publish` does nothing without sockets
        group = group_of(ref.session_pk)
        has_joined = self._layer.has_joined(group)
        self._layer.join(group)  # also if it has joined: the last socket may just have left
        # Otherwise `_on_join` requests the text: an answer to an earlier request would not arrive.
        if has_joined and self.text_of(ref) is None:
            self._request_text(ref.session_pk)

    def _leave_group(self, session_pk: int) -> None:
        if self._sockets.forget(session_pk):
            self._texts.drop_mirrors(session_pk)
            self.sweep.forget(session_pk)
            self._layer.leave(group_of(session_pk))

    def _on_join(self, session_pk: int | None) -> None:
        """Recover the events that were sent before the group was joined; None for `RUNNERS`."""
        if session_pk is None:
            for ref in self._texts.own_refs(None):  # requests for these did not arrive
                self._layer.send(group_of(ref.session_pk), "begun", {"session": ref.session_pk})
            return
        self._sockets.notify(session_pk)
        if not self._texts.own_refs(session_pk):
            self._request_text(session_pk)

    def _on_change(self) -> None:
        """Let the sockets notify their clients whether the layer works."""
        for socket in self._sockets.all():
            socket.notify_text()

    def _request_text(self, session_pk: int) -> None:
        # To all runners: the process that runs the turn may have no socket of the session.
        self._layer.send(RUNNERS, "whole", {"session": session_pk})

    def _release_text(self, ref: SessionRef) -> None:
        """Release new pieces now, unless a tick will do it."""
        if not self._texts.is_scheduled(ref):
            self._tick(ref)

    def _tick(self, ref: SessionRef) -> None:
        """Release new pieces; if there are any, more at the next tick."""
        self._texts.unschedule(ref)
        event = self._texts.next_event(ref)
        if event is None:
            return
        self._texts.schedule(ref)
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick, ref)
        self._sockets.notify_text(ref.session_pk)
        if self._texts.is_requested(ref):
            self._layer.send(group_of(ref.session_pk), "text", event)

    def _send_whole(self, session_pk: int) -> None:
        """Send the text of a session to the process that requested it, and further pieces."""
        for ref in self._texts.own_refs(session_pk):
            self._release_text(ref)  # `publish` does nothing without readers
            self._texts.request(ref)
            if (event := self._texts.whole_event(ref)) is not None:
                self._layer.send(group_of(session_pk), "text", event)

    def _on_event(self, kind: str, event: Mapping[str, Any]) -> None:
        match kind:
            case "news":
                self._sockets.notify(event["session"])
            case "text":
                self._mirror(event)
            case "whole":
                self._send_whole(event["session"])
            case "owner":
                self._sockets.close_owner(event["owner"])
            case "login":
                self._sockets.close_login(event["login"])
            case "work":
                self._sockets.notify(event["session"])
                self._claim_in_turn(event["session"], is_first=event.get("first", True))
            case "begun":
                self._on_begun(event["session"], event["origin"])
            case "job":
                self._run_jobs()
            case "stop" if self.listener is not None:
                self.listener.stop(event["turn"])

    def _claim_in_turn(self, session_pk: int, *, is_first: bool) -> None:
        """Claim the turn that waits, if no process before this one does. Note [Claiming in turn]"""
        rank = self._peers.rank(self._layer.name, session_pk) + (not is_first)
        if not rank:
            self._run_waiting(session_pk)
        elif session_pk not in self._delayed:
            loop = asyncio.get_running_loop()
            delay = rank * CLAIM_STEP_SECONDS
            self._delayed[session_pk] = loop.call_later(delay, self._claim_late, session_pk)

    def _claim_late(self, session_pk: int) -> None:
        del self._delayed[session_pk]
        self._run_waiting(session_pk)

    def _on_begun(self, session_pk: int, origin: str) -> None:
        """Leave the turn to the process that runs it; request its text if a socket shows it."""
        self._peers.add(origin)
        if (delayed := self._delayed.pop(session_pk, None)) is not None:
            delayed.cancel()
        if self._sockets.has(session_pk):
            self._sockets.notify(session_pk)
            self._request_text(session_pk)

    def _mirror(self, event: Mapping[str, Any]) -> None:
        session_pk: int = event["session"]
        if not self._sockets.has(session_pk):
            return
        match self._texts.mirror(event):
            case Mirrored.BEGUN:
                self._sockets.notify(session_pk)  # the start of the run may not have been announced
                self._sockets.notify_text(session_pk)
            case Mirrored.EXTENDED:
                self._sockets.notify_text(session_pk)
            case Mirrored.INCOMPLETE:
                self._request_text(session_pk)


hub = Hub()
"""The hub of this process."""
