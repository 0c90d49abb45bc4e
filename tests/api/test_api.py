"""The REST API."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from typing import Any
from urllib.parse import quote

import pytest
from django.core.cache import cache
from django.db import OperationalError, connection
from django.test import AsyncClient, Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from chatmemory import services
from chatmemory.access import rates
from chatmemory.api import messages as messages_views
from chatmemory.database.pool import in_pool
from chatmemory.logs import forget_logged
from chatmemory.models import Message, Session, Turn
from chatmemory.services import Actor
from chatmemory.services.turns import progress
from tests.api.calls import JSON, MESSAGES, PROBLEM, SESSIONS, TALK, post, problem, send, talk_of
from tests.factories import make_session, make_user
from tests.locking import concurrently

pytestmark = pytest.mark.django_db

VERSIONS = f"{MESSAGES}1/versions/"
FEEDBACK = f"{TALK}turns/c1/feedback/"
CHUNKED: dict[str, Any] = {"HTTP_TRANSFER_ENCODING": "chunked"}


def test_an_error_is_a_problem_by_rfc_9457(api, talk):
    assert api.get("/api/sessions/other/").json() == {
        "status": 404,
        "title": "Not Found",
        "detail": "Session not found.",
        "code": "not_found",
        "retry": False,
    }
    assert send(api, client_id=5).json() == {
        "status": 400,
        "title": "Bad Request",
        "detail": "client_id must be 1 to 64 characters of A-Z a-z 0-9 - _ . :",
        "code": "bad_field",
        "retry": False,
        "field": "client_id",
    }


def test_a_request_of_an_internal_error_is_a_problem_too(api, talk, monkeypatch):
    monkeypatch.setattr(messages_views, "read_missed", None)
    found = api.get(MESSAGES).json()
    assert found.pop("ref")
    assert found == {
        "status": 500,
        "title": "Internal Server Error",
        "detail": "An internal error occurred.",
        "code": "internal",
        "retry": False,
    }


def test_sessions_are_listed_once_by_last_activity(api, ann):
    for number in range(5):
        talk_of(ann, key=f"talk-{number}")
    make_session("silent-1", owner=ann)
    make_session("silent-2", owner=ann)
    pages = [api.get(SESSIONS, {"limit": 2}).json()]
    while pages[-1]["next"]:
        pages.append(api.get(SESSIONS, {"limit": 2, "cursor": pages[-1]["next"]}).json())
    keys = [session["key"] for page in pages for session in page["sessions"]]
    assert keys == ["talk-4", "talk-3", "talk-2", "talk-1", "talk-0", "silent-2", "silent-1"]


def test_sessions_of_the_same_moment_are_listed_once(api, ann):
    for number in range(3):
        talk_of(ann, key=f"talk-{number}")
    Session.objects.update(last_message_at=datetime(2026, 1, 1, tzinfo=UTC))
    first = api.get(SESSIONS, {"limit": 1}).json()
    rest = api.get(SESSIONS, {"cursor": first["next"]}).json()
    assert [s["key"] for s in first["sessions"] + rest["sessions"]] == [
        "talk-2",
        "talk-1",
        "talk-0",
    ]


def test_a_session_has_the_public_fields(api, ann):
    session = talk_of(ann, title="Kettle", instructions="Be rude.", metadata={"bot": "host's"})
    shown = api.get(TALK).json()
    assert api.get(SESSIONS).json()["sessions"] == [shown]
    assert shown == {
        "key": "talk",
        "title": "Kettle",
        "epoch": session.epoch,
        "revision": session.revision,
        "first_seq": 1,
        "last_seq": 2,
        "messages": 2,
        "running": None,
        "archived": False,
        "waiting": 0,
        "pinned": False,
        "held": False,
        "expires_at": None,
        "created_at": shown["created_at"],
        "last_message_at": shown["last_message_at"],
    }


def test_messages_are_read_by_number(api, ann):
    talk_of(ann, *"abcdefgh")

    def numbers(**query):
        page = api.get(MESSAGES, query).json()
        assert (page["first_seq"], page["last_seq"]) == (1, 8)
        return [message["seq"] for message in page["messages"]]

    assert numbers(limit=3) == [6, 7, 8]
    assert numbers(before=6, limit=3) == [3, 4, 5]
    assert numbers(after=6, limit=3) == [7, 8]
    assert numbers(after=8) == numbers(after=10**17) == numbers(before=0) == []


def test_messages_are_ordered_by_number_after_the_clock_jumped_back(api, ann):
    talk_of(ann, *"abc")
    Message.objects.filter(seq__gt=1).update(created_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert [m["text"] for m in api.get(MESSAGES).json()["messages"]] == [*"abc"]
    assert [m["seq"] for m in api.get(MESSAGES, {"after": 1}).json()["messages"]] == [2, 3]


def test_a_message_has_all_fields(api, talk):
    shown = api.get(f"{MESSAGES}2/").json()
    assert api.get(MESSAGES).json()["messages"][1] == shown
    expected = {"seq": 2, "role": "assistant", "text": "hello", "status": "complete"}
    assert expected.items() <= shown.items()


def test_arguments_of_tool_calls_are_truncated_in_a_page_and_whole_in_one_message(api, ann):
    call = {"id": "c1", "name": "write", "args": {"text": "x" * 10_000}}
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    services.open_session(session_key="talk", by=Actor.user(ann))
    services.append_messages(session_key="talk", messages=[reply], by=Actor.user(ann))
    [listed] = api.get(MESSAGES).json()["messages"][0]["calls"]
    assert (len(listed["args"]), listed["cut"]) == (8_000, True)
    [whole] = api.get(f"{MESSAGES}1/").json()["calls"]
    assert (json.loads(whole["args"]), whole["cut"]) == (call["args"], False)


@pytest.mark.parametrize("seq", ["3", "0", "1" + "0" * 30])
def test_a_missing_message_is_not_found(api, talk, seq):
    assert problem(api.get(f"{MESSAGES}{seq}/")) == (404, "not_found", None)


def test_messages_below_the_floor_are_not_found(api, ann):
    talk_of(ann, *"abcd")
    services.trim_session(session_key="talk", keep_last=2, by=Actor.user(ann), reason="")
    assert [m["seq"] for m in api.get(MESSAGES).json()["messages"]] == [3, 4]
    assert api.get(f"{MESSAGES}1/").status_code == 404


BAD_QUERIES = {
    "after=10**30": (MESSAGES, "after=" + "1" + "0" * 30, "bad_field", "after"),
    "before=-1": (MESSAGES, "before=-1", "bad_field", "before"),
    "after=1.5": (MESSAGES, "after=1.5", "bad_field", "after"),
    "after empty": (MESSAGES, "after=", "bad_field", "after"),
    "after in Arabic digits": (MESSAGES, "after=%D9%A3", "bad_field", "after"),
    "after and before": (MESSAGES, "after=1&before=3", "bad_field", "before"),
    "limit=0": (MESSAGES, "limit=0", "bad_field", "limit"),
    "limit=-1": (MESSAGES, "limit=-1", "bad_field", "limit"),
    "limit=x": (MESSAGES, "limit=x", "bad_field", "limit"),
    "page_size": (MESSAGES, "page_size=1000000000", "unknown_field", "page_size"),
    "sessions limit=-1": (SESSIONS, "limit=-1", "bad_field", "limit"),
    "sessions limit=x": (SESSIONS, "limit=x", "bad_field", "limit"),
    "cursor garbage": (SESSIONS, "cursor=garbage", "bad_field", "cursor"),
    "cursor NUL": (SESSIONS, "cursor=1.1%00", "bad_field", "cursor"),
    "cursor 10**30": (SESSIONS, "cursor=" + "9" * 30 + ".1", "bad_field", "cursor"),
    "ordering": (SESSIONS, "ordering=user__password", "unknown_field", "ordering"),
    "filter": (SESSIONS, "owner__username=bob", "unknown_field", "owner__username"),
    "after twice": (MESSAGES, "after=1&after=2", "bad_field", "after"),
    "limit twice": (SESSIONS, "limit=1&format=json&limit=1", "bad_field", "limit"),
    "1,001 parameters": (SESSIONS, "&".join(1_001 * ["limit=1"]), "bad_field", None),
    "search": (SESSIONS, "search=" + "%25_" * 3000, "unknown_field", "search"),
}


@pytest.mark.parametrize(
    ("address", "query", "code", "field"), BAD_QUERIES.values(), ids=BAD_QUERIES
)
def test_a_bad_query_is_rejected(api, talk, address, query, code, field):
    assert problem(api.get(f"{address}?{query}")) == (400, code, field)


@pytest.mark.regression
def test_a_query_that_no_one_reads_is_never_parsed(api, talk):
    assert api.get(f"{TALK}?{'&'.join(1_001 * ['a=b'])}").status_code == 200


@pytest.mark.slow
def test_a_page_has_at_most_100_rows(api, ann):
    talk_of(ann, *("x" for _ in range(120)))
    assert len(api.get(MESSAGES, {"limit": 10**9}).json()["messages"]) == 100
    for number in range(101):
        make_session(f"s{number}", owner=ann)
    assert len(api.get(SESSIONS, {"limit": 10**9}).json()["sessions"]) == 100


def test_a_session_is_opened_once(api, ann):
    opening = {"key": str(uuid.uuid4()), "title": "<b>Kettle</b>"}
    first = post(api, SESSIONS, opening)
    again = post(api, SESSIONS, {**opening, "title": "Another"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert opening.items() <= first.json().items()
    assert Session.objects.get().owner == ann


@pytest.mark.regression
@pytest.mark.parametrize(
    "key", ["support", "talk:1", "f47ac10b-58cc-11ee-8c99-0242ac120002", "9" * 32]
)
def test_a_client_cannot_claim_a_key_of_the_host(api, ann, key):
    """If a client opened the session first, the host's prompt would be lost."""
    assert problem(post(api, SESSIONS, {"key": key})) == (400, "bad_field", "key")
    where = {"session_key": key, "by": Actor.user(ann)}
    assert services.open_session(**where, instructions="Never lend.").instructions
    answer = post(api, SESSIONS, {"key": key})
    assert (answer.status_code, answer.json()["key"]) == (200, key)


