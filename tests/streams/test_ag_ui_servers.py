"""AG-UI at real servers: two processes, kills, Daphne, and a WSGI server."""

from __future__ import annotations

import json
import random

import httpx
import pytest
from asgiref.sync import sync_to_async as db
from django.test import Client

from chatmemory import services
from chatmemory.models import Turn
from tests.servers import person_with_talk, start_servers
from tests.streams.ag_ui_page import ENDS, Agent, Page
from tests.streams.front import cut

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True)]

ann = person_with_talk
serve = start_servers


async def shown(agent: Agent) -> list[list[str]]:
    """Return the role and the texts of each stored message, as `useChat` would show them."""
    return [
        [each["role"], *(part["content"] for part in each["parts"])]
        for each in (await agent.thread())["messages"]
    ]


async def test_a_run_is_the_same_after_cuts_and_at_either_process(ann, serve, redis_url):
    one, two = await db(serve)(2, redis_url=redis_url)
    chance = random.Random(3)  # noqa: S311  # no secret
    async with Agent(one.address, ann) as first, Agent(two.address, ann) as second:
        for turn in range(20):
            name, run = f"t{turn}", f"run-{turn}"
            found = await cut(first.run("count 12", name, run), chance)
            while found[-1]["type"] not in ENDS:
                found = await cut(chance.choice([first, second]).join(runId=run), chance)
            page = Page().read(found)
            assert (await shown(first))[-1] == ["assistant", page.text]


async def test_a_page_ends_with_the_stored_text_after_a_kill(ann, serve, redis_url):
    one, two = await db(serve)(2, redis_url=redis_url, LEASE=2)
    user = {"id": "c1", "role": "user", "content": "count 100"}
    async with Agent(one.address, ann) as first, Agent(two.address, ann) as second:
        async with first.run("count 100") as stream:
            await stream.until("TEXT_MESSAGE_CONTENT")
            async with second.join(runId="run-1") as other:
                events = await other.until("TEXT_MESSAGE_CONTENT")
                await db(one.kill)()
                page = Page(user).read([*events, *await other.rest()])
                with pytest.raises(httpx.RemoteProtocolError):
                    await stream.rest()
        assert page.of("turn")[0]["status"] == "interrupted"
        assert await shown(second) == [[each["role"], each["content"]] for each in page.messages]


async def test_a_cleared_run_breaks_the_connection(ann, serve, redis_url):
    [server] = await db(serve)(redis_url=redis_url)
    async with Agent(server.address, ann) as agent, agent.run("count 50") as stream:
        await stream.until("TEXT_MESSAGE_CONTENT")
        await services.aclear_session(**ann.talk, reason="test")
        with pytest.raises(httpx.RemoteProtocolError):
            await stream.rest()


async def test_a_cleared_run_ends_with_an_error_on_daphne(ann, serve, redis_url):
    [server] = await db(serve)(program="daphne", redis_url=redis_url)
    async with Agent(server.address, ann) as agent, agent.run("count 50") as stream:
        events = await stream.until("TEXT_MESSAGE_CONTENT")
        await services.aclear_session(**ann.talk, reason="test")
        page = Page().read([*events, *await stream.rest()])
        assert page.end is not None
        assert (page.end["type"], page.end["code"]) == ("RUN_ERROR", "hidden")


def test_a_wsgi_server_refuses_before_it_stores(ann):
    client = Client()
    client.force_login(ann.user)
    message = {"id": "c1", "role": "user", "content": "hi"}
    body = {"threadId": "talk", "runId": "run-1", "messages": [message]}
    for path in ("/api/ui/ag", "/api/ui/ag/"):
        answer = client.post(path, json.dumps(body), content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (501, "not_streamable")
    assert not Turn.objects.exists()
    assert client.get("/api/ui/ag?runId=run-1").status_code == 501
    assert client.get("/api/ui/ag?threadId=talk").json()["messages"] == []
    assert client.get("/api/ui/ag").json()["field"] == "threadId"


def test_strangers_are_refused(ann):
    client = Client()
    for query in ("threadId=talk", "runId=run-1", "runId=c1@talk"):
        assert client.get(f"/api/ui/ag?{query}").status_code in (401, 403)
    assert client.post("/api/ui/ag", "{}", content_type="application/json").status_code == 401
