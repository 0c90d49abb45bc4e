"""The websocket of a chat: invalid input does not break it, and it misses no change."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import uuid
from contextlib import contextmanager
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async as db
from autobahn.exception import Disconnected
from channels.testing import WebsocketCommunicator
from django.contrib.sessions.models import Session as Login
from django.db import connection
from django.utils import timezone

from chatmemory import services
from chatmemory.conf import settings as chatmemory_settings
from chatmemory.consumers import inbox, origins
from chatmemory.consumers.limits import SocketLimits
from chatmemory.consumers.origins import is_allowed_origin
from chatmemory.database import pool
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.live import feed
from chatmemory.live.credit import Credit
from chatmemory.live.hub import hub
from chatmemory.models import Message, Session, Turn
from chatmemory.protocol import Cursor
from chatmemory.services import Actor, catch_up
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.withdrawal import restore_rows, withdraw_rows
from chatmemory.services.turns.claims import aclaim_next
from chatmemory.services.turns.progress import finish_turn
from project.asgi import application
from tests import responders_for_tests
from tests.factories import make_messages, make_session
from tests.locking import held, table_locked, waits_for_a_lock
from tests.servers import DEADLINE, Tab, connected, live_process, sign_in, use_responder, wait_for

TEXTS = ("one", "two", "three", "four")


live = live_process


@pytest.fixture
def ann(live):
    return sign_in()


@pytest.fixture
def bob(live):
    return sign_in()


@pytest.fixture
def talk(ann):
    """Ann's session, with four messages."""
    session = make_session(owner=ann.user)
    services.append_messages(**ann.talk, messages=make_messages(*TEXTS))
    session.refresh_from_db()
    return session


@db
def rows():
    return list(Message.stored.in_order().values_list("role", "text"))


@db
def trim(person, keep_last):
    return services.trim_session(**person.talk, keep_last=keep_last, reason="test")


@db
def clear(person):
    services.clear_session(**person.talk, reason="test")


@db
def purge(person):
    services.purge_session(**person.talk, reason="test")


@db
def append(person, *texts):
    services.append_messages(**person.talk, messages=make_messages(*texts))


# Invalid frames


DEEP = "[" * 100_000 + "]" * 100_000
BAD_FRAMES = {
    "bytes": (b"{}", "bad_frame", None),
    "empty": ("", "bad_json", None),
    "broken": ("{oops", "bad_json", None),
    "list": ("[]", "bad_shape", None),
    "null": ("null", "bad_shape", None),
    "text": ('"x"', "bad_shape", None),
    "number": ("5", "bad_shape", None),
    "33 deep": ('{"type":"send","text":' + "[" * 32 + "]" * 32 + "}", "too_deep", None),
    "100,000 deep": (DEEP, "too_deep", None),
    "5,000 digits": ('{"id":' + "9" * 5_000 + "}", "bad_number", None),
    "beyond 2**53": ('{"type":"pong","n":9007199254740993}', "bad_number", None),
    "NaN": ('{"n":NaN}', "bad_number", None),
    "Infinity": ('{"n":Infinity}', "bad_number", None),
    "-Infinity": ('{"n":-Infinity}', "bad_number", None),
    "1e999": ('{"n":1e999}', "bad_number", None),
    "duplicate key": ('{"type":"pong","n":1,"n":2}', "bad_json", None),
    "unknown field": ('{"type":"pong","n":1,"more":1}', "unknown_field", "more"),
    "no type": ("{}", "bad_field", "type"),
    "type null": ('{"type":null}', "bad_field", "type"),
    "type number": ('{"type":5}', "bad_field", "type"),
    "type list": ('{"type":["send"]}', "bad_field", "type"),
    "unknown type": ('{"type":"shout"}', "unknown_type", "type"),
}


@pytest.mark.parametrize(("data", "code", "field"), BAD_FRAMES.values(), ids=BAD_FRAMES)
async def test_an_invalid_frame_gets_an_error_and_the_socket_stays_open(
    ann, talk, data, code, field
):
    async with connected(tab := Tab(ann)):
        await tab.put(data)
        answer = await tab.next()
        assert (answer["type"], answer["code"], answer.get("field")) == ("error", code, field)
        assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"


MISSING = object()
BAD_SENDS = {
    "text missing": ({"text": MISSING}, "bad_field", "text"),
    "text null": ({"text": None}, "bad_field", "text"),
    "text number": ({"text": 5}, "bad_field", "text"),
    "text bool": ({"text": True}, "bad_field", "text"),
    "text list": ({"text": ["hi"]}, "bad_field", "text"),
    "text object": ({"text": {}}, "bad_field", "text"),
    "empty": ({"text": ""}, "empty", "text"),
    "spaces": ({"text": " \n\t"}, "empty", "text"),
    "zero width": ({"text": "\u200b"}, "empty", "text"),
    "BOM": ({"text": "\ufeff"}, "empty", "text"),
    "NUL": ({"text": "a\0"}, "bad_text", "text"),
    "lone surrogate": ({"text": "\ud800"}, "bad_text", "text"),
    "ESC": ({"text": "\x1b[0m"}, "bad_text", "text"),
    "BEL": ({"text": "\a"}, "bad_text", "text"),
    "metadata": ({"metadata": {"a\0": "\ud800"}}, "unknown_field", "metadata"),
    "role system": ({"role": "system"}, "role_forbidden", None),
    "role assistant": ({"role": "assistant"}, "role_forbidden", None),
    "role developer": ({"role": "developer"}, "role_forbidden", None),
    "role tool": ({"role": "tool"}, "role_forbidden", None),
    "seq": ({"seq": 1}, "unknown_field", "seq"),
    "status": ({"status": "complete"}, "unknown_field", "status"),
    "created_at": ({"created_at": "2026-01-01"}, "unknown_field", "created_at"),
    "user": ({"user": 1}, "unknown_field", "user"),
    "session.user": ({"session.user": 1}, "unknown_field", "session.user"),
    "policy": ({"if_busy": "wait"}, "bad_field", "if_busy"),
    "key missing": ({"client_id": MISSING}, "bad_field", "client_id"),
    "key null": ({"client_id": None}, "bad_field", "client_id"),
    "key empty": ({"client_id": ""}, "bad_field", "client_id"),
    "key of 65": ({"client_id": "x" * 65}, "bad_field", "client_id"),
    "key with a space": ({"client_id": "a b"}, "bad_field", "client_id"),
    "old epoch": ({"epoch": 1}, "history_cleared", None),
}


@pytest.mark.parametrize(("fields", "code", "field"), BAD_SENDS.values(), ids=BAD_SENDS)
async def test_an_invalid_send_is_rejected_under_its_id(ann, talk, fields, code, field):
    given = {"client_id": "c1", "text": "hi", **fields}
    given = {name: value for name, value in given.items() if value is not MISSING}
    async with connected(tab := Tab(ann)):
        answer = await tab.ask("send", **given)
        assert (answer["code"], answer.get("field")) == (code, field)
    assert not await db(Turn.objects.exists)()


async def test_a_json_error_states_its_position(ann, talk):
    async with connected(tab := Tab(ann)):
        await tab.put('{"type": oops')
        assert "character 9" in (await tab.next())["message"]


KINDS = [
    "close",
    "websocket.disconnect",
    "websocket.close",
    "_x",
    "chat.message",
    "chatmemory.news",
]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_internal_event_type_is_unknown_and_affects_no_socket(ann, talk, kind):
    async with connected(tab := Tab(ann), other := Tab(ann)):
        await tab.put(json.dumps({"type": kind, "session": talk.pk, "code": 1000}))
        assert (await tab.next())["code"] == "unknown_type"
        for each in (tab, other):
            assert (await each.ask("fetch", before_seq=2))["type"] == "ok"
        assert other.is_quiet()


