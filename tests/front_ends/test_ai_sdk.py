"""Pages of the AI SDK show what is stored, whatever happens to their connections and servers."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from chatmemory.models import Message, Turn
from tests.front_ends.conftest import BOT
from tests.front_ends.stored import expected, of_ai_sdk
from tests.servers import start_servers, wait_for

pytestmark = [pytest.mark.long, pytest.mark.redis, pytest.mark.django_db(transaction=True)]

start = start_servers
each_package = pytest.mark.parametrize("kind", ["react", "vue", "svelte"])
CUTS = int(os.environ.get("FRONT_END_CUTS", "20"))
KILLS = int(os.environ.get("FRONT_END_KILLS", "2"))
SEED = int(os.environ.get("FRONT_END_SEED", "1"))


def assert_shown(page, state):
    """Page and history show what is stored; their replies have the same ids and metadata."""
    history = page.call("history")
    assert of_ai_sdk(history) == expected(page.key)
    assert of_ai_sdk(state["messages"]) == expected(page.key)
    shown, loaded = (
        {each["id"]: each.get("metadata") for each in found if each["role"] != "user"}
        for found in (state["messages"], history)
    )
    assert shown == loaded


def send(page, text, **fields):
    return page.call("send", id=uuid.uuid4().hex[:16], text=text, **fields)


@each_package
@pytest.mark.parametrize("text", ["Where is my kettle?", "weather", "other", "mixed 3"])
def test_a_reply_is_shown_as_it_is_stored(open_page, kind, text):
    page = open_page(kind)
    state = send(page, text)
    assert (state["status"], state["error"]) == ("ready", None)
    assert state["ending"]["finishReason"] == "stop"
    assert_shown(page, state)
    assert len(expected(page.key)) == 2


def test_a_chat_keeps_the_id_that_the_package_chose(open_page):
    page = open_page("react", "QK1xSj6mQMVfzB3w")
    assert_shown(page, send(page, "mixed 3"))
    other = page.other()
    other.call("load")
    assert_shown(other, send(other, "weather"))


@each_package
def test_a_failure_is_shown_with_its_code(open_page, kind):
    page = open_page(kind)
    state = send(page, "fail")
    turn = Turn.objects.get()
    assert state["status"] == "error"
    assert json.loads(state["error"]) == {"code": turn.error, "turn": turn.client_id}
    assert_shown(page, state)


@each_package
def test_a_reply_is_stopped(open_page, kind):
    page = open_page(kind)
    sent = page.start("send", id="m1", text="endless")
    page.call("grown", chars=50)
    stopped = page.other().call("stop")
    assert (stopped["status"], stopped["answer"]["turn"]) == (200, "m1")
    state = sent.result(60)
    assert state["ending"]["finishReason"] == "interrupted"
    assert_shown(page, state)


@each_package
def test_a_message_is_edited(open_page, kind):
    page = open_page(kind)
    page.call("send", id="m1", text="one")
    page.call("send", id="m2", text="two")
    state = page.call("edit", messageId="m1", text="three")
    assert [each["id"] for each in state["messages"][:-1]] == ["m1"]
    assert_shown(page, state)
    assert [parts for _, parts in expected(page.key)] == [
        [("text", "three")],
        [("text", "three ")],
    ]
    state = page.call("edit", messageId="m1", text="four")
    assert_shown(page, state)
    assert Turn.objects.count() == 4


@each_package
def test_a_reply_is_written_again_four_times(open_page, kind):
    page = open_page(kind)
    send(page, "mixed 5")
    for _ in range(4):
        state = page.call("regenerate", body={"requestId": str(uuid.uuid4())})
        assert_shown(page, state)
    assert Turn.objects.count() == 5


def test_a_repeated_message_is_stored_once(open_page):
    page = open_page("react")
    other = page.other()
    first, second = (
        page.call("send", id="m1", text="mixed 5"),
        other.call("send", id="m1", text="mixed 5"),
    )
    assert of_ai_sdk(first["messages"]) == of_ai_sdk(second["messages"])
    assert_shown(other, second)
    assert Message.objects.filter(role="user").count() == 1
    third = page.other().call("send", id="m1", text="another")
    assert json.loads(third["error"])["code"] == "conflict"
    assert Turn.objects.count() == 1


def test_a_message_waits_and_a_reload_shows_it(open_page):
    page = open_page("react")
    first = page.start("send", id="m1", text="count 60")
    page.call("grown", chars=10)
    second = page.start("send", id="m2", text="two")
    wait_for(Turn.objects.filter(client_id="m2", status="waiting").exists, "it does not wait")
    other = page.other()
    last = other.call("load")["messages"][-1]
    assert (last["id"], last["metadata"]["status"]) == ("m2", "waiting")
    other.call("resume")
    first.result(60)
    assert_shown(page, second.result(60))
    other.call("resume")
    assert_shown(other, other.call("load"))


def test_messages_that_the_page_queues_are_sent_after_the_reply(open_page):
    page = open_page("queue")
    sends = [page.start("send", id="m1", text="count 60")]
    page.call("grown", chars=10)
    sends += [page.start("send", id=f"m{number}", text=f"mixed {number}") for number in (2, 3)]
    assert [turn.client_id for turn in Turn.objects.all()] == ["m1"]
    for each in sends:
        each.result(60)
    wait_for(lambda: Turn.objects.filter(status="complete").count() == 3, "they are not sent")
    wait_for(lambda: page.call("state")["status"] == "ready", "the page does not end")
    assert_shown(page, page.call("state"))
    assert len(expected(page.key)) == 6


def test_a_page_that_has_the_whole_reply_resumes_nothing(open_page):
    page = open_page("react")
    state = send(page, "Hello")
    again = page.call("resume", seen=state["messages"][-1]["id"])
    assert (again["messages"], again["types"]) == (state["messages"], [])
    other = page.other()
    other.call("load")
    assert_shown(page, other.call("resume"))


def lose_connections(page, seed, size=3_000):
    """Send a message, and cut its streams at random bytes; return the page's last state."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    state = send(page, f"mixed {seed}", cutAfter=chance.randrange(1, size), at=chance.randrange(2))
    cuts = 0
    while state["ending"] is None or state["ending"]["isDisconnect"]:
        cuts += 1
        assert cuts <= 30, f"the page with the seed {seed} never continues: {state}"
        time.sleep(chance.random() * chance.choice([0, 0, 0.2, 1.5]))  # a network that is away
        cut = chance.randrange(1, size) if chance.random() < 0.5 else None
        state = page.call("resume", cutAfter=cut, at=chance.randrange(2))
    return state, cuts


