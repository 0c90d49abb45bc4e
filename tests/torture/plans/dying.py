"""Servers that end: killed at a step of a turn, paused beyond their lease, told to go."""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from chatmemory.models import Turn
from tests.servers import DEADLINE, Server
from tests.torture.checker import Violation
from tests.torture.speaker import PAUSE
from tests.torture.steps import STEPS
from tests.torture.talker import Talker, close_all, talkers
from tests.torture.world import LEASE, Figure, Outcome, World, db, now

KILLED = "killed "
WORDS = 20
"""Of a reply in which a server is paused."""
SOON = 60.0
"""Seconds after which a server that shall be killed at a step has come there."""
DRAINED = 10.0
"""Seconds after which a server that was told to go is killed."""


async def kill(world: World, rounds: int, steps: Sequence[str] = STEPS) -> Outcome:
    """Kill one of two servers at each step of a turn, so many times; people talk to both."""
    if not world.servers:
        await world.start(2)
    people = await talkers(world, 2)
    ended: list[float] = []
    async with world.leases_watched():
        for step in (step for step in steps for _ in range(rounds)):
            ended += await _kill_one(world, people, step)
        settled = await world.settle()
    await close_all(people)
    wanted = {f"{KILLED}{step}": rounds for step in steps}
    found = await world.check(faults=wanted)
    return Outcome(
        found,
        [
            Figure("kills", sum(world.history.faults().values())),
            Figure("turns", sum(event.kind == "done" for event in world.history.events)),
            Figure(
                "median s from kill to end or answer",
                statistics.median(ended),
                time_limit=LEASE + 1,
            ),
            Figure("longest s from kill to end or answer", max(ended)),
            world.overdue(),
            settled,
        ],
    )


async def _kill_one(world: World, people: Sequence[Talker], step: str) -> list[float]:
    """Let all speak until one server has died at this step; for how long turns went on after."""
    file = world.folder / "kill" / step
    await asyncio.sleep(world.chance.uniform(0, 0.1))
    file.touch()
    killed: list[float] = []

    async def watch() -> None:
        while True:
            for server in world.servers:
                if not server.is_running:
                    killed.append(now())
                    world.fault(f"{KILLED}{step}")
                    await asyncio.to_thread(server.start)
                    return
            await asyncio.sleep(0.005)

    watching = asyncio.ensure_future(watch())
    mark = len(world.history.events)
    try:
        until = now() + SOON
        while not killed:
            assert now() < until, f"no server comes to the step {step}"
            talks = [talker.say(f"count {world.chance.randint(3, 6)}") for talker in people]
            await asyncio.gather(*talks)
        await watching
    finally:
        watching.cancel()
        with suppress(FileNotFoundError):
            file.unlink()
    events = world.history.events[mark:]
    under_way = {event.id for event in events if event.kind == "invoke" and event.at < killed[0]}
    return [
        event.at - killed[0]
        for event in events
        if event.kind == "done" and event.id in under_way and event.at > killed[0]
        # Those whose socket was lost: the others ran on a server that lives.
        if any(lost.kind == "lost" and lost.id == event.id for lost in events)
    ]


async def pause(world: World, rounds: int, *, talking: int = 4) -> Outcome:
    """Stop a server for two to three leases in the middle of replies, and let it go on."""
    if not world.servers:
        await world.start(2)
    paused, other = world.servers[:2]
    people = await talkers(world, talking, lambda: paused)
    async with world.leases_watched():
        for _ in range(rounds):
            await _pause_one(world, people, paused, other)
        settled = await world.settle()
    await close_all(people)
    wanted = min(20, rounds * talking) if rounds > 1 else 1
    found = await world.check(faults={"takeover": wanted})
    return Outcome(
        found,
        [
            Figure("pauses", rounds),
            Figure("takeovers", world.history.faults()["takeover"], at_least=wanted),
            world.overdue(),
            settled,
        ],
    )


async def _pause_one(world: World, people: Sequence[Talker], paused: Server, other: Server) -> None:
    for talker in people:
        talker.choose = lambda: paused
        talker.leave()
    talks = [asyncio.ensure_future(talker.say(f"count {WORDS}")) for talker in people]
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(talker.is_streaming.wait() for talker in people))
    await asyncio.sleep(world.chance.uniform(0, 0.3))
    before = await db(_interrupted)()
    world.stop(paused)
    try:
        for talker in people:
            talker.choose = lambda: other
            talker.leave()
        await asyncio.sleep(LEASE * world.chance.uniform(2, 3))
        await _note_takeovers(world, before)
    finally:
        world.resume(paused)
    await asyncio.gather(*talks)
    await asyncio.sleep(WORDS * PAUSE)  # the one that was paused comes to its end


async def _note_takeovers(world: World, before: set[int]) -> None:
    """Wait until the other server has ended a turn of the one that is paused."""
    async with asyncio.timeout(DEADLINE):
        while not (taken := await db(_interrupted)() - before):  # noqa: ASYNC110  # the server does it
            await asyncio.sleep(0.1)
    for _ in taken:
        world.fault("takeover")


def _interrupted() -> set[int]:
    return set(Turn.objects.filter(status="interrupted").values_list("pk", flat=True))


async def unfenced(world: World, rounds: int) -> Outcome:
    """The same as `pause` with the fence taken away: the check must see a second reply."""
    world.switch("unfenced", on=True)
    try:
        outcome = await pause(world, rounds)
    finally:
        world.switch("unfenced", on=False)
    seen = [found for found in outcome.violations if found.wrong == "reply"]
    blind = [] if seen else [Violation("no fault", "", "nobody saw that there was no fence")]
    return Outcome(blind, [*outcome.figures, Figure("second replies seen", len(seen))])


async def rolling(world: World, rounds: int, *, talking: int = 6, servers: int = 3) -> Outcome:
    """Tell each server in turn to go, and start it again, so many times; people go on talking."""
    if not world.servers:
        await world.start(servers)
    people = await talkers(world, talking)
    is_over = asyncio.Event()
    killed = 0

    async def go_on(talker: Talker) -> None:
        while not is_over.is_set():
            await talker.say(f"count {world.chance.randint(2, 12)}")

    talking_on = [asyncio.ensure_future(go_on(talker)) for talker in people]
    try:
        for server in world.servers * rounds:
            await asyncio.sleep(world.chance.uniform(0.3, 1))
            killed += not await asyncio.to_thread(_goes, server)
            world.fault("terminated")
            await asyncio.to_thread(server.start)
    finally:
        is_over.set()
        await asyncio.gather(*talking_on)
    settled = await world.settle()
    await close_all(people)
    found = await world.check(faults={"terminated": rounds * len(world.servers)})
    done = [event.status for event in world.history.events if event.kind == "done"]
    return Outcome(
        found,
        [
            Figure("terminations", world.history.faults()["terminated"]),
            Figure("servers that did not go in time", killed, time_limit=0),
            Figure("turns", len(done)),
            Figure("turns interrupted", done.count("interrupted")),
            Figure(
                "longest s that anybody waited", max(t.longest_wait for t in people), time_limit=10
            ),
            settled,
        ],
    )


def _goes(server: Server) -> bool:
    """Tell a server to go; whether it did. It is gone in any case."""
    assert server.process is not None, "it was never started"
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(DRAINED)
    except subprocess.TimeoutExpired:
        return False
    finally:
        server.kill()
    return True
