"""Servers that receive SIGTERM: turns keep their text, and a stalled database delays no exit."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from asgiref.sync import sync_to_async as db
from django.db import connection

from chatmemory.models import Message, Turn
from tests.conftest import database_environment
from tests.locking import database_stalled
from tests.programs.torture.proxy import Proxy
from tests.servers import (
    Connection,
    connected,
    eventually,
    on_each_server,
    person_with_talk,
    start_servers,
)

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

DRAIN = 1
EXIT_SECONDS = DRAIN + 12
"""The limit that docs/howto/deployment.md states."""
SOCKETS = 10


ann = person_with_talk
serve = start_servers


@asynccontextmanager
async def proxied():
    """Start a proxy of the database; yield it, and the environment of a server that uses it."""
    url = database_environment()["DATABASE_URL"]
    address = urlsplit(url)
    async with Proxy(address.hostname, address.port) as proxy:
        yield proxy, proxy.environment_of(url)


@asynccontextmanager
async def link_stalled(proxy):
    """Let nothing pass between the servers and the database."""
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
    """Send an HTTP request and do not read its answer."""
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
    """Open many sockets, and start a turn whose first text is saved."""
    tab, *others = [Connection(server, person) for _ in range(SOCKETS)]
    async with connected(tab, *others):
        await tab.send("count 300")
        await eventually(lambda: Turn.objects.get().partial)
        yield


@pytest.mark.long
@pytest.mark.regression
@on_each_server
async def test_each_server_keeps_the_text_of_a_turn_that_it_interrupts(ann, serve, program):
    [server] = await db(serve)(program=program, DRAIN=DRAIN, LEASE=60)
    async with busy(server, ann):
        assert await terminated(server) < EXIT_SECONDS
    text, status = await reply()
    assert (text[:6], status) == ("1 2 3 ", "interrupted")


@pytest.mark.long
@pytest.mark.regression
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server")
@on_each_server
@pytest.mark.parametrize("how", ["table locked", "link stalled"])
async def test_a_stalled_database_does_not_delay_the_exit(ann, serve, program, how):
    async with proxied() as (proxy, env):
        [server] = await db(serve)(env=env, program=program, DRAIN=DRAIN, LEASE=2)
        async with busy(server, ann):
            stalled = link_stalled(proxy) if how == "link stalled" else database_stalled()
            async with stalled, requested(server, ann):
                assert await terminated(server) < EXIT_SECONDS
    [other] = await db(serve)(LEASE=2)
    async with connected(Connection(other, ann)):
        await eventually(lambda: Turn.objects.get().status == "interrupted")
    text, status = await reply()
    assert (text[:2], status) == ("1 ", "interrupted")
