"""Many clients at the same time: stalled readers, dropped sockets, isolation, a held lock."""

from __future__ import annotations

import asyncio
import math
import resource
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chatmemory.models import Session
from tests.conftest import missing
from tests.locking import held
from tests.programs.torture.history import Event, Kind
from tests.programs.torture.screen import Screen
from tests.programs.torture.talker import LOST_ERRORS, Talker, close_all, talkers
from tests.programs.torture.world import Figure, Outcome, World, db, now
from tests.servers import DEADLINE, Connection, Frame, Person, Server

MEGABYTE = 1024 * 1024
BLOCKS = 29
"""Blocks of a long reply: just below the limit of a frame, and above a socket's credit."""
HELD = 4.0
CANCELLED_SHARE = 0.3
TOKENS_PER_TURN = 2_000


async def readers(world: World, rounds: int, *, stalled: int = 100, fast: int = 10) -> Outcome:
    """Let sockets stop reading while others follow long replies."""
    if not world.servers:
        await world.start(1)
    server = world.servers[0]
    [talker] = await talkers(world, 1, lambda: server)
    screens = [Screen(server, talker.person, talker.key) for _ in range(fast)]
    await asyncio.gather(*(screen.__aenter__() for screen in screens))
    before = [await _follow(talker, screens) for _ in range(rounds)]
    at_rest, open_before = memory_of(server), sockets_of(server)
    sleepers = [await _stalled_socket(server, talker.person, talker.key) for _ in range(stalled)]
    most = at_rest

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, memory_of(server))
            await asyncio.sleep(0.02)

    watching = asyncio.ensure_future(watch())
    after = [await _follow(talker, screens) for _ in range(rounds)]
    watching.cancel()
    for _ in range(sockets_of(server) - open_before):
        world.fault("reader stalled")
    for sleeper in sleepers:
        sleeper.socket.transport.abort()
    await asyncio.gather(*(screen.__aexit__() for screen in screens))
    await talker.close()
    found = await world.check(faults={"reader stalled": stalled})
    usual = statistics.median(before)
    figures = [
        Figure("stalled readers", stalled),
        Figure("MB more", (most - at_rest) / MEGABYTE, at_most=64),
        Figure("median s of a long reply, before", usual),
        Figure("times as long with the stalled", statistics.median(after) / usual, time_limit=2),
    ]
    return Outcome(found, figures)


async def _follow(talker: Talker, screens: list[Screen]) -> float:
    """Send a message with a long reply; return the time until all screens show it."""
    began = now()
    client_id = await talker.ask(f"fill {BLOCKS}")
    async with asyncio.timeout(DEADLINE):
        for screen in screens:
            while client_id not in screen.answered:  # noqa: ASYNC110  # frames change it
                await asyncio.sleep(0.005)
    return now() - began


async def _stalled_socket(server: Server, person: Person, key: str) -> Connection:
    """Open a socket that stops reading after `synced`."""
    tab = Connection(server, person, key)
    await tab.__aenter__()
    await tab.hello()
    tab.socket.transport.pause_reading()
    return tab


