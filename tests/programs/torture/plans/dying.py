"""Servers that are killed at a step of a turn, paused beyond their lease, or terminated."""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from chatmemory.models import Turn
from tests.programs.torture.checker import Violation
from tests.programs.torture.speaker import PAUSE
from tests.programs.torture.steps import STEPS
from tests.programs.torture.talker import Talker, close_all, sending, talkers
from tests.programs.torture.world import LEASE, Figure, Outcome, World, db, now
from tests.servers import DEADLINE, Server

KILLED = "killed "
WORDS = 20
"""Length of the reply during which a server is paused."""
MAX_STEP_SECONDS = 60.0
"""Maximum time until a server reaches the step at which it is killed."""
MAX_DRAIN_SECONDS = 10.0
"""Time after SIGTERM after which a server is killed."""


async def kill(world: World, rounds: int, steps: Sequence[str] = STEPS) -> Outcome:
    """Kill one of two servers at each step of a turn, while users send messages to both."""
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
    """Send messages until a server has died at this step.

    Return the seconds from the kill to the end of each turn that lost its socket.
    """
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
        until = now() + MAX_STEP_SECONDS
        while not killed:
            assert now() < until, f"no server reaches the step {step}"
            talks = [talker.ask(f"count {world.chance.randint(3, 6)}") for talker in people]
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
        # Only turns that lost their socket: the others ran on the other server.
        if any(lost.kind == "lost" and lost.id == event.id for lost in events)
    ]


async def pause(world: World, rounds: int, *, talking: int = 4) -> Outcome:
    """Pause a server for two to three leases in the middle of replies."""
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
        talker.drop_socket()
    talks = await asyncio.gather(*(talker.begin(f"count {WORDS}") for talker in people))
    await asyncio.sleep(world.chance.uniform(0, 0.3))
    before = await db(_interrupted)()
    world.stop(paused)
    try:
        for talker in people:
            talker.choose = lambda: other
            talker.drop_socket()
        await asyncio.sleep(LEASE * world.chance.uniform(2, 3))
        await _note_takeovers(world, before)
    finally:
        world.resume(paused)
    await asyncio.gather(*talks)
    await asyncio.sleep(WORDS * PAUSE)  # the paused run reaches its end


async def _note_takeovers(world: World, before: set[int]) -> None:
    """Wait until the other server has ended a turn of the paused server, at most `DEADLINE`.

    Without a fence it may never end one. Then the missing takeovers and what the checker finds are
    the outcome of the plan.
    """
    ended: set[int] = set()
    with suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE):
            while not (ended := await db(_interrupted)() - before):  # noqa: ASYNC110  # the server does it
                await asyncio.sleep(0.1)
    for _ in ended:
        world.fault("takeover")


def _interrupted() -> set[int]:
    return set(Turn.objects.filter(status="interrupted").values_list("pk", flat=True))


async def unfenced(world: World, rounds: int) -> Outcome:
    """Run `pause` without the fence: the checker must report a second reply."""
    world.switch("unfenced", on=True)
    try:
        outcome = await pause(world, rounds)
    finally:
        world.switch("unfenced", on=False)
    seen = [found for found in outcome.violations if found.wrong == "reply"]
    unseen = [] if seen else [Violation("no fault", "", "no second reply without a fence")]
    return Outcome(unseen, [*outcome.figures, Figure("second replies reported", len(seen))])


async def rolling(world: World, rounds: int, *, talking: int = 6, servers: int = 3) -> Outcome:
    """Terminate and restart each server, one after another, while users send messages."""
    if not world.servers:
        await world.start(servers)
    people = await talkers(world, talking)
    killed = 0
    async with sending(world, people, longest=12):
        for server in world.servers * rounds:
            await asyncio.sleep(world.chance.uniform(0.3, 1))
            killed += not await asyncio.to_thread(terminate, server)
            world.fault("terminated")
            await asyncio.to_thread(server.start)
    settled = await world.settle()
    await close_all(people)
    found = await world.check(faults={"terminated": rounds * len(world.servers)})
    done = [event.status for event in world.history.events if event.kind == "done"]
    return Outcome(
        found,
        [
            Figure("terminations", world.history.faults()["terminated"]),
            Figure("servers that did not exit in time", killed, time_limit=0),
            Figure("turns", len(done)),
            Figure("turns interrupted", done.count("interrupted")),
            Figure(
                "longest s that a user waited", max(t.longest_wait for t in people), time_limit=10
            ),
            settled,
        ],
    )


def terminate(server: Server) -> bool:
    """Send SIGTERM, and kill the server after MAX_DRAIN_SECONDS; False if it was killed."""
    assert server.process is not None, "the server was never started"
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(MAX_DRAIN_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    finally:
        server.kill()
    return True
