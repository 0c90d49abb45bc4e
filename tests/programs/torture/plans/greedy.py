"""One user exhausts every limit; others must not notice."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress

from tests.programs.torture.talker import LOST_ERRORS
from tests.programs.torture.verdict import Figure, Outcome
from tests.programs.torture.world import World, now
from tests.rest import Answer, request
from tests.servers import Connection, Person, Server

LIMITS = {
    "TURNS_PER_USER": 3,
    "WAITS_PER_USER": 5,
    "SENDS_PER_MINUTE": 60,
    "READS_PER_MINUTE": 60,
    "MAX_SESSIONS_PER_USER": 20,
    "CONNECTIONS_PER_USER": 5,
}
SESSIONS = 12
"""Number of sessions in which the greedy user sends concurrently."""
NEIGHBORS = 6
"""Number of other users; each stays below the limits."""
PAUSE = 0.5
"""Seconds between two requests of a greedy task: together they send about 30 a second. Faster ones
would measure how many refusals the machine can send, which a proxy before the server must limit."""
FAULTS = {"turn waited", "wait refused", "read refused", "session refused", "socket closed"}
SECONDS = 60.0
"""Maximum time until all limits are reached."""


async def greedy(world: World, rounds: int) -> Outcome:
    """Measure visits of other users, without and with a user who exhausts every limit."""
    if not world.servers:
        await world.start(1, **LIMITS)
    server = world.servers[0]
    neighbors = [await world.person() for _ in range(NEIGHBORS)]
    people = itertools.cycle(neighbors)
    alone = [await _visit(server, *next(people)) for _ in range(rounds)]
    person, _ = await world.person()
    seen: set[str] = set()

    def note(fault: str) -> None:
        if fault not in seen:
            seen.add(fault)
            world.fault(fault)

    tasks = [asyncio.ensure_future(task) for task in _tasks(server, person, note)]
    try:
        async with asyncio.timeout(SECONDS):
            while seen != FAULTS:  # many tasks find them
                _check_alive(tasks)
                await asyncio.sleep(PAUSE)
        beside = [await _visit(server, *next(people)) for _ in range(rounds)]
        _check_alive(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await world.settle()
    found = await world.check(faults=dict.fromkeys(FAULTS, 1))
    errors = [error for _, visit_errors in [*alone, *beside] for error in visit_errors]
    usual, disturbed = (_percentile([took for took, _ in visits]) for visits in (alone, beside))
    figures = [
        Figure("visits of others", len(beside)),
        Figure("errors of others", len(errors), at_most=0),
        Figure("95th percentile of a visit alone, s", usual),
        Figure("times as long beside the greedy user", disturbed / usual, time_limit=3),
    ]
    return Outcome(found, figures)


def _check_alive(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Fail if a task of the greedy user has ended: it would not disturb the others."""
    for task in tasks:
        if task.done():
            task.result()


def _percentile(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


async def _visit(server: Server, person: Person, key: str) -> tuple[float, list[int]]:
    """List, send, read the reply and open a socket; return the duration and the errors."""
    address = f"/api/sessions/{key}/messages/"
    began = now()
    send = {"client_id": f"{key}.{began}", "text": f"count 1 {key}.{began}", "wait": 20}
    answers = [
        await request(server, person, "/api/sessions/"),
        await request(server, person, address, send),
        await request(server, person, address),
    ]
    errors = [answer.status for answer in answers if answer.status not in (200, 201)]
    try:
        async with Connection(server, person, key) as tab:
            await tab.hello()
    except LOST_ERRORS:
        errors.append(0)
    return now() - began, errors


def _tasks(server: Server, person: Person, note: Callable[[str], None]) -> list[Awaitable[None]]:
    """Return the tasks of the greedy user, which run concurrently and without an end."""
    numbers = itertools.count()

    async def turns(key: str, text: str) -> None:
        for number in numbers:
            body = {"client_id": f"{key}.{number}", "text": f"{text} {key}.{number}", "wait": 2}
            answer = await request(server, person, f"/api/sessions/{key}/messages/", body)
            if answer.status == 429:
                note("wait refused")
                del body["wait"]
                answer = await request(server, person, f"/api/sessions/{key}/messages/", body)
            if answer.status == 202 and answer.json()["status"] == "waiting":
                note("turn waited")
            await asyncio.sleep(PAUSE)

    async def begin(number: int) -> None:
        opened = await request(server, person, "/api/sessions/", {})
        # Some replies are tables that are costly to render.
        await turns(opened.json()["key"], "table 200 300" if number % 4 == 0 else "count 4")

    async def repeat(ask: Callable[[], Awaitable[Answer]], refused: int, fault: str) -> None:
        while True:
            if (await ask()).status == refused:
                note(fault)
            await asyncio.sleep(PAUSE)

    async def pages() -> None:
        listed = await request(server, person, "/api/sessions/?limit=100")
        for session in itertools.cycle(listed.json()["sessions"]):
            for path in (f"/chat/{session['key']}/", f"/chat/{session['key']}/html/"):
                if (await request(server, person, path)).status == 429:
                    note("read refused")
                await asyncio.sleep(PAUSE)

    async def sockets() -> None:
        key = (await request(server, person, "/api/sessions/", {})).json()["key"]
        while True:
            async with AsyncExitStack() as stack:
                tabs = [Connection(server, person, key) for _ in range(8)]
                with suppress(*LOST_ERRORS):
                    for tab in tabs:
                        await stack.enter_async_context(tab)
                if (await tabs[0].closed())[1] == 4409:
                    note("socket closed")
            await asyncio.sleep(PAUSE)

    def lists() -> Awaitable[Answer]:
        return request(server, person, "/api/sessions/?limit=100")

    def sessions() -> Awaitable[Answer]:
        return request(server, person, "/api/sessions/", {})

    return [
        sockets(),
        *(begin(number) for number in range(SESSIONS)),
        _after(2, pages()),
        _after(2, repeat(lists, 429, "read refused")),
        _after(2, repeat(sessions, 400, "session refused")),
    ]


async def _after(seconds: float, task: Awaitable[None]) -> None:
    await asyncio.sleep(seconds)
    await task