BAD_CONTENTS = {
    "NUL": ([{"type": "text", "text": "a\0"}], "bad_text"),
    "lone surrogate": ([{"type": "text", "text": "\ud800"}], "bad_text"),
    "NUL in a key": ([{"type": "text", "text": "a", "\0": 1}], "bad_field"),
    "image": ([{"type": "image_url", "text": "a"}], "bad_field"),
    "no block": ([5], "bad_field"),
    "empty list": ([], "bad_field"),
    "empty block": ([{"type": "text", "text": ""}], "empty"),
    "object": ({}, "bad_field"),
    "text": ("a", "bad_field"),
}


@pytest.mark.parametrize(("content", "code"), BAD_CONTENTS.values(), ids=BAD_CONTENTS)
async def test_invalid_content_is_rejected(ann, talk, content, code):
    async with connected(tab := Tab(ann)):
        answer = await tab.ask("send", client_id="c1", content=content)
        assert answer["code"] == code
    assert not await db(Turn.objects.exists)()


async def test_a_text_over_the_limit_is_rejected_with_the_limit_and_not_repeated(
    ann, talk, settings
):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_MESSAGE_CHARS": 12}
    async with connected(tab := Tab(ann)):
        answer = await tab.send("secret" * 2 + "x")
        assert (await tab.send("secret" * 2, "c2"))["type"] == "ok"
    assert (answer["code"], answer["field"], answer["limit"]) == ("too_large", "text", 12)
    assert "secret" not in json.dumps(answer)


async def test_an_unencodable_id_does_not_close_the_socket(ann, talk):
    async with connected(tab := Tab(ann)):
        await tab.put('{"type":"send","id":"\\ud800","client_id":"c1","text":"hi"}')
        assert (await tab.next())["field"] == "id"
        assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"


ODD_TEXTS = {
    "spaces and lines": "  kept \n\t as it is \r\n ",
    "noncharacters and private use": "\uffff \ufffd \ue000",
    "emoji and right to left": "👩\u200d👧 \u05e9\u05dc\u05d5\u05dd",
    "combining marks": "e" + "\u0301" * 10_000,
    "bidi override and tags": "\u202ereversed \U000e0041",
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
async def test_odd_text_is_stored_unchanged(ann, talk, text):
    async with connected(tab := Tab(ann)):
        assert (await tab.send(text))["type"] == "ok"
        assert (await tab.until("message", client_id="c1"))["text"] == text
    assert ("user", text) in await rows()


async def test_an_oversized_frame_closes_the_socket_after_an_error(ann, talk):
    async with connected(tab := Tab(ann)):
        await tab.put(" " * 300 * 1024)
        assert (await tab.next())["code"] == "too_large"
        bye, code = await tab.closed()
    assert (bye["type"], bye["code"], code) == ("bye", 1009, 1009)


async def test_size_is_counted_in_bytes(ann, talk):
    async with connected(tab := Tab(ann)):
        await tab.put(json.dumps({"type": "é" * 140_000}, ensure_ascii=False))
        assert (await tab.next())["code"] == "too_large"


async def test_the_third_mistake_closes_the_socket(ann, talk):
    async with connected(tab := Tab(ann)):
        for data in (b"", '{"type":"x"}', '{"type":"hello","v":1}'):
            await tab.put(data)
        bye, code = await tab.closed()
    assert [frame["code"] for frame in tab.frames[-4:-1]] == [
        "bad_frame",
        "unknown_type",
        "not_ready",
    ]
    assert (bye["reason"], bye["reconnect"], code) == ("not_ready", False, 4400)


async def test_invalid_content_does_not_count_as_a_mistake(ann, talk):
    async with connected(tab := Tab(ann)):
        for _ in range(5):
            assert (await tab.send(""))["code"] == "empty"
        assert (await tab.send("hi"))["type"] == "ok"


async def test_an_internal_error_is_reported_only_by_a_ref(ann, talk, settings, caplog):
    async with connected(tab := Tab(ann)):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_MESSAGE_CHARS": "secret"}
        answer = await tab.send("hi")
        assert (answer["code"], "secret" in json.dumps(answer)) == ("internal", False)
        settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_MESSAGE_CHARS": 100}
        assert (await tab.send("hi"))["type"] == "ok"
    assert answer["ref"] in caplog.text


# Hello


async def test_nothing_is_answered_before_hello(ann, talk):
    async with Tab(ann) as tab:
        assert (await tab.send("hi"))["code"] == "not_ready"
        await tab.hello()


async def test_only_version_1_is_supported(ann, talk):
    async with Tab(ann) as tab:
        await tab.put('{"type":"hello","v":2}')
        bye, code = await tab.closed()
    assert (bye["reason"], bye["code"], code) == ("unsupported_version", 4426, 4426)


async def test_a_client_that_sends_no_hello_is_closed(ann, talk, limit):
    limit(hello_seconds=0.1)
    async with Tab(ann) as tab:
        bye, code = await tab.closed()
    assert (bye["reason"], bye["reconnect"], code) == ("no_hello", True, 4408)


@contextmanager
def pool_blocked():
    """Occupy all threads of the pool, as a database that does not answer does."""
    answers = threading.Event()
    for _ in range(chatmemory_settings.DB_THREADS):
        pool.threads().executor.submit(answers.wait)
    try:
        yield
    finally:
        answers.set()


@pytest.mark.slow
@pytest.mark.regression
async def test_a_hello_that_waits_for_the_database_is_in_time(ann, talk, limit):
    limit(hello_seconds=2.0, answer_seconds=3.0)
    async with Tab(ann) as tab:
        assert (await tab.ask("fetch", before_seq=9))["code"] == "not_ready"
        with pool_blocked():
            await tab.send_frame("hello", v=1)
            await tab.until("error", code="unavailable")
        await tab.until("synced")


@pytest.mark.slow
@pytest.mark.regression
async def test_a_client_whose_hello_was_refused_must_send_another(ann, talk, limit):
    limit(hello_seconds=2.0, burst=1, frames_per_second=0.001)
    async with Tab(ann) as tab:
        assert (await tab.ask("fetch", before_seq=9))["code"] == "not_ready"
        await tab.send_frame("hello", v=1)
        await tab.until("error", code="rate_limited")
        async with asyncio.timeout(DEADLINE):
            bye, code = await tab.closed()
    assert (bye["reason"], code) == ("no_hello", 4408)


@pytest.mark.slow
@pytest.mark.regression
async def test_a_pong_behind_frames_that_wait_for_the_database_is_in_time(ann, talk, limit):
    limit(silence_seconds=0.2, pong_seconds=2.0)
    async with connected(tab := Tab(ann)):
        tab.confirms = False
        ping = await tab.until("ping")
        tab.confirms = True
        with pool_blocked():
            for number in range(inbox.MAX_UNANSWERED + 1):
                await tab.send_frame("fetch", id=f"f{number}", before_seq=9)
            await tab.send_frame("pong", n=ping["n"])
            await asyncio.sleep(4)  # longer than `pong_seconds`; the pong that arrived must count
        for number in range(inbox.MAX_UNANSWERED + 1):
            await tab.until("ok", id=f"f{number}")


async def test_hello_brings_the_session_its_newest_rows_and_a_cursor(ann, talk):
    async with connected(tab := Tab(ann)):
        pass
    kinds = ["welcome", *["message"] * 4, "session", "synced"]
    assert [frame["type"] for frame in tab.frames] == kinds
    assert tab.frames[0]["limits"] == {"max_message_chars": 32_000, "max_frame_bytes": 262_144}
    assert tab.texts() == list(TEXTS)
    assert (tab.frames[5]["key"], tab.frames[5]["running"]) == ("talk", None)


async def test_rows_come_by_number_after_the_clock_jumped_back(ann, talk):
    an_hour_ago = timezone.now() - timedelta(hours=1)
    await db(Message.stored.filter(seq__gt=2).update)(created_at=an_hour_ago)
    async with connected(tab := Tab(ann)):
        assert tab.texts() == list(TEXTS)
        older = await tab.ask("fetch", before_seq=4, limit=2)
    assert [row["seq"] for row in older["messages"]] == [2, 3]


async def test_hello_brings_no_more_than_the_newest_50(ann, talk):
    await append(ann, *map(str, range(100)))
    async with connected(tab := Tab(ann)):
        assert tab.texts() == [str(n) for n in range(50, 100)]


@pytest.mark.parametrize("upper", [False, True])
async def test_a_new_uuid_creates_a_session(ann, upper):
    key = str(uuid.uuid4())
    key = key.upper() if upper else key
    async with Tab(ann, key) as tab:
        await tab.hello(create=True)
    assert await db(Session.objects.get)() == await services.aget_session(
        session_key=key, by=Actor.user(ann.user)
    )


UNKNOWN_KEYS = {
    "a name": "nope",
    "UUID version 1": "a0eebc99-9c0b-11ef-b864-0242ac120002",
    "UUID without hyphens": uuid.UUID(int=0, version=4).hex,
    "10 kB": "x" * 10_000,
    "path": "../admin",
    "escaped path": "..%2f",
    "NUL": "a\0",
    "umlaut": "ä",
}


async def test_any_other_unknown_key_is_not_found(ann):
    ends = {}
    for name, key in UNKNOWN_KEYS.items():
        async with Tab(ann, key) as tab:
            await tab.send_frame("hello", v=1, create=True)
            bye, code = await tab.closed()
        ends[name] = (tab.is_accepted, len(tab.frames), bye["reason"], bye["reconnect"], code)
    assert ends == dict.fromkeys(UNKNOWN_KEYS, (True, 1, "not_found", False, 4404))
    assert not await db(Session.objects.exists)()


async def test_a_uuid_without_create_is_not_found(ann):
    async with Tab(ann, str(uuid.uuid4())) as tab:
        await tab.send_frame("hello", v=1)
        assert (await tab.closed())[1] == 4404


async def test_another_users_session_is_not_found_and_equal_keys_of_two_users_are_independent(
    ann, bob, talk
):
    async with Tab(bob) as tab:
        await tab.send_frame("hello", v=1)
        bye, code = await tab.closed()
    assert (bye["reason"], code, len(tab.frames)) == ("not_found", 4404, 1)
    await db(make_session)(owner=bob.user)
    async with connected(Tab(bob), Tab(ann)):
        pass
    async with connected(mine := Tab(bob)):
        assert mine.texts() == []


async def test_a_page_of_another_person_gets_and_creates_nothing(ann, bob, talk):
    for key in (talk.key, str(uuid.uuid4())):
        for person in (str(bob.user.pk), "", f"0{ann.user.pk}", "\0"):
            async with Tab(ann, key) as tab:
                await tab.send_frame("hello", v=1, create=True, person=person)
                await tab.send_frame("send", id=1, client_id="c1", text="a secret of Bob")
                bye, code = await tab.closed()
            assert (bye["reason"], bye["reconnect"], code) == ("other_person", False, 4401)
            assert len(tab.frames) == 1
    assert await db(Session.objects.count)() == 1
    async with Tab(ann) as tab:
        await tab.hello(person=str(ann.user.pk))
        assert tab.texts() == list(TEXTS)


async def test_a_client_without_a_login_is_unauthenticated(talk):
    async with Tab(None) as tab:
        assert tab.is_accepted
        bye, code = await tab.closed()
    assert (bye["reason"], bye["reconnect"], code) == ("unauthenticated", False, 4401)


@pytest.mark.parametrize("spoil", ["expired", "tampered", "logged out", "disabled"])
async def test_an_invalid_cookie_is_unauthenticated(ann, talk, spoil):
    cookie = ann.cookie
    match spoil:
        case "expired":
            past = timezone.now() - timedelta(seconds=1)
            await db(Login.objects.update)(expire_date=past)
        case "tampered":
            cookie = cookie[:-1] + ("a" if cookie[-1] != "a" else "b")
        case "logged out":
            await db(Login.objects.all().delete)()
        case "disabled":
            await db(type(ann.user).objects.update)(is_active=False)
    async with Tab(type(ann)(ann.user, cookie)) as tab:
        bye, code = await tab.closed()
    assert (bye["type"], bye["reason"], code) == ("bye", "unauthenticated", 4401)


# Cursors


async def test_a_cursor_brings_only_the_missed_rows(ann, talk):
    async with connected(tab := Tab(ann)):
        cursor = tab.frames[-1]["cursor"]
    await append(ann, "five", "six")
    async with Tab(ann) as tab:
        await tab.hello(cursor=cursor)
    assert tab.texts() == ["five", "six"]
    assert not [frame for frame in tab.frames if frame["type"] == "reset"]


@pytest.mark.slow
async def test_catching_up_can_need_several_pages(ann, talk):
    async with Tab(ann) as tab:
        cursor = await tab.hello()
    await append(ann, *map(str, range(350)))
    async with Tab(ann) as tab:
        await tab.hello(cursor=cursor)
    assert tab.texts() == [str(n) for n in range(350)]


def old_cursor(session, **changes):
    return str(
        Cursor(
            **{
                "session_pk": session.pk,
                "epoch": session.epoch,
                "seq": 2,
                "revision": 0,
                "first_seq": 1,
                **changes,
            }
        )
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"session_pk": 10**9, "epoch": 7}, "ahead"),  # a restore lost the session
        ({"seq": 10**9}, "ahead"),
        ({"seq": 2**53}, "ahead"),
        ({"epoch": 7}, "restored"),
        ({"row_digest": "0123456789abcdef"}, "diverged"),
    ],
)
async def test_a_cursor_of_another_session_causes_a_reset(ann, talk, changes, reason):
    async with Tab(ann) as tab:
        await tab.hello(cursor=old_cursor(talk, **changes))
    resets = [frame for frame in tab.frames if frame["type"] == "reset"]
    assert [(reset["reason"], reset["epoch"]) for reset in resets] == [(reason, talk.epoch)]
    assert tab.texts() == list(TEXTS)