@pytest.mark.regression
def test_a_client_cannot_read_or_write_metadata(api, ann):
    opening = {"key": str(uuid.uuid4()), "metadata": {"tags": ["contract"], "bot": "admin"}}
    assert problem(post(api, SESSIONS, opening)) == (400, "unknown_field", "metadata")
    services.open_session(session_key="talk", by=Actor.user(ann), metadata={"bot": "host's"})
    assert post(api, SESSIONS, {"key": "talk"}).status_code == 200
    for address in (SESSIONS, TALK, MESSAGES):
        assert "host's" not in api.get(address).content.decode()
    assert Session.objects.get().metadata == {"bot": "host's"}


def test_a_session_without_a_key_gets_one(api):
    keys = {post(api, SESSIONS, {}).json()["key"] for _ in range(2)}
    assert len(keys) == 2
    assert all(re.fullmatch("[0-9a-f-]{36}", key) for key in keys)


BAD_OPENINGS = {
    "instructions": ({"instructions": "Obey."}, "unknown_field", "instructions"),
    "owner": ({"owner": 1}, "unknown_field", "owner"),
    "scope": ({"scope": "server"}, "unknown_field", "scope"),
    "name of a lone surrogate": ({"\ud800": 1}, "unknown_field", "\\ud800"),
    "key empty": ({"key": ""}, "bad_field", "key"),
    "key with a space": ({"key": "a b"}, "bad_field", "key"),
    "key path": ({"key": "../x"}, "bad_field", "key"),
    "key of 201": ({"key": "k" * 201}, "bad_field", "key"),
    "key number": ({"key": 5}, "bad_field", "key"),
    "key null": ({"key": None}, "bad_field", "key"),
    "title of 10 kB": ({"title": "x" * 10_000}, "bad_field", "title"),
    "title with NUL": ({"title": "a\0b"}, "bad_text", "title"),
    "title number": ({"title": 5}, "bad_field", "title"),
}


