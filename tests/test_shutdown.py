"""Servers that are told to end: turns keep their text, and no database keeps them from it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from urllib.parse import urlsplit

import pytest
from asgiref.sync import sync_to_async as db
from django.db import connection

from chatmemory.models import Message, Turn
from tests.conftest import database_environment
from tests.factories import make_session
from tests.locking import database_stalled
from tests.servers import Connection, eventually, greeted, sign_in, started
from tests.torture.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

DRAIN = 1
EXIT_SECONDS = DRAIN + 12
"""The promise of docs/running.md."""
SOCKETS = 10


def on_server(program, module=""):
    """A parameter for this server; skipped where it is not installed."""
    is_missing = find_spec(module or program) is None
    reason = f"{module or program} is not installed"
    return pytest.param(program, marks=pytest.mark.skipif(is_missing, reason=reason))


SERVERS = [
    "uvicorn",
    "daphne",
    on_server("gunicorn", "uvicorn_worker"),
    on_server("hypercorn"),
]
"""Those that drain; docs/running.md has the table."""


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


@asynccontextmanager
async def proxied():
    """A way to the database that can be stalled, and the environment that leads through it."""
    url = database_environment()["DATABASE_URL"]
    place = urlsplit(url)
    async with Proxy(place.hostname, place.port) as proxy:
        yield proxy, proxy.led_through(url)


@asynccontextmanager
async def link_stalled(proxy):
    """Nothing passes between the servers and the database."""
    proxy.flows.clear()
    try:
        yield
    finally:
        proxy.cut()
        proxy.flows.set()


async def terminated(server):
    """Send SIGTERM; return how many seconds the server took to exit."""
    began = time.monotonic()
    server.process.terminate()
    await db(server.process.wait, thread_sensitive=False)(60)
    return time.monotonic() - began


@asynccontextmanager
async def requested(server, person):
    """A request over HTTP is under way, whose answer nobody reads."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        f"GET /api/sessions/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Cookie: sessionid={person.cookie}\r\n\r\n".encode()
    )
    await writer.drain()
    try:
        yield
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


@db
def reply():
    return Message.objects.filter(role="assistant").values_list("text", "status").get()


@asynccontextmanager
async def busy(server, person):
    """A server with a turn whose first text is saved, and with many sockets."""
    tab, *others = [Connection(server, person) for _ in range(SOCKETS)]
    async with greeted(tab, *others):
        await tab.send("count 300")
        await eventually(lambda: Turn.objects.get().partial)
        yield


@pytest.mark.regression
@pytest.mark.parametrize("program", SERVERS)
async def test_each_server_keeps_the_text_of_a_turn_that_it_interrupts(ann, serve, program):
    [server] = await db(serve)(program=program, DRAIN=DRAIN, LEASE=60)
    async with busy(server, ann):
        assert await terminated(server) < EXIT_SECONDS
    text, status = await reply()
    assert (text[:6], status) == ("1 2 3 ", "interrupted")


@pytest.mark.regression
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite is no server that hangs")
@pytest.mark.parametrize("program", SERVERS)
@pytest.mark.parametrize("how", ["table locked", "link stalled"])
async def test_a_database_that_hangs_keeps_no_server_from_its_end(ann, serve, program, how):
    async with proxied() as (proxy, env):
        [server] = await db(serve)(env=env, program=program, DRAIN=DRAIN, LEASE=2)
        async with busy(server, ann):
            stalled = link_stalled(proxy) if how == "link stalled" else database_stalled()
            async with stalled, requested(server, ann):
                assert await terminated(server) < EXIT_SECONDS
    [other] = await db(serve)(LEASE=2)
    async with greeted(Connection(other, ann)):
        await eventually(lambda: Turn.objects.get().status == "interrupted")
    text, status = await reply()
    assert (text[:2], status) == ("1 ", "interrupted")
