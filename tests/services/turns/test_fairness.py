"""Fairness: the requests of one person do not block those of others."""

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
from chatmemory.api import waiting
from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.live.hub import hub
from chatmemory.live.runner import runner
from chatmemory.live.waits import RETRY_SECONDS, waits
from chatmemory.models import Session, Turn
from chatmemory.services import SERVER, Actor, catch_up, user_scope
from chatmemory.services.turns import progress, recovery
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.fairness import (
    is_within_turn_limit,
    sessions_to_claim,
    sessions_to_sweep,
)
from tests import responders_for_tests
from tests.conftest import database_environment
from tests.factories import make_messages, make_session, make_user
from tests.programs.partitions.plans import executed_statements
from tests.rest import request
from tests.servers import Server, eventually, own_threads, sign_in, wait_for

POOL = 10
"""Number of connections in the project's pool."""


@pytest.fixture
def ann(transactional_db):
    return sign_in()


@pytest.fixture
def bob(transactional_db):
    return sign_in()


@pytest.fixture
def serve(transactional_db, tmp_path):
    """Start a server with these settings."""
    servers = []

    def start(**options):
        servers.append(Server(database_environment(), tmp_path / f"{len(servers)}.log", **options))
        return servers[-1].start()

    yield start
    for server in servers:
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


@pytest.mark.regression
@pytest.mark.long
async def test_requests_that_wait_for_replies_do_not_exhaust_the_pool(ann, bob, serve):
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
    await eventually(lambda: running() == len(keys), "not all turns started")
    answers = [await request(server, bob, "/api/sessions/") for _ in range(5)]
    assert not any(waiter.done() for waiter in waiters)
    assert [answer.status for answer in answers] == [200] * 5
    assert {answer.status for answer in await asyncio.gather(*waiters)} == {201}


@pytest.mark.slow
@pytest.mark.regression
@pytest.mark.django_db
@pytest.mark.parametrize("limit", ["WAITS_PER_USER", "WAITS_PER_PROCESS"])
def test_a_waiting_request_above_the_limit_is_refused_and_stores_nothing(settings, limit):
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
    assert not waits._count_by_user