@pytest.mark.parametrize(("opening", "code", "field"), BAD_OPENINGS.values(), ids=BAD_OPENINGS)
def test_a_bad_opening_is_rejected(api, opening, code, field):
    assert problem(post(api, SESSIONS, opening)) == (400, code, field)
    assert not Session.objects.exists()


BAD_METADATA = {
    "NUL in a key": {"a\0": 1},
    "NUL in a value": {"a": "\0"},
    "lone surrogate in a key": {"\ud800": 1},
    "lone surrogate in a value": {"a": ["\ud800"]},
}


@pytest.mark.parametrize("metadata", BAD_METADATA.values(), ids=BAD_METADATA)
def test_metadata_is_unknown_in_a_new_session_and_in_a_message(api, talk, metadata):
    for answer in (post(api, SESSIONS, {"metadata": metadata}), send(api, metadata=metadata)):
        assert problem(answer) == (400, "unknown_field", "metadata")
    assert (Session.objects.count(), Turn.objects.count()) == (1, 0)


def test_a_message_is_stored_before_it_is_accepted(api, talk):
    answer = send(api)
    assert answer.status_code == 202
    assert answer.json() == {
        "turn": "c1",
        "status": "waiting",
        "seq": None,
        "error": "",
        "duplicate": False,
        "messages": [],
    }
    assert talk.turns.get().client_id == "c1"


@pytest.mark.parametrize("wait", [True, 30, 0.5])
def test_a_request_with_wait_gets_the_reply(api, talk, wait):
    answer = send(api, "  what now?\n", wait=wait)
    turn = answer.json()
    assert (answer.status_code, turn["status"], turn["seq"]) == (201, "complete", 3)
    [reply] = turn["messages"]
    assert (reply["seq"], reply["role"], reply["turn"]) == (4, "assistant", "c1")
    assert reply["text"]
    assert Message.objects.get(seq=3).text == "  what now?\n"


def test_text_blocks_are_accepted(api, talk):
    blocks = [{"type": "text", "text": "what "}, {"type": "text", "text": "now?"}]
    sent = {"client_id": "c1", "content": blocks, "wait": True}
    assert post(api, MESSAGES, sent).status_code == 201
    assert api.get(f"{MESSAGES}3/").json()["content"] == blocks


def test_a_repeated_message_gets_the_same_reply(api, talk):
    first = send(api, wait=True)
    for again in (send(api), send(api, wait=True)):
        assert again.status_code == 200
        assert again.json() == {**first.json(), "duplicate": True}
    assert Message.objects.count() == 4


def test_a_repeated_request_with_wait_runs_the_waiting_turn(api, talk):
    send(api)
    again = send(api, wait=True)
    assert (again.status_code, again.json()["status"]) == (200, "complete")


def test_the_wait_for_a_turn_of_another_process_ends_before_its_lease(api, talk, ann):
    by = Actor.user(ann)
    services.admit_turn(
        session_key="talk", client_id="c1", content="what now?", by=by, owner="elsewhere"
    )
    answer = send(api, wait=0.3)
    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    assert answer.json()["messages"] == []


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_twenty_equal_posts_in_parallel_store_one_message(ann, talk):
    clients = [Client() for _ in range(20)]
    for client in clients:
        client.force_login(ann)
    answers = concurrently(*[partial(send, client) for client in clients])
    turns = [answer.json() for answer in answers]
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]
    assert sorted(turn.pop("duplicate") for turn in turns) == [False] + [True] * 19
    assert turns == [turns[0]] * 20
    assert Turn.objects.count() == 1


