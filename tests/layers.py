"""Fakes beside the hub: a channel layer, a socket and a runner."""

from __future__ import annotations

import asyncio

from chatmemory.errors import ChatMemoryError
from chatmemory.models import Change
from chatmemory.services import Actor, Login


class FakeLayer:
    """A channel layer between event loops. It can be cut or frozen, and records its events."""

    def __init__(self) -> None:
        self.queues: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue]] = {}
        self.groups: dict[str, set[str]] = {}
        self.sent: list[tuple[str, str]] = []
        self.events: list[dict] = []
        self.is_cut = False
        """Whether calls raise an error."""
        self.is_frozen = False
        """Whether calls do not end."""
        self.broken: set[str] = set()
        """Groups for which sending raises."""
        self.stuck: set[str] = set()
        """Groups for which sending never returns."""
        self.attempts: list[tuple[str, str]] = []
        """All calls of `group_send`, also failed ones."""
        self.losses: dict[str, int] = {}
        """How many of the next events are lost, by kind."""
        self.unreadable = 0
        """How many of the next events cannot be decoded."""

    async def _pass(self) -> None:
        if self.is_cut:
            raise ConnectionError("cut")
        while self.is_frozen:  # noqa: ASYNC110  # the test sets it in another thread
            await asyncio.sleep(0.01)

    async def new_channel(self) -> str:
        await self._pass()
        name = f"channel{len(self.queues)}"
        self.queues[name] = (asyncio.get_running_loop(), asyncio.Queue())
        return name

    async def receive(self, channel):
        event = await self.queues[channel][1].get()
        if self.unreadable:
            self.unreadable -= 1
            raise ValueError("not an event")
        return event

    async def group_add(self, group, channel) -> None:
        await self._pass()
        if channel not in self.queues:
            raise RuntimeError("the channel belongs to another layer")
        self.groups.setdefault(group, set()).add(channel)

    async def group_discard(self, group, channel) -> None:
        await self._pass()
        self.groups.get(group, set()).discard(channel)

    async def group_send(self, group, event) -> None:
        await self._pass()
        kind = event["type"].removeprefix("chatmemory.")
        self.attempts.append((group, kind))
        while group in self.stuck:  # noqa: ASYNC110  # the test sets it in another thread
            await asyncio.sleep(0.01)
        if group in self.broken:
            raise ValueError("the group is broken")
        self.sent.append((group, kind))
        self.events.append(event)
        if self.losses.get(kind, 0) > 0:
            self.losses[kind] -= 1
            return
        for channel in self.groups.get(group, set()):
            loop, queue = self.queues[channel]
            loop.call_soon_threadsafe(queue.put_nowait, dict(event))


class FakeSocket:
    """A socket that counts its notifications."""

    def __init__(self, login: Login | None = None) -> None:
        self.login = login or Login(actor=Actor("user", "1", "ann"), proof="")
        self.notifications = 0
        self.text_notifications = 0
        self.is_closed = False
        self.after_ms: int | None = None

    def notify(self, change: Change | None = None) -> None:
        self.notifications += 1

    def notify_text(self) -> None:
        self.text_notifications += 1

    def close_unauthorized(self) -> None:
        self.is_closed = True

    def close_refused(self, error: ChatMemoryError) -> None:
        self.is_closed = True

    def close_for_restart(self, reason: str, after_ms: int) -> None:
        self.after_ms = after_ms


class FakeRunner:
    """A runner that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def run_waiting(self, session_pk: int) -> None:
        self.calls.append(("work", session_pk))

    def stop(self, turn_pk: int) -> None:
        self.calls.append(("stop", turn_pk))

    def run_jobs(self) -> None:
        self.calls.append(("jobs", 0))


class PickyLayer:
    """A layer that cannot be created without a host."""

    def __init__(self, **config) -> None:
        self.host = config["host"]
