"""Each kind of person at each address of the streams, and what ends an open stream."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import httpx
import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import Client

from chatmemory import services
from chatmemory.access.visitors import LOCAL_COOKIE
from chatmemory.live.hub import hub
from chatmemory.models import Reading, Session, Turn
from chatmemory.services import Actor
from tests.factories import make_messages, make_user
from tests.gates_for_tests import DEVICE
from tests.impersonators_for_tests import IMPERSONATE
from tests.servers import Person, live_process, serving, sign_in, use_responder
from tests.streams.front import Front

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.regression, pytest.mark.slow]

live = live_process

KEY = str(uuid.uuid4())
SECRET = "classified"
ADDRESSES = (
    ("GET", f"chat/{KEY}/stream"),
    ("GET", f"chat/{KEY}/messages"),
    ("GET", f"chat/{KEY}/messages/?before=9"),
    ("POST", f"chat/{KEY}/stop"),
    ("POST", "chat"),
    ("POST", "chat/"),
    ("GET", f"events/{KEY}"),
    ("POST", "ag"),
    ("GET", f"ag?threadId={KEY}"),
    ("GET", f"ag?runId=c1@{KEY}&offset=-1"),
)
MESSAGE = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
BODIES = {
    "chat": {"id": KEY, "messages": [{**MESSAGE, "id": "m1"}]},
    "chat/": {"id": KEY, "messages": [{**MESSAGE, "id": "m1"}]},
    "ag": {"threadId": KEY, "runId": "r1", "messages": [{**MESSAGE, "id": "m2", "content": "hi"}]},
}


@dataclass(frozen=True)
class Talk:
    """Ann's session, in which a reply runs."""

    ann: Person
    address: dict[str, object]


@pytest.fixture
def talk(live, settings):
    use_responder(settings, "slow")
    ann = sign_in(make_user("ann"))
    address = {"session_key": KEY, "by": Actor.user(ann.user)}
    services.open_session(**address)
    services.append_messages(**address, messages=make_messages(f"{SECRET} question", SECRET))
    return Talk(ann, address)


async def answers(page):
    """Return the status of each address, and check that no answer has a word of the session."""
    found = {}
    for method, path in ADDRESSES:
        given = {"json": BODIES.get(path, {})} if method == "POST" else {}
        async with page.http.stream(method, path, **given) as response:
            found[path] = response.status_code
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                text = await anext(response.aiter_text())
            else:
                text = (await response.aread()).decode()
            assert SECRET not in text
    return found


async def test_a_stranger_finds_nothing(talk):
    bob = await db(sign_in)()
    async with serving() as address, Front(address, bob, KEY) as page:
        found = await answers(page)
    # The key of a session names it only among a person's own: Bob has opened another one.
    for own in ("chat", "chat/", f"events/{KEY}", "ag", f"ag?threadId={KEY}"):
        assert found.pop(own) == 200
    assert found.pop(f"chat/{KEY}/stream") == 204  # as of a new chat
    assert set(found.values()) == {404}
    assert await Session.objects.filter(key=KEY).acount() == 2
    assert not await Turn.objects.filter(session__scope=talk.address["by"].owner).aexists()


@pytest.mark.parametrize("person", ["anonymous", "inactive", "with another password"])
async def test_who_is_not_signed_in_gets_401(talk, person):
    bob = await db(sign_in)()
    if person == "inactive":
        await User.objects.filter(pk=bob.user.pk).aupdate(is_active=False)
    elif person == "with another password":
        await User.objects.filter(pk=bob.user.pk).aupdate(password="other")
    signed_in = None if person == "anonymous" else bob
    async with serving() as address, Front(address, signed_in, KEY) as page:
        assert set((await answers(page)).values()) == {401}


async def test_without_a_token_nothing_is_written(talk):
    async with serving() as address, Front(address, talk.ann, KEY) as page:
        del page.http.headers["X-CSRFToken"]
        for method, path in ADDRESSES:
            if method == "POST":
                assert (await page.http.post(path, json=BODIES.get(path, {}))).status_code == 403
    assert not await Turn.objects.aexists()


