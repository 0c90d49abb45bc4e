"""Channel layers on several Redis servers, of which one dies."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis as Client

from tests.programs.torture.checker import Violation
from tests.programs.torture.plans.links import differences
from tests.programs.torture.screen import Screen
from tests.programs.torture.talker import close_all, talkers
from tests.programs.torture.verdict import Absent
from tests.programs.torture.world import Figure, Outcome, Redis, World, now
from tests.servers import free_port, is_listening, wait_for

MASTER = "torture"
DOWN_MS = 500
"""Time after which the sentinel takes a silent master for dead."""


async def shard(world: World, rounds: int, *, talking: int = 4) -> Outcome:
    """Kill one of the two Redis servers of the channel layer during replies, and restart it."""
    first = _redis_of(world)
    second = Redis(world.folder)
    hosts = [{"address": host.url, "socket_timeout": None} for host in (first, second)]
    first.start()
    second.start()

    async def lose() -> None:
        await asyncio.to_thread(second.kill)

    try:
        return await _repeat(world, rounds, hosts, talking, lose, second.start)
    finally:
        second.kill()


async def sentinel(world: World, rounds: int, *, talking: int = 4) -> Outcome:
    """Kill the Redis master of the channel layer during replies; a sentinel promotes another."""
    nodes = [_redis_of(world)]
    nodes.append(Redis(world.folder / "kill", ["--replicaof", "127.0.0.1", str(nodes[0].port)]))
    with _watched(world.folder, nodes) as port:
        client = Client(port=port, decode_responses=True)
        hosts = [
            {"sentinels": [["127.0.0.1", port]], "master_name": MASTER, "socket_timeout": None}
        ]

        def master() -> Redis:
            _, number = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
            [found] = [node for node in nodes if node.port == int(number)]
            return found

        async def lose() -> None:
            lost = await asyncio.to_thread(master)
            await asyncio.to_thread(lost.kill)
            await asyncio.to_thread(wait_for, lambda: master() is not lost, "nothing is promoted")

        def restore() -> None:
            for node in nodes:
                node.start()
            wait_for(lambda: _replicates(nodes), "the former master is no replica")

        return await _repeat(world, rounds, hosts, talking, lose, restore)


async def _repeat(
    world: World,
    rounds: int,
    hosts: Sequence[dict[str, Any]],
    talking: int,
    lose: Callable[[], Awaitable[None]],
    restore: Callable[[], None],
) -> Outcome:
    """Lose a server in each round while people talk and other screens watch, and restore it."""
    env = {**world.env, "LAYER_HOSTS": json.dumps(hosts)}
    here, there = await world.start(2, env=env)
    people = await talkers(world, talking, lambda: here)
    wrong: list[Violation] = []
    waited: list[float] = []
    async with AsyncExitStack() as stack:
        screens = [Screen(there, talker.person, talker.key) for talker in people]
        for screen in screens:
            await stack.enter_async_context(screen)
        for _ in range(rounds):
            asking = [await talker.begin("count 10") for talker in people]
            await lose()
            world.fault("Redis lost")
            await asyncio.gather(*asking)
            await asyncio.gather(*(talker.ask("count 3") for talker in people))
            began = now()
            wrong += await differences(world, screens)
            waited.append(now() - began)
            await asyncio.to_thread(restore)
            await asyncio.gather(*(talker.ask("count 3") for talker in people))
            wrong += await differences(world, screens)
    await close_all(people)
    found = await world.check(faults={"Redis lost": rounds})
    done = [event.status for event in world.history.events if event.kind == "done"]
    return Outcome(
        found + wrong,
        [
            Figure("Redis servers lost", rounds),
            Figure("turns", len(done)),
            Figure("turns interrupted", done.count("interrupted"), at_most=0),
            Figure("longest s until all was shown", max(waited), time_limit=10),
            Figure(
                "longest s that a user waited", max(t.longest_wait for t in people), time_limit=10
            ),
        ],
    )


def _redis_of(world: World) -> Redis:
    if world.redis is None:
        raise Absent("the plan needs a channel layer of Redis")
    return world.redis


@contextmanager
def _watched(folder: Path, nodes: Sequence[Redis]) -> Iterator[int]:
    """Run a master, its replica and a sentinel; yields the port of the sentinel."""
    program = shutil.which("redis-server")
    assert program is not None, "there is a Redis"
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\n"
        f"sentinel monitor {MASTER} 127.0.0.1 {nodes[0].port} 1\n"
        f"sentinel down-after-milliseconds {MASTER} {DOWN_MS}\n"
        f"sentinel failover-timeout {MASTER} 2000\n"
    )
    for node in nodes:
        node.start()
    wait_for(lambda: _replicates(nodes), "the replica does not follow its master")
    process = subprocess.Popen(  # noqa: S603  # our own command line
        [program, str(config), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: is_listening(port), "the sentinel does not start")
        yield port
    finally:
        process.kill()
        process.wait()
        for node in nodes:
            node.kill()


def _replicates(nodes: Sequence[Redis]) -> bool:
    """Whether one node is a replica that is connected to its master."""
    infos = [Client(port=node.port).info("replication") for node in nodes]
    return any(info.get("master_link_status") == "up" for info in infos)