@pytest.mark.django_db
def test_a_waiting_request_uses_no_slot_of_another_person(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WAITS_PER_USER": 1}
    person = sign_in()
    make_session(owner=person.user)
    with waits.slot("user:other"):
        assert post(browser_of(person), wait=5).status_code == 201


@pytest.mark.regression
def test_a_waiting_request_returns_when_its_turn_ends(ann, monkeypatch):
    monkeypatch.setattr(waiting, "FIRST_POLL_SECONDS", 60)
    make_session(owner=ann.user)
    with own_threads():
        started_at = time.monotonic()
        answer = post(browser_of(ann), wait=30)
        assert time.monotonic() - started_at < 15  # usually 0.5
    assert (answer.status_code, answer.json()["status"]) == (201, "complete")
    assert not waits._events


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
    progress.start_turn(claim=claim)
    progress.finish_turn(
        claim=claim, status="complete", message={"role": "assistant", "content": "done"}
    )


def start_turns(person, number):
    """Start this number of turns, each in its own session; return their claims."""
    return [admit(person, f"busy{n}", owner="me").claim for n in range(number)]


def claim(admitted):
    return claim_next(session_pk=admitted.session_pk, owner="me")


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_the_fourth_turn_of_a_person_starts_when_another_has_ended():
    ann = Actor.user(make_user())
    first, *_ = start_turns(ann, 3)
    fourth = admit(ann, "fourth", owner="me")
    assert (fourth.status, fourth.claim) == ("waiting", None)
    assert claim(fourth) is None
    end(first)
    assert claim(fourth).client_id == "c1"


@pytest.mark.database
@pytest.mark.django_db
def test_turns_of_another_person_and_of_servers_are_not_counted(settings):
    ann, bob = Actor.user(make_user()), Actor.user(make_user())
    start_turns(ann, 3)
    assert all(start_turns(bob, 3))
    assert all(start_turns(Actor.server("tests"), 5))
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TURNS_PER_USER": None}
    assert admit(ann, "fourth", owner="me").claim


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_the_longest_waiting_session_of_a_person_is_claimed_first():
    ann = Actor.user(make_user())
    [first, *_] = start_turns(ann, 3)
    older, newer = admit(ann, "older", owner="me"), admit(ann, "newer", owner="me")
    end(first)
    assert claim(newer) is None
    assert sessions_to_claim(scope=first.scope) == [older.session_pk]
    assert admit(ann, "newest", owner="me").claim is None
    assert claim(older)
    assert claim(newer) is None


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("limit", [1, 3])
def test_a_message_that_interrupts_blocks_no_session(settings, limit):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TURNS_PER_USER": limit}
    ann = Actor.user(make_user())
    running_claims = start_turns(ann, limit)
    for number in range(limit):
        admit(ann, f"busy{number}", client_id="c2")
    others = [admit(ann, f"other{number}") for number in range(limit)]
    for number in range(limit):
        admit(ann, f"busy{number}", client_id="c3", if_busy="interrupt")
    for ended in running_claims:
        end(ended)
    order = [
        *((ended.session_pk, "c3") for ended in running_claims),
        *((ended.session_pk, "c2") for ended in running_claims),
        *((other.session_pk, "c1") for other in others),
    ]
    claimed = []
    while pks := sessions_to_claim(scope=running_claims[0].scope):
        round_of = [claim_next(session_pk=pk, owner="me") for pk in pks]
        assert any(round_of), "every session waits for another"
        claimed += [(claim.session_pk, claim.client_id) for claim in round_of if claim]
        for claim in filter(None, round_of):
            end(claim)
    assert claimed == order


@pytest.mark.database
@pytest.mark.django_db
def test_messages_queued_behind_their_sessions_turn_do_not_count():
    ann = Actor.user(make_user())
    start_turns(ann, 2)
    for number in range(2, 6):
        admit(ann, "busy0", client_id=f"c{number}")
    assert admit(ann, "third", owner="me").claim


@pytest.mark.database
@pytest.mark.django_db
def test_a_requeued_turn_does_not_count_itself():
    ann = Actor.user(make_user())
    [first, *_] = start_turns(ann, 3)
    Turn.objects.filter(pk=first.turn_pk).update(lease_until=datetime(2020, 1, 1, tzinfo=UTC))
    recovery.recover_overdue_turn(first.session_pk)
    assert admit(ann, "fourth", owner="me").claim is None
    assert claim_next(session_pk=first.session_pk, owner="me")


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_a_person_at_the_limit_hides_no_session_from_the_sweep():
    ann, bob = Actor.user(make_user()), Actor.user(make_user())
    [first, *_] = start_turns(ann, 3)
    queued = [admit(ann, f"queued{n}") for n in range(10)]
    other, server = admit(bob, "other"), admit(Actor.server("tests"), "talk")
    free = {other.session_pk, server.session_pk}
    assert sessions_to_sweep(limit=2) == free
    end(first)
    assert sessions_to_sweep(limit=10) == {*free, queued[0].session_pk}


def queue_damaged(person, key):
    """Queue two messages in a session with a wrong counter; return its primary key."""
    services.append_messages(session_key=key, by=person, messages=make_messages("a"), create=True)
    admitted = [admit(person, key, client_id=f"c{number}") for number in range(2)]
    Session.objects.filter(pk=admitted[0].session_pk).update(last_seq=0)
    return admitted[0].session_pk


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("limit", [1, 3])
def test_a_damaged_session_does_not_block_its_persons_other_sessions(settings, limit):
    set_limits(settings, TURNS_PER_USER=limit)
    ann = Actor.user(make_user())
    running_claims = start_turns(ann, limit)
    damaged = [queue_damaged(ann, f"damaged{number}") for number in range(limit)]
    sound = [admit(ann, f"sound{number}").session_pk for number in range(limit)]
    for ended in running_claims:
        end(ended)
    assert sessions_to_sweep(limit=100) == set(sound)
    assert sessions_to_claim(scope=running_claims[0].scope) == sound
    for pk in damaged:
        with pytest.raises(MemoryUnavailable, match="chatmemory_check"):
            claim_next(session_pk=pk, owner="me")
    claims = [claim_next(session_pk=pk, owner="me") for pk in sound]
    assert all(claims)
    for ended in claims:
        end(ended)
    assert admit(ann, "new", owner="me").claim
    # Within the limit, the sweep retries them: each attempt logs the command for the repair.
    assert len(sessions_to_sweep(limit=100)) == limit - 1
    assert sessions_to_sweep(limit=100) <= set(damaged)


DAMAGED_RUN = {
    "its session does not name it": lambda run: Session.objects.filter(pk=run.session_pk).update(
        running=None
    ),
    "its session takes no rows": lambda run: Session.objects.filter(pk=run.session_pk).update(
        last_seq=0
    ),
    "nobody can end it": lambda run: Turn.objects.filter(pk=run.turn_pk).update(
        lease_until=datetime(2020, 1, 1, tzinfo=UTC)
    ),
}


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("damage", DAMAGED_RUN)
def test_a_run_that_its_session_does_not_name_does_not_count(settings, damage):
    set_limits(settings, TURNS_PER_USER=1)
    ann = Actor.user(make_user())
    [left] = start_turns(ann, 1)
    waiting = admit(ann, "waits")
    assert sessions_to_sweep(limit=100) == set()
    DAMAGED_RUN[damage](left)
    assert sessions_to_sweep(limit=100) == {waiting.session_pk}
    assert claim_next(session_pk=waiting.session_pk, owner="me")


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_many_messages_in_one_session_count_once():
    ann = Actor.user(make_user())
    running_claims = start_turns(ann, 3)
    waiting = [admit(ann, "first", client_id=f"c{number}") for number in range(5)]
    waiting += [admit(ann, key) for key in ("second", "third", "fourth")]
    for ended in running_claims:
        end(ended)
    pks = {admitted.session_pk for admitted in waiting}
    assert sessions_to_sweep(limit=100) == pks - {waiting[-1].session_pk}


@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("limit", [None, 3])
def test_the_next_sessions_are_read_in_one_statement(settings, limit):
    set_limits(settings, TURNS_PER_USER=limit)
    ann = Actor.user(make_user())
    start_turns(ann, 3)
    queue_damaged(ann, "damaged")
    for number in range(5):
        admit(ann, f"waits{number}")
    assert statements(lambda: sessions_to_sweep(limit=100)) == 1


@pytest.mark.database
@pytest.mark.django_db
def test_without_a_waiting_turn_one_statement_finds_no_session_to_claim():
    scope = start_turns(Actor.user(make_user()), 3)[0].scope
    assert statements(lambda: sessions_to_claim(scope=scope)) == 1


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.django_db
def test_a_sweep_starts_with_other_sessions_each_time():
    server = Actor.server("tests")
    for number in range(20):
        admit(server, f"talk{number}")
    found = [sessions_to_sweep(limit=5) for _ in range(40)]
    assert len(set().union(*found)) > 10


@pytest.mark.slow
@pytest.mark.regression
def test_the_end_of_a_turn_starts_the_persons_next_session_without_a_sweep(
    ann, settings, monkeypatch
):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60)
    settings.CHATMEMORY = {
        "RESPONDER": "tests.responders_for_tests.slow",
        "SENDS_PER_MINUTE": None,
        "TURNS_PER_USER": 1,  # two runs that end together start the next in any order
    }
    with own_threads():
        runner.enable()
        wait_for(lambda: not hub.sweep._are_turns_due.is_set(), "the first sweep did not begin")
        for number in range(5):
            admitted = admit(Actor.user(ann.user), f"talk{number}", owner=runner.owner)
            if admitted.claim:
                runner.launch(admitted.claim)
        wait_for(lambda: running() == 1, "no turn began")
        assert Turn.objects.filter(status="waiting").count() == 4
        responders_for_tests.GO.set()
        wait_for(lambda: not Turn.objects.exclude(status="complete").exists(), "turns wait")
    started = Turn.objects.order_by("started_at").values_list("session__key", flat=True)
    assert [*started] == [f"talk{number}" for number in range(5)]