async def test_who_may_not_chat_gets_403(talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "REACH": f"{__name__}.reach_nobody"}
    async with serving() as address, Front(address, talk.ann, KEY) as page:
        assert set((await answers(page)).values()) == {403}


def reach_nobody(_):
    return False


async def test_the_gate_refuses_and_ends_streams(talk, settings, monkeypatch):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "GATE": "tests.gates_for_tests.second_factor"}
    monkeypatch.setattr(hub.sweep, "seconds", 0.2)
    browser = Client()
    await db(browser.force_login)(talk.ann.user)
    cookie = browser.cookies[django_settings.SESSION_COOKIE_NAME].value
    person = Person(talk.ann.user, cookie)
    async with serving() as address, Front(address, person, KEY) as page:
        assert set((await answers(page)).values()) == {403}
        await set_device(browser, "1")
        async with page.events() as events, page.send("hi") as stream:
            await events.until("synced")
            await stream.until("text-delta")
            await set_device(browser, None)
            assert (await events.rest())[-1]["reason"] == "refused"
            with pytest.raises(httpx.RemoteProtocolError):
                await stream.rest()


@db
def set_device(browser, value):
    session = browser.session
    session[DEVICE] = value
    if value is None:
        del session[DEVICE]
    session.save()


async def test_a_sweep_ends_the_streams_of_a_disabled_user(talk, monkeypatch):
    monkeypatch.setattr(hub.sweep, "seconds", 0.2)
    async with (
        serving() as address,
        Front(address, talk.ann, KEY) as page,
        page.send("hi") as stream,
        page.events() as events,
    ):
        await stream.until("text-delta")
        await User.objects.filter(pk=talk.ann.user.pk).aupdate(is_active=False)
        with pytest.raises(httpx.RemoteProtocolError):
            await stream.rest()
        assert (await events.rest())[-1]["reason"] == "unauthenticated"


async def test_a_logout_ends_streams(talk):
    async with (
        serving() as address,
        Front(address, talk.ann, KEY) as page,
        page.events() as events,
    ):
        await events.until("synced")
        browser = Client()
        browser.cookies[django_settings.SESSION_COOKIE_NAME] = talk.ann.cookie
        await db(browser.logout)()
        assert (await events.rest())[-1]["reason"] == "unauthenticated"


async def test_a_visitor_has_streams_until_the_end(talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}
    settings.DEBUG = True  # without HTTPS
    new = await services.acreate_visitor(network="127.0.0.1")
    async with serving() as address, Front(address, None, KEY) as page:
        page.http.cookies[LOCAL_COOKIE] = new.token
        async with page.send("hi") as stream, page.events() as events:
            await stream.until("text-delta")
            await events.until("synced")
            await db(services.erase_person)(by=new.actor, reason="test")
            with pytest.raises(httpx.RemoteProtocolError):
                await stream.rest()
            assert (await events.rest())[-1]["type"] == "bye"
        assert set((await answers(page)).values()) == {401}


async def test_staff_in_a_persons_name_read_and_write_nothing(talk, settings):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "IMPERSONATOR": "tests.impersonators_for_tests.of_impersonate",
    }
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "tests.impersonators_for_tests.ImpersonateMiddleware",
    ]
    olga = await db(make_user)("olga", is_staff=True)
    browser = Client()
    await db(browser.force_login)(olga)
    await impersonate(browser, talk.ann.user.pk)
    person = Person(olga, browser.cookies[django_settings.SESSION_COOKIE_NAME].value)
    async with serving() as address, Front(address, person, KEY) as page:
        assert SECRET in str(await page.history())
        assert await Reading.objects.acount() == 1
        async with page.send("hi") as stream:
            assert stream.response.status_code == 403
        async with page.events() as events:
            await events.until("synced")
            await impersonate(browser, None)
            hub.sweep.seconds = 0.2
            assert (await events.rest())[-1]["reason"] == "other_person"
    assert not await Turn.objects.aexists()


@db
def impersonate(browser, pk):
    session = browser.session
    session[IMPERSONATE] = pk
    session.save()
