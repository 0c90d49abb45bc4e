"""Under random changes and cuts, a stream of events and a socket lead to the same state."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import httpx
import pytest
from asgiref.sync import sync_to_async as db

from chatmemory import services
from tests.factories import make_messages
from tests.live.test_catching_up import (
    ClientState,
    Watcher,
    try_change,
    wait_until_settled,
    watching,
)
from tests.servers import live_process, person_with_talk, serving, use_responder
from tests.streams.front import Front

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


class EventWatcher:
    """A client that processes all events and sometimes loses its connection."""

    def __init__(self, page: Front) -> None:
        self.page = page
        self.state = ClientState()

    async def connect(self) -> None:
        self.pump = asyncio.ensure_future(self._receive())

    async def drop(self) -> None:
        self.pump.cancel()
        await asyncio.gather(self.pump, return_exceptions=True)

    async def _receive(self) -> None:
        with suppress(httpx.HTTPError):
            async with self.page.events(last_event_id=self.state.cursor or "") as stream:
                with suppress(StopAsyncIteration):
                    while True:
                        self.state.apply(await stream.next())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "changes"), [(0, 35), pytest.param(1, 300, marks=pytest.mark.long)]
)
async def test_a_stream_has_the_state_of_a_socket(ann, live, settings, seed, changes):
    use_responder(
        settings,
        "by_seed",
        CONNECTIONS_PER_USER=None,
        READS_PER_MINUTE=None,
        WRITES_PER_MINUTE=None,
    )
    await db(services.append_messages)(**ann.talk, messages=make_messages(*map(str, range(60))))
    chance = random.Random(seed)  # noqa: S311  # no secret
    async with serving() as address, Front(address, ann) as page:
        watchers = [Watcher(ann), EventWatcher(page), EventWatcher(page)]
        async with watching(*watchers):
            for number in range(changes):
                await try_change(chance, ann, number)
                if chance.random() < 0.2:
                    watcher = chance.choice(watchers)
                    await watcher.drop()
                    await watcher.connect()
                await asyncio.sleep(chance.choice((0, 0, 0.01, 0.1)))
            await try_change(_Unarchive(), ann, changes)
            state = await wait_until_settled(ann, watchers)
        for watcher in watchers:
            newest = {seq: watcher.state.rows[seq] for seq in state.rows}
            assert (newest, watcher.state.session) == (state.rows, state.session)


class _Unarchive:
    """Chooses the change that lets waiting turns end."""

    def choice(self, _: object) -> str:
        return "unarchive"