async def storm(world: World, rounds: int, *, sockets: int = 1_000) -> Outcome:
    """Drop all sockets simultaneously; they reconnect by the client's rules."""
    with many_files(3 * sockets):
        servers = world.servers or await world.start(2)
        people = [await world.person() for _ in range(max(1, sockets // 5))]
        tabs: list[Connection] = []
        took = []

        async def reconnect(number: int) -> None:
            person, key = people[number % len(people)]
            for failures in range(20):
                max_pause = min(10.0, 0.5 * 2**failures)
                await asyncio.sleep(world.chance.uniform(0, max_pause))
                tab = Connection(world.chance.choice(servers), person, key)
                with suppress(*LOST_ERRORS):
                    await tab.__aenter__()
                    await tab.hello()
                    tabs.append(tab)
                    return
            raise AssertionError("a socket cannot reconnect")

        for round_ in range(rounds + 1):
            dropped = len(tabs)
            for tab in tabs:
                tab.socket.transport.abort()
            tabs.clear()
            began = now()
            await asyncio.gather(*(reconnect(number) for number in range(sockets)))
            if round_:
                took.append(now() - began)
                if dropped == sockets:
                    world.fault("all dropped")
        for tab in tabs:
            tab.socket.transport.abort()
    found = await world.check(faults={"all dropped": rounds})
    figures = [
        Figure("sockets", sockets),
        Figure("median s until all have reconnected", statistics.median(took)),
        Figure("longest s until all have reconnected", max(took), time_limit=15),
    ]
    return Outcome(found, figures)


@contextmanager
def many_files(wanted: int) -> Iterator[None]:
    """Raise the limit of open files of this process and of those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, wanted), hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def isolation(world: World, rounds: int, *, talking: int = 100) -> Outcome:
    """Send canaries in all sessions, and cancel some requests, until enough tokens are received."""
    if not world.servers:
        await world.start(2)
    people = await talkers(world, talking)
    screens = [
        Echo(world, world.chance.choice(world.servers), talker.person, talker.key)
        for talker in people
    ]
    await asyncio.gather(*(screen.__aenter__() for screen in screens))

    def tokens() -> int:
        streamed = (e for e in world.history.events if e.kind == "token" and e.id)
        return sum(event.text.count("canary-") for event in streamed)

    requests = 0
    while (found_tokens := tokens()) < rounds:
        words = max(10, min(TOKENS_PER_TURN, rounds // talking))
        for talker in people:
            talker.drop_socket()  # the next one is to another server
        # A fixed share: by chance alone, a round of ten may have none.
        cancelled = world.chance.sample(people, math.ceil(len(people) * CANCELLED_SHARE))
        await asyncio.gather(
            *(_request(world, talker, words, cancel=talker in cancelled) for talker in people)
        )
        requests += len(people)
    await asyncio.gather(*(screen.__aexit__() for screen in screens))
    settled = await world.settle()
    await close_all(people)
    faults = world.history.faults()["request cancelled"]
    found = await world.check(faults={"request cancelled": requests // 10})
    figures = [
        Figure("people", talking),
        Figure("tokens", found_tokens, at_least=rounds),
        Figure("share of requests cancelled", faults / requests),
        settled,
    ]
    return Outcome(found, figures)


class Echo(Screen):
    """A second socket that records the text that it receives."""

    def __init__(self, world: World, server: Server, person: Person, key: str) -> None:
        super().__init__(server, person, key)
        self._note = world.history.note

    def apply(self, frame: Frame) -> None:
        super().apply(frame)
        match frame:
            case {"type": "snapshot" | "delta", "turn": turn, "text": str(text)}:
                self._record("token", text, id=turn)
            case {"type": "message", "role": "assistant", "turn": str(turn), "text": text}:
                self._record("done", text, id=turn, status=frame["status"])
            case {"type": "message", "text": text}:
                self._record("token", text)

    def _record(self, kind: Kind, text: str, *, id: str = "", status: str = "") -> None:  # noqa: A002  # as in Event
        about = Event(kind=kind, client="echo", session=self.key, id=id, text=text, status=status)
        self._note(about)


async def _request(world: World, talker: Talker, words: int, *, cancel: bool) -> None:
    """Send a message, and cancel it if wanted."""
    asking = asyncio.ensure_future(talker.ask(f"say {words} canary-{talker.key}"))
    if cancel:
        await asyncio.sleep(world.chance.uniform(0, 0.1))
        how = world.chance.choice(["drop", "stop", "request"])
        if how == "request" or talker.tab is None:
            await _abort_http_request(world, talker)
        elif how == "stop":
            with suppress(*LOST_ERRORS):
                await talker.tab.send_frame("stop", id="stop", turn=talker.current)
        else:
            talker.drop_socket()
        world.fault("request cancelled")
    await asking


async def _abort_http_request(world: World, talker: Talker) -> None:
    """Request the messages over HTTP, and abort before the whole response has arrived."""
    server = world.chance.choice(world.servers)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        f"GET /api/sessions/{talker.key}/messages/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Cookie: sessionid={talker.person.cookie}\r\n\r\n".encode()
    )
    with suppress(TimeoutError):
        async with asyncio.timeout(world.chance.uniform(0, 0.2)):
            text = (await reader.read(MEGABYTE)).decode(errors="replace")
            event = Event(kind="token", client="http", session=talker.key, text=text)
            world.history.note(event)
    writer.transport.abort()


async def stuck(world: World, rounds: int, *, seconds: float = HELD) -> Outcome:
    """Hold a session's lock, while another session gets messages and sockets."""
    if "sqlite" in world.env.get("DATABASE_URL", "sqlite"):
        missing("SQLite has one lock for all sessions")
    if not world.servers:
        await world.start(1)
    server = world.servers[0]
    waits, other = await talkers(world, 2, lambda: server)
    await other.ask("count 1")
    appends: list[float] = []
    sockets: list[float] = []
    for _ in range(rounds):
        session = await db(Session.objects.get)(key=waits.key)
        lock = held(session)
        await db(lock.__enter__)()
        waiting = asyncio.ensure_future(waits.ask("count 1"))
        until = now() + seconds
        try:
            while now() < until:
                began = now()
                client_id = await other.ask("count 1")
                acked = next(
                    event.at
                    for event in reversed(world.history.events)
                    if event.kind == "ack" and event.id == client_id
                )
                appends.append(acked - began)
                began = now()
                async with Screen(server, other.person, other.key):
                    sockets.append(now() - began)
            assert not waiting.done(), "the lock was not held"
            world.fault("session stuck")
        finally:
            await db(lock.__exit__)(None, None, None)
        await waiting
    await close_all([waits, other])
    found = await world.check(faults={"session stuck": rounds})
    figures = [
        Figure("appends elsewhere", len(appends)),
        Figure("longest s of an append elsewhere", max(appends), time_limit=0.25),
        Figure("longest s until a new socket is open", max(sockets)),
    ]
    return Outcome(found, figures)


def memory_of(server: Server) -> int:
    """Return the resident memory of a server, in bytes."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def sockets_of(server: Server) -> int:
    """Return the number of open connections of a server."""
    lines = Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]
    here, established = f":{server.port:04X}", "01"
    fields = [line.split() for line in lines]
    return sum(local.endswith(here) and state == established for _, local, _, state, *_ in fields)
