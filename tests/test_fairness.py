"""One person's requests keep no other person from theirs."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial

import pytest
from asgiref.sync import sync_to_async as db
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.api import paging, views
from chatmemory.errors import BadInput
from chatmemory.hub import hub
from chatmemory.models import Turn
from chatmemory.runner import runner
from chatmemory.services import SERVER, Actor, user_scope
from chatmemory.services.fairness import sessions_to_claim, sessions_to_sweep
from chatmemory.waits import RETRY_SECONDS, waits
from tests import responders_for_tests
from tests.conftest import database_environment
from tests.factories import make_session, make_user, said
from tests.rest import request
from tests.servers import Server, eventually, own_threads, sign_in, wait_for

POOL = 10
"""Connections of the project's pool."""


@pytest.fixture
def ann(transactional_db):
    return sign_in()


@pytest.fixture
def bob(transactional_db):
    return sign_in()


@pytest.fixture
def serve(transactional_db, tmp_path):
    """Start a server with these settings."""
    begun = []

    def start(**options):
        begun.append(Server(database_environment(), tmp_path / f"{len(begun)}.log", **options))
        return begun[-1].start()

    yield start
    for server in begun:
        server.kill()


def running():
    return Turn.objects.filter(status=Turn.Status.RUNNING).count()


def browser_of(person):
    browser = Client()
    browser.force_login(person.user)
    return browser


def post(browser, key="talk", **fields):
    body = {"client_id": "c1", "text": "hi", **fields}
    address = f"/api/sessions/{key}/messages/"
    return browser.post(address, body, content_type="application/json")


# Requests that wait


@pytest.mark.regression
@pytest.mark.slow
async def test_requests_that_wait_for_replies_hold_no_connection_that_a_reader_needs(
    ann, bob, serve
):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no pool")
    server = serve()
    keys = [f"talk{n}" for n in range(2 * POOL)]
    for key in keys:
        await db(make_session)(key, owner=ann.user)
    waiters = [
        asyncio.ensure_future(
            request(
                server,
                ann,
                f"/api/sessions/{key}/messages/",
                {"client_id": "c1", "text": "count 100", "wait": 60},
            )
        )
        for key in keys
    ]
    await eventually(lambda: running() == len(keys), "not all turns began")
    began = time.monotonic()
    answers = [await request(server, bob, "/api/sessions/") for _ in range(5)]
    took = time.monotonic() - began
    assert not any(waiter.done() for waiter in waiters)
    assert [answer.status for answer in answers] == [200] * 5
    assert took < 5  # usually 0.3
    assert {answer.status for answer in await asyncio.gather(*waiters)} == {201}


@pytest.mark.regression
@pytest.mark.django_db
@pytest.mark.parametrize("limit", ["WAITS_PER_USER", "WAITS_PER_PROCESS"])
def test_one_more_request_that_waits_is_refused_and_stores_nothing(settings, limit):
    settings.CHATMEMORY = {**settings.CHATMEMORY, limit: 2}
    person = sign_in()
    make_session(owner=person.user)
    browser = browser_of(person)
    waiter = f"user:{person.user.pk}" if limit == "WAITS_PER_USER" else "user:other"
    with ExitStack() as slots:
        for _ in range(2):
            slots.enter_context(waits.slot(waiter))
        answer = post(browser, wait=1)
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert answer["Retry-After"] == str(int(RETRY_SECONDS))
        assert not Turn.objects.exists()
        assert post(browser).status_code == 202
    assert post(browser, client_id="c2", wait=5).status_code == 201
    assert not waits._of_person


