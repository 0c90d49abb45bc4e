"""The channel layer, as the hub uses it: hints between processes, of which any may be lost.

Each call is bounded, and nobody waits for one: a layer that is down or frozen holds up nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from channels.exceptions import InvalidChannelLayerError
from channels.layers import InMemoryChannelLayer, get_channel_layer

logger = logging.getLogger(__name__)

CALL_SECONDS = 0.5
"""How long a call of the channel layer may take."""
RETRY_SECONDS = 1.0
RUNNERS = "chatmemory.runners"
"""The group of all processes that can run turns; each that has sockets is one."""
MAX_HINTS = 10_000
"""Hints kept for a layer that can't be reached; then the oldest go."""


def group_of(session_pk: int) -> str:
    """The group of the processes in which a session is open."""
    return f"chatmemory.session.{session_pk}"


class Layer:
    """Groups to be joined, hints to be sent; one task does both."""

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
        self._outbox: dict[tuple[str, str, object], tuple[str, dict[str, Any]]] = {}
        self._texts: list[tuple[str, dict[str, Any]]] = []
        self._wake: asyncio.Event | None = None
        self._channel = ""
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
            self._outbox[group, kind, about] = (group, event)
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
        receiver = asyncio.ensure_future(self._receive_for_ever(layer))
        try:
            while True:
                # Not wait_for: before Python 3.12 it swallows a cancellation that meets its result.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        await self._wake.wait()
                self._wake.clear()
                if self._channel:
                    await self._work_off(layer)
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)

    async def _work_off(self, layer: Any) -> None:
        for group in self._wanted - self._joined:
            if not await self._bounded(layer.group_add(group, self._channel)):
                return
            self._joined.add(group)
            if group != RUNNERS:
                self._has_joined(int(group.rpartition(".")[2]))
        for group in self._joined - self._wanted:
            if not await self._bounded(layer.group_discard(group, self._channel)):
                return
            self._joined.discard(group)
        while self._outbox:
            hint = next(iter(self._outbox))
            group, event = self._outbox.pop(hint)
            if not await self._send(layer, group, event):
                self._outbox.setdefault(hint, (group, event))  # behind those that were not tried
                return
        texts, self._texts = self._texts, []
        for group, event in texts:
            if not await self._send(layer, group, event):
                return  # what is missing is asked for
        if self.is_failing:  # is it still, if there is nothing to say?
            await self._send(layer, RUNNERS, {"type": "chatmemory.probe"})

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
        elif error is None and self.is_failing and now - self._failed_at >= RETRY_SECONDS:
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