async def test_an_invalid_cursor_causes_a_reset(ann, talk):
    for cursor in ("garbage", "", f"{talk.pk}.{talk.epoch}.{10**30}.1.1", "\ud800", "x" * 10_000):
        async with Tab(ann) as tab:
            await tab.hello(cursor=cursor)
        assert tab.frames[1]["reason"] == "other"
        assert tab.texts() == list(TEXTS)


async def test_a_client_that_is_far_behind_is_reset(ann, talk):
    await append(ann, *map(str, range(catch_up.MAX_MISSED_ROWS)))
    async with Tab(ann) as tab:
        await tab.hello(cursor=old_cursor(talk))
    assert tab.frames[1]["reason"] == "behind"
    assert len(tab.texts()) == catch_up.FIRST_ROWS


async def test_a_cursor_from_before_a_clear_causes_a_reset(ann, talk):
    await clear(ann)
    await append(ann, "fresh")
    async with Tab(ann) as tab:
        await tab.hello(cursor=old_cursor(talk))
    assert tab.frames[1]["reason"] == "cleared"
    assert tab.texts() == ["fresh"]


@pytest.mark.parametrize(("keep", "texts"), [(0, []), (2, ["three", "four"])])
async def test_a_cursor_from_before_a_trim_continues_at_the_floor(ann, talk, keep, texts):
    await trim(ann, keep)
    async with Tab(ann) as tab:
        await tab.hello(cursor=old_cursor(talk, seq=1))
        assert (await tab.send("next"))["seq"] == 5
        await tab.until("message", seq=5)
    assert tab.texts()[: len(texts)] == texts


@db
def redact(person, *seqs):
    for seq in seqs:
        services.redact_message(**person.talk, seq=seq, reason="test")