@pytest.mark.django_db
def test_a_request_that_waits_takes_no_slot_of_another_person(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WAITS_PER_USER": 1}
    person = sign_in()
    make_session(owner=person.user)
    with waits.slot("user:other"):
        assert post(browser_of(person), wait=5).status_code == 201


@pytest.mark.regression
def test_a_request_that_waits_is_woken_by_the_end_of_its_turn(ann, monkeypatch):
    monkeypatch.setattr(views, "FIRST_LOOK_SECONDS", 60)
    make_session(owner=ann.user)
    with own_threads():
        began = time.monotonic()
        answer = post(browser_of(ann), wait=30)
        assert time.monotonic() - began < 15  # usually 0.5
    assert (answer.status_code, answer.json()["status"]) == (201, "complete")
    assert not waits._news


# Turns at a time


def admit(person, key, *, owner="", client_id="c1", if_busy="queue"):
    return services.admit_turn(
        session_key=key,
        by=person,
        scope=None if person.kind == "user" else services.SERVER,
        client_id=client_id,
        content="hi",
        create=True,
        owner=owner,
        if_busy=if_busy,
    )


def end(claim):
    services.start_turn(claim=claim)
    services.finish_turn(
        claim=claim, status="complete", message={"role": "assistant", "content": "done"}
    )


def busy(person, number):
    """Claims of so many turns that run, each in a session of its own."""
    return [admit(person, f"busy{n}", owner="me").claim for n in range(number)]


def claim(admitted):
    return services.claim_next(session_pk=admitted.session_pk, owner="me")


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_the_fourth_turn_of_a_person_waits_and_begins_when_one_has_ended():
    ann = Actor.user(make_user())
    first, *_ = busy(ann, 3)
    fourth = admit(ann, "fourth", owner="me")
    assert (fourth.status, fourth.claim) == ("waiting", None)
    assert claim(fourth) is None
    end(first)
    assert claim(fourth).client_id == "c1"


@pytest.mark.database
@pytest.mark.django_db
def test_turns_of_another_person_and_of_servers_are_not_counted(settings):
    ann, bob = Actor.user(make_user()), Actor.user(make_user())
    busy(ann, 3)
    assert all(busy(bob, 3))
    assert all(busy(Actor.server("tests"), 5))
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TURNS_PER_USER": None}
    assert admit(ann, "fourth", owner="me").claim


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_the_longest_waiting_session_of_a_person_goes_first():
    ann = Actor.user(make_user())
    [first, *_] = busy(ann, 3)
    older, newer = admit(ann, "older", owner="me"), admit(ann, "newer", owner="me")
    end(first)
    assert claim(newer) is None
    assert sessions_to_claim(scope=first.scope) == [older.session_pk, newer.session_pk]
    assert admit(ann, "newest", owner="me").claim is None
    assert claim(older)
    assert claim(newer) is None


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("limit", [1, 3])
def test_a_message_that_goes_before_others_blocks_no_session(settings, limit):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TURNS_PER_USER": limit}
    ann = Actor.user(make_user())
    begun = busy(ann, limit)
    for number in range(limit):
        admit(ann, f"busy{number}", client_id="c2")
    others = [admit(ann, f"other{number}") for number in range(limit)]
    for number in range(limit):
        admit(ann, f"busy{number}", client_id="c3", if_busy="interrupt")
    for ended in begun:
        end(ended)
    order = [
        *((ended.session_pk, "c3") for ended in begun),
        *((ended.session_pk, "c2") for ended in begun),
        *((other.session_pk, "c1") for other in others),
    ]
    claimed = []
    while pks := sessions_to_claim(scope=begun[0].scope):
        round_of = [services.claim_next(session_pk=pk, owner="me") for pk in pks]
        assert any(round_of), "every session waits for another"
        claimed += [(claim.session_pk, claim.client_id) for claim in round_of if claim]
        for claim in filter(None, round_of):
            end(claim)
    assert claimed == order


@pytest.mark.database
@pytest.mark.django_db
def test_messages_behind_a_turn_of_their_own_session_take_no_others_place():
    ann = Actor.user(make_user())
    busy(ann, 2)
    for number in range(2, 6):
        admit(ann, "busy0", client_id=f"c{number}")
    assert admit(ann, "third", owner="me").claim


@pytest.mark.database
@pytest.mark.django_db
def test_a_turn_that_was_given_back_counts_itself_not():
    ann = Actor.user(make_user())
    [first, *_] = busy(ann, 3)
    Turn.objects.filter(pk=first.turn_pk).update(lease_until=datetime(2020, 1, 1, tzinfo=UTC))
    services.end_overdue(first.session_pk)
    assert admit(ann, "fourth", owner="me").claim is None
    assert services.claim_next(session_pk=first.session_pk, owner="me")


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_a_sweep_finds_all_others_behind_a_person_at_the_limit():
    ann, bob = Actor.user(make_user()), Actor.user(make_user())
    [first, *_] = busy(ann, 3)
    queued = [admit(ann, f"queued{n}") for n in range(10)]
    other, server = admit(bob, "other"), admit(Actor.server("tests"), "talk")
    free = {other.session_pk, server.session_pk}
    assert sessions_to_sweep(limit=2) == free
    end(first)
    assert sessions_to_sweep(limit=10) == {*free, queued[0].session_pk}


@pytest.mark.database
@pytest.mark.django_db
def test_a_sweep_begins_with_others_each_time():
    server = Actor.server("tests")
    for number in range(20):
        admit(server, f"talk{number}")
    found = [sessions_to_sweep(limit=5) for _ in range(40)]
    assert len(set().union(*found)) > 10


@pytest.mark.regression
def test_a_turn_that_ends_begins_the_persons_next_session_without_a_sweep(
    ann, settings, monkeypatch
):
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 60)
    settings.CHATMEMORY = {
        "RESPONDER": "tests.responders_for_tests.slow",
        "SENDS_PER_MINUTE": None,
        "TURNS_PER_USER": 2,
    }
    with own_threads():
        runner.enable()
        wait_for(lambda: not hub._is_due.is_set(), "the first sweep did not begin")
        for number in range(5):
            admitted = admit(Actor.user(ann.user), f"talk{number}", owner=runner.owner)
            if admitted.claim:
                runner.launch(admitted.claim)
        wait_for(lambda: running() == 2, "two turns did not begin")
        assert Turn.objects.filter(status="waiting").count() == 3
        responders_for_tests.GO.set()
        wait_for(lambda: not Turn.objects.exclude(status="complete").exists(), "turns wait")
    started = Turn.objects.order_by("started_at").values_list("session__key", flat=True)
    assert [*started][2:] == ["talk2", "talk3", "talk4"]