def test_a_repeated_client_id_with_another_text_is_a_conflict(api, talk):
    send(api, wait=True)
    assert problem(send(api, "something else")) == (409, "conflict", None)
    assert Message.objects.get(seq=3).text == "what now?"


def test_a_client_id_is_unique_within_its_session_only(api, talk, ann):
    talk_of(ann, key="other")
    assert send(api).status_code == 202
    assert send(api, "else", to="/api/sessions/other/messages/").status_code == 202


def test_a_cleared_message_cannot_be_sent_again(api, talk, ann):
    epoch = talk.epoch
    send(api, wait=True)
    services.clear_session(session_key="talk", by=Actor.user(ann), reason="")
    assert problem(send(api)) == (409, "history_cleared", None)
    assert problem(send(api, client_id="c2", epoch=epoch)) == (409, "history_cleared", None)


def test_a_busy_error_names_the_blocking_turn(api, talk):
    send(api)
    busy = send(api, client_id="c2", if_busy="reject")
    assert problem(busy) == (409, "busy", None)
    assert (busy.json()["turn"], busy.json()["retry"]) == ("c1", True)


def test_a_second_message_waits_unless_the_queue_is_full(api, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "QUEUE_DEPTH": 2}
    send(api)
    waiting = send(api, client_id="c2")
    assert (waiting.status_code, waiting.json()["status"]) == (202, "waiting")
    full = send(api, client_id="c3")
    assert problem(full) == (409, "queue_full", None)
    assert full.json()["retry"]
    assert problem(send(api, client_id="c3", if_busy="wait")) == (400, "bad_field", "if_busy")
    assert problem(send(api, client_id="c3", if_busy=1)) == (400, "bad_field", "if_busy")


@pytest.mark.slow
def test_a_request_with_wait_runs_the_queued_turns_before_it(api, talk):
    for number in ("c1", "c2"):
        send(api, client_id=number)
    answer = send(api, client_id="c3", wait=True)
    assert (answer.status_code, answer.json()["status"], answer.json()["seq"]) == (
        201,
        "complete",
        7,
    )
    assert list(Turn.objects.order_by("user_seq").values_list("client_id", "status")) == [
        ("c1", "complete"),
        ("c2", "complete"),
        ("c3", "complete"),
    ]


def test_a_request_with_wait_ends_the_run_of_a_dead_process(api, talk, ann):
    dead = services.admit_turn(
        session_key="talk", by=Actor.user(ann), client_id="c1", content="hi", owner="dead"
    )
    progress.start_turn(claim=dead.claim)
    send(api, client_id="c2")
    Turn.objects.update(lease_until=datetime(2020, 1, 1, tzinfo=UTC))
    answer = send(api, client_id="c2", wait=20)
    assert (answer.json()["status"], answer.json()["duplicate"]) == ("complete", True)


async def erase_person(messages, session):
    """A responder that erases the person who asked."""
    by = Actor.server("test")
    await in_pool(services.erase_person)(by=by, scope=session.scope, reason="asked for it")
    yield "too late"


def test_a_turn_that_is_erased_while_a_request_waits_is_not_found(api, talk, settings):
    responder = f"{__name__}.{erase_person.__name__}"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": responder}
    assert problem(send(api, wait=True))[:2] == (404, "not_found")


@pytest.mark.slow
def test_an_edit_is_a_version_of_the_message_that_it_replaces(api, talk):
    for number in (1, 2):
        send(api, client_id=f"c{number}", wait=True)
    last = Message.objects.count()
    edit = {"client_id": "c3", "replaces": last - 1, "expect_seq": last - 1}
    answer = send(api, "what else?", wait=True, **edit)
    assert (answer.status_code, answer.json()["seq"]) == (201, last + 1)
    assert api.get(MESSAGES).json()["superseded"] == [[last - 1, last]]
    versions = [
        {"turn": "c2", "seq": last - 1, "to_seq": last, "current": False},
        {"turn": "c3", "seq": last + 1, "to_seq": last + 2, "current": True},
    ]
    for seq in (last - 1, last + 1):
        assert api.get(f"{MESSAGES}{seq}/versions/").json() == {"versions": versions}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"replaces": 1}, (400, "bad_field", "expect_seq")),
        ({"replaces": "1", "expect_seq": 1}, (400, "bad_field", "replaces")),
        ({"replaces": True, "expect_seq": 1}, (400, "bad_field", "replaces")),
        ({"replaces": -1, "expect_seq": 1}, (400, "bad_field", "replaces")),
        ({"replaces": 2, "expect_seq": 1}, (400, "bad_field", "replaces")),
        ({"replaces": 1, "expect_seq": None}, (400, "bad_field", "expect_seq")),
        ({"replaces": 1, "expect_seq": 9}, (409, "conflict", None)),
        ({"expect_seq": 0}, (409, "conflict", None)),
    ],
)
def test_an_invalid_edit_is_rejected(api, ann, edit, expected):
    talk_of(ann, "a", "b")
    assert problem(send(api, **edit)) == expected