async def test_a_changed_row_is_sent_again_to_an_open_socket(ann, talk):
    async with connected(tab := Tab(ann)):
        await redact(ann, 2)
        message = await tab.until("message")
        assert (message["seq"], message["text"], message["redacted"]) == (2, "", True)
        session = await tab.until("session")
        assert message["revision"] == session["revision"] > 0
        await tab.until("synced")
        await append(ann, "five")
        assert (await tab.until("message"))["seq"] == 5


async def test_quarantined_and_repaired_rows_are_sent_again(ann, talk):
    broken = Message.stored.filter(seq=2)
    async with connected(tab := Tab(ann)):
        for body, quarantined in (("{", True), (None, False)):
            await db(broken.update)(body=body)
            found = check_integrity(repair_by=Actor.server("test"))
            assert [finding.code for finding in await db(list)(found)]
            message = await tab.until("message")
            assert (message["seq"], message["quarantined"]) == (2, quarantined)


async def test_a_cursor_brings_changed_and_new_rows(ann, talk):
    async with Tab(ann) as tab:
        cursor = await tab.hello()
    await redact(ann, 3, 1)
    await append(ann, "five")
    async with Tab(ann) as tab:
        cursor = await tab.hello(cursor=cursor)
        assert [(f["seq"], f["text"]) for f in tab.frames if f["type"] == "message"] == [
            (3, ""),
            (1, ""),
            (5, "five"),
        ]
    async with Tab(ann) as tab:
        await tab.hello(cursor=cursor)
    assert tab.texts() == []


async def test_more_changed_rows_than_a_page_are_all_sent(ann, talk, monkeypatch):
    monkeypatch.setattr(feed, "PAGE_ROWS", 2)
    await append(ann, *"abc")
    async with Tab(ann) as tab:
        cursor = await tab.hello()
    await redact(ann, *range(7, 2, -1))
    # As if many rows had changed at the same time.
    revision = (await db(Session.objects.get)()).rows_revision
    await db(Message.stored.filter(redacted=True).update)(revision=revision)
    async with Tab(ann) as tab:
        await tab.hello(cursor=cursor)
    assert [f["seq"] for f in tab.frames if f["type"] == "message"] == [3, 4, 5, 6, 7]


async def test_changed_rows_wait_for_credit_and_none_is_omitted(ann, talk):
    await append(ann, *["x" * 90_000] * 6)
    async with Tab(ann) as tab:
        cursor = await tab.hello()
    await db(Message.stored.filter(seq__gt=4).update)(revision=9)
    await db(Session.objects.update)(revision=9, rows_revision=9)
    async with Tab(ann) as tab:
        tab.confirms = False
        await tab.send_frame("hello", v=1, cursor=cursor)
        for _ in range(3):
            ping = await tab.until("ping")
        await asyncio.sleep(0.1)  # so that more would be sent, if there was credit
        assert tab.is_quiet()
        assert [f["seq"] for f in tab.frames if f["type"] == "message"] == [5, 6, 7]
        tab.confirms = True
        await tab.send_frame("pong", n=ping["n"])
        await tab.until("synced")
    assert [f["seq"] for f in tab.frames if f["type"] == "message"] == [5, 6, 7, 8, 9, 10]


async def test_a_changed_row_that_was_never_sent_is_sent_only_after_a_fetch(ann, talk):
    await append(ann, *map(str, range(60)))
    async with connected(tab := Tab(ann)):
        assert next(f["seq"] for f in tab.frames if f["type"] == "message") == 15
        await redact(ann, 9, 20)
        assert (await tab.until("message"))["seq"] == 20
        await tab.until("synced")
        await tab.ask("fetch", before_seq=15, limit=5)
        await redact(ann, 8, 11)
        assert (await tab.until("message"))["seq"] == 11


async def test_a_cursor_from_before_a_restore_of_a_trim_causes_a_reset(ann, talk):
    trimmed = await trim(ann, 2)
    async with Tab(ann) as tab:
        cursor = await tab.hello()
        assert tab.texts() == ["three", "four"]
    await db(services.restore_session)(entry_pk=trimmed.pk, by=ann.talk["by"], reason="test")
    async with Tab(ann) as tab:
        await tab.hello(cursor=cursor)
    assert tab.frames[1]["reason"] == "restored"
    assert tab.texts() == list(TEXTS)


async def test_a_cursor_from_before_a_database_restore_causes_a_reset(ann, talk):
    async with Tab(ann) as tab:
        await tab.hello(cursor=old_cursor(talk, revision=5))
    assert tab.frames[1]["reason"] == "ahead"


async def test_unchanged_sessions_are_not_searched_for_changed_rows(ann, talk, monkeypatch):
    await redact(ann, 1)
    async with connected(tab := Tab(ann)):
        monkeypatch.setattr(feed, "_achanged", None)  # a call would end the socket
        await append(ann, "five")
        await tab.until("message", text="five")
        await trim(ann, 2)
        await tab.until("session", first_seq=3)


# Sends and answers


async def test_ok_is_sent_after_the_commit_and_before_the_reply(ann, talk):
    async with connected(tab := Tab(ann)):
        ok = await tab.send("good morning")
        assert (ok["turn"], ok["seq"], ok["duplicate"]) == ("c1", 5, False)
        assert ("user", "good morning") in await rows()
        await tab.idle(6)
    reply = next(frame for frame in tab.frames if frame.get("seq") == 6)
    assert (reply["role"], reply["turn"], reply["status"]) == ("assistant", "c1", "complete")
    assert reply["text"] == "good morning "


async def test_text_streams_in_pieces_before_its_row(ann, talk, settings):
    use_responder(settings, "slow")
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        await tab.until("snapshot", turn="c1", step=0, text="So far, ")
        responders_for_tests.GO.set()
        await tab.until("message", role="assistant", text="So far, so good.")


async def test_a_list_of_text_blocks_is_a_message_too(ann, talk):
    async with connected(tab := Tab(ann)):
        content = [{"type": "text", "text": "good "}, {"type": "text", "text": "day"}]
        await tab.ask("send", client_id="c1", content=content)
        message = await tab.until("message", client_id="c1")
    assert (message["text"], message["content"]) == ("good day", content)


async def test_a_repeated_send_gets_the_same_answer_and_is_stored_once(ann, talk, settings):
    use_responder(settings, "slow")
    async with connected(tab := Tab(ann)):
        first = await tab.send("hi")
        again = await tab.send("hi")
        responders_for_tests.GO.set()
        await tab.idle(6)
        last = await tab.send("hi")
    assert [a["duplicate"] for a in (first, again, last)] == [False, True, True]
    assert [a["seq"] for a in (first, again, last)] == [5, 5, 5]
    assert [again["status"], last["status"]] == ["running", "complete"]
    assert await db(Message.stored.count)() == 6


@pytest.mark.slow
async def test_twenty_concurrent_equal_sends_are_one_message(ann, talk):
    tabs = [Tab(ann) for _ in range(4)]
    async with connected(*tabs):
        answers = await asyncio.gather(
            *[asyncio.gather(tab.send("hi")) for tab in tabs],
        )
        for tab in tabs:
            for number in range(5):
                await tab.send_frame("send", id=number, client_id="c1", text="hi")
        for tab in tabs:
            for number in range(5):
                ok = await tab.until("ok", id=number)
                assert (ok["turn"], ok["seq"]) == ("c1", 5)
    assert {answer["seq"] for [answer] in answers} == {5}
    assert [text for role, text in await rows() if role == "user"].count("hi") == 1


async def test_another_text_under_the_same_id_is_a_conflict(ann, talk):
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        await tab.idle(6)
        assert (await tab.send("ho"))["code"] == "conflict"
    assert ("user", "ho") not in await rows()


async def test_the_same_id_in_another_session_is_another_message(ann, talk):
    await db(make_session)("other", owner=ann.user)
    async with connected(tab := Tab(ann), other := Tab(ann, "other")):
        assert (await tab.send("hi"))["duplicate"] is False
        assert (await other.send("ho"))["duplicate"] is False