def statements(call):
    with CaptureQueriesContext(connection) as queries:
        call()
    return len(queries)


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_the_limit_costs_a_send_one_statement_and_a_server_none(postgresql):
    ann, server = Actor.user(make_user()), Actor.server("tests")
    for person in (ann, server):
        services.open_session(
            session_key="talk", by=person, scope=None if person is ann else SERVER
        )
    assert statements(lambda: admit(ann, "talk", owner="me")) == 2
    assert statements(lambda: admit(server, "talk", owner="me")) == 1


@pytest.mark.database
@pytest.mark.django_db
def test_the_count_reads_live_turns_of_the_person_alone(postgresql):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    with CaptureQueriesContext(connection) as queries:
        Turn.objects.ahead_of("user:1", turn_pk=7, session_pk=8)
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {queries[0]['sql']}")
        plan = "\n".join(row for (row,) in cursor.fetchall())
    assert "chatmemory_turn_live" in plan
    assert re.search(r"Index Cond: .*scope.*user:1", plan)


# Sends, reads, tokens, sessions


def limited(settings, **limits):
    settings.CHATMEMORY = {**settings.CHATMEMORY, **limits}


@pytest.fixture
def talker(db):
    person = sign_in()
    make_session(owner=person.user)
    return person


@pytest.mark.regression
@pytest.mark.parametrize("address", ["/api/sessions/", "/api/sessions/talk/messages/", "/chat/"])
def test_too_many_reads_in_a_minute_are_refused_to_that_person_alone(talker, settings, address):
    limited(settings, READS_PER_MINUTE=3)
    browser, other = browser_of(talker), browser_of(sign_in())
    answers = [browser.get(address) for _ in range(8)]
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 0 < int(refused["Retry-After"]) <= 60
    assert other.get("/api/sessions/").status_code == 200
    assert post(browser).status_code == 202


