"""What bounds a socket: how often, how many, how long, and whether the person still may."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async as db
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as Login
from django.core.cache import cache
from django.test import Client as Browser
from django.utils import timezone

from chatmemory import services
from chatmemory.consumers import chat, credit
from chatmemory.consumers.limits import BURST, Bucket, guests
from chatmemory.hub import hub
from chatmemory.models import Message, Turn
from chatmemory.services import Actor
from chatmemory.services.rights import living_logins
from tests import responders_for_tests
from tests.factories import make_session, said
from tests.servers import Tab, greeted, own_threads, sign_in

HERE = "tests.responders_for_tests"


@pytest.fixture
def live(transactional_db, settings, monkeypatch):
    # So that no sweep does what a frame should have done.
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 60)
    settings.CHATMEMORY = {"RESPONDER": f"{HERE}.echo", "SENDS_PER_MINUTE": None}
    with own_threads():
        yield


@pytest.fixture
def ann(live):
    person = sign_in()
    make_session(owner=person.user)
    services.append_messages(**person.talk, messages=said("one", "two"))
    return person


@pytest.fixture
def bob(live):
    person = sign_in()
    make_session(owner=person.user)
    return person


def put(settings, **more):
    settings.CHATMEMORY = {**settings.CHATMEMORY, **more}


# How often


@pytest.mark.slow
async def test_a_flood_is_refused_then_ended_and_others_go_on(ann, bob, monkeypatch):
    monkeypatch.setattr("chatmemory.consumers.limits.FRAMES_PER_SECOND", 1.0)  # on a slow machine
    async with greeted(tab := Tab(ann), other := Tab(bob)):
        for number in range(1_000):
            await tab.say("fetch", id=number, before_seq=2)
        async with asyncio.timeout(2):  # usually below 0.1
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
    assert bye["after_ms"] == chat.FLOOD_PAUSE_MS


async def test_frames_that_make_no_sense_count_too(ann):
    async with greeted(tab := Tab(ann)):
        for _ in range(3 * BURST):
            await tab.put("{oops")
        assert (await tab.closed())[1] == 4429


@pytest.mark.slow
async def test_a_client_that_waits_is_heard_again(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.consumers.limits.FRAMES_PER_SECOND", 1.0)
    async with greeted(tab := Tab(ann)):
        for number in range(BURST + 5):
            await tab.say("fetch", id=number, before_seq=2)
        await tab.until("error", code="rate_limited")
        monkeypatch.setattr("chatmemory.consumers.limits.FRAMES_PER_SECOND", 1_000.0)
        await asyncio.sleep(0.1)
        assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"


async def test_pongs_that_were_asked_for_count_for_nothing_and_others_count(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.consumers.limits.BURST", 10)
    monkeypatch.setattr("chatmemory.consumers.limits.FRAMES_PER_SECOND", 0.001)
    monkeypatch.setattr(credit, "PING_EVERY", 100)
    await db(services.append_messages)(**ann.talk, messages=said(*["x" * 200] * 40))
    async with greeted(tab := Tab(ann)):
        assert len([frame for frame in tab.frames if frame["type"] == "ping"]) > 40
        assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"
        for _ in range(30):
            await tab.say("pong", n=1)
        assert (await tab.closed())[1] == 4429


def test_the_bucket_says_when_and_never_holds_more_than_a_burst(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    bucket = Bucket()
    clock[0] = 1_000.0
    assert [bucket.take() for _ in range(BURST + 2)] == [0.0] * BURST + [0.05, 0.1]
    clock[0] += 0.1
    assert bucket.take() == pytest.approx(0.05)
    assert not bucket.is_overdrawn
    for _ in range(BURST):
        bucket.take()
    assert bucket.is_overdrawn


async def test_a_send_that_is_refused_counts_as_one(ann, settings):
    put(settings, SENDS_PER_MINUTE=2)
    async with greeted(tab := Tab(ann)):
        codes = [(await tab.send("x" * 32_001))["code"] for _ in range(6)]
    assert codes.count("rate_limited") >= 2  # the minute may end once in between
    assert codes[0] == "too_large"
    cache.clear()


@pytest.mark.slow
async def test_answers_that_nobody_reads_are_bounded(ann):
    await db(services.append_messages)(**ann.talk, messages=said(*["x" * 30_000] * 40))
    async with Tab(ann) as tab:
        tab.confirms = False
        await tab.say("hello", v=1)
        for number in range(60):
            await tab.say("fetch", id=number, before_seq=40)
        await tab.until("ping")
        tab.confirms = True  # from here on: the pong comes after all that was asked
        await tab.say("pong", n=max(f["n"] for f in tab.frames if f["type"] == "ping"))
        while len(answers := [frame for frame in tab.frames if "id" in frame]) < 60:
            await tab.next()
    owed = sum(len(json.dumps(answer)) for answer in answers)
    assert owed < credit.CREDIT + chat.MOST_OWED + 2 * 256 * 1024
    refused = [answer for answer in answers if answer["type"] == "error"]
    assert {(answer["code"], answer["retry_after_ms"]) for answer in refused} == {
        ("rate_limited", 1_000)
    }


# How many


async def test_the_sixth_socket_of_a_person_ends_the_oldest(ann, bob):
    tabs = [Tab(ann) for _ in range(5)]
    async with greeted(Tab(bob), *tabs), Tab(ann) as sixth:
        bye, code = await tabs[0].closed()
        await sixth.hello()
        assert (bye["reason"], bye["reconnect"], code) == ("too_many_connections", False, 4409)
        for tab in (*tabs[1:], sixth):
            assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"
    assert not guests._of


async def test_a_socket_that_closes_makes_room(ann, settings):
    put(settings, CONNECTIONS_PER_USER=1)
    for _ in range(3):
        async with greeted(tab := Tab(ann)):
            assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"


async def test_sockets_that_never_say_hello_count_too(ann, settings):
    put(settings, CONNECTIONS_PER_USER=1)
    async with Tab(ann) as silent, greeted(Tab(ann)):
        assert (await silent.closed())[1] == 4409


async def test_without_a_limit_everybody_stays(ann, settings):
    put(settings, CONNECTIONS_PER_USER=None)
    tabs = [Tab(ann) for _ in range(7)]
    async with greeted(*tabs):
        assert (await tabs[0].ask("fetch", before_seq=2))["type"] == "ok"


# How long


async def test_a_socket_that_reached_its_age_is_told_to_come_again(ann, settings):
    put(settings, CONNECTION_AGE=0.3)
    async with greeted(tab := Tab(ann)):
        bye, code = await tab.closed()
    assert (bye["reason"], bye["reconnect"], code) == ("rotating", True, 4503)
    assert 0 <= bye["after_ms"] < chat.RETURN_MS


async def test_who_rotates_in_the_middle_of_a_reply_misses_nothing_of_it(ann, settings):
    put(settings, RESPONDER=f"{HERE}.slow")
    async with Tab(ann) as tab:
        cursor = await tab.hello()
        await tab.send("hi")
        await tab.until("snapshot", text="So far, ")
        for socket in tuple(hub._sockets.popitem()[1]):
            socket.retire("rotating", 500)
        bye, code = await tab.closed()
        assert (bye["code"], bye["after_ms"], code) == (4503, 500, 4503)
    async with Tab(ann) as tab:
        await tab.say("hello", v=1, cursor=cursor)
        await tab.until("snapshot", text="So far, ")
        responders_for_tests.GO.set()
        await tab.idle(4)
    assert tab.texts() == ["hi", "So far, so good."]


# Whether the person still may


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
async def test_each_frame_of_who_has_no_right_any_more_is_refused(
    ann, bob, settings, monkeypatch, how
):
    """Before any sweep, if no hint came; and nobody else is sent away."""
    put(settings, USER_DELETED="keep")
    monkeypatch.setattr("chatmemory.consumers.chat.FRESH_SECONDS", 0)
    monkeypatch.setattr(hub, "expel_user", lambda user_pk: None)
    monkeypatch.setattr(hub, "expel_login", lambda login_key: None)
    tabs = {kind: Tab(ann) for kind in FRAMES}
    async with greeted(other := Tab(bob), *tabs.values()), Tab(ann) as silent:
        await db(end_rights)(ann, how)
        for kind, fields in FRAMES.items():
            answer = await tabs[kind].ask(kind, **fields)
            assert (answer["type"], answer["code"]) == ("error", "unauthenticated")
            bye, code = await tabs[kind].closed()
            assert (bye["reason"], bye["reconnect"], code) == ("unauthenticated", False, 4401)
        await silent.say("hello", v=1)
        assert (await silent.closed())[1] == 4401
        assert (await other.send("hi"))["type"] == "ok"
    assert not await db(Turn.objects.filter(session__owner=ann.user).exists)()
    assert [frame["type"] for frame in silent.frames] == ["error", "bye"]


async def test_a_sweep_sends_away_who_has_a_new_password(ann, bob, monkeypatch):
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 0.1)
    async with greeted(tab := Tab(ann), other := Tab(bob)):
        await db(end_rights)(ann, "new password")
        assert (await tab.closed())[1] == 4401
        assert (await other.send("hi"))["type"] == "ok"


CHATTERS: set[str] = set()


def may_chat(person: Actor) -> bool:
    """A policy of the host; it looks into the database."""
    return User.objects.filter(pk=person.id, username__in=CHATTERS).exists()


@pytest.fixture
def policy(ann, bob, settings):
    CHATTERS.clear()
    CHATTERS.add(bob.user.username)
    put(settings, REACH="tests.test_limits.may_chat")


async def test_who_may_not_chat_is_told_so(ann, bob, policy):
    for key in ("talk", "nobodys"):
        async with Tab(ann, key) as tab:
            await tab.say("hello", v=1)
            bye, code = await tab.closed()
            assert (bye["reason"], bye["reconnect"], code) == ("forbidden", False, 4403)
        assert [frame["type"] for frame in tab.frames] == ["error", "bye"]
    async with greeted(tab := Tab(bob)):
        assert (await tab.send("hi"))["type"] == "ok"
        CHATTERS.clear()
        assert (await tab.send("ho", "c2"))["code"] == "forbidden"
        assert (await tab.closed())[1] == 4403
    assert await db(Message.stored.filter(text="ho").count)() == 0


async def test_a_policy_that_fails_lets_nobody_in(ann, policy, settings):
    put(settings, REACH="tests.test_limits.nobody")
    async with Tab(ann) as tab:
        await tab.say("hello", v=1)
        assert (await tab.next())["code"] == "internal"
        assert (await tab.ask("fetch", before_seq=3))["code"] == "not_ready"


def test_who_may_not_chat_has_no_pages_and_no_api(ann, bob, policy):
    for person, status in ((ann, 403), (bob, 200)):
        browser = Browser()
        browser.force_login(person.user)
        for address in ("/chat/", "/chat/talk/", "/api/sessions/", "/api/sessions/talk/messages/"):
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
def test_logins_are_found_whatever_keeps_them(settings, engine, is_found):
    key = sign_in().cookie
    settings.SESSION_ENGINE = engine
    assert (key in living_logins({key, "x" * 32})) == is_found