def test_connections_are_cut_at_random_bytes(open_page):
    chance = random.Random(SEED)  # noqa: S311  # no secret
    seeds = [chance.randrange(1_000_000) for _ in range(CUTS)]
    pages = [open_page(["react", "vue", "svelte"][seed % 3]) for seed in seeds]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lose_connections, pages, seeds))
    wrong = [
        seed
        for seed, page, (state, _) in zip(seeds, pages, found, strict=True)
        if of_ai_sdk(state["messages"]) != expected(page.key)
    ]
    print(f"{len(found)} runs, {sum(cuts for _, cuts in found)} cuts, {len(wrong)} wrong")  # noqa: T201
    assert wrong == []


def test_ten_pages_watch_a_reply(open_page):
    page = open_page("react")
    sent = page.start("send", id="m1", text="mixed 11")
    page.call("grown", chars=1)
    others = [page.other() for _ in range(10)]
    watched = [other.start("watch") for other in others]
    assert_shown(page, sent.result(60))
    reply = expected(page.key)[1:]
    assert [of_ai_sdk([each.result(60)]) for each in watched] == [reply] * 10


def test_the_running_server_is_killed(open_page, start, redis_url):
    chance = random.Random(SEED)  # noqa: S311  # no secret
    servers = start(2, redis_url=redis_url, RESPONDER=BOT, LEASE=3)
    wrong = 0
    for _ in range(KILLS):
        page = open_page("react", at=servers)
        sent = page.start("send", id="m1", text="endless")
        page.call("grown", chars=chance.randrange(1, 300))
        watching = page.other().start("resume")
        servers[0].kill()
        assert sent.result(60)["ending"]["isDisconnect"]
        own, watched = page.call("resume", at=1), watching.result(60)
        wrong += of_ai_sdk(own["messages"]) != expected(page.key)
        wrong += of_ai_sdk(watched["messages"]) != expected(page.key)[1:]
        servers[0].start()
    print(f"{KILLS} kills, {wrong} wrong")  # noqa: T201
    assert wrong == 0