def statements(call):
    with CaptureQueriesContext(connection) as queries:
        call()
    return len(queries)


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_the_limit_costs_a_send_of_a_person_one_statement(postgresql):
    ann, server = Actor.user(make_user()), Actor.server("tests")
    for person in (ann, server):
        services.open_session(
            session_key="talk", by=person, scope=None if person is ann else SERVER
        )
    assert statements(lambda: admit(ann, "talk", owner="me")) == 2
    assert statements(lambda: admit(server, "talk", owner="me")) == 1


@pytest.fixture
def many_turns(postgresql, db):
    """Enough rows for the choice of an index, whatever earlier tests left in the statistics."""
    sessions = [Session(scope=f"user:{number}", key="talk") for number in range(300)]
    Session.objects.bulk_create(sessions)
    ended = {"status": Turn.Status.COMPLETE, "epoch": 1, "client_id": "c1"}
    Turn.objects.bulk_create(Turn(session=session, **ended) for session in sessions)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE chatmemory_message, chatmemory_session, chatmemory_turn")
        cursor.execute("SET LOCAL enable_seqscan = off")


@pytest.mark.slow
@pytest.mark.database
def test_the_count_reads_only_the_persons_active_turns(many_turns):
    with CaptureQueriesContext(connection) as queries:
        list(Turn.objects.ahead_of("user:1", turn_pk=7, session_pk=8))
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {queries[0]['sql']}")
        plan = "\n".join(row for (row,) in cursor.fetchall())
    assert "chatmemory_turn_live" in plan
    assert re.search(r"Index Cond: .*scope.*user:1", plan)


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.parametrize("turn", [{}, {"turn_pk": 7, "session_pk": 8}])
def test_a_plan_for_all_values_reads_only_the_active_turns_too(many_turns, turn):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    with executed_statements(connection) as executed:
        for _ in range(2):  # prepared at the second use
            is_within_turn_limit("user:1", **turn)
    indexes = [each.indexes for each in executed if "chatmemory_turn" in each.sql]
    assert indexes
    assert all("chatmemory_turn_live" in each for each in indexes)


