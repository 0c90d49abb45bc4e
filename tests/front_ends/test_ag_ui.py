"""Pages of AG-UI and of TanStack AI show what is stored, also after lost connections."""

from __future__ import annotations

import os
import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from chatmemory.models import Message, Turn
from tests.front_ends.conftest import BOT
from tests.front_ends.stored import expected, of_ag_ui, of_tanstack
from tests.servers import start_servers

pytestmark = [pytest.mark.long, pytest.mark.redis, pytest.mark.django_db(transaction=True)]

start = start_servers
SHOWN = {"agent": of_ag_ui, "copilotkit": of_ag_ui, "tanstack": of_tanstack}
each_client = pytest.mark.parametrize("kind", SHOWN)
CUTS = int(os.environ.get("FRONT_END_CUTS", "20"))
KILLS = int(os.environ.get("FRONT_END_KILLS", "2"))
SEED = int(os.environ.get("FRONT_END_SEED", "1"))


def shown(page, state):
    return SHOWN[page.kind](state["messages"])


def assert_shown(page, state):
    """The page shows what is stored, and a reload does too."""
    assert shown(page, state) == expected(page.key)
    history = page.call("history", chat=page.chat)
    assert of_tanstack(history["messages"]) == expected(page.key)


def start_send(page, text, message_id="m1", **fields):
    return page.start("send", id=message_id, runId=str(uuid.uuid4()), text=text, **fields)


def send(page, text, message_id="m1", **fields):
    return start_send(page, text, message_id, **fields).result(60)


@each_client
@pytest.mark.parametrize("text", ["Where is my kettle?", "weather", "other", "mixed 3"])
def test_a_reply_is_shown_as_it_is_stored(open_page, kind, text):
    page = open_page(kind)
    state = send(page, text)
    assert state["error"] is None
    assert len(expected(page.key)) == 2
    assert_shown(page, state)


def test_the_end_of_a_run_has_its_usage(open_page):
    state = send(open_page("agent"), "counted")
    [usage] = state["end"]["usage"]
    assert (usage["inputTokens"], usage["outputTokens"], usage["cachedInputTokens"]) == (20, 8, 4)
    state = send(open_page("tanstack"), "counted")
    assert state["usage"]["promptTokens"] == 20


@each_client
def test_a_chat_keeps_the_id_that_the_package_chose(open_page, kind):
    page = open_page(kind, f"thread-{kind}-6mQMVfzB3w")
    assert_shown(page, send(page, "mixed 3"))


@each_client
def test_two_messages_are_answered(open_page, kind):
    page = open_page(kind)
    send(page, "mixed 4")
    state = send(page, "mixed 5", "m2")
    assert state["error"] is None
    assert len(expected(page.key)) == 4
    assert_shown(page, state)


@each_client
def test_a_failure_is_shown(open_page, kind):
    page = open_page(kind)
    state = send(page, "fail")
    assert state["types"][-1] == "RUN_ERROR"
    assert shown(page, state) == expected(page.key)


@pytest.mark.parametrize("kind", ["agent", "copilotkit"])
def test_a_repeated_run_is_stored_once(open_page, kind):
    page = open_page(kind)
    send(page, "mixed 5")
    state = page.call("resume")
    assert_shown(page, state)
    assert Message.objects.filter(role="user").count() == 1


def lose_connections(page, seed, size=3_000):
    """Send a message, and cut its streams at random bytes; return the last state and the cuts."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    state = send(page, f"mixed {seed}", cutAfter=chance.randrange(1, size), at=chance.randrange(2))
    cuts = 0
    while state["error"]:
        cuts += 1
        time.sleep(chance.random() * chance.choice([0, 0, 0.2, 1.5]))  # a network that is away
        is_cut = page.kind != "tanstack" and chance.random() < 0.5
        cut = chance.randrange(1, size) if is_cut else None
        state = page.call("resume", cutAfter=cut, at=chance.randrange(2))
    return state, cuts


@each_client
def test_connections_are_cut_at_random_bytes(open_page, kind):
    chance = random.Random(SEED)  # noqa: S311  # no secret
    seeds = [chance.randrange(1_000_000) for _ in range(CUTS)]
    pages = [open_page(kind) for _ in seeds]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lose_connections, pages, seeds))
    wrong = [
        seed
        for seed, page, (state, _) in zip(seeds, pages, found, strict=True)
        if shown(page, state) != expected(page.key)
    ]
    print(f"{len(found)} runs, {sum(cuts for _, cuts in found)} cuts, {len(wrong)} wrong")  # noqa: T201
    assert wrong == []


@each_client
def test_the_running_server_is_killed(open_page, start, redis_url, kind):
    chance = random.Random(SEED)  # noqa: S311  # no secret
    servers = start(2, redis_url=redis_url, RESPONDER=BOT, LEASE=3)
    wrong = 0
    for _ in range(KILLS):
        page = open_page(kind, at=servers)
        sent = start_send(page, "endless")
        page.call("grown", chars=chance.randrange(1, 300))
        servers[0].kill()
        assert sent.result(60)["error"]
        state = page.call("resume", at=1)
        assert [turn.status for turn in Turn.objects.filter(session__key=page.key)] == [
            "interrupted"
        ]
        wrong += shown(page, state) != expected(page.key)
        servers[0].start()
    print(f"{KILLS} kills, {wrong} wrong")  # noqa: T201
    assert wrong == 0
