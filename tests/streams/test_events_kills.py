"""Streams of events and sockets reach the same state, though server processes are killed."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async as db

from chatmemory import services
from tests.factories import make_messages
from tests.live.test_catching_up import (
    CHANGES,
    Watcher,
    try_change,
    wait_until_settled,
    watching,
)
from tests.servers import Connection, Person, Server, live_process, person_with_talk, start_servers
from tests.streams.front import Front
from tests.streams.test_events_schedules import EventWatcher

pytestmark = [pytest.mark.long, pytest.mark.redis, pytest.mark.django_db(transaction=True)]

ann = person_with_talk
live = live_process
serve = start_servers

ROUNDS = int(os.environ.get("STREAM_KILLS", "6"))
"""How many servers are killed."""
CHANGES_OF_A_ROUND = 25


class SocketWatcher(Watcher):
    """A client of a server that processes all frames."""

    def __init__(self, person: Person, server: Server) -> None:
        super().__init__(person)
        self.server = server

    async def connect(self) -> None:
        self.tab: Any = await Connection(self.server, self.person).__aenter__()
        cursor = self.state.cursor
        await self.tab.send_frame("hello", v=1, **({"cursor": cursor} if cursor else {}))
        self.pump = asyncio.ensure_future(self._receive(self.tab))


class StreamWatcher(EventWatcher):
    """A client of a server that processes all events."""

    def __init__(self, person: Person, server: Server) -> None:
        super().__init__(Front(server.address, person))
        self.server = server


class Chosen:
    """Chooses this change, and all else at random."""

    def __init__(self, change: str, chance: random.Random) -> None:
        self._change = change
        self._chance = chance
        self.randrange = chance.randrange

    def choice(self, options: Any) -> Any:
        return self._change if options is CHANGES else self._chance.choice(options)


async def change(chance: random.Random, person: Person, server: Server, number: int) -> None:
    """Change the session; what a person sends goes to a server, which runs the turn."""
    kind = chance.choice(CHANGES)
    if kind not in ("ask", "regenerate"):
        await try_change(Chosen(kind, chance), person, number)
        return
    async with Front(server.address, person) as page:
        body = {"client_id": f"c{number}", "text": f"count {chance.randrange(1, 60)}"}
        with suppress(httpx.HTTPError):  # the server was killed
            await page.http.post("../sessions/talk/messages/", json=body)


async def test_streams_and_sockets_have_the_same_state_after_kills(ann, live, serve, redis_url):
    await db(services.append_messages)(**ann.talk, messages=make_messages(*map(str, range(60))))
    servers = await db(serve)(2, redis_url=redis_url, LEASE=2)
    chance = random.Random(2)  # noqa: S311  # no secret
    watchers: list[Any] = [
        kind(ann, server) for server in servers for kind in (SocketWatcher, StreamWatcher)
    ]
    number = 0
    async with watching(*watchers):
        for killed in range(ROUNDS):
            moment = chance.randrange(CHANGES_OF_A_ROUND)
            server = servers[killed % 2]
            for step in range(CHANGES_OF_A_ROUND):
                number += 1
                if step == moment:
                    await db(server.kill)()
                await change(chance, ann, chance.choice(servers), number)
                await asyncio.sleep(chance.choice((0, 0, 0.01, 0.1)))
            await db(server.start)()
            for watcher in watchers:
                if watcher.server is server:
                    await watcher.drop()
                    await watcher.connect()
        await try_change(Chosen("unarchive", chance), ann, number + 1)
        state = await wait_until_settled(ann, watchers)
    for watcher in watchers:
        newest = {seq: watcher.state.rows[seq] for seq in state.rows}
        assert (newest, watcher.state.session) == (state.rows, state.session)
        if isinstance(watcher, StreamWatcher):
            await watcher.page.http.aclose()
    print(f"{ROUNDS} kills, {number} changes, {state.session['last_seq']} rows, 0 wrong")  # noqa: T201
