"""The channel layer, as the hub uses it: hints between processes, of which any may be lost.

Each call is bounded, and nobody waits for one: a layer that is down or frozen holds up nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from channels.exceptions import InvalidChannelLayerError
from channels.layers import InMemoryChannelLayer, get_channel_layer

logger = logging.getLogger(__name__)

CALL_SECONDS = 0.5
"""How long a call of the channel layer may take."""
RETRY_SECONDS = 1.0
RUNNERS = "chatmemory.runners"
"""The group of all processes that can run turns; each that has sockets is one."""
MAX_CALLS = 32
"""Calls that are made at the same time, each for another group."""
MAX_HINTS = 10_000
"""Hints kept for a layer that can't be reached; then the oldest go."""


Hint = tuple[str, str, object]
"""A group, the kind of the event, and what it is about. Sent several times, it is one."""


def group_of(session_pk: int) -> str:
    """The group of the processes in which a session is open."""
    return f"chatmemory.session.{session_pk}"


class Layer:
    """Groups to join and events to send; one task makes the calls."""

    def __init__(
        self,
        hear: Callable[[str, Mapping[str, Any]], None],
        has_joined: Callable[[int], None],
        has_changed: Callable[[], None],
    ) -> None:
        self._hear = hear
        self._has_joined = has_joined
        self._has_changed = has_changed
        self._wanted: set[str] = set()
        self._joined: set[str] = set()
        self._outbox: dict[Hint, dict[str, Any]] = {}
        self._texts: list[tuple[str, dict[str, Any]]] = []
        self._wake: asyncio.Event | None = None
        self._channel = ""
        self._unreachable: dict[str, None] = {}
        """Groups whose last call failed."""
        self.is_failing = False
        self._failed_at = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether it reaches other processes."""
        try:
            layer = get_channel_layer()
        except InvalidChannelLayerError:
            return False
        return layer is not None and not isinstance(layer, InMemoryChannelLayer)

    @property
    def has_hints(self) -> bool:
        """Whether hints are still to be sent."""
        return bool(self._outbox)

    def join(self, group: str) -> None:
        self._wanted.add(group)
        self._stir()

    def leave(self, group: str) -> None:
        self._wanted.discard(group)
        self._stir()

    def tell(self, group: str, kind: str, fields: Mapping[str, object]) -> None:
        """Send an event to a group soon; its first field says what it is about.

        The same hint twice is one; old text may be lost.
        """
        if not self.is_shared:
            return
        event = {"type": f"chatmemory.{kind}", **fields}
        if kind == "text":
            self._texts.append((group, event))
            del self._texts[:-1000]
        else:
            about = next(iter(fields.values()))
            self._outbox[group, kind, about] = event
            if len(self._outbox) > MAX_HINTS:
                del self._outbox[next(iter(self._outbox))]
        self._stir()

    def _stir(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def run(self) -> None:
        if not self.is_shared:
            return
        # Asked for once: threads that ask at the same time are given layers of their own, and
        # what one receives the other can't join to a group.
        layer = get_channel_layer()
        self._wake = asyncio.Event()
        self._wake.set()
        tasks = [
            asyncio.ensure_future(self._receive_for_ever(layer)),
            asyncio.ensure_future(self._probe_for_ever(layer)),
        ]
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._channel:
                    await self._work_off(layer)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work_off(self, layer: Any) -> None:
        """Make the calls that are due, of different groups at the same time.

        The layer may have several hosts, of which one is down. So a group whose call failed is left
        out until a probe reaches it, and delays no other group.
        """
        hints: defaultdict[str, list[Hint]] = defaultdict(list)
        for hint in self._outbox:
            hints[hint[0]].append(hint)
        texts: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for group, event in self._texts:
            texts[group].append(event)
        self._texts.clear()
        groups = {*(self._wanted ^ self._joined), *hints, *texts} - self._unreachable.keys()
        room = asyncio.Semaphore(MAX_CALLS)

        async def serve(group: str) -> None:
            async with room:
                if not (
                    await self._subscribe(layer, group)
                    and await self._send_hints(layer, hints[group])
                    and await self._send_texts(layer, group, texts[group])
                ):
                    self._unreachable[group] = None

        await asyncio.gather(*(serve(group) for group in groups))

    async def _subscribe(self, layer: Any, group: str) -> bool:
        """Join or leave the group if needed; return whether that is done."""
        if group in self._wanted and group not in self._joined:
            if not await self._bounded(layer.group_add(group, self._channel)):
                return False
            self._joined.add(group)
            if group != RUNNERS:
                self._has_joined(int(group.rpartition(".")[2]))
        elif group in self._joined and group not in self._wanted:
            if not await self._bounded(layer.group_discard(group, self._channel)):
                return False
            self._joined.discard(group)
        return True

    async def _send_hints(self, layer: Any, hints: Iterable[Hint]) -> bool:
        for hint in hints:
            if hint not in self._outbox:
                continue  # there were too many
            event = self._outbox.pop(hint)
            if not await self._send(layer, hint[0], event):
                self._outbox.setdefault(hint, event)  # unless there is a newer one
                return False
        return True

    async def _send_texts(
        self, layer: Any, group: str, texts: Iterable[Mapping[str, object]]
    ) -> bool:
        for event in texts:
            if not await self._send(layer, group, event):
                return False  # a mirror that misses the rest requests it
        return True

    async def _probe_for_ever(self, layer: Any) -> None:
        """While calls fail, find out when they work again."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            if not self.is_failing or not self._channel:
                continue
            group = next(iter(self._unreachable), RUNNERS)
            if await self._send(layer, group, {"type": "chatmemory.probe"}):
                self._unreachable.clear()  # groups of other hosts fail again if those are down
                self._stir()
            elif group in self._unreachable:
                self._unreachable[group] = self._unreachable.pop(group)  # next time another

    async def _send(self, layer: Any, group: str, event: Mapping[str, object]) -> bool:
        return await self._bounded(layer.group_send(group, {**event, "origin": self._channel}))

    async def _bounded(self, call: Awaitable[object]) -> bool:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await call
        except Exception as error:  # whatever the layer raises, it is only a hint
            self._note(error)
            return False
        self._note(None)
        return True

    def _note(self, error: Exception | None) -> None:
        """See whether the layer begins to fail, or has worked again for a while."""
        now = time.monotonic()
        if error is not None:
            self._failed_at = now
        if error is not None and not self.is_failing:
            logger.warning("the channel layer fails: %s", type(error).__name__)
        elif (
            error is None
            and self.is_failing
            and not self._unreachable
            and now - self._failed_at >= RETRY_SECONDS
        ):
            logger.info("the channel layer works again")
        else:
            return
        self.is_failing = error is not None
        self._has_changed()

    async def _receive_for_ever(self, layer: Any) -> None:
        while True:
            try:
                # Never another: the one before would stay in its groups, and keep what comes.
                self._channel = self._channel or await layer.new_channel()
                self._joined.clear()
                self._stir()
                while True:
                    self._take(await layer.receive(self._channel))
            except Exception as error:  # the layer is lost, not the hub
                self._note(error)
                await asyncio.sleep(RETRY_SECONDS)

    def _take(self, event: Any) -> None:
        """Pass an event on. Whoever reaches Redis can send one, so it may be anything."""
        try:
            if event.get("origin") != self._channel:
                self._hear(event["type"].removeprefix("chatmemory."), event)
        except Exception as error:
            logger.warning("an event of the channel layer is no hint: %s", type(error).__name__)
