"""Many streams of server-sent events beside as many sockets, and streams that are never read."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from tests.programs.torture.plans.crowds import many_files, memory_of
from tests.programs.torture.talker import talkers
from tests.programs.torture.world import Figure, Outcome, World, now
from tests.servers import DEADLINE, Connection, Person, Server

KB = 1024
IDLE_SECONDS = 20.0
"""How long the share of a core is measured: at least two comments of each stream."""
SYNCED = b'"type":"synced"'
TICKS = os.sysconf("SC_CLK_TCK")


async def streams(world: World, rounds: int, *, idle: int = 1_000, unread: int = 50) -> Outcome:
    """Open idle streams after as many idle sockets, then streams that are never read."""
    with many_files(4 * idle):
        [server] = await world.start(1)
        people = [await world.person() for _ in range(max(1, idle // 5))]
        figures = []
        for name, opened, most_kb in (("socket", _sockets, None), ("stream", _streams, 90)):
            begin = memory_of(server)
            kept = await opened(server, people, idle)
            kb = (memory_of(server) - begin) / idle / KB
            share = await _share_of_a_core(server)
            figures += [
                Figure(f"KB of an idle {name}", kb, at_most=most_kb),
                Figure(f"% of a core for {idle} {name}s", 100 * share, time_limit=5),
            ]
            await asyncio.gather(*(_close(each) for each in kept))
        [fresh] = await world.start(1)
        [talker] = await talkers(world, 1, lambda: fresh)
        # What they share is not counted: rows, frames, and what replies leave in the process.
        sleepers = [await _unread(fresh, talker.person, talker.key)]
        for _ in range(rounds):
            await talker.ask("fill 29")
        begin = memory_of(fresh)
        sleepers += [await _unread(fresh, talker.person, talker.key) for _ in range(unread)]
        for _ in range(rounds):
            await talker.ask("fill 29")
        kb = (memory_of(fresh) - begin) / unread / KB
        for writer in sleepers:
            world.fault("reader stalled")
            writer.transport.abort()
        await talker.close()
        figures.append(Figure("KB of a stream that is never read", kb, at_most=160))
    return Outcome(await world.check(faults={"reader stalled": unread + 1}), figures)


async def _sockets(
    server: Server, people: list[tuple[Person, str]], number: int
) -> list[Connection]:
    tabs = []
    for at in range(number):
        person, key = people[at % len(people)]
        tab = Connection(server, person, key)
        await tab.__aenter__()
        await tab.hello()
        tabs.append(tab)
    return tabs


async def _streams(
    server: Server, people: list[tuple[Person, str]], number: int
) -> list[asyncio.StreamWriter]:
    found = []
    for at in range(number):
        person, key = people[at % len(people)]
        reader, writer = await _requested(server, person, key)
        await _until_synced(reader)
        found.append(writer)
    return found


async def _unread(server: Server, person: Person, key: str) -> asyncio.StreamWriter:
    """Open a stream, and stop reading after `synced`."""
    reader, writer = await _requested(server, person, key)
    await _until_synced(reader)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket
    return writer


async def _until_synced(reader: asyncio.StreamReader) -> None:
    read = b""
    async with asyncio.timeout(DEADLINE):
        while SYNCED not in read:
            read = read[-len(SYNCED) :] + await reader.read(64 * KB)


async def _requested(
    server: Server, person: Person, key: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = (
        f"GET /api/ui/events/{key} HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        f"Cookie: {settings.SESSION_COOKIE_NAME}={person.cookie}",
    )
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
    return reader, writer


async def _close(kept: Connection | asyncio.StreamWriter) -> None:
    if isinstance(kept, Connection):
        await kept.__aexit__()
    else:
        with suppress(OSError):
            kept.close()
            await kept.wait_closed()


async def _share_of_a_core(server: Server) -> float:
    began, before = now(), _cpu_seconds(server)
    await asyncio.sleep(IDLE_SECONDS)
    return (_cpu_seconds(server) - before) / (now() - began)


def _cpu_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
