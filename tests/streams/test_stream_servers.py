"""Streams of real servers: two processes, kills, deploys, Daphne, and a WSGI server."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from asgiref.sync import sync_to_async as db
from django.test import Client

from chatmemory import services
from chatmemory.models import Turn
from tests.factories import make_messages
from tests.servers import (
    Server,
    on_daphne_and_uvicorn,
    person_with_talk,
    start_servers,
)
from tests.streams.front import Chunk, Front, cut
from tests.streams.page import shown

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True)]

ann = person_with_talk
serve = start_servers


async def test_a_reply_is_the_same_after_cuts_and_at_either_process(ann, serve, redis_url):
    one, two = await db(serve)(2, redis_url=redis_url)
    chance = random.Random(3)  # noqa: S311  # no secret
    async with Front(one.address, ann) as first, Front(two.address, ann) as second:
        for turn in range(8):
            name = f"t{turn}"
            found = await cut(first.send("count 12", name), chance)
            while not found or found[-1]["type"] != "finish":
                found = await cut(chance.choice([first, second]).resume(), chance)
            reply = (await first.history())[-1]
            assert reply["id"] == f"a.{name}"
            assert shown(found) == reply["parts"]


async def test_ten_pages_at_two_processes_show_the_same(ann, serve, redis_url):
    one, two = await db(serve)(2, redis_url=redis_url)
    pages = [Front(server.address, ann) for server in (one, two) for _ in range(5)]

    async def read(page: Front) -> list[Chunk]:
        async with page.resume() as stream:
            return await stream.rest()

    async with pages[0].send("count 20") as stream:
        await stream.until("text-delta")
        found = [*await asyncio.gather(*map(read, pages)), await stream.rest()]
    reply = (await pages[0].history())[-1]
    for chunks in found[:-1]:
        assert shown(chunks) == reply["parts"]
    for page in pages:
        await page.http.aclose()


async def test_a_page_ends_with_the_stored_text_after_a_kill(ann, serve, redis_url):
    one, two = await db(serve)(2, redis_url=redis_url, LEASE=2)
    async with Front(one.address, ann) as first, Front(two.address, ann) as second:
        async with first.send("count 100") as stream:
            await stream.until("text-delta")
            async with second.resume() as other:
                await other.until("text-delta")
                await db(one.kill)()
                killed_at = time.monotonic()
                chunks = await other.rest()
                with pytest.raises(httpx.RemoteProtocolError):
                    await stream.rest()
        assert chunks[-1]["finishReason"] == "interrupted"
        assert time.monotonic() - killed_at < 5 * 3
        async with second.resume() as stream:
            chunks = await stream.rest()
        assert shown(chunks) == (await second.history())[-1]["parts"]


async def test_a_deploy_breaks_streams_soon_and_the_page_goes_on(ann, serve, redis_url):
    one, two = await db(serve)(2, redis_url=redis_url, DRAIN=0.5)
    async with Front(one.address, ann) as first, Front(two.address, ann) as second:
        async with second.send("count 40", "c0") as stream:
            await stream.until("text-delta")
            async with first.resume() as other, first.events() as events:
                await other.until("text-delta")
                await events.until("synced")
                ended = asyncio.ensure_future(db(one.terminate)())
                with pytest.raises(httpx.RemoteProtocolError):
                    await other.rest()
                assert (await events.rest())[-1]["reason"] == "shutting_down"
                await ended
            chunks = await stream.rest()
        assert chunks[-1]["finishReason"] == "stop"
        assert "Traceback" not in one.log.read_text()


@on_daphne_and_uvicorn
async def test_a_stream_works_on_each_server(ann, serve, program):
    [server] = await db(serve)(program=program)
    async with Front(server.address, ann) as page:
        async with page.send("count 5") as stream:
            chunks = await stream.rest()
        assert shown(chunks) == (await page.history())[-1]["parts"]
        async with page.events() as stream:
            await stream.until("synced")


async def test_a_cleared_reply_breaks_the_connection(ann, serve, redis_url):
    [server] = await db(serve)(redis_url=redis_url)
    async with Front(server.address, ann) as page, page.send("count 50") as stream:
        await stream.until("text-delta")
        await services.aclear_session(**ann.talk, reason="test")
        with pytest.raises(httpx.RemoteProtocolError):
            await stream.rest()
    assert "Traceback" not in server.log.read_text()


async def test_a_cleared_reply_ends_with_an_error_on_daphne(ann, serve, redis_url):
    [server] = await db(serve)(program="daphne", redis_url=redis_url)
    async with Front(server.address, ann) as page, page.send("count 50") as stream:
        await stream.until("text-delta")
        await services.aclear_session(**ann.talk, reason="test")
        error = (await stream.rest())[-1]
        assert json.loads(error["errorText"]) == {"code": "hidden", "turn": "c1"}


async def test_an_open_stream_keeps_no_thread(ann, serve):
    [server] = await db(serve)()
    async with Front(server.address, ann) as page, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(page.events()) for _ in range(12)]
        for stream in streams:
            await stream.until("synced")
        count = threads_of(server)
        await services.aappend_messages(**ann.talk, messages=make_messages("hi"))
        for stream in streams:
            await stream.until("message")  # all are open
    assert count < 12 + 12 / 2


def threads_of(server: Server) -> int:
    return len([*Path(f"/proc/{server.pid}/task").iterdir()])


def test_a_wsgi_server_refuses_before_it_stores(ann):
    client = Client()
    client.force_login(ann.user)
    message = {"id": "c1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    body = {"id": "talk", "messages": [message]}
    answer = client.post("/api/ui/chat", body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (501, "not_streamable")
    for path in ("chat/talk/stream", "events/talk"):
        assert client.get(f"/api/ui/{path}").status_code == 501
    assert not Turn.objects.exists()
    assert client.get("/api/ui/chat/talk/messages").json() == []