async def test_the_id_of_a_cleared_message_is_refused(ann, talk):
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        await tab.idle(6)
        await clear(ann)
        await tab.until("reset", reason="cleared")
        await tab.until("synced")
        assert (await tab.send("hi"))["code"] == "history_cleared"
        assert (await tab.send("ho", "c2"))["seq"] == 7


@pytest.mark.slow
async def test_a_send_during_a_turn_follows_its_if_busy_policy(ann, talk, settings):
    use_responder(settings, "endless")
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        await tab.until("snapshot")
        busy = await tab.send("and", "c2", if_busy="reject")
        assert (busy["code"], busy["retry"], busy["turn"]) == ("busy", True, "c1")
        queued = await tab.send("and", "c2")
        assert (queued["status"], queued["seq"]) == ("waiting", None)
        await tab.until("session", waiting=[{"turn": "c2", "text": "and"}])
        use_responder(settings, "echo")
        await tab.send("now", "c3", if_busy="interrupt")
        await tab.idle(10)
    rows = [frame for frame in tab.frames if frame["type"] == "message" and frame["seq"] > 4]
    assert [(row["seq"], row["turn"], row["status"]) for row in rows] == [
        (5, "c1", "complete"),
        (6, "c1", "interrupted"),
        (7, "c3", "complete"),
        (8, "c3", "complete"),
        (9, "c2", "complete"),
        (10, "c2", "complete"),
    ]


@pytest.mark.slow
async def test_an_edit_is_shown_by_the_range_that_it_supersedes(ann, talk):
    async with connected(tab := Tab(ann)):
        conflict = await tab.send("three, better", replaces=3, expect_seq=1)
        assert (conflict["code"], conflict["retry"]) == ("conflict", False)
        vague = await tab.send("three, better", replaces=3)
        assert (vague["code"], vague["field"]) == ("bad_field", "expect_seq")
        assert (await tab.send("three, better", replaces=3, expect_seq=3))["seq"] == 5
        assert (await tab.idle(6))["superseded"] == [[3, 4]]
        await tab.send("three, at last", "c2", replaces=5, expect_seq=5)
        assert (await tab.idle(8))["superseded"] == [[3, 4], [5, 6]]
        await trim(ann, 4)
        await tab.until("session", first_seq=5, superseded=[[5, 6]])
    async with connected(late := Tab(ann)):
        [session] = [frame for frame in late.frames if frame["type"] == "session"]
        assert session["superseded"] == [[5, 6]]


async def test_withdrawn_rows_are_shown_as_superseded_until_they_are_restored(ann, talk):
    def change(service):
        with locked_transaction():
            service(lock_pk(talk.pk), 1, 2)

    async with connected(tab := Tab(ann)):
        await tab.send("three, better", replaces=3, expect_seq=3)
        assert (await tab.idle(6))["superseded"] == [[3, 4]]
        await db(change)(withdraw_rows)
        await tab.until("session", superseded=[[1, 2], [3, 4]])
        await db(change)(restore_rows)
        await tab.until("session", superseded=[[3, 4]])


async def test_sends_are_limited_for_each_user(ann, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SENDS_PER_MINUTE": 2}
    async with connected(tab := Tab(ann)):
        answers = [await tab.send("hi") for _ in range(6)]
    limited = [answer for answer in answers if answer["type"] == "error"]
    assert len(limited) == 4
    assert {(a["code"], 0 < a["retry_after_ms"] <= 60_000) for a in limited} == {
        ("rate_limited", True)
    }


# Stop


async def test_a_stop_ends_a_running_turn_and_keeps_its_partial_text(ann, talk, settings):
    use_responder(settings, "endless")
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        await tab.until("snapshot")
        assert (await tab.ask("stop", turn="c1"))["type"] == "ok"
        await tab.idle(6)
        assert (await tab.ask("stop", turn="c1"))["status"] == "interrupted"
    reply = next(frame for frame in tab.frames if frame.get("seq") == 6)
    assert reply["status"] == "interrupted"
    assert reply["text"].startswith("word ")


async def test_a_turn_that_starts_during_the_read_of_the_session_is_shown(ann, talk, monkeypatch):
    read, claims = feed._awaiting, [aclaim_next]

    async def claim_and_read(head):
        while claims:
            assert await claims.pop()(session_pk=talk.pk, owner="another")
        return await read(head)

    monkeypatch.setattr(feed, "_awaiting", claim_and_read)
    monkeypatch.setattr("chatmemory.live.runner.Runner.owner", "")  # no other runner claims
    async with connected(tab := Tab(ann)):
        for client_id in ("c1", "c2"):
            await services.aadmit_turn(**ann.talk, client_id=client_id, content="hi")
        await tab.until("session", waiting=[{"turn": "c2", "text": "hi"}])
    shown = [frame["running"] for frame in tab.frames if frame["type"] == "session"]
    assert shown[0] is None
    assert {running and running["turn"] for running in shown[1:]} == {"c1"}


async def test_a_wrong_number_of_waiting_turns_keeps_no_socket_busy(ann, talk, monkeypatch):
    asked, read = [], feed._awaiting

    async def count(head):
        asked.append(head)
        return await read(head)

    monkeypatch.setattr(feed, "_awaiting", count)
    await db(Session.objects.update)(waiting=3)
    async with connected(tab := Tab(ann)):
        [shown] = [frame for frame in tab.frames if frame["type"] == "session"]
        assert shown["waiting"] == []
    assert len(asked) == 2


async def test_a_stop_cancels_a_waiting_turn(ann, talk):
    await db(services.admit_turn)(**ann.talk, client_id="c0", content="hi", owner="another")
    asked = '{"role": "user", "content": "hi"}'
    await db(Turn.objects.create)(
        session=talk, client_id="c1", status="waiting", asked=asked, epoch=talk.epoch
    )
    await db(Session.objects.update)(waiting=1)
    async with connected(tab := Tab(ann)):
        assert tab.frames[-2]["waiting"] == [{"turn": "c1", "text": "hi"}]
        assert (await tab.ask("stop", turn="c1"))["status"] == "cancelled"
        assert (await tab.until("session"))["waiting"] == []


async def test_a_stop_for_an_unknown_turn_and_for_another_users_turn_get_the_same_error(
    ann, bob, talk
):
    await db(make_session)("bobs", owner=bob.user)
    await db(services.admit_turn)(
        session_key="bobs", by=Actor.user(bob.user), client_id="theirs", content="hi", owner="other"
    )
    async with connected(tab := Tab(ann)):
        for turn in ("nobodys", "theirs"):
            assert (await tab.ask("stop", turn=turn))["code"] == "unknown_turn"
    turn = await db(Turn.objects.get)()
    assert (turn.status, turn.stop_requested_at) == ("running", None)


# Rename


async def test_a_rename_reaches_all_sockets_of_the_session(ann, talk):
    async with connected(first := Tab(ann), second := Tab(ann)):
        answer = await first.ask("rename", title="A kettle")
        assert (answer["type"], answer["title"]) == ("ok", "A kettle")
        assert (await second.until("session"))["title"] == "A kettle"


@pytest.mark.parametrize(
    ("title", "code"), [("x" * 201, "bad_field"), ("a\0", "bad_text"), (5, "bad_field")]
)
async def test_a_bad_title_is_refused_under_its_id(ann, talk, title, code):
    async with connected(tab := Tab(ann)):
        answer = await tab.ask("rename", title=title)
        assert (answer["type"], answer["code"], answer["field"]) == ("error", code, "title")


# Feedback


@pytest.fixture
def rated(ann, talk, settings):
    """Ann's session, with an ended turn `c1` of the rows 5 and 6."""
    use_responder(settings, "echo")
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    message = {"role": "assistant", "content": "hello"}
    assert finish_turn(claim=claim, status="complete", message=message)
    talk.refresh_from_db()
    return talk


async def test_feedback_reaches_all_sockets_of_the_session_with_the_reply(ann, rated):
    async with connected(first := Tab(ann), second := Tab(ann)):
        for value, reason in ((-1, "Wrong."), (1, "Right."), (None, "")):
            answer = await first.ask("feedback", turn="c1", value=value, reason=reason)
            assert answer == {"type": "ok", "id": answer["id"], "turn": "c1", "feedback": value}
            for tab in (first, second):
                message = await tab.until("message")
                assert (message["seq"], message["feedback"]) == (6, value)
                assert message["revision"] == (await tab.until("session"))["revision"]


async def test_feedback_reaches_older_cursors_new_sockets_and_fetches(ann, rated):
    async with connected(tab := Tab(ann)):
        cursor = tab.frames[-1]["cursor"]
    await db(services.set_feedback)(**ann.talk, turn="c1", value=-1)
    async with Tab(ann) as tab:
        await tab.hello(cursor=cursor)
        answer = await tab.ask("fetch", before_seq=7, limit=2)
    [message] = [frame for frame in tab.frames if frame["type"] == "message"]
    assert (message["seq"], message["feedback"]) == (6, -1)
    assert [row["feedback"] for row in answer["messages"]] == [None, -1]
    async with connected(tab := Tab(ann)):
        assert [f["feedback"] for f in tab.frames if f["type"] == "message"] == [*[None] * 5, -1]


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({"value": 2}, "bad_field", "value"),
        ({"value": True}, "bad_field", "value"),
        ({}, "bad_field", "value"),
        ({"value": None, "reason": "x"}, "bad_field", "reason"),
        ({"value": 1, "reason": "x" * 1_001}, "too_large", "reason"),
        ({"value": 1, "reason": "a\0"}, "bad_text", "reason"),
        ({"value": 1, "turn": "a b"}, "bad_field", "turn"),
        ({"value": 1, "turn": "nobodys"}, "unknown_turn", None),
        ({"value": 1, "person": 7}, "unknown_field", "person"),
    ],
)
async def test_bad_feedback_is_refused_under_its_id(ann, rated, given, code, field):
    async with connected(tab := Tab(ann)):
        answer = await tab.ask("feedback", **{"turn": "c1", **given})
        assert (answer["type"], answer["code"], answer.get("field")) == ("error", code, field)
    assert await db(rated.feedback.count)() == 0