def set_limits(settings, **limits):
    settings.CHATMEMORY = {**settings.CHATMEMORY, **limits}


@pytest.fixture
def talker(db):
    person = sign_in()
    make_session(owner=person.user)
    return person


@pytest.mark.regression
@pytest.mark.parametrize(
    "address", ["/api/sessions/", "/api/sessions/talk/messages/", "/chat/~all/"]
)
def test_too_many_reads_in_a_minute_are_refused_only_to_that_person(talker, settings, address):
    set_limits(settings, READS_PER_MINUTE=3)
    browser, other = browser_of(talker), browser_of(sign_in())
    answers = [browser.get(address) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert 0 < int(answers[-1]["Retry-After"]) <= 60
    assert other.get("/api/sessions/").status_code == 200
    assert post(browser).status_code == 202


def test_writes_are_neither_sends_nor_reads(talker, settings):
    set_limits(settings, READS_PER_MINUTE=1, SENDS_PER_MINUTE=1, WRITES_PER_MINUTE=2)
    browser, address = browser_of(talker), "/api/sessions/talk/"
    answers = [
        browser.patch(address, {"title": title}, content_type="application/json") for title in "abc"
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 0 < int(answers[-1]["Retry-After"]) <= 60
    assert (browser.get(address).status_code, post(browser).status_code) == (200, 202)


def run_with_usage(settings, talker, usage):
    """Run a turn with this usage of tokens."""
    set_limits(settings, TOKENS_PER_DAY=100, RESPONDER="tests.responders_for_tests.counting")
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
def test_a_person_over_the_daily_tokens_is_refused_until_the_day_ends(talker, settings, usage):
    run_with_usage(settings, talker, usage)
    answer = post(browser_of(talker))
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert 0 < int(answer["Retry-After"]) <= 24 * 60 * 60
    bob = sign_in()
    make_session("bobs", owner=bob.user)
    assert post(browser_of(bob), "bobs").status_code == 202


def test_a_person_below_the_daily_tokens_is_not_refused(talker, settings):
    run_with_usage(settings, talker, {"total_tokens": 99})
    assert post(browser_of(talker)).status_code == 202


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.django_db
def test_a_person_cannot_open_more_sessions_than_the_limit(settings):
    set_limits(settings, MAX_SESSIONS_PER_USER=3)
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
def test_a_page_of_long_messages_contains_those_that_fit(talker, monkeypatch):
    monkeypatch.setattr(catch_up, "MAX_PAGE_CHARS", 100)
    services.append_messages(**talker.talk, messages=make_messages(*["x" * 40] * 5, "y" * 200))
    browser = browser_of(talker)

    def seqs(query=""):
        answer = browser.get(f"/api/sessions/talk/messages/{query}").json()
        return [message["seq"] for message in answer["messages"]]

    assert seqs() == [6]
    assert seqs("?before=6") == [4, 5]
    assert seqs("?after=0") == [1, 2]
    assert seqs("?after=5") == [6]


@pytest.mark.django_db
def test_a_refusal_that_ends_later_states_when(talker, settings, monkeypatch):
    browser = browser_of(talker)
    set_limits(settings, QUEUE_DEPTH=1)
    post(browser)
    for refused in (
        post(browser, client_id="c2"),
        post(browser, client_id="c2", if_busy="reject"),
    ):
        assert (refused.status_code, refused["Retry-After"]) == (409, "2")