@pytest.mark.parametrize("seq", [2, 99, 2**53 + 1])
def test_only_user_messages_have_versions(api, ann, seq):
    talk_of(ann, "a", "b")
    assert problem(api.get(f"{MESSAGES}{seq}/versions/")) == (404, "not_found", None)


def test_an_archived_session_accepts_no_message(api, talk):
    Session.objects.update(archived_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert problem(send(api)) == (409, "archived", None)


@pytest.mark.parametrize("role", ["system", "assistant", "developer", "tool", "user", None])
def test_a_message_with_a_role_is_forbidden(api, talk, role):
    assert problem(send(api, role=role)) == (403, "role_forbidden", None)


@pytest.mark.parametrize("name", ["seq", "status", "created_at", "user", "session.user", "x" * 99])
def test_an_unknown_field_is_named(api, talk, name):
    assert problem(send(api, **{name: 1})) == (400, "unknown_field", name[:80])


BAD_TEXTS: dict[str, tuple[object, str]] = {
    "null": (None, "bad_field"),
    "number": (5, "bad_field"),
    "bool": (True, "bad_field"),
    "list": (["hi"], "bad_field"),
    "object": ({}, "bad_field"),
    "empty": ("", "empty"),
    "spaces": (" \n", "empty"),
    "zero width": ("\u200b", "empty"),
    "BOM": ("\ufeff", "empty"),
    "NUL": ("a\0b", "bad_text"),
    "lone surrogate": ("a\ud800b", "bad_text"),
    "ESC": ("\x1b[2J", "bad_text"),
    "BEL": ("\x07", "bad_text"),
}


@pytest.mark.parametrize(("text", "code"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_a_bad_text_is_rejected(api, talk, text, code):
    assert problem(send(api, text)) == (400, code, "text")
    assert not talk.turns.exists()


ODD_TEXTS = {
    "spaces and lines": "\t\r\n x ",
    "noncharacters and private use": "\ufffe\uffff\ue000",
    "emoji": "👩‍👩‍👧",
    "right to left": "שלום",
    "combining marks": "z" + "\u0301" * 10_000,
    "bidi override and tags": "\u202eevil \U000e0041",
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_odd_text_is_stored_unchanged(api, talk, text):
    assert send(api, text, wait=True).status_code == 201
    assert api.get(f"{MESSAGES}3/").json()["text"] == text


def test_a_too_long_text_is_rejected_with_the_limit(api, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_MESSAGE_CHARS": 10}
    assert send(api, "x" * 10).status_code == 202
    answer = send(api, "x" * 11, client_id="c2")
    assert problem(answer) == (413, "too_large", "text")
    assert answer.json()["limit"] == 10


BAD_SHAPES = {
    "key missing": ({"text": "hi"}, "client_id"),
    "text missing": ({"client_id": "c1"}, "text"),
    "text and content": ({"client_id": "c1", "text": "hi", "content": []}, "text"),
    "content empty": ({"client_id": "c1", "content": []}, "content"),
    "content of texts": ({"client_id": "c1", "content": ["hi"]}, "content[0]"),
    "image": ({"client_id": "c1", "content": [{"type": "image", "url": "x"}]}, "content[0]"),
    "key empty": ({"client_id": "", "text": "hi"}, "client_id"),
    "key of 65": ({"client_id": "c" * 65, "text": "hi"}, "client_id"),
    "key with a space": ({"client_id": "c 1", "text": "hi"}, "client_id"),
    "key number": ({"client_id": 1, "text": "hi"}, "client_id"),
    "epoch bool": ({"client_id": "c1", "text": "hi", "epoch": True}, "epoch"),
    "epoch text": ({"client_id": "c1", "text": "hi", "epoch": "1"}, "epoch"),
    "wait text": ({"client_id": "c1", "text": "hi", "wait": "yes"}, "wait"),
    "wait negative": ({"client_id": "c1", "text": "hi", "wait": -1}, "wait"),
    "wait null": ({"client_id": "c1", "text": "hi", "wait": None}, "wait"),
}


@pytest.mark.parametrize(("fields", "field"), BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_an_invalid_field_is_named(api, talk, fields, field):
    assert problem(post(api, MESSAGES, fields)) == (400, "bad_field", field)


BAD_BODIES = {
    "blank": (b" ", "bad_json"),
    "broken": (b"{oops", "bad_json"),
    "list": (b"[]", "bad_shape"),
    "null": (b"null", "bad_shape"),
    "text": (b'"x"', "bad_shape"),
    "number": (b"5", "bad_shape"),
    "33 deep": (b"[" * 33 + b"]" * 33, "too_deep"),
    "100,000 deep": (b"[" * 100_000 + b"]" * 100_000, "too_deep"),
    "5,000 digits": (b'{"epoch": ' + b"1" * 5_000 + b"}", "bad_number"),
    "beyond 2**53": (b'{"metadata": {"a": 9007199254740993}}', "bad_number"),
    "NaN": (b'{"epoch": NaN}', "bad_number"),
    "Infinity": (b'{"epoch": Infinity}', "bad_number"),
    "-Infinity": (b'{"epoch": -Infinity}', "bad_number"),
    "1e999": (b'{"epoch": 1e999}', "bad_number"),
    "duplicate key": (b'{"text": "a", "text": "b"}', "bad_json"),
    "UTF-16": ('{"text": "a"}'.encode("utf-16"), "bad_json"),
    "UTF-16 without BOM": ('{"text": "a"}'.encode("utf-16-le"), "bad_json"),
    "invalid UTF-8": (b'{"text": "\xff"}', "bad_json"),
}


@pytest.mark.parametrize(("body", "code"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_bad_json_is_rejected(api, talk, body, code):
    for address in (SESSIONS, MESSAGES):
        assert problem(post(api, address, body))[:2] == (400, code)


@pytest.mark.parametrize("size", [256 * 1024 + 1, 3_000_000])
def test_a_large_body_is_rejected_with_the_limit(api, talk, size):
    answer = post(api, MESSAGES, b'"' + b"x" * (size - 2) + b'"')
    assert problem(answer)[:2] == (413, "too_large")
    assert answer.json()["limit"] == 256 * 1024


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "application/x-www-form-urlencoded", ""]
)
def test_other_media_types_are_rejected(api, talk, kind):
    answer = api.post(MESSAGES, b"client_id=c1&text=hi", content_type=kind)
    assert problem(answer)[:2] == (415, "unsupported_media_type")


def test_a_form_is_rejected_unread(api, talk):
    answer = api.post(MESSAGES, b"broken", content_type="multipart/form-data")
    assert problem(answer)[:2] == (415, "unsupported_media_type")


async def test_a_body_without_a_length_is_accepted(ann, talk):
    client = AsyncClient()
    await client.aforce_login(ann)
    body = json.dumps({"client_id": "c1", "text": "hi"})
    answer = await client.post(MESSAGES, body, content_type=JSON, CONTENT_LENGTH="", **CHUNKED)
    assert answer.status_code == 202


def test_a_chunked_body_without_an_end_is_rejected(ann, talk):
    request = RequestFactory().generic("POST", MESSAGES, CONTENT_TYPE=JSON, **CHUNKED)
    request.environ["wsgi.input"] = BytesIO(b'{"client_id": "c1", "text": "hi"}')
    request.user = ann
    request._dont_enforce_csrf_checks = True  # as the client does
    answer = resolve(MESSAGES).func(request, key="talk").render()
    assert (answer.status_code, json.loads(answer.content)["code"]) == (411, "length_required")


@pytest.mark.parametrize("address", [SESSIONS, TALK, MESSAGES, f"{MESSAGES}1/", VERSIONS])
def test_a_request_without_a_login_is_unauthenticated(address):
    answer = Client().get(address)
    assert problem(answer) == (401, "unauthenticated", None)
    assert answer["WWW-Authenticate"] == "Session"


@pytest.mark.parametrize("address", [SESSIONS, MESSAGES])
def test_a_post_needs_the_csrf_token(ann, talk, address):
    client = Client(enforce_csrf_checks=True)
    client.force_login(ann)
    assert problem(post(client, address, {})) == (403, "forbidden", None)
    assert not talk.turns.exists()


def test_a_post_without_the_csrf_token_gets_the_reason(ann, talk):
    client = Client(enforce_csrf_checks=True)
    client.force_login(ann)
    assert post(client, MESSAGES, {}).json()["detail"] == "CSRF Failed: CSRF cookie not set."
    client.cookies["csrftoken"] = "a" * 32
    assert post(client, MESSAGES, {}).json()["detail"] == "CSRF Failed: CSRF token missing."
    headers = {"x-csrftoken": "a" * 32, "origin": "https://shop.example"}
    answer = client.post(MESSAGES, {}, content_type=JSON, headers=headers)
    assert "https://shop.example does not match any trusted origins" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("address", "body", "expected"),
    [(SESSIONS, {}, 201), (MESSAGES, {"client_id": "c1", "text": "hi"}, 202)],
)
def test_a_post_with_the_csrf_token_is_accepted(ann, talk, address, body, expected):
    client = Client(enforce_csrf_checks=True)
    client.force_login(ann)
    client.cookies["csrftoken"] = token = "a" * 32
    sent = {"content_type": "application/json", "headers": {"X-CSRFToken": token}}
    assert client.post(address, json.dumps(body), **sent).status_code == expected


@pytest.mark.parametrize("address", [TALK, MESSAGES, f"{MESSAGES}1/", VERSIONS, FEEDBACK])
@pytest.mark.parametrize("verb", ["get", "post", "put", "patch", "delete"])
def test_another_users_session_looks_like_an_unknown_one(api, verb, address):
    body = {"client_id": "c1", "text": "hi", "wait": True}
    body = {"patch": {"title": "x"}, "put": {"value": 1}}.get(verb, body)
    extra = {} if verb == "get" else {"data": body, "content_type": "application/json"}

    def ask():
        with CaptureQueriesContext(connection) as queries:
            answer = getattr(api, verb)(address, **extra)
        statements = [q["sql"] for q in queries if "chatmemory_" in q["sql"]]
        return answer.status_code, answer.content, statements

    unknown = ask()
    bob = make_user("bob")
    talk_of(bob)
    assert ask() == unknown
    assert unknown[0] == 405 or json.loads(unknown[1])["code"] == "not_found"
    assert services.get_session(session_key="talk", by=Actor.user(bob)).last_seq == 2


def test_another_users_sessions_are_not_listed(api, ann):
    talk_of(make_user("bob"))
    make_session("server")
    assert api.get(SESSIONS).json()["sessions"] == []


def test_two_users_can_use_the_same_key(api):
    key = str(uuid.uuid4())
    talk_of(make_user("bob"), key=key)
    assert post(api, SESSIONS, {"key": key}).status_code == 201
    assert api.get(f"{SESSIONS}{key}/messages/").json()["messages"] == []


@pytest.mark.parametrize("key", ["a b", "\N{HONEYBEE}", "é"])
def test_a_key_with_characters_not_allowed_in_urls_is_not_found(api, ann, key):
    make_session(key, owner=ann)
    assert problem(api.get(f"{SESSIONS}{quote(key)}/"))[:2] == (404, "not_found")


@pytest.mark.parametrize("key", ["%00", "k" * 10_000])
def test_an_invalid_key_is_not_found(api, key):
    assert problem(api.get(f"{SESSIONS}{key}/messages/"))[:2] == (404, "not_found")


@pytest.mark.parametrize(
    ("verb", "address", "allowed"),
    [
        ("put", SESSIONS, "GET, HEAD, POST"),
        ("put", TALK, "GET, HEAD, PATCH, DELETE"),
        ("options", MESSAGES, "GET, HEAD, POST"),
        ("patch", f"{MESSAGES}1/", "GET, HEAD"),
        ("post", TALK, "GET, HEAD, PATCH, DELETE"),
    ],
)
def test_a_wrong_method_gets_the_allowed_ones(api, talk, verb, address, allowed):
    answer = getattr(api, verb)(address)
    assert problem(answer)[:2] == (405, "method_not_allowed")
    assert answer["Allow"] == allowed


def test_an_error_leaves_the_transaction_of_the_caller_usable(api, talk, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert problem(api.get(f"{SESSIONS}unknown/"))[0] == 404
    assert Session.objects.count() == 1


@pytest.mark.parametrize(
    "accept", ["*/*", "application/*", "application/json; indent=4", "text/html, */*;q=0.1", ","]
)
def test_an_answer_has_one_form(api, talk, accept):
    answer = api.get(TALK, headers={"accept": accept})
    expected = (406, PROBLEM) if accept == "," else (200, JSON)
    assert (answer.status_code, answer["Content-Type"]) == expected
    assert b"\n" not in answer.content


def test_a_client_that_accepts_no_json_gets_406(api, talk):
    assert problem(api.get(TALK, headers={"accept": "text/html"}))[:2] == (406, "not_acceptable")


@pytest.mark.parametrize("part", ["text/html,", "*/*;", ",", ";", "/"])
def test_an_accept_header_of_50_000_parts_is_answered_in_json(api, talk, part):
    api.get(TALK)
    began = time.monotonic()
    answer = api.get(TALK, headers={"accept": part * 50_000})
    assert time.monotonic() - began < 10  # usually below 0.1
    assert answer["Content-Type"] == {200: JSON, 406: PROBLEM}[answer.status_code]


@pytest.mark.regression
@pytest.mark.parametrize("address", [SESSIONS, TALK, MESSAGES, f"{MESSAGES}1/", VERSIONS])
@pytest.mark.parametrize("given", ["admin", "api", "json", ""])
def test_a_format_in_the_query_changes_nothing(api, talk, address, given):
    answer, usual = api.get(address, {"format": given}), api.get(address)
    assert (answer.status_code, answer["Content-Type"]) == (200, JSON)
    assert answer.json() == usual.json()


def test_the_rest_framework_settings_of_the_host_change_nothing(api, talk, settings):
    settings.REST_FRAMEWORK = {
        "EXCEPTION_HANDLER": "rest_framework.views.exception_handler",
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.BrowsableAPIRenderer"],
        "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.FormParser"],
        "DEFAULT_AUTHENTICATION_CLASSES": [],
    }
    assert problem(api.get("/api/sessions/other/")) == (404, "not_found", None)
    assert send(api).status_code == 202


def test_a_session_is_renamed(api, talk):
    answer = api.patch(f"{SESSIONS}talk/", {"title": "A kettle"}, content_type=JSON)
    assert (answer.status_code, answer.json()["title"]) == (200, "A kettle")
    assert api.get(f"{SESSIONS}talk/").json()["title"] == "A kettle"


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "bad_field", "title"),
        ({"title": None}, "bad_field", "title"),
        ({"title": "x" * 201}, "bad_field", "title"),
        ({"title": "x", "metadata": {}}, "unknown_field", "metadata"),
    ],
)
def test_a_bad_rename_changes_nothing(api, talk, body, code, field):
    answer = api.patch(f"{SESSIONS}talk/", body, content_type=JSON)
    assert problem(answer) == (400, code, field)
    assert Session.objects.get().revision == 0


@pytest.fixture
def rated(ann, talk):
    """Return Ann's session with an ended turn `c1`, of the rows 3 and 4."""
    at = {"session_key": "talk", "by": Actor.user(ann)}
    claim = services.admit_turn(**at, client_id="c1", content="hi", owner="me").claim
    message = {"role": "assistant", "content": "hello"}
    assert progress.finish_turn(claim=claim, status="complete", message=message)
    return talk


def shown(api):
    return [message["feedback"] for message in api.get(MESSAGES).json()["messages"]]


def test_feedback_is_set_and_withdrawn(api, rated):
    for value, reason in ((1, ""), (-1, "Wrong."), (-1, "Wrong.")):
        answer = api.put(FEEDBACK, {"value": value, "reason": reason}, content_type=JSON)
        assert answer.status_code == 200
        assert answer.json() == {"turn": "c1", "value": value, "reason": reason}
        assert shown(api) == [None, None, None, value]
    assert rated.feedback.get().reason == "Wrong."
    for _ in range(2):
        answer = api.delete(FEEDBACK)
        assert answer.status_code == 200
        assert answer.json() == {"turn": "c1", "value": None, "reason": ""}
        assert shown(api) == [None] * 4
    assert api.put(FEEDBACK, {"value": 1}, content_type=JSON).status_code == 200
    assert api.put(FEEDBACK, {"value": None}, content_type=JSON).status_code == 200
    assert not rated.feedback.exists()


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 400, "bad_field", "value"),
        ({"value": "1"}, 400, "bad_field", "value"),
        ({"value": 0}, 400, "bad_field", "value"),
        ({"value": 1, "reason": None}, 400, "bad_field", "reason"),
        ({"value": 1, "reason": "\x07"}, 400, "bad_text", "reason"),
        ({"value": 1, "reason": "x" * 1_001}, 413, "too_large", "reason"),
        ({"value": 1, "turn": "c1"}, 400, "unknown_field", "turn"),
    ],
)
def test_bad_feedback_changes_nothing(api, rated, body, status, code, field):
    answer = api.put(FEEDBACK, body, content_type=JSON)
    assert problem(answer) == (status, code, field)
    assert not rated.feedback.exists()