async def test_feedback_on_another_users_turn_is_unknown(ann, bob, rated):
    await db(make_session)("bobs", owner=bob.user)
    async with connected(tab := Tab(bob, "bobs")):
        assert (await tab.ask("feedback", turn="c1", value=1))["code"] == "unknown_turn"
    assert await db(rated.feedback.count)() == 0


@pytest.mark.parametrize(
    ("kind", "fields"), [("feedback", {"turn": "c1", "value": 1}), ("rename", {"title": "x"})]
)
async def test_too_many_small_writes_are_rate_limited(ann, rated, settings, kind, fields):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WRITES_PER_MINUTE": 2}
    async with connected(tab := Tab(ann)):
        answers = [await tab.ask(kind, **fields) for _ in range(3)]
    assert [answer.get("code") for answer in answers] == [None, None, "rate_limited"]


# Fetch


async def test_fetch_returns_older_rows_and_does_not_move_the_cursor(ann, talk):
    async with connected(tab := Tab(ann)):
        answer = await tab.ask("fetch", before_seq=4, limit=2)
        assert [row["text"] for row in answer["messages"]] == ["two", "three"]
        assert (await tab.ask("fetch", before_seq=1))["messages"] == []
        assert (await tab.ask("fetch", before_seq=2**53))["messages"][-1]["seq"] == 4
        await append(ann, "five")
        assert (await tab.until("message"))["seq"] == 5


async def test_fetch_returns_the_newest_rows_that_fit_into_a_frame(ann, talk):
    await append(ann, *["x" * 30_000] * 20)
    async with connected(tab := Tab(ann)):
        answer = await tab.ask("fetch", before_seq=25, limit=100)
    seqs = [row["seq"] for row in answer["messages"]]
    assert seqs == list(range(seqs[0], 25))
    assert 1 < seqs[0] < 24
    assert len(json.dumps(answer)) < 512 * 1024


async def test_fetch_truncates_a_row_that_is_larger_than_a_frame(ann, talk):
    await append(ann, "hi", "x" * 900_000)
    async with connected(tab := Tab(ann)):
        [row] = (await tab.ask("fetch", before_seq=7))["messages"]
    assert (row["seq"], row["cut"], set(row["text"])) == (6, True, {"x"})


# Changes while a socket is open


async def test_two_tabs_see_each_others_messages(ann, talk):
    async with connected(a := Tab(ann), b := Tab(ann)):
        await a.send("from a")
        await b.idle(6)
        await b.send("from b", "c2")
        await a.idle(8)
        await b.idle(8)
    for tab in (a, b):
        assert tab.texts()[-4:] == ["from a", "from a ", "from b", "from b "]


async def test_rows_that_server_code_stores_are_sent_immediately(ann, talk):
    async with connected(tab := Tab(ann)):
        await append(ann, "five", "six")
        await tab.until("message", text="six")


async def test_closing_a_tab_does_not_end_the_reply_and_a_reload_shows_it(ann, talk, settings):
    use_responder(settings, "slow")
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        await tab.until("snapshot")
    responders_for_tests.GO.set()
    async with connected(tab := Tab(ann)):
        if tab.frames[-2]["running"]:
            await tab.idle(6)
    assert tab.texts()[-1] == "So far, so good."


async def test_a_client_that_connects_during_a_reply_gets_the_partial_text(ann, talk, settings):
    use_responder(settings, "slow")
    async with connected(first := Tab(ann)):
        await first.send("hi")
        await first.until("snapshot")
        async with connected(second := Tab(ann)):
            await second.until("snapshot", text="So far, ")


async def test_progress_is_sent_in_order_and_a_late_client_gets_the_latest(ann, talk, settings):
    use_responder(settings, "with_progress_and_pauses")
    thinking = {"kind": "thinking", "name": "", "state": "started"}
    begun, ended = (
        {"kind": "tool", "name": "weather", "state": state} for state in ("started", "ended")
    )
    async with connected(first := Tab(ann), second := Tab(ann)):
        await first.send("hi")
        while first.streamed() != "So far, so good":
            await first.next()
        async with connected(late := Tab(ann)):
            snapshot = await late.until("snapshot", turn="c1", step=0)
            assert (snapshot["text"], snapshot["event"]) == ("So far, so good", begun)
            responders_for_tests.GO.set()
            await late.until("delta", turn="c1", step=0, event=ended)
            responders_for_tests.GO.set()
            await late.until("message", role="assistant", text="So far, so good.")
        await first.idle(6)
        await second.idle(6)
    for tab in (first, second):
        events = [frame["event"] for frame in tab.frames if "event" in frame]
        assert events in ([thinking, begun, ended], [begun, ended])
        assert tab.texts()[-1] == "So far, so good."


@pytest.mark.slow
async def test_events_cost_credit(ann, talk, settings, limit):
    limit(ping_bytes=10_000_000, credit_bytes=8_000)
    use_responder(settings, "restless")
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        assert await db(responders_for_tests.BEGUN.wait)(DEADLINE)  # after all its events
        while not any("event" in frame for frame in tab.frames):
            await tab.next()
        await asyncio.sleep(0.1)  # so that more would be sent, if they cost nothing
        while not tab.is_quiet():
            await tab.next()
    assert len([frame for frame in tab.frames if "event" in frame]) < 50