def used(settings, talker, usage):
    """Run a turn that used so many tokens."""
    limited(settings, TOKENS_PER_DAY=100, RESPONDER="tests.responders_for_tests.counting")
    responders_for_tests.USAGE = usage
    assert post(browser_of(talker), client_id="first", wait=20).status_code == 201


@pytest.mark.regression
@pytest.mark.parametrize(
    "usage",
    [
        {"total_tokens": 100},
        {"input_tokens": 60, "output_tokens": 40},
        {},  # counted: the reply has 400 characters
    ],
)
def test_who_used_the_tokens_of_the_day_is_refused_until_it_ends(talker, settings, usage):
    used(settings, talker, usage)
    answer = post(browser_of(talker))
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert 0 < int(answer["Retry-After"]) <= 24 * 60 * 60
    bob = sign_in()
    make_session("bobs", owner=bob.user)
    assert post(browser_of(bob), "bobs").status_code == 202


def test_who_used_fewer_tokens_goes_on(talker, settings):
    used(settings, talker, {"total_tokens": 99})
    assert post(browser_of(talker)).status_code == 202


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_a_person_opens_no_more_sessions_than_the_limit(settings):
    limited(settings, MAX_SESSIONS_PER_USER=3)
    user = make_user()
    ann = Actor.user(user)
    for number in range(3):
        admit(ann, f"talk{number}")
    for call in (
        lambda: services.open_session(session_key="new", by=ann),
        lambda: admit(ann, "new"),
    ):
        with pytest.raises(BadInput) as refused:
            call()
        assert (refused.value.code, refused.value.limit) == ("too_many", 3)
    assert services.open_session(session_key="talk0", by=ann)
    services.open_session(session_key="new", by=Actor.server("tests"), scope=user_scope(user))
    services.open_session(session_key="new", by=Actor.user(make_user()))
    operator = Actor.operator(user)
    for key in ("new", "talk1"):
        services.purge_session(session_key=key, by=operator, scope=user_scope(user), reason="limit")
    assert services.open_session(session_key="newest", by=ann)


@pytest.mark.regression
@pytest.mark.django_db
@pytest.mark.parametrize(("size", "fits"), [(8_192, True), (8_193, False)])
def test_metadata_has_up_to_8_kilobytes(size, fits):
    metadata = {"a": "é" + "x" * (size - len('{"a":"é"}'.encode()))}
    call = partial(
        services.open_session, session_key="talk", by=Actor.user(make_user()), metadata=metadata
    )
    if fits:
        assert call().metadata == metadata
        return
    with pytest.raises(BadInput) as refused:
        call()
    assert (refused.value.code, refused.value.field) == ("too_large", "metadata")
    assert refused.value.limit == 8_192


@pytest.mark.regression
def test_a_page_of_long_messages_has_those_that_fit(talker, monkeypatch):
    monkeypatch.setattr(paging, "MAX_CHARS", 100)
    services.append_messages(**talker.talk, messages=said(*["x" * 40] * 5, "y" * 200))
    browser = browser_of(talker)

    def seqs(query=""):
        answer = browser.get(f"/api/sessions/talk/messages/{query}").json()
        return [message["seq"] for message in answer["messages"]]

    assert seqs() == [6]
    assert seqs("?before=6") == [4, 5]
    assert seqs("?after=0") == [1, 2]
    assert seqs("?after=5") == [6]


@pytest.mark.django_db
def test_what_may_succeed_later_says_when(talker, settings, monkeypatch):
    browser = browser_of(talker)
    limited(settings, QUEUE_DEPTH=1)
    post(browser)
    for refused in (
        post(browser, client_id="c2"),
        post(browser, client_id="c2", if_busy="reject"),
    ):
        assert (refused.status_code, refused["Retry-After"]) == (409, "2")
