"""Notifications between processes through the channel layer. Any of them may be lost.

Each call of the layer has a time limit, and only the hub's task waits for it: a layer that is down
delays nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from channels.exceptions import InvalidChannelLayerError
from channels.layers import InMemoryChannelLayer, get_channel_layer

logger = logging.getLogger(__name__)

CALL_SECONDS = 0.5
"""How long a call of the channel layer may take."""
RUNNERS = "chatmemory.runners"
"""The group of all processes that run turns; each process with sockets is one."""
MAX_CALLS = 32
"""How many groups are called at the same time."""
MAX_TEXTS = 1_000
"""Unsent pieces of text; above this the oldest are dropped, and mirrors request them."""


Notification = tuple[str, str, object]
"""A group, the kind of event, and the object's id. Equal unsent notifications are deduplicated."""


def group_of(session_pk: int) -> str:
    """The group of the processes in which a session is open."""
    return f"chatmemory.session.{session_pk}"


class Layer:
    """Records which groups to join and what to send; one task makes the calls.

    Only the hub's thread changes it, so it needs no lock.
    """

    retry_seconds = 1.0
    """The pause before a failed layer is called again."""
    max_notifications = 10_000
    """Unsent notifications; above this the oldest are dropped."""

    def __init__(
        self,
        on_event: Callable[[str, Mapping[str, Any]], None],
        on_join: Callable[[int | None], None],
        on_change: Callable[[], None],
    ) -> None:
        self._on_event = on_event
        self._on_join = on_join
        self._on_change = on_change
        self._wanted: set[str] = set()
        self._joined: set[str] = set()
        self._outbox: dict[Notification, dict[str, Any]] = {}
        self._texts: list[tuple[str, dict[str, Any]]] = []
        self._wake: asyncio.Event | None = None
        self._channel = ""
        self._unreachable: dict[str, None] = {}
        """Groups whose last call failed."""
        self.is_failing = False
        self._failed_at = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether other processes can receive events: False without a layer, or in memory."""
        try:
            layer = get_channel_layer()
        except InvalidChannelLayerError:
            return False
        return layer is not None and not isinstance(layer, InMemoryChannelLayer)

    @property
    def name(self) -> str:
        """The `origin` of this process's events; empty before it has a channel."""
        return self._channel

    @property
    def has_notifications(self) -> bool:
        """Whether notifications wait for the layer."""
        return bool(self._outbox)

    def join(self, group: str) -> None:
        self._wanted.add(group)
        self._wake_up()

    def has_joined(self, group: str) -> bool:
        """Whether events of the group are received."""
        return group in self._joined

    def leave(self, group: str) -> None:
        self._wanted.discard(group)
        self._wake_up()

    def send(self, group: str, kind: str, fields: Mapping[str, object]) -> None:
        """Queue an event for a group. The first field identifies the object of a notification.

        An unsent notification with the same group, kind and object is replaced.
        """
        if not self.is_shared:
            return
        event = {"type": f"chatmemory.{kind}", **fields}
        if kind == "text":
            self._texts.append((group, event))
            del self._texts[:-MAX_TEXTS]
        else:
            key = next(iter(fields.values()))
            self._outbox[group, kind, key] = event
            if len(self._outbox) > self.max_notifications:
                del self._outbox[next(iter(self._outbox))]
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def run(self) -> None:
        """Make the calls and receive events until cancelled; return if it is not shared."""
        if not self.is_shared:
            return
        # Only once: concurrent first calls of `get_channel_layer` return different layers, and a
        # channel of one cannot join a group of another.
        layer = get_channel_layer()
        self._wake = asyncio.Event()
        self._wake.set()
        tasks = [
            asyncio.ensure_future(self._receive_forever(layer)),
            asyncio.ensure_future(self._probe_forever(layer)),
        ]
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._channel:
                    await self._make_calls(layer)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _make_calls(self, layer: Any) -> None:
        """Make the calls that are due, for several groups concurrently."""
        # A layer can have several hosts, of which some are down. A group whose call failed is
        # skipped until a probe succeeds, so that it delays no other group.
        notifications: defaultdict[str, list[Notification]] = defaultdict(list)
        for notification in self._outbox:
            notifications[notification[0]].append(notification)
        texts: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for group, event in self._texts:
            texts[group].append(event)
        self._texts.clear()
        groups = {*(self._wanted ^ self._joined), *notifications, *texts} - self._unreachable.keys()
        room = asyncio.Semaphore(MAX_CALLS)

        async def serve(group: str) -> None:
            async with room:
                if not (
                    await self._subscribe(layer, group)
                    and await self._send_notifications(layer, notifications[group])
                    and await self._send_texts(layer, group, texts[group])
                ):
                    self._unreachable[group] = None

        await asyncio.gather(*(serve(group) for group in groups))

    async def _subscribe(self, layer: Any, group: str) -> bool:
        """Join or leave the group if needed; return whether its state is as wanted."""
        if group in self._wanted and group not in self._joined:
            if not await self._call_bounded(layer.group_add(group, self._channel)):
                return False
            self._joined.add(group)
            self._on_join(None if group == RUNNERS else int(group.rpartition(".")[2]))
        elif group in self._joined and group not in self._wanted:
            if not await self._call_bounded(layer.group_discard(group, self._channel)):
                return False
            self._joined.discard(group)
        return True

    async def _send_notifications(self, layer: Any, notifications: Iterable[Notification]) -> bool:
        for notification in notifications:
            event = self._outbox.get(notification)
            if event is None:
                continue  # `send` dropped it
            if not await self._group_send(layer, notification[0], event):
                return False
            # Only now, since the drain waits until no notification is left.
            if self._outbox.get(notification) is event:  # `send` has queued no newer one
                del self._outbox[notification]
        return True

    async def _send_texts(
        self, layer: Any, group: str, texts: Iterable[Mapping[str, object]]
    ) -> bool:
        for event in texts:
            if not await self._group_send(layer, group, event):
                return False  # the rest is lost: a mirror that misses it requests it
        return True

    async def _probe_forever(self, layer: Any) -> None:
        """While calls fail, test whether they work again."""
        while True:
            await asyncio.sleep(self.retry_seconds)
            if not self.is_failing or not self._channel:
                continue
            group = next(iter(self._unreachable), RUNNERS)
            if await self._group_send(layer, group, {"type": "chatmemory.probe"}):
                self._unreachable.clear()  # groups of hosts that are still down will fail again
                self._wake_up()
            elif group in self._unreachable:
                # Moved to the end, so that the next probe is for another group.
                self._unreachable[group] = self._unreachable.pop(group)

    async def is_reachable(self) -> bool:
        """Return whether the layer answers, and no group is known to be unreachable."""
        # A random group, since a layer with several hosts selects one by the group's name.
        group = f"chatmemory.health.{secrets.token_hex(4)}"
        is_sent = await self._group_send(get_channel_layer(), group, {"type": "chatmemory.probe"})
        return is_sent and not self.is_failing

    async def _group_send(self, layer: Any, group: str, event: Mapping[str, object]) -> bool:
        return await self._call_bounded(layer.group_send(group, {**event, "origin": self._channel}))

    async def _call_bounded(self, call: Awaitable[object]) -> bool:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await call
        except Exception as error:  # a layer may raise any error, and any notification may be lost
            self._update_state(error)
            return False
        self._update_state(None)
        return True

    def _update_state(self, error: Exception | None) -> None:
        """Update `is_failing` at the first error, and `retry_seconds` after the last one."""
        now = time.monotonic()
        if error is not None:
            self._failed_at = now
        if error is not None and not self.is_failing:
            logger.warning("the channel layer fails: %s", type(error).__name__)
        elif (
            error is None
            and self.is_failing
            and not self._unreachable
            and now - self._failed_at >= self.retry_seconds
        ):
            logger.info("the channel layer works again")
        else:
            return
        self.is_failing = error is not None
        self._on_change()

    async def _receive_forever(self, layer: Any) -> None:
        while True:
            try:
                # Never a second channel: the first would stay in its groups and collect events.
                self._channel = self._channel or await layer.new_channel()
                self._joined.clear()
                self._wake_up()
                while True:
                    self._dispatch_event(await layer.receive(self._channel))
            except Exception as error:  # the hub must survive the loss of its layer
                self._update_state(error)
                await asyncio.sleep(self.retry_seconds)

    def _dispatch_event(self, event: Any) -> None:
        """Pass an event to the hub. Events are untrusted: any client of Redis can send them."""
        try:
            if event.get("origin") != self._channel:
                self._on_event(event["type"].removeprefix("chatmemory."), event)
        except Exception as error:
            logger.warning("an event of the channel layer is invalid: %s", type(error).__name__)