async def test_the_text_of_an_ended_turn_is_not_sent(ann, talk):
    async with connected(tab := Tab(ann)):
        cursor = tab.frames[-1]["cursor"]
        text = {"turn": "c0", "step": 0, "from": 0, "to": 1, "pieces": ["a ghost"]}
        hub._on_event("text", {"session": talk.pk, "epoch": talk.epoch, **text})
        async with Tab(ann) as late:
            await late.hello(cursor=cursor)
            await late.ask("fetch", before_seq=1)
            await tab.ask("fetch", before_seq=1)
    assert tab.texts("snapshot") == late.texts("snapshot") == []


async def test_a_trim_moves_the_floor_and_resets_nothing(ann, talk):
    async with connected(tab := Tab(ann)):
        await trim(ann, 2)
        assert (await tab.until("session"))["first_seq"] == 3
        await trim(ann, 0)
        assert (await tab.until("session"))["first_seq"] == 5
        await append(ann, "five")
        assert (await tab.until("message"))["seq"] == 5
    assert not [frame for frame in tab.frames if frame["type"] == "reset"]


async def test_a_clear_resets_an_open_socket(ann, talk):
    async with connected(tab := Tab(ann)):
        await clear(ann)
        reset = await tab.until("reset")
        session = await tab.until("session")
        assert (reset["reason"], reset["epoch"]) == ("cleared", session["epoch"])
        assert session["epoch"] != talk.epoch
        assert (await tab.send("hi"))["seq"] == 5


async def test_a_purge_closes_an_open_socket(ann, talk):
    async with connected(tab := Tab(ann)):
        await purge(ann)
        assert (await tab.until("reset"))["reason"] == "purged"
        bye, code = await tab.closed()
    assert (bye["reason"], code) == ("not_found", 4404)


async def test_a_send_after_a_purge_reaches_no_new_session_of_the_key(ann, talk, monkeypatch):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60)  # it would close the socket
    async with connected(tab := Tab(ann)):
        monkeypatch.setattr(hub._sockets, "notify", lambda *_: None)
        await purge(ann)
        await db(make_session)(owner=ann.user)
        assert (await tab.send("hi"))["code"] == "history_cleared"
    assert await db(Message.objects.count)() == 0


@pytest.mark.parametrize("how", ["logged out", "disabled", "expired"])
async def test_a_sweep_closes_sockets_whose_login_ended(ann, bob, talk, monkeypatch, how):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.1)
    await db(make_session)(owner=bob.user)
    async with connected(tab := Tab(ann), other := Tab(bob)):
        past = timezone.now() - timedelta(seconds=1)
        logins = Login.objects.filter(pk=ann.cookie)
        match how:
            case "logged out":
                await db(logins.delete)()
            case "expired":
                await db(logins.update)(expire_date=past)
            case "disabled":
                await db(type(ann.user).objects.filter(pk=ann.user.pk).update)(is_active=False)
        bye, code = await tab.closed()
        assert (bye["reason"], code) == ("unauthenticated", 4401)
        assert (await other.send("hi"))["type"] == "ok"


@pytest.mark.regression
async def test_a_hanging_sweep_does_not_delay_the_check_of_logins(
    ann, talk, monkeypatch, postgresql
):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.1)
    async with connected(tab := Tab(ann)):
        lock = table_locked("chatmemory_turn")
        await db(lock.__enter__)()
        try:
            await db(wait_for)(waits_for_a_lock, "no sweep waits for the table")
            await db(type(ann.user).objects.filter(pk=ann.user.pk).update)(is_active=False)
            assert (await tab.closed())[1] == 4401
        finally:
            await db(lock.__exit__)(None, None, None)


@pytest.mark.parametrize("error", [ConnectionResetError, Disconnected])
async def test_a_client_that_disconnects_silently_is_not_an_error(ann, talk, caplog, error):
    tab = Tab(ann)
    put, is_gone = tab._outbox.put, threading.Event()

    async def put_or_fail(event):
        if is_gone.is_set():
            raise error("gone")
        await put(event)

    tab._outbox.put = put_or_fail
    async with connected(tab):
        is_gone.set()
        await tab.send_frame("fetch", id="f1", before_seq=9)
    assert "failed" not in caplog.text


async def test_the_sweep_repairs_a_lost_notification(ann, talk, monkeypatch):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.1)
    async with connected(tab := Tab(ann)):
        monkeypatch.setattr(hub, "notify", lambda *_: None)
        await append(ann, "five")
        await tab.until("message", text="five")


async def test_an_internal_error_of_the_writer_sends_bye(ann, talk, monkeypatch):
    async with connected(tab := Tab(ann)):
        monkeypatch.setattr(feed, "PAGE_ROWS", object())  # not a number, so the read raises
        hub.notify(talk.pk)
        bye, code = await tab.closed()
    assert (bye["reason"], bye["reconnect"], code) == ("internal", True, 1011)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for all")