@pytest.mark.parametrize("turn", ["other", "C1", "a b", "%00", "c" * 65, "🐝"])
def test_feedback_on_an_unknown_turn_is_refused(api, rated, turn):
    address = f"{TALK}turns/{turn}/feedback/"
    for answer in (api.put(address, {"value": 1}, content_type=JSON), api.delete(address)):
        assert problem(answer)[:2] == (404, "unknown_turn")


def test_feedback_on_a_waiting_turn_is_busy(api, talk):
    send(api)
    answer = api.put(FEEDBACK, {"value": 1}, content_type=JSON)
    assert problem(answer)[:2] == (409, "busy")
    assert answer.json()["turn"] == "c1"


def test_feedback_needs_the_csrf_token(ann, rated):
    client = Client(enforce_csrf_checks=True)
    client.force_login(ann)
    for answer in (
        client.put(FEEDBACK, {"value": 1}, content_type=JSON),
        client.delete(FEEDBACK),
    ):
        assert problem(answer)[:2] == (403, "forbidden")
    assert not rated.feedback.exists()


def test_an_unreachable_database_is_unavailable(api, talk, monkeypatch):
    def gone(*args, **kwargs):
        raise OperationalError("FATAL: secret")

    monkeypatch.setattr(messages_views, "read_missed", gone)
    answer = api.get(MESSAGES)
    assert problem(answer) == (503, "unavailable", None)
    assert answer.json()["retry"] is True
    assert b"secret" not in answer.content


