"""Stall the database under load."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from chatmemory.models import Turn
from tests.conftest import missing
from tests.locking import database_stalled
from tests.programs.torture.talker import close_all, talkers
from tests.programs.torture.world import Figure, Outcome, World, db, now
from tests.servers import Closed, Connection, Person, Server

STALL_SECONDS = 45.0
"""Longer than the limits for a hello, a pong and a send, and for the silence of a client."""
RECOVERY_SECONDS = 60.0
"""How much longer than the stall a client waits for an answer."""


async def slow(
    world: World,
    rounds: int,
    *,
    seconds: float = STALL_SECONDS,
    talking: int = 4,
    listening: int = 20,
) -> Outcome:
    """Stall the database while some users send messages, and others listen or connect."""
    if "sqlite" in world.env.get("DATABASE_URL", "sqlite"):
        missing("SQLite cannot lock a table")
    servers = world.servers or await world.start(2)
    people = await talkers(world, talking)
    for talker in people:
        talker.patience = seconds + RECOVERY_SECONDS
        await talker.open()
    lost_before = lost(world)
    listeners = [
        Listener(servers[number % len(servers)], *await world.person())
        for number in range(listening)
    ]
    for listener in listeners[::2]:
        await listener.greet()
    took: list[float] = []
    for _ in range(rounds):
        early, late = people[::2], people[1::2]
        talks = await asyncio.gather(*(talker.begin("count 40") for talker in early))
        async with database_stalled():
            talks += [asyncio.ensure_future(talker.ask("count 3")) for talker in late]
            greetings = [
                asyncio.ensure_future(one.greet()) for one in listeners if not one.is_greeted
            ]
            await asyncio.sleep(seconds)
        began = now()
        await asyncio.gather(*talks, *greetings)
        await asyncio.gather(*(talker.ask("afterwards") for talker in people))
        took.append(now() - began)
        world.fault("database stalled")
    settled = await world.settle()
    closed = [listener.closed for listener in listeners if listener.closed]
    await asyncio.gather(*(listener.leave() for listener in listeners))
    await close_all(people)
    interrupted = await db(Turn.objects.filter(status="interrupted").count)()
    return Outcome(
        await world.check(faults={"database stalled": rounds}),
        [
            Figure("sockets", talking + listening),
            Figure("sockets that were closed", len(closed) + lost(world) - lost_before, at_most=0),
            Figure("turns interrupted", interrupted),
            Figure("longest s from the stall's end to all answers", max(took), time_limit=30),
            settled,
        ],
    )


def lost(world: World) -> int:
    """Count the sockets that talkers lost."""
    return sum(event.kind == "lost" for event in world.history.events)


class Listener:
    """A socket that confirms pings and otherwise only reads."""

    def __init__(self, server: Server, person: Person, key: str) -> None:
        self._tab = Connection(server, person, key)
        self._tab.deadline = STALL_SECONDS + RECOVERY_SECONDS
        self._reading: asyncio.Future[None] | None = None
        self.is_greeted = False
        self.closed = ""
        """The error with which the server closed it."""

    async def greet(self) -> None:
        """Connect, send `hello`, and start to read."""
        await self._tab.__aenter__()
        try:
            await self._tab.hello()
        except Closed as error:
            self.closed = str(error)
        else:
            self.is_greeted = True
            self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            while True:
                await self._tab.next()
                self._tab.frames.clear()
        except Closed as error:
            self.closed = str(error)

    async def leave(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        with suppress(Closed, OSError):
            await self._tab.__aexit__()
