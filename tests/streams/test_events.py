"""The frames of a session as server-sent events: what a socket would have been sent."""

from __future__ import annotations

import json

import pytest
from asgiref.sync import sync_to_async as db
from django.contrib.auth.models import User

from chatmemory import services
from chatmemory.live.hub import hub
from tests.factories import make_messages
from tests.servers import (
    Tab,
    live_process,
    person_with_talk,
    serving,
    sign_in,
    use_responder,
)
from tests.streams.front import Front

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


@pytest.fixture(autouse=True)
def _live(live):
    pass


async def append(person, *texts):
    await services.aappend_messages(**person.talk, messages=make_messages(*texts))


@pytest.mark.slow
async def test_it_has_the_frames_of_a_socket(ann, settings):
    use_responder(settings, "with_tools")
    await append(ann, "before")
    async with serving() as address, Front(address, ann) as page, Tab(ann) as tab:
        await tab.hello()
        async with page.events() as stream:
            assert (await stream.next())["type"] == "welcome"
            await stream.until("synced")
            await tab.send("Rain?")
            await tab.idle(5)
            frames = await stream.until("synced")
            while frames[-2].get("running") is not None or frames[-2].get("last_seq") != 5:
                frames = [*frames, *await stream.until("synced")]
        texts = [frame["text"] for frame in frames if frame["type"] == "message"]
        assert texts == tab.texts()[-4:]


@pytest.mark.slow
async def test_a_client_that_reconnects_gets_what_it_missed(ann):
    await append(ann, "one")
    async with serving() as address, Front(address, ann) as page:
        async with page.events() as stream:
            frames = await stream.until("synced")
            assert stream.last_id == frames[-1]["cursor"]
        await append(ann, "two")
        async with page.events(last_event_id=stream.last_id) as stream:
            frames = await stream.until("synced")
            assert [each["text"] for each in frames if each["type"] == "message"] == ["two"]


async def test_a_purge_ends_it(ann):
    async with serving() as address, Front(address, ann) as page, page.events() as stream:
        await stream.until("synced")
        await db(services.purge_session)(**ann.talk, reason="test")
        frames = await stream.rest()
        assert [each["type"] for each in frames] == ["reset", "bye"]
        assert (frames[-1]["reason"], frames[-1]["reconnect"]) == ("not_found", False)


@pytest.mark.slow
async def test_a_logout_ends_it(ann):
    async with serving() as address, Front(address, ann) as page, page.events() as stream:
        await stream.until("synced")
        await User.objects.filter(pk=ann.user.pk).aupdate(is_active=False)
        hub.close_owner_sockets(ann.talk["by"].owner)
        [bye] = await stream.rest()
        assert (bye["code"], bye["reconnect"]) == (4401, False)


@pytest.mark.slow
async def test_a_restart_asks_to_reconnect(ann):
    async with serving() as address, Front(address, ann) as page, page.events() as stream:
        await stream.until("synced")
        hub.close_for_restart("shutting_down")
        [bye] = await stream.rest()
        assert (bye["code"], bye["reconnect"]) == (4503, True)


@pytest.mark.slow
async def test_it_ends_at_its_age(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "CONNECTION_AGE": 0.5}
    async with serving() as address, Front(address, ann) as page, page.events() as stream:
        assert (await stream.rest())[-1]["reason"] == "rotating"


@pytest.mark.slow
async def test_another_persons_session_is_not_found(ann):
    bob = await db(sign_in)()
    async with serving() as address, Front(address, bob) as page, page.events() as stream:
        assert stream.response.status_code == 404
        assert json.loads(await stream.response.aread())["code"] == "not_found"


@pytest.mark.slow
async def test_streams_of_one_login_and_session_count_once(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "CONNECTIONS_PER_USER": 1}
    async with (
        serving() as address,
        Front(address, ann) as page,
        page.events() as first,
        page.events() as second,
    ):
        await first.until("synced")
        await second.until("synced")
        async with Tab(ann) as tab:  # another connection: the oldest ends
            await tab.hello()
            for stream in (first, second):
                assert (await stream.rest())[-1]["reason"] == "too_many_connections"


@pytest.mark.slow
async def test_streams_of_a_session_share_the_reads_of_a_notification(ann, page_reads):
    async with (
        serving() as address,
        Front(address, ann) as page,
        page.events() as first,
        page.events() as second,
        page.events() as third,
    ):
        streams = (first, second, third)
        for stream in streams:
            await stream.until("synced")
        page_reads.clear()
        await append(ann, "one")
        for stream in streams:
            assert (await stream.until("message"))[-1]["text"] == "one"
        assert len(page_reads) == 1
