"""A stalled database: sockets stay open, and everything continues afterwards."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async as db
from django.db import connection

from chatmemory.models import Message
from tests import limits
from tests.locking import database_stalled
from tests.servers import (
    DEADLINE,
    Connection,
    connected,
    on_daphne_and_uvicorn,
    person_with_talk,
    start_servers,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite cannot lock a table"),
]

STALL_SECONDS = 8.0
"""Longer than each of `limits.SHORT`."""


ann = person_with_talk
serve = start_servers


async def listen(tab, seconds):
    """Read and answer pings for this time; the frames are in `tab.frames`."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                await tab.next()
    except TimeoutError:
        return


def is_idle(session):
    return session["running"] is None and session["last_seq"] == 2


@pytest.mark.long
@pytest.mark.regression
@on_daphne_and_uvicorn
async def test_no_healthy_socket_is_closed_because_the_database_is_slow(ann, serve, program):
    [server] = await db(serve)(program=program, limits=limits.SHORT)
    others = [Connection(server, ann) for _ in range(6)]  # more than the pool has threads
    greeting = Connection(server, ann)
    async with connected(tab := Connection(server, ann), *others), greeting:
        async with database_stalled():
            await greeting.send_frame("hello", v=1)
            await tab.send_frame("send", id="s1", client_id="c1", text="hi")
            await tab.send_frame("fetch", id="f1", before_seq=9)
            for other in others:
                await other.send_frame("fetch", id="f1", before_seq=9)
            await asyncio.gather(*(listen(one, STALL_SECONDS) for one in (tab, greeting, *others)))
        answers = {frame["id"]: frame for frame in tab.frames if frame.get("id")}
        assert {answers[name]["code"] for name in ("s1", "f1")} == {"unavailable"}
        assert any(frame.get("code") == "unavailable" for frame in greeting.frames)
        await greeting.until("synced")
        assert (await tab.send("hi"))["type"] == "ok"
        for one in (tab, *others):
            await one.idle(2)
        # The first "hi" may be stored after its answer, and its turn may end before the catch-up.
        if not any(frame["type"] == "session" and is_idle(frame) for frame in greeting.frames):
            await greeting.idle(2)
    assert await db(Message.objects.count)() == 2


@pytest.mark.long
@pytest.mark.regression
async def test_a_client_that_confirms_nothing_is_closed_while_the_database_is_slow(ann, serve):
    [server] = await db(serve)(limits=limits.SHORT)
    async with Connection(server, ann) as tab, database_stalled():
        tab.confirms = False
        await tab.send_frame("hello", v=1)
        bye, code = await tab.closed()
    assert (bye["reason"], code) == ("no_pong", 4408)


@pytest.mark.regression
async def test_a_turn_that_was_admitted_too_late_for_its_answer_still_runs(ann, serve):
    [server] = await db(serve)(limits=limits.SHORT, LEASE=60)
    async with connected(tab := Connection(server, ann)):
        async with database_stalled():
            answer = await tab.send("hi")
            assert (answer["code"], answer["retry"]) == ("unavailable", True)
        async with asyncio.timeout(
            DEADLINE
        ):  # much shorter than the lease, after which the turn would run too
            await tab.idle(2)  # without a resend, which would launch the turn
