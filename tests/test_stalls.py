"""A database that does not answer for a while: sockets stay open, and everything goes on after."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async as db
from django.db import connection

from chatmemory.models import Message
from tests import limits
from tests.factories import make_session
from tests.locking import database_stalled
from tests.servers import Connection, greeted, sign_in, started

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no lock of a table"),
]

STALL_SECONDS = 8.0
"""Longer than each of `limits.SHORT`."""


@pytest.fixture
def ann(transactional_db):
    person = sign_in()
    make_session(owner=person.user)
    return person


@pytest.fixture
def serve(transactional_db, tmp_path):
    """Start servers for this test."""
    with started(tmp_path) as start:
        yield start


async def listen(tab, seconds):
    """Read, and confirm pings, for a while; the frames are in `tab.frames`."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                await tab.next()
    except TimeoutError:
        return


@pytest.mark.regression
@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_no_healthy_socket_is_closed_because_the_database_is_slow(ann, serve, program):
    [server] = await db(serve)(program=program, limits=limits.SHORT)
    others = [Connection(server, ann) for _ in range(6)]  # more than the pool has threads
    greeting = Connection(server, ann)
    async with greeted(tab := Connection(server, ann), *others), greeting:
        async with database_stalled():
            await greeting.say("hello", v=1)
            await tab.say("send", id="s1", client_id="c1", text="hi")
            await tab.say("fetch", id="f1", before_seq=9)
            for other in others:
                await other.say("fetch", id="f1", before_seq=9)
            await asyncio.gather(*(listen(one, STALL_SECONDS) for one in (tab, greeting, *others)))
        answers = {frame["id"]: frame for frame in tab.frames if frame.get("id")}
        assert {answers[name]["code"] for name in ("s1", "f1")} == {"unavailable"}
        assert any(frame.get("code") == "unavailable" for frame in greeting.frames)
        await greeting.until("synced")
        assert (await tab.send("hi"))["type"] == "ok"
        for one in (tab, greeting, *others):
            await one.idle(2)
    assert await db(Message.objects.count)() == 2


@pytest.mark.regression
async def test_a_client_that_confirms_nothing_is_closed_while_the_database_is_slow(ann, serve):
    [server] = await db(serve)(limits=limits.SHORT)
    async with Connection(server, ann) as tab, database_stalled():
        tab.confirms = False
        await tab.say("hello", v=1)
        bye, code = await tab.closed()
    assert (bye["reason"], code) == ("no_pong", 4408)


@pytest.mark.regression
async def test_a_turn_that_was_admitted_too_late_for_its_answer_still_runs(ann, serve):
    [server] = await db(serve)(limits=limits.SHORT, LEASE=60)
    async with greeted(tab := Connection(server, ann)):
        async with database_stalled():
            answer = await tab.send("hi")
            assert (answer["code"], answer["retry"]) == ("unavailable", True)
        await tab.send("hi")
        await tab.idle(2)