async def test_a_blocked_session_does_not_block_other_sockets(ann, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DB_THREADS": 2, "LOCK_TIMEOUT": 5}
    await db(make_session)("other", owner=ann.user)
    stuck = [Tab(ann) for _ in range(3)]
    async with connected(free := Tab(ann, "other"), *stuck):
        lock = held(talk)
        await db(lock.__enter__)()
        try:
            for number, tab in enumerate(stuck):
                await tab.send_frame("send", id=number, client_id=f"s{number}", text="hi")
            assert (await free.send("hi"))["type"] == "ok"
            assert all(tab.is_quiet() for tab in stuck)
        finally:
            await db(lock.__exit__)(None, None, None)


# Credit


async def fill(person):
    await append(person, *["x" * 30_000] * 40)


async def test_a_client_that_confirms_gets_everything(ann, talk):
    await fill(ann)  # several times the credit
    async with connected(tab := Tab(ann)):
        pass
    assert len([frame for frame in tab.frames if frame["type"] == "ping"]) >= 2
    texts = [frame["text"] for frame in tab.frames if frame["type"] == "message"]
    assert texts[-40:] == ["x" * 30_000] * 40


async def test_a_long_reply_arrives_whole(ann, talk, settings):
    use_responder(settings, "long")
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        await tab.idle(6)
    assert await db(lambda: len(Message.objects.get(seq=6).text))() == 1_000_000


@pytest.mark.slow
async def test_a_client_that_never_confirms_gets_a_bounded_amount_and_is_closed(ann, talk, limit):
    limit(pong_seconds=1.0)
    await fill(ann)
    async with Tab(ann) as tab:
        tab.confirms = False
        await tab.send_frame("hello", v=1)
        await tab.send_frame("fetch", id=1, before_seq=3)
        bye, code = await tab.closed()
    size = sum(len(json.dumps(frame)) for frame in tab.frames)
    credit = SocketLimits().credit_bytes
    assert credit <= size < credit + 2 * 30_000 + 2_000
    assert (bye["reason"], bye["reconnect"], code) == ("no_pong", True, 4410)


@pytest.mark.slow
async def test_unconfirmed_answers_do_not_keep_a_socket_open(ann, talk, limit):
    limit(pong_seconds=1.0)
    await fill(ann)
    async with Tab(ann) as tab:
        tab.confirms = False
        await tab.send_frame("hello", v=1)
        for number in range(20):
            await tab.send_frame("fetch", id=number, before_seq=40)
        assert (await tab.closed())[1] == 4410


async def test_a_client_that_confirms_late_gets_the_rest(ann, talk):
    await fill(ann)
    async with Tab(ann) as tab:
        tab.confirms = False
        await tab.send_frame("hello", v=1)
        for _ in range(3):
            ping = await tab.until("ping")
        tab.confirms = True
        await tab.send_frame("pong", n=ping["n"])
        await tab.until("synced")
    assert len(tab.texts()) == 44


@pytest.mark.slow
async def test_a_silent_client_without_open_pings_is_pinged_and_then_closed(ann, talk, limit):
    limit(silence_seconds=0.2, pong_seconds=0.5)
    async with Tab(ann) as tab:
        tab.confirms = False
        await tab.hello()
        bye, code = await tab.closed()
    assert tab.frames[-2]["type"] == "ping"
    assert (bye["reason"], code) == ("no_pong", 4408)


async def test_a_client_that_answers_pings_stays(ann, talk, limit):
    limit(silence_seconds=0.05)
    async with connected(tab := Tab(ann)):
        tab.confirms = False
        for _ in range(3):
            ping = await tab.until("ping")
            await tab.send_frame("pong", n=ping["n"])
        assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"


def test_only_confirmed_bytes_give_credit_back():
    account = Credit(SocketLimits(pong_seconds=30))
    while account.is_left():
        if account.spend(10_000):
            last = account.ping()
    assert not account.is_overdue(time.monotonic())
    assert account.is_overdue(time.monotonic() + 30)
    account.confirm(1)
    assert account.is_left()
    account.confirm(last)
    assert not account.is_overdue(time.monotonic() + 30)


# Origins


SAME_HOST = {
    "same": ("http://testserver", "ws", True),
    "its port said": ("http://testserver:80", "ws", True),
    "capitals": ("http://TestServer", "ws", True),
    "secure": ("https://testserver", "wss", True),
    "missing": ("", "ws", False),
    "null": ("null", "ws", False),
    "other port": ("http://testserver:8000", "ws", False),
    "https page, ws socket": ("https://testserver", "ws", False),
    "http page, wss socket": ("http://testserver", "wss", False),
    "suffix": ("http://testserver.evil.example", "ws", False),
    "prefix": ("http://eviltestserver", "ws", False),
    "user": ("http://testserver@evil.example", "ws", False),
    "port trick": ("http://testserver:80.evil.example", "ws", False),
    "no scheme": ("testserver", "ws", False),
    "star": ("*", "ws", False),
    "broken": ("http://[::1", "ws", False),
    "file": ("file://", "ws", False),
}


@pytest.mark.parametrize(("origin", "scheme", "is_let_in"), SAME_HOST.values(), ids=SAME_HOST)
def test_only_pages_of_the_same_host_may_open_a_socket(settings, origin, scheme, is_let_in):
    headers = [(b"host", b"testserver"), (b"origin", origin.encode())]
    assert is_allowed_origin({"headers": headers, "scheme": scheme}) == is_let_in


OUR_HOSTS = {
    "ours": ("chat.example", True),
    "ours, with its port": ("chat.example:8443", True),
    "capitals": ("Chat.Example", True),
    "a subdomain": ("a.sub.example", True),
    "foreign": ("evil.example", False),
    "ours as a part": ("chat.example.evil.example", False),
    "a user": ("chat.example@evil.example", False),
    "no name": ("///", False),
}


@pytest.mark.regression
@pytest.mark.parametrize(("host", "is_let_in"), OUR_HOSTS.values(), ids=OUR_HOSTS)
def test_only_an_allowed_host_accepts_a_socket(settings, host, is_let_in):
    """The rule is the same as for HTTP requests, against DNS rebinding."""
    settings.ALLOWED_HOSTS = ["chat.example", ".sub.example"]
    same = {"scheme": "wss", "headers": [(b"host", host.encode())]}
    same["headers"] += [(b"origin", f"https://{host}".encode())]
    assert is_allowed_origin(same) == is_let_in
    no_page = {"scheme": "wss", "headers": [(b"host", host.encode())]}
    assert is_allowed_origin(no_page, may_be_missing=True) == is_let_in
    settings.CHATMEMORY = {"ALLOWED_ORIGINS": ["https://shop.example"]}
    listed = [(b"host", host.encode()), (b"origin", b"https://shop.example")]
    assert is_allowed_origin({"headers": listed}) == is_let_in


@pytest.mark.regression
def test_the_host_is_the_one_that_django_sees(settings):
    settings.ALLOWED_HOSTS = ["chat.example"]
    headers = [(b"host", b"app:8000"), (b"x-forwarded-host", b"chat.example")]
    headers += [(b"origin", b"http://chat.example")]
    assert not is_allowed_origin({"headers": headers})
    settings.USE_X_FORWARDED_HOST = True
    assert is_allowed_origin({"headers": headers})
    settings.ALLOWED_HOSTS = []
    local = {"headers": [(b"host", b"localhost:8000"), (b"origin", b"http://localhost:8000")]}
    assert not is_allowed_origin(local)
    settings.DEBUG = True
    assert is_allowed_origin(local)


async def test_a_socket_of_a_foreign_page_is_not_accepted(ann, talk):
    for origin in ("http://testserver.evil.example", "https://testserver", "null", ""):
        async with Tab(ann, headers={"origin": origin}) as tab:
            assert not tab.is_accepted


def test_a_missing_header_is_a_foreign_origin():
    assert not is_allowed_origin({"headers": [(b"host", b"testserver")]})
    assert not is_allowed_origin({"headers": []})


@pytest.mark.parametrize(
    ("origin", "is_let_in"),
    [
        ("https://chat.example", True),
        ("https://chat.example:443", True),
        ("http://localhost:3000", True),
        ("http://chat.example", False),
        ("https://chat.example:8443", False),
        ("https://www.chat.example", False),
        ("http://localhost", False),
        ("http://testserver", False),
        ("", False),
    ],
)
def test_only_the_origins_of_the_setting_are_accepted(settings, origin, is_let_in):
    settings.CHATMEMORY = {"ALLOWED_ORIGINS": ["https://chat.example", "http://localhost:3000"]}
    headers = [(b"host", b"testserver"), (b"origin", origin.encode())]
    assert is_allowed_origin({"headers": headers}) == is_let_in


async def test_a_refused_socket_gets_no_frame_and_is_not_registered(ann, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOWED_ORIGINS": []}
    async with Tab(ann) as tab:
        assert not tab.is_accepted
        assert tab.is_quiet()
    assert not hub._sockets.session_pks()


@pytest.mark.regression
@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], "it has neither an Origin header nor a ticket"),
        ([(b"origin", b"http://b.c\xe9")], "the origin 'http://b.c\\xe9' is not this server's"),
        ([(b"host", b"evil.example")], "the host 'evil.example' is not in ALLOWED_HOSTS"),
    ],
)
async def test_the_reason_of_a_refused_handshake_is_logged_once_as_a_warning(
    monkeypatch, caplog, headers, reason
):
    monkeypatch.setattr(origins, "_logged", set())
    caplog.set_level(logging.DEBUG, origins.__name__)
    for _ in range(2):
        communicator = WebsocketCommunicator(application, "/ws/chat/talk/", headers=headers)
        assert await communicator.connect() == (False, 1000)
    first, second = [entry for entry in caplog.records if entry.name == origins.__name__]
    assert (first.levelname, second.levelname) == ("WARNING", "DEBUG")
    assert reason in first.getMessage()


def test_clients_cannot_fill_the_log_with_warnings(monkeypatch, caplog):
    monkeypatch.setattr(origins, "_logged", set())
    for number in range(origins.MAX_LOGGED + 5):
        assert not is_allowed_origin({"headers": [(b"origin", b"http://%d.example" % number)]})
    assert len(caplog.records) == origins.MAX_LOGGED


@pytest.mark.regression
def test_an_origin_that_is_not_in_the_setting_is_logged_with_its_name(
    monkeypatch, settings, caplog
):
    monkeypatch.setattr(origins, "_logged", set())
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOWED_ORIGINS": ["https://chat.example"]}
    assert not is_allowed_origin({"headers": [(b"origin", b"https://evil.example")]})
    assert "the origin 'https://evil.example' is not in ALLOWED_ORIGINS" in caplog.text


@pytest.mark.regression
def test_a_long_origin_is_truncated_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(origins, "_logged", set())
    assert not is_allowed_origin({"headers": [(b"origin", b"http://" + b"a" * 10_000)]})
    assert "a" * 190 in caplog.text
    assert "a" * 200 not in caplog.text
