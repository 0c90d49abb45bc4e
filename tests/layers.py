"""A channel layer between the hubs of one process, which can be cut and frozen."""

from __future__ import annotations

import asyncio

from chatmemory.services import Actor, Login


class FakeLayer:
    """A channel layer between event loops, that can be cut and counts what it carries."""

    def __init__(self) -> None:
        self.queues: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue]] = {}
        self.groups: dict[str, set[str]] = {}
        self.sent: list[tuple[str, str]] = []
        self.events: list[dict] = []
        self.is_cut = False
        self.is_frozen = False
        self.broken: set[str] = set()
        """Groups to which nothing can be sent."""
        self.losses: dict[str, int] = {}
        self.unreadable = 0
        """How many of the next events nobody can decode."""

    async def _carry(self) -> None:
        if self.is_cut:
            raise ConnectionError("cut")
        while self.is_frozen:  # noqa: ASYNC110  # the test sets it in another thread
            await asyncio.sleep(0.01)

    async def new_channel(self) -> str:
        await self._carry()
        name = f"channel{len(self.queues)}"
        self.queues[name] = (asyncio.get_running_loop(), asyncio.Queue())
        return name

    async def receive(self, channel):
        event = await self.queues[channel][1].get()
        if self.unreadable:
            self.unreadable -= 1
            raise ValueError("this is no event")
        return event

    async def group_add(self, group, channel) -> None:
        await self._carry()
        if channel not in self.queues:
            raise RuntimeError("this channel is another layer's")
        self.groups.setdefault(group, set()).add(channel)

    async def group_discard(self, group, channel) -> None:
        self.groups.get(group, set()).discard(channel)

    async def group_send(self, group, event) -> None:
        await self._carry()
        if group in self.broken:
            raise ValueError("this group is broken")
        kind = event["type"].removeprefix("chatmemory.")
        self.sent.append((group, kind))
        self.events.append(event)
        if self.losses.get(kind, 0) > 0:
            self.losses[kind] -= 1
            return
        for channel in self.groups.get(group, set()):
            loop, queue = self.queues[channel]
            loop.call_soon_threadsafe(queue.put_nowait, dict(event))


class Ear:
    """A socket that counts what it is told."""

    def __init__(self, login: Login | None = None) -> None:
        self.login = login or Login(actor=Actor("user", "1", "nobody"), proof="")
        self.pokes = 0
        self.says = 0
        self.is_expelled = False

    def poke(self) -> None:
        self.pokes += 1

    def say(self) -> None:
        self.says += 1

    def expel(self) -> None:
        self.is_expelled = True

    def retire(self, reason: str, after_ms: int) -> None:
        raise AssertionError("no process ends here")


class Boss:
    """Who runs turns: takes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def consider(self, session_pk: int) -> None:
        self.told.append(("work", session_pk))

    def stop(self, turn_pk: int) -> None:
        self.told.append(("stop", turn_pk))


class PickyLayer:
    """A layer that can't be made without a host."""

    def __init__(self, **config) -> None:
        self.host = config["host"]
