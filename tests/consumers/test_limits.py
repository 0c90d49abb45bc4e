"""Limits of a socket: its frames, its user's connections, its age and the user's rights."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async as db
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as Login
from django.core.cache import cache
from django.test import Client as Browser
from django.utils import timezone

from chatmemory import services
from chatmemory.access.logins import existing_session_keys
from chatmemory.consumers import handler, lifecycle, reader
from chatmemory.consumers.bucket import Bucket
from chatmemory.consumers.limits import SocketLimits
from chatmemory.live.connections import connections
from chatmemory.live.hub import hub
from chatmemory.models import Message, Turn
from chatmemory.services import Actor
from tests import responders_for_tests
from tests.factories import make_messages, make_session
from tests.servers import DEADLINE, Tab, connected, eventually, live_process, sign_in

HERE = "tests.responders_for_tests"
BURST = SocketLimits().burst


live = live_process


@pytest.fixture
def ann(live):
    person = sign_in()
    make_session(owner=person.user)
    services.append_messages(**person.talk, messages=make_messages("one", "two"))
    return person


@pytest.fixture
def bob(live):
    person = sign_in()
    make_session(owner=person.user)
    return person


def change_settings(settings, **more):
    settings.CHATMEMORY = {**settings.CHATMEMORY, **more}


# Frames per second


@pytest.mark.long
async def test_a_flood_of_frames_is_refused_then_closed_without_affecting_others(ann, bob, limit):
    limit(frames_per_second=1.0)  # a slow machine sends no more
    async with connected(tab := Tab(ann), other := Tab(bob)):
        for number in range(1_000):
            await tab.send_frame("fetch", id=number, before_seq=2)
        assert (await other.ask("fetch", before_seq=2))["type"] == "ok"
        bye, code = await tab.closed()
    answers = [frame for frame in tab.frames if "id" in frame]
    done = [frame for frame in answers if frame["type"] == "ok"]
    refused = [frame for frame in answers if frame["type"] == "error"]
    assert BURST - 10 < len(done) < 1.5 * BURST
    assert {(frame["code"], frame["retry"]) for frame in refused} == {("rate_limited", True)}
    assert all(frame["retry_after_ms"] > 0 for frame in refused)
    assert len(refused) <= 2 * BURST
    assert [frame["id"] for frame in answers] == list(range(len(answers)))
    assert (bye["reason"], bye["reconnect"], code) == ("rate_limited", True, 4429)
    assert bye["after_ms"] == reader.FLOOD_PAUSE_MS


async def test_invalid_frames_count_too(ann):
    async with connected(tab := Tab(ann)):
        for _ in range(3 * BURST):
            await tab.put("{oops")
        assert (await tab.closed())[1] == 4429


@pytest.mark.slow
async def test_a_client_that_waits_may_send_again(ann, limit):
    limit(burst=10, frames_per_second=2.0)
    async with connected(tab := Tab(ann)):
        async with asyncio.timeout(DEADLINE):
            while (answer := await tab.ask("fetch", before_seq=2))["type"] == "ok":
                pass
        await asyncio.sleep(answer["retry_after_ms"] / 1000)
        assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"


async def test_requested_pongs_do_not_count_and_others_do(ann, limit):
    limit(burst=10, frames_per_second=0.001, ping_bytes=100)
    await db(services.append_messages)(**ann.talk, messages=make_messages(*["x" * 200] * 40))
    async with connected(tab := Tab(ann)):
        assert len([frame for frame in tab.frames if frame["type"] == "ping"]) > 40
        assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"
        for _ in range(30):
            await tab.send_frame("pong", n=1)
        assert (await tab.closed())[1] == 4429


def test_the_bucket_returns_the_delay_and_never_has_more_than_a_burst(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    bucket = Bucket(SocketLimits())
    clock[0] = 1_000.0
    assert [bucket.consume() for _ in range(BURST + 2)] == [0.0] * BURST + [0.1, 0.15]
    clock[0] += 0.1
    assert bucket.consume() == pytest.approx(0.1)
    assert not bucket.is_overdrawn
    for _ in range(BURST):
        bucket.consume()
    assert bucket.is_overdrawn


@pytest.mark.regression
@pytest.mark.parametrize("refused", [1, 2, 7])
def test_a_frame_is_accepted_after_the_returned_delay_and_not_before(monkeypatch, refused):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    bucket = Bucket(SocketLimits(burst=1, frames_per_second=4.0))  # exact as a float
    assert bucket.consume() == 0
    delay = [bucket.consume() for _ in range(refused)][-1]
    clock[0] += delay
    assert bucket.consume() == 0
    clock[0] += bucket.consume() - 1 / 64
    assert bucket.consume() > 0


async def test_a_send_that_is_refused_counts_as_one(ann, settings):
    change_settings(settings, SENDS_PER_MINUTE=2)
    async with connected(tab := Tab(ann)):
        codes = [(await tab.send("x" * 32_001))["code"] for _ in range(3)]
    assert codes == ["too_large", "too_large", "rate_limited"]
    cache.clear()


@pytest.mark.slow
async def test_answers_that_are_not_read_are_bounded(ann):
    await db(services.append_messages)(**ann.talk, messages=make_messages(*["x" * 30_000] * 40))
    async with Tab(ann) as tab:
        tab.confirms = False
        await tab.send_frame("hello", v=1)
        for number in range(60):
            await tab.send_frame("fetch", id=number, before_seq=40)
        await tab.until("ping")
        tab.confirms = True  # from now on: the pong follows all requests
        await tab.send_frame("pong", n=max(f["n"] for f in tab.frames if f["type"] == "ping"))
        while len(answers := [frame for frame in tab.frames if "id" in frame]) < 60:
            await tab.next()
    owed = sum(len(json.dumps(answer)) for answer in answers)
    assert owed < SocketLimits().credit_bytes + handler.MAX_UNSENT_CHARS + 2 * 256 * 1024
    refused = [answer for answer in answers if answer["type"] == "error"]
    assert {(answer["code"], answer["retry_after_ms"]) for answer in refused} == {
        ("rate_limited", 1_000)
    }


# Connections of a user


@pytest.mark.slow
async def test_the_sixth_socket_of_a_user_closes_the_oldest(ann, bob):
    tabs = [Tab(ann) for _ in range(5)]
    async with AsyncExitStack() as stack:
        for tab in (Tab(bob), *tabs):  # sequentially, so that the first is the oldest
            await stack.enter_async_context(connected(tab))
        sixth = await stack.enter_async_context(Tab(ann))
        bye, code = await tabs[0].closed()
        await sixth.hello()
        assert (bye["reason"], bye["reconnect"], code) == ("too_many_connections", False, 4409)
        for tab in (*tabs[1:], sixth):
            assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"
    assert not connections._of


async def test_a_closed_socket_does_not_count(ann, settings):
    change_settings(settings, CONNECTIONS_PER_USER=1)
    for _ in range(3):
        async with connected(tab := Tab(ann)):
            assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"


async def test_sockets_that_never_say_hello_count_too(ann, settings):
    change_settings(settings, CONNECTIONS_PER_USER=1)
    async with Tab(ann) as silent:
        # A socket is counted after its login, which is read after it is accepted.
        await eventually(lambda: connections._of.get(f"user:{ann.user.pk}"))
        async with connected(Tab(ann)):
            assert (await silent.closed())[1] == 4409


async def test_without_a_limit_all_sockets_stay_open(ann, settings):
    change_settings(settings, CONNECTIONS_PER_USER=None)
    tabs = [Tab(ann) for _ in range(7)]
    async with connected(*tabs):
        assert (await tabs[0].ask("fetch", before_seq=2))["type"] == "ok"


# Age


async def test_a_socket_that_reached_its_age_is_asked_to_reconnect(ann, settings):
    change_settings(settings, CONNECTION_AGE=0.3)
    async with Tab(ann) as tab:
        await tab.send_frame("hello", v=1)
        bye, code = await tab.closed()
    assert (bye["reason"], bye["reconnect"], code) == ("rotating", True, 4503)
    assert 0 <= bye["after_ms"] < lifecycle.RECONNECT_MS


async def test_a_client_that_rotates_during_a_reply_misses_nothing(ann, settings):
    change_settings(settings, RESPONDER=f"{HERE}.slow")
    async with Tab(ann) as tab:
        cursor = await tab.hello()
        await tab.send("hi")
        await tab.until("snapshot", text="So far, ")
        for socket in hub._sockets.all():
            socket.close_for_restart("rotating", 500)
        bye, code = await tab.closed()
        assert (bye["code"], bye["after_ms"], code) == (4503, 500, 4503)
    async with Tab(ann) as tab:
        await tab.send_frame("hello", v=1, cursor=cursor)
        await tab.until("snapshot", text="So far, ")
        responders_for_tests.GO.set()
        await tab.idle(4)
    assert tab.texts() == ["hi", "So far, so good."]


# Rights


def end_rights(person, how):
    logins, users = Login.objects.filter(pk=person.cookie), User.objects.filter(pk=person.user.pk)
    match how:
        case "logged out":
            browser = Browser()
            browser.cookies["sessionid"] = person.cookie
            browser.logout()
        case "expired":
            logins.update(expire_date=timezone.now() - timedelta(seconds=1))
        case "disabled":
            users.update(is_active=False)
        case "deleted":
            users.delete()
        case "new password":
            users.update(password="another")


ENDS = ["logged out", "expired", "disabled", "deleted", "new password"]
FRAMES = {
    "send": {"client_id": "c1", "text": "hi"},
    "stop": {"turn": "c0"},
    "fetch": {"before_seq": 3},
}


@pytest.mark.parametrize("how", ENDS)
async def test_each_frame_of_a_user_who_lost_access_is_refused(
    ann, bob, settings, monkeypatch, limit, how
):
    """Without any notification or sweep; other users are not affected."""
    change_settings(settings, USER_DELETED="keep")
    limit(fresh_seconds=0)
    monkeypatch.setattr(hub, "close_owner_sockets", lambda owner: None)
    monkeypatch.setattr(hub, "close_login_sockets", lambda login_key: None)
    tabs = {kind: Tab(ann) for kind in FRAMES}
    async with connected(other := Tab(bob), *tabs.values()), Tab(ann) as silent:
        owner = f"user:{ann.user.pk}"
        await eventually(lambda: len(connections._of[owner]) == len(tabs) + 1, "not authenticated")
        await db(end_rights)(ann, how)
        for kind, fields in FRAMES.items():
            answer = await tabs[kind].ask(kind, **fields)
            assert (answer["type"], answer["code"]) == ("error", "unauthenticated")
            bye, code = await tabs[kind].closed()
            assert (bye["reason"], bye["reconnect"], code) == ("unauthenticated", False, 4401)
        await silent.send_frame("hello", v=1)
        assert (await silent.closed())[1] == 4401
        assert (await other.send("hi"))["type"] == "ok"
    assert not await db(Turn.objects.filter(session__owner=ann.user).exists)()
    assert [frame["type"] for frame in silent.frames] == ["error", "bye"]


async def test_a_sweep_closes_sockets_after_a_password_change(ann, bob, monkeypatch):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.1)
    async with connected(tab := Tab(ann), other := Tab(bob)):
        await db(end_rights)(ann, "new password")
        assert (await tab.closed())[1] == 4401
        assert (await other.send("hi"))["type"] == "ok"


CHATTERS: set[str] = set()


def may_chat(person: Actor) -> bool:
    """A policy of the host that reads the database."""
    return User.objects.filter(pk=person.id, username__in=CHATTERS).exists()


@pytest.fixture
def policy(ann, bob, settings):
    CHATTERS.clear()
    CHATTERS.add(bob.user.username)
    change_settings(settings, REACH="tests.consumers.test_limits.may_chat")


async def test_a_user_without_permission_to_chat_is_refused(ann, bob, policy):
    for key in ("talk", "unknown"):
        async with Tab(ann, key) as tab:
            await tab.send_frame("hello", v=1)
            bye, code = await tab.closed()
            assert (bye["reason"], bye["reconnect"], code) == ("forbidden", False, 4403)
        assert [frame["type"] for frame in tab.frames] == ["error", "bye"]
    async with connected(tab := Tab(bob)):
        assert (await tab.send("hi"))["type"] == "ok"
        CHATTERS.clear()
        assert (await tab.send("ho", "c2"))["code"] == "forbidden"
        assert (await tab.closed())[1] == 4403
    assert await db(Message.stored.filter(text="ho").count)() == 0


async def test_a_policy_that_fails_refuses_everyone(ann, policy, settings):
    change_settings(settings, REACH="tests.consumers.test_limits.missing")
    async with Tab(ann) as tab:
        await tab.send_frame("hello", v=1)
        assert (await tab.next())["code"] == "internal"
        assert (await tab.ask("fetch", before_seq=3))["code"] == "not_ready"


def test_a_user_without_permission_to_chat_has_no_pages_and_no_api(ann, bob, policy):
    for person, status in ((ann, 403), (bob, 200)):
        browser = Browser()
        browser.force_login(person.user)
        for address in (
            "/chat/~all/",
            "/chat/talk/",
            "/api/sessions/",
            "/api/sessions/talk/messages/",
        ):
            assert browser.get(address).status_code == status


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("engine", "is_found"),
    [
        ("django.contrib.sessions.backends.db", True),
        ("django.contrib.sessions.backends.cached_db", True),
        ("django.contrib.sessions.backends.cache", False),
        ("django.contrib.sessions.backends.signed_cookies", True),
    ],
)
def test_logins_are_found_in_each_session_backend(settings, engine, is_found):
    key = sign_in().cookie
    settings.SESSION_ENGINE = engine
    assert (key in existing_session_keys({key, "x" * 32})) == is_found
