"""Connections that fail: cut commits, a dead or frozen Redis, lost notifications."""

from __future__ import annotations

import asyncio
import signal
import statistics
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from django.db import connection

from chatmemory import services
from chatmemory.services import Actor
from chatmemory.testing.stores import StoreFactory
from chatmemory.testing.workers import Refused, WorkerPool
from tests.conftest import missing
from tests.factories import make_session
from tests.programs.torture.checker import Violation
from tests.programs.torture.history import Event
from tests.programs.torture.proxy import CommitCutter
from tests.programs.torture.screen import Screen, fresh
from tests.programs.torture.talker import close_all, talkers
from tests.programs.torture.world import Figure, Outcome, World, db, now

CUT_SHARE = 0.15
RECONNECT_SECONDS = 2.0
"""Time in which servers reconnect to a restarted Redis."""
CATCH_UP_SECONDS = 30.0
"""Time in which a client must receive what it missed."""


async def commits(world: World, rounds: int) -> Outcome:
    """Cut commits, or their answers, while users send messages and server code appends."""
    if connection.vendor != "postgresql":
        missing("the proxy supports only PostgreSQL")
    address = urlsplit(world.env["DATABASE_URL"])
    target = address.hostname or "127.0.0.1", address.port or 5432
    note, chance = world.fault, world.chance
    async with CommitCutter(*target, chance=chance, share=CUT_SHARE, note=note) as cutter:
        proxied = cutter.environment_of(world.env["DATABASE_URL"])
        [server] = await world.start(1, env={**world.env, **proxied})
        people = await talkers(world, 3, lambda: server)
        writer = Appender(world, {**world.env, **proxied})
        await db(make_session)(writer.key)
        try:
            while world.history.faults().total() < rounds:
                talks = [talker.ask("count 3") for talker in people]
                await asyncio.gather(*talks, asyncio.to_thread(writer.append))
        finally:
            cutter.share = 0
            await asyncio.to_thread(writer.pool.end)
        settled = await world.settle()
        await close_all(people)
        faults = world.history.faults()
        found = await world.check(faults={"commit cut before": 1, "commit cut after": 1})
    before, after = faults["commit cut before"], faults["commit cut after"]
    figures = [
        Figure("commits whose outcome was unknown", before + after, at_least=rounds),
        Figure("of these, cut before they arrived", before),
        settled,
    ]
    return Outcome(found, figures)


class Appender:
    """A process of server code that appends one message after another."""

    key = "appended"
    factory = StoreFactory(path="tests.writer:Writer", arguments={"how": "services"})

    def __init__(self, world: World, env: Mapping[str, str]) -> None:
        self._note = world.history.note
        settings = {"DJANGO_SETTINGS_MODULE": "project.settings"}
        self.pool = WorkerPool({**env, **settings}, prepare="tests.writer:prepare")
        self._number = 0

    def append(self) -> None:
        """Append a message, and record the result."""
        self._number += 3  # the writer's batches with these numbers have one message
        about: Any = {"client": "w", "session": self.key, "id": f"w.{self._number}"}
        [worker] = self.pool.take(1, self.factory)
        self._note(Event(kind="invoke", **about, text=f"w.{self._number}.0"))
        try:
            _, _, seq, _ = worker.call(self.factory, "write", ("w", self.key), self._number)
        except Refused as error:
            self._note(Event(kind="error", **about, text=str(error)))
        else:
            self._note(Event(kind="ack", **about, seq=seq))


async def redis(world: World, rounds: int) -> Outcome:
    """Kill and freeze Redis during replies, alternating with undisturbed replies."""
    redis = world.redis or missing("there is no Redis to kill")
    here, there = world.servers or await world.start(2)
    [talker] = await talkers(world, 1, lambda: here)
    took: dict[str, list[float]] = {"undisturbed": [], "killed": [], "frozen": []}

    async def turn(disturb: Callable[[], None] | None = None) -> float:
        began = now()
        asking = await talker.begin("count 10")
        if disturb is not None:
            disturb()
        await asking
        return now() - began

    def kill() -> None:
        redis.kill()
        world.fault("Redis killed")

    def freeze() -> None:
        redis.signal(signal.SIGSTOP)
        world.fault("Redis frozen")

    async with Screen(there, talker.person, talker.key) as watching:
        await turn()  # the first turn is slower: it imports modules and opens connections
        for _ in range(rounds):
            for how, disturb in (("killed", kill), ("frozen", freeze)):
                await asyncio.sleep(RECONNECT_SECONDS)
                took["undisturbed"].append(await turn())
                took[how].append(await turn(disturb))
                redis.signal(signal.SIGCONT)
                await asyncio.to_thread(redis.start)
        wrong = await differences(world, [watching])
    await talker.close()
    found = await world.check(faults={"Redis killed": rounds, "Redis frozen": rounds})
    usual = statistics.median(took["undisturbed"])
    figures = [Figure("median s of a turn", usual)] + [
        Figure(f"s longer, {how}", statistics.median(took[how]) - usual, time_limit=0.2)
        for how in ("killed", "frozen")
    ]
    return Outcome(found + wrong, figures)


async def loss(world: World, rounds: int, *, talking: int = 3) -> Outcome:
    """Lose half of all notifications and texts; clients must finally show what a new one shows."""
    if not world.servers:
        await world.start(2)
    here, there = world.servers[:2]
    people = await talkers(world, talking, lambda: here)
    world.switch("lose", on=True)
    try:
        screens = [Screen(there, talker.person, talker.key) for talker in people]
        await asyncio.gather(*(screen.__aenter__() for screen in screens))
        wrong: list[Violation] = []
        waited: list[float] = []
        for _ in range(rounds):
            await asyncio.gather(*(talker.ask("count 10") for talker in people))
            for talker in people:
                await _act(world, talker.key, Actor.user(talker.person.user))
            began = now()
            wrong += await differences(world, screens)
            waited.append(now() - began)
        await asyncio.gather(*(screen.__aexit__() for screen in screens))
    finally:
        world.switch("lose", on=False)
    await close_all(people)
    for file in world.folder.glob("lost.*"):
        for _ in range(file.stat().st_size):
            world.fault("notification lost")
    found = await world.check(faults={"notification lost": rounds * talking})
    figures = [
        Figure(
            "notifications and pieces of text lost", world.history.faults()["notification lost"]
        ),
        Figure("longest s until all was shown", max(waited)),
    ]
    return Outcome(found + wrong, figures)


async def _act(world: World, key: str, by: Actor) -> None:
    """Change a session from this process, which sends the servers no notifications."""
    at: Any = {"session_key": key, "by": by}
    note = [{"role": "assistant", "content": "a note"}]
    match world.chance.choice(["append", "trim", "clear", "nothing"]):
        case "append":
            await db(services.append_messages)(**at, messages=note)
        case "trim":
            await db(services.trim_session)(**at, keep_last=4, reason="torture")
        case "clear":
            await db(services.clear_session)(**at, reason="torture")


async def differences(world: World, screens: list[Screen]) -> list[Violation]:
    """Return a violation for each screen that does not show in time what a new one shows."""
    wrong = []
    for screen in screens:
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while screen.shows != await fresh(screen):  # noqa: ASYNC110  # others do it
                    await asyncio.sleep(0.2)
                continue
        wrong.append(Violation("changed", screen.key, "a socket shows other rows than a new one"))
    return wrong
