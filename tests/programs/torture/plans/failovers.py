"""A database that is lost for good, and replaced by its standby."""

from __future__ import annotations

import asyncio
import os
import statistics
from pathlib import Path

from tests.programs.torture.standbys import FOLDER, StandbyPair
from tests.programs.torture.talker import close_all, sending, talkers
from tests.programs.torture.verdict import Absent
from tests.programs.torture.world import Figure, Outcome, World, db, forget_connections, now

DETECTION_SECONDS = 0.5
"""Time after which the standby is promoted; its length depends on the program that decides it."""
MAX_WRITE_SECONDS = 60.0
"""Time after which the plan does not wait any longer for a write."""


async def failover(world: World, rounds: int) -> Outcome:
    """Kill PostgreSQL's primary under load, and promote its synchronous standby."""
    if FOLDER not in os.environ:
        raise Absent("the plan needs the database `standbys`")
    pair = StandbyPair(Path(os.environ[FOLDER]))
    servers = await world.start(2)
    pids = [server.pid for server in servers]
    people = await talkers(world, 4)
    waited: list[float] = []
    try:
        async with sending(world, people, longest=8):
            for _ in range(rounds):
                await asyncio.sleep(world.chance.uniform(1, 2))
                waited.append(await _fail_over(world, pair))
                await asyncio.to_thread(pair.add_standby)
    finally:
        await db(forget_connections)()
    settled = await world.settle()
    await close_all(people)
    found = await world.check(faults={"failover": rounds})
    done = [event.status for event in world.history.events if event.kind == "done"]
    acknowledged = sum(event.kind == "ack" for event in world.history.events)
    restarted = sum(server.pid != pid for server, pid in zip(servers, pids, strict=True))
    return Outcome(
        found,
        [
            Figure("failovers", rounds),
            Figure("messages acknowledged", acknowledged),
            Figure("turns interrupted", done.count("interrupted")),
            Figure("servers that had to be restarted", restarted, at_most=0),
            Figure("longest s from promotion to the next message", max(waited), time_limit=2),
            Figure("median s from promotion to the next message", statistics.median(waited)),
            settled,
        ],
    )


async def _fail_over(world: World, pair: StandbyPair) -> float:
    """Return the seconds from the promotion until the next message is acknowledged."""
    await asyncio.to_thread(pair.primary.kill)
    world.fault("failover")
    await asyncio.sleep(DETECTION_SECONDS)
    await asyncio.to_thread(pair.promote)
    promoted = now()
    mark = len(world.history.events)
    async with asyncio.timeout(MAX_WRITE_SECONDS):
        while not any(event.kind == "ack" for event in world.history.events[mark:]):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.01)
    return now() - promoted
