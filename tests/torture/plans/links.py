"""What servers stand on goes away: commits are cut, Redis dies or freezes, hints get lost."""

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
from chatmemory.testing.stores import Recipe
from chatmemory.testing.workers import Crew, Refused
from tests.conftest import missing
from tests.factories import make_session
from tests.torture.checker import Violation
from tests.torture.history import Event
from tests.torture.proxy import CommitCutter
from tests.torture.screen import Screen, fresh
from tests.torture.talker import close_all, talkers
from tests.torture.world import Figure, Outcome, World, db, now

CUT_SHARE = 0.15
RECOVERED = 2.0
"""Seconds by which servers have found a Redis that is there again."""
HEALED = 30.0
"""Seconds by which a client must have seen what it missed."""


async def commits(world: World, rounds: int) -> Outcome:
    """Cut commits on their way, or their answers, until so many were; people talk, code appends."""
    if connection.vendor != "postgresql":
        missing("the proxy knows PostgreSQL alone")
    place = urlsplit(world.env["DATABASE_URL"])
    there = place.hostname or "127.0.0.1", place.port or 5432
    note, chance = world.fault, world.chance
    async with CommitCutter(*there, chance=chance, share=CUT_SHARE, note=note) as cutter:
        proxied = cutter.led_through(world.env["DATABASE_URL"])
        [server] = await world.start(1, env={**world.env, **proxied})
        people = await talkers(world, 3, lambda: server)
        writer = Appender(world, {**world.env, **proxied})
        await db(make_session)(writer.key)
        try:
            while world.history.faults().total() < rounds:
                talks = [talker.say("count 3") for talker in people]
                await asyncio.gather(*talks, asyncio.to_thread(writer.append))
        finally:
            cutter.share = 0
            await asyncio.to_thread(writer.crew.end)
        settled = await world.settle()
        await close_all(people)
        faults = world.history.faults()
        found = await world.check(faults={"commit cut before": 1, "commit cut after": 1})
    before, after = faults["commit cut before"], faults["commit cut after"]
    figures = [
        Figure("commits whose outcome was unknown", before + after, at_least=rounds),
        Figure("of these cut before they arrived", before),
        settled,
    ]
    return Outcome(found, figures)


class Appender:
    """A process of the server's own code, that appends one message after another."""

    key = "appended"
    recipe = Recipe(path="tests.writer:Writer", arguments={"how": "services"})

    def __init__(self, world: World, env: Mapping[str, str]) -> None:
        self._note = world.history.note
        settings = {"DJANGO_SETTINGS_MODULE": "project.settings"}
        self.crew = Crew({**env, **settings}, prepare="tests.writer:prepare")
        self._number = 0

    def append(self) -> None:
        """Append one, and take down what was said of it."""
        self._number += 3  # of which the batch is one message
        about: Any = {"client": "w", "session": self.key, "id": f"w.{self._number}"}
        [worker] = self.crew.take(1, self.recipe)
        self._note(Event(kind="invoke", **about, text=f"w.{self._number}.0"))
        try:
            _, _, seq, _ = worker.call(self.recipe, "write", ("w", self.key), self._number)
        except Refused as error:
            self._note(Event(kind="error", **about, text=str(error)))
        else:
            self._note(Event(kind="ack", **about, seq=seq))


async def redis(world: World, rounds: int) -> Outcome:
    """Kill and freeze Redis in the middle of replies, in turn with replies that are left alone."""
    redis = world.redis or missing("there is no Redis to kill")
    here, there = world.servers or await world.start(2)
    [talker] = await talkers(world, 1, lambda: here)
    took: dict[str, list[float]] = {"left alone": [], "killed": [], "frozen": []}

    async def turn(disturb: Callable[[], None] | None = None) -> float:
        began = now()
        saying = asyncio.ensure_future(talker.say("count 10"))
        await talker.is_streaming.wait()
        if disturb is not None:
            disturb()
        await saying
        return now() - began

    def kill() -> None:
        redis.kill()
        world.fault("Redis killed")

    def freeze() -> None:
        redis.signal(signal.SIGSTOP)
        world.fault("Redis frozen")

    async with Screen(there, talker.person, talker.key) as watching:
        await turn()  # the first one loads what later ones find
        for _ in range(rounds):
            for how, disturb in (("killed", kill), ("frozen", freeze)):
                await asyncio.sleep(RECOVERED)
                took["left alone"].append(await turn())
                took[how].append(await turn(disturb))
                redis.signal(signal.SIGCONT)
                await asyncio.to_thread(redis.start)
        wrong = await differences(world, [watching])
    await talker.close()
    found = await world.check(faults={"Redis killed": rounds, "Redis frozen": rounds})
    usual = statistics.median(took["left alone"])
    figures = [Figure("median s of a turn", usual)] + [
        Figure(f"s longer, {how}", statistics.median(took[how]) - usual, time_limit=0.2)
        for how in ("killed", "frozen")
    ]
    return Outcome(found + wrong, figures)


async def loss(world: World, rounds: int, *, talking: int = 3) -> Outcome:
    """Lose half of all pokes and pieces of text; what clients show is what a fresh one is shown."""
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
            await asyncio.gather(*(talker.say("count 10") for talker in people))
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
            world.fault("hint lost")
    found = await world.check(faults={"hint lost": rounds * talking})
    figures = [
        Figure("hints and pieces of text lost", world.history.faults()["hint lost"]),
        Figure("longest s until all was shown", max(waited)),
    ]
    return Outcome(found + wrong, figures)


async def _act(world: World, key: str, by: Actor) -> None:
    """What code elsewhere may do to a session between two turns: nothing tells the servers."""
    at: Any = {"session_key": key, "by": by}
    said = [{"role": "assistant", "content": "by the way"}]
    match world.chance.choice(["append", "trim", "clear", "nothing"]):
        case "append":
            await db(services.append_messages)(**at, messages=said)
        case "trim":
            await db(services.trim_session)(**at, keep_last=4, reason="torture")
        case "clear":
            await db(services.clear_session)(**at, reason="torture")


async def differences(world: World, screens: list[Screen]) -> list[Violation]:
    """The screens that don't come to show what a fresh one is shown, in time."""
    wrong = []
    for screen in screens:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEALED):
                while screen.shows != await fresh(screen):  # noqa: ASYNC110  # others do it
                    await asyncio.sleep(0.2)
                continue
        wrong.append(Violation("changed", screen.key, "a socket shows what is not so"))
    return wrong
