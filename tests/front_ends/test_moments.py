"""Messages at random moments, and pages that are reloaded: each is answered once, in order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import uuid
from typing import Any

import pytest

from chatmemory.models import Turn
from tests.front_ends import bot
from tests.front_ends.stored import Shown, Transcript, expected, of_ag_ui, of_ai_sdk, of_tanstack
from tests.servers import wait_for

pytestmark = [pytest.mark.long, pytest.mark.redis, pytest.mark.django_db(transaction=True)]

SENDS = int(os.environ.get("FRONT_END_SENDS", "12"))
SEED = int(os.environ.get("FRONT_END_SEED", "1"))
WAITING = 5
"""The most turns that wait, of the 50 that the servers allow."""
SHOWN = {"react": of_ai_sdk, "agent": of_ag_ui, "tanstack": of_tanstack}


def wait_until_few_run(most: int) -> None:
    active = Turn.objects.filter(status__in=Turn.ACTIVE_STATUSES)
    wait_for(lambda: active.count() <= most, "the turns do not end", progress=active.count)


def send(page, number):
    """Send a message, and wait until it is stored."""
    name = f"m{number}"
    run = str(uuid.uuid4())
    sent = page.start("send", id=name, runId=run, text=f"mixed {number}")
    wait_for(Turn.objects.filter(client_id__startswith=name).exists, f"{name} is not stored")
    return sent


async def reply_to(number: int) -> Shown:
    """Return what the bot answers."""
    found = Transcript()
    found.begin("assistant")
    text = ""
    piece: Any
    async for piece in bot.mixed(random.Random(str(number))):  # noqa: S311  # no secret
        match piece:
            case str():
                text += piece
            case {"role": "assistant", "tool_calls": [called]}:
                found.add_text(text)
                found.add_call(called["id"], called["name"], called["args"])
                text = ""
            case {"tool_call_id": call, "content": output}:
                found.add_result(call, output)
    found.add_text(text)
    [reply] = found.shown
    return reply


async def conversation(number: int) -> list[Shown]:
    """Return the messages of a chat in which each was answered once."""
    found = []
    for each in range(number):
        found += [Shown("user", [("text", f"mixed {each}")]), await reply_to(each)]
    return found


def check(page, monkeypatch, reloads: int, shown: list[list[Shown]]) -> None:
    """Each message was answered once, in order; pages have shown parts of that."""
    monkeypatch.setattr(bot, "PAUSE", 0)
    wanted = asyncio.run(conversation(SENDS))
    stored = expected(page.key)
    unlike = [at for at, pair in enumerate(zip(stored, wanted, strict=False)) if pair[0] != pair[1]]
    places = {json.dumps(each): at for at, each in enumerate(wanted)}
    wrong = 0
    for found in shown:
        at = [places.get(json.dumps(each), -1) for each in found]
        wrong += -1 in at or at != list(range(at[0], at[0] + len(at)))
    answered = Turn.objects.filter(status="complete").count()
    print(  # noqa: T201
        f"{page.kind}: {SENDS} sends, {reloads} reloads, {answered} answered,"
        f" {len(unlike)} stored otherwise, {len(shown)} pages compared, {wrong} wrong"
    )
    assert (len(stored), unlike, wrong) == (2 * SENDS, [], 0)
    assert answered == Turn.objects.count() == SENDS


def test_the_ai_sdk_sends_and_reloads_at_random_moments(open_page, monkeypatch):
    chance = random.Random(SEED)  # noqa: S311  # no secret
    page = open_page("react")
    calls = []
    reloads = 0
    for number in range(SENDS):
        calls.append(send(page, number))
        wait_until_few_run(WAITING)
        time.sleep(chance.random() * 0.6)  # a moment in the reply
        if chance.random() < 0.5:
            reloads += 1
            page.call("close")
            page = page.other()
            page.call("load")
            calls.append(page.start("resume"))
    for each in calls:
        each.result(60)
    wait_until_few_run(0)
    shown = [of_ai_sdk(page.call("load")["messages"])]
    before = page.call("history")[0]["metadata"]["seq"]
    while before > 1:
        older = page.call("history", query=f"?before={before}")
        shown.append(of_ai_sdk(older))
        before = older[0]["metadata"]["seq"]
    check(page, monkeypatch, reloads, shown)


def test_a_client_of_ag_ui_sends_and_reloads_at_random_moments(open_page, monkeypatch):
    """It has no resume: a reloaded page repeats the last run, or sends the next message."""
    chance = random.Random(SEED)  # noqa: S311  # no secret
    page = open_page("agent")
    shown = []
    reloads = 0
    for number in range(SENDS):
        sent = send(page, number)
        wait_until_few_run(WAITING)
        time.sleep(chance.random() * 0.6)
        if chance.random() < 0.5:  # the page sees the end of the reply
            last = sent.result(60)
        else:
            reloads += 1
            page.call("close")
            if chance.random() < 0.5:
                page = page.other()
                continue
            last = page.call("resume", at=chance.randrange(2))
        shown.append(of_ag_ui(last["messages"])[-2:])
    wait_until_few_run(0)
    check(page, monkeypatch, reloads, shown)


def test_tanstack_ai_sends_and_reloads_at_random_moments(open_page, monkeypatch):
    """It keeps in the page what is sent during a reply, so each message waits for the reply."""
    chance = random.Random(SEED)  # noqa: S311  # no secret
    page = open_page("tanstack")
    shown = []
    reloads = 0
    for number in range(SENDS):
        sent = send(page, number)
        time.sleep(chance.random() * 0.6)
        if chance.random() < 0.5:
            reloads += 1
            last = page.call("resume", at=chance.randrange(2))
        else:
            last = sent.result(60)
        shown.append(of_tanstack(last["messages"]))
    wait_until_few_run(0)
    check(page, monkeypatch, reloads, shown)
