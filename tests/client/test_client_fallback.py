"""The Python client behind a proxy that refuses websockets: server-sent events replace them."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings

from chatmemory import services
from chatmemory.client import (
    ApiError,
    Chat,
    Closed,
    Lost,
    Message,
    NoReply,
    Piece,
    Refused,
    Reset,
    RestClient,
    Synced,
    connect,
    pauses,
)
from chatmemory.client import rest as rest_module
from chatmemory.client.sse import events_of
from chatmemory.models import Message as Row
from chatmemory.models import Session
from chatmemory.services import Actor
from tests import responders_for_tests
from tests.cutting import RefusingProxy, refusing
from tests.factories import make_messages, make_session
from tests.servers import eventually, live_process, serving, sign_in, use_responder

process = live_process
pytestmark = pytest.mark.slow


@pytest.fixture
def ann(process, settings, monkeypatch):
    monkeypatch.setattr(pauses, "FIRST_RETRY_SECONDS", 0.01)
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "READS_PER_MINUTE": None,
        "WRITES_PER_MINUTE": None,
    }
    person = sign_in()
    make_session(owner=person.user)
    return person


def chat_of(address: str, person: Any, key: str = "talk", **options: Any) -> Chat:
    cookies = {django_settings.SESSION_COOKIE_NAME: person.cookie}
    return connect(f"{address}/ws/chat/{key}/", cookies=cookies, proxy=None, **options)


def rest_of(address: str, person: Any, **options: Any) -> RestClient:
    cookies = {django_settings.SESSION_COOKIE_NAME: person.cookie}
    return RestClient(f"{address}/api/", cookies=cookies, trust_env=False, **options)


@asynccontextmanager
async def behind_proxy(
    person: Any, key: str = "talk", *, status: int | None = 400, **options: Any
) -> AsyncIterator[tuple[Chat, RefusingProxy]]:
    """Open a chat through a proxy that answers websockets with a status."""
    async with (
        serving() as address,
        refusing(address) as proxy,
        rest_of(proxy.address, person) as rest,
    ):
        proxy.status = status
        async with chat_of(proxy.address, person, key, rest=rest, **options) as talk:
            yield talk, proxy


@pytest.mark.parametrize("status", [200, 400, 404, 426, 500, 501, 502, None])
async def test_events_replace_a_websocket_that_a_proxy_refuses(ann, status):
    async with behind_proxy(ann, status=status) as (talk, proxy):
        reply = await talk.ask("good morning")
        assert talk.uses_events
        assert proxy.upgrades == (2 if status in (502, None) else 1)
    assert (reply.text, reply.role, reply.status) == ("good morning ", "assistant", "complete")
    assert [row.text for row in talk.messages] == ["good morning", "good morning "]


@pytest.mark.parametrize("status", [401, 403, 407])
async def test_a_refused_login_is_not_replaced(ann, status):
    with pytest.raises(Closed) as closed:
        async with behind_proxy(ann, status=status):
            pass
    assert closed.value.code == status


async def test_without_a_rest_client_a_refused_websocket_ends_the_chat(ann):
    for options in ({"rest": None}, {"transport": "websocket"}):
        with pytest.raises(Closed) as closed:
            async with (
                serving() as address,
                refusing(address) as proxy,
                rest_of(proxy.address, ann) as rest,
                chat_of(proxy.address, ann, **{"rest": rest, **options}),
            ):
                pass
        assert closed.value.code == 400


async def test_events_can_be_forced(ann):
    async with behind_proxy(ann, transport="events") as (talk, proxy):
        assert (await talk.ask("hi")).text == "hi "
        assert proxy.upgrades == 0


def test_a_transport_needs_a_valid_name_and_its_client():
    for options in ({"transport": "events"}, {"transport": "sse"}):
        with pytest.raises(ValueError, match="event"):
            connect("ws://127.0.0.1/ws/chat/talk/", **options)


async def test_a_websocket_that_works_is_used(ann):
    async with (
        serving() as address,
        rest_of(address, ann) as rest,
        chat_of(address, ann, rest=rest) as talk,
    ):
        await talk.ask("hi")
        assert not talk.uses_events


async def test_each_call_has_the_answer_of_the_websocket(ann, settings, monkeypatch):
    monkeypatch.setattr("chatmemory.live.runner.runner.keeper.seconds", 0.1)
    use_responder(settings, "endless")
    texts = [str(n) for n in range(60)]
    await db(services.append_messages)(**ann.talk, messages=make_messages(*texts))
    async with behind_proxy(ann) as (talk, _):
        assert [row.text for row in talk.messages] == texts[10:]
        assert [row.text for row in await talk.fetch(limit=5)] == texts[5:10]
        await talk.rename("My order")
        turn = await talk.send("hi")
        await eventually(responders_for_tests.BEGUN.is_set)
        waiting = await talk.send("later")
        assert (turn.is_duplicate, waiting.status) == (False, "waiting")
        assert (await talk.send("hi", client_id=turn.turn)).is_duplicate
        assert await talk.stop(waiting) == "cancelled"
        with pytest.raises(NoReply):
            await talk.reply(waiting)
        await talk.stop(turn)
        reply = await talk.reply(turn)
        assert (reply.status, talk.session["title"]) == ("interrupted", "My order")
        await talk.feedback(turn, 1)
        await eventually(lambda: talk.rows[reply.seq].fields["feedback"] == 1)


async def test_text_arrives_as_events_while_it_streams(ann, settings):
    use_responder(settings, "slow")
    async with behind_proxy(ann) as (talk, _):
        events = talk.events()
        turn = await talk.send("hi")
        async for event in events:
            match event:
                case Piece(text=text):
                    assert (text, talk.texts) == ("So far, ", {(turn.turn, 0): text})
                    responders_for_tests.GO.set()
                    break
        assert (await talk.reply(turn)).text == "So far, so good."


async def test_a_refusal_has_the_fields_of_the_websocket(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SENDS_PER_MINUTE": 1}
    async with behind_proxy(ann) as (talk, _):
        with pytest.raises(Refused) as refused:
            await talk.send("hi", replaces=7, expect_seq=7)
        assert (refused.value.code, refused.value.retry) == ("conflict", False)
        with pytest.raises(Refused) as refused:
            await talk.send("hi", client_id="c2")
        assert (refused.value.code, refused.value.retry) == ("rate_limited", True)
        assert refused.value.retry_after > 0
        assert refused.value.client_id == "c2"
        with pytest.raises(Refused) as refused:
            await talk.stop()
        assert refused.value.code == "unknown_turn"
        with pytest.raises(TypeError, match="unknown"):
            await talk.send("hi", unknown=5)


async def test_a_session_is_created_only_with_create(ann):
    key = str(uuid.uuid4())
    with pytest.raises(Closed) as closed:
        async with behind_proxy(ann, key):
            pass
    assert closed.value.code == 404
    async with behind_proxy(ann, key, create=True) as (talk, _):
        assert (await talk.ask("hi")).text == "hi "
        await db(services.purge_session)(session_key=key, by=Actor.user(ann.user), reason="test")
        with pytest.raises(Closed):
            async for _ in talk.events():
                pass
        assert not await db(Session.objects.filter(key=key, removed_at=None).exists)()


async def test_a_message_whose_answer_is_lost_is_stored_once(ann):
    async with behind_proxy(ann) as (talk, proxy):
        proxy.drops = 6  # more than the calls that the REST client repeats; of the events too
        turn = await talk.send("hi")
        assert (await talk.reply(turn)).text == "hi "
    assert await db(Row.objects.filter(role="user").count)() == 1


async def test_a_cut_stream_continues_at_its_cursor(ann):
    async with behind_proxy(ann) as (talk, proxy):
        await talk.ask("one")
        events = talk.events()
        proxy.down = b" "
        proxy.cut()
        await services.aappend_messages(**ann.talk, messages=make_messages("missed"))
        async for event in events:
            if isinstance(event, Lost):
                break
        proxy.down = None
        async for event in events:
            assert not isinstance(event, Reset)
            if isinstance(event, Message):
                break
        assert event.text == "missed"
        assert [row.text for row in talk.messages] == ["one", "one ", "missed"]


async def test_a_websocket_is_tried_again_where_events_fail(ann):
    async with behind_proxy(ann) as (talk, proxy):
        events = talk.events()
        proxy.is_refusing = False
        proxy.down = b"/ui/events/"
        proxy.cut()
        async for event in events:
            if isinstance(event, Synced):
                break
        assert not talk.uses_events
        assert (await talk.ask("hi")).text == "hi "


async def test_a_clear_resets_the_chat_and_a_logout_ends_it(ann):
    async with behind_proxy(ann) as (talk, _):
        await talk.ask("hi")
        events = talk.events()
        await services.aclear_session(**ann.talk, reason="test")
        async for event in events:
            if isinstance(event, Reset):
                break
        assert event.reason == "cleared"
        await db(ann.user.delete)()
        with pytest.raises(Closed):
            async for _ in events:
                pass


async def test_random_cuts_lose_and_repeat_nothing(ann):
    chance = random.Random(5)  # noqa: S311  # no secret
    sent = [f"message {number}" for number in range(12)]
    async with behind_proxy(ann) as (talk, proxy):
        for text in sent:
            if chance.random() < 0.5:
                proxy.drops = chance.randrange(3)
            if chance.random() < 0.5:
                proxy.cut()
            await talk.ask(text)
        shown = [row.text for row in talk.messages if row.role == "user"]
    assert shown == sent
    assert [row.text async for row in Row.objects.filter(role="user").in_order()] == sent


async def test_a_rest_client_reads_the_frames_of_a_session(ann):
    await db(services.append_messages)(**ann.talk, messages=make_messages("a \u2028 b", "c\x85"))
    async with serving() as address, rest_of(address, ann) as rest:
        texts, cursor = [], None
        async for frame in rest.events("talk"):
            texts += [frame["text"]] if frame["type"] == "message" else []
            if frame["type"] == "synced":
                cursor = frame["cursor"]
                break
        assert texts == ["a \u2028 b", "c\x85"]
        await services.aappend_messages(**ann.talk, messages=make_messages("d"))
        async for frame in rest.events("talk", cursor=cursor):
            if frame["type"] == "message":
                break
        assert frame["text"] == "d"
        with pytest.raises(ApiError) as refused:
            await anext(rest.events("unknown"))
        assert refused.value.code == "not_found"


async def test_silence_is_a_lost_stream(ann, monkeypatch):
    monkeypatch.setattr(rest_module, "SILENCE_SECONDS", 0.2)
    async with behind_proxy(ann) as (talk, _):
        async for event in talk.events():
            if isinstance(event, Lost):
                break
        assert event.code == 1006


async def _pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


STREAM = (
    ':\n\nid: 1\ndata: "ä\u2028"\n\ndata:one\ndata: two\n\nid: 3\n\nretry: 5\r\ndata: 4\r\n\r\n'
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_read_from_pieces_of_any_size(size):
    pieces = _pieces((STREAM + "data: cut").encode(), size)
    assert [event async for event in events_of(pieces)] == ['"ä\u2028"', "one\ntwo", "4"]


async def test_an_event_without_an_end_is_an_error(monkeypatch):
    monkeypatch.setattr("chatmemory.client.sse.MAX_EVENT_BYTES", 100)
    with pytest.raises(ValueError, match="over 100 bytes"):
        [_ async for _ in events_of(_pieces(b"data: " + b"x" * 200, 7))]


async def test_an_invalid_event_is_a_lost_connection(ann, monkeypatch):
    """The next connection gets everything again."""
    read = RestClient.events
    begin = ["{", "[" * 100_000, '{"type": "session"}', '{"type": "message"}']
    is_broken = False

    async def events(self: RestClient, key: str, *, cursor: str | None = None) -> Any:
        if is_broken and begin:
            yield json.loads(begin.pop())
        async for frame in read(self, key, cursor=cursor):
            yield frame

    monkeypatch.setattr(RestClient, "events", events)
    async with behind_proxy(ann) as (talk, proxy):
        await talk.ask("hi")
        is_broken = True
        proxy.cut()
        events = talk.events()
        while begin:
            await anext(events)
        async for event in events:
            if isinstance(event, Synced):
                break
        assert [row.text for row in talk.messages] == ["hi", "hi "]


async def test_the_documented_example_works(ann):
    page = (django_settings.BASE_DIR / "docs/howto/client.md").read_text()
    [example] = re.findall(
        r"^```python\n([^`]*behind_a_proxy.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    functions: dict[str, Any] = {}
    exec(compile(example, "docs/howto/client.md", "exec"), functions)  # noqa: S102  # our own page
    cookies = {django_settings.SESSION_COOKIE_NAME: ann.cookie}
    async with serving() as address, refusing(address) as proxy:
        urls = f"{proxy.address}/ws/chat/talk/", f"{proxy.address}/api/"
        found = await functions["behind_a_proxy"](*urls, cookies)
    assert found == ("Where is my order? ", True)