def test_an_unexpected_error_is_logged_under_a_ref_without_content(api, talk, monkeypatch, caplog):
    secret = "canary"  # the log quotes the line that raises

    def broken(*args, **kwargs):
        raise RuntimeError(secret)

    monkeypatch.setattr(messages_views, "read_missed", broken)
    answer = api.get(MESSAGES)
    assert problem(answer) == (500, "internal", None)
    assert b"canary" not in answer.content
    [record] = [record for record in caplog.records if record.name == "chatmemory.api.errors"]
    assert record.levelno == logging.ERROR
    assert answer.json()["ref"] in record.getMessage()
    assert "canary" not in caplog.text


def test_too_many_sends_are_rate_limited_with_a_delay(api, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SENDS_PER_MINUTE": 2}
    assert [send(api).status_code for _ in range(2)] == [202, 200]
    answer = send(api)
    assert problem(answer) == (429, "rate_limited", None)
    assert 0 < answer.json()["retry_after"] <= 60
    assert 0 < int(answer["Retry-After"]) <= 60
    assert api.get(MESSAGES).status_code == 200


def test_each_user_has_a_separate_rate_limit(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SENDS_PER_MINUTE": 1}
    for name in ("ann", "bob"):
        rates.check_rate(Actor("user", name, name))


def test_without_a_limit_every_send_is_allowed(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SENDS_PER_MINUTE": None}
    for _ in range(100):
        rates.check_rate(Actor("user", "1", "ann"))


def test_a_failing_cache_rejects_no_send(monkeypatch, settings, caplog):
    def down(*args, **kwargs):
        raise ConnectionError("canary")

    settings.CHATMEMORY = {**settings.CHATMEMORY, "SENDS_PER_MINUTE": 1}
    monkeypatch.setattr(cache, "add", down, raising=False)
    forget_logged()
    for _ in range(3):
        rates.check_rate(Actor("user", "1", "ann"))
    assert [record.name for record in caplog.records] == ["chatmemory.access.rates"]
    assert "canary" not in caplog.text
