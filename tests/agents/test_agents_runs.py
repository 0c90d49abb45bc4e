"""Runs of the SDK's own Runner with a session, and pops beside one another."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from agents import ModelBehaviorError
from django.core.exceptions import SynchronousOnlyOperation

from chatmemory import services
from chatmemory.agents.items import item_of
from chatmemory.agents.newest import read_newest, withdraw_newest
from chatmemory.errors import HistoryCleared
from chatmemory.models import Message
from tests.agents.scripts import ListedModel, call, reply, run, session_of, texts_of, user_items
from tests.factories import TALK
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.slow]


@pytest.mark.parametrize("streams", [False, True], ids=["run", "stream"])
async def test_a_run_gets_the_history_and_stores_its_turn(streams):
    model = ListedModel(reply("Hello."), call(), reply("Take an umbrella."))
    assert await run(model, "hi", session_of(), streams=streams) == "Hello."
    assert await run(model, "An umbrella?", session_of(), streams=streams) == "Take an umbrella."
    assert texts_of(model.inputs[1]) == ["hi", "Hello.", "An umbrella?"]
    assert texts_of(await session_of().get_items()) == [
        *("hi", "Hello.", "An umbrella?"),
        *("weather", "Rain in Oslo.", "Take an umbrella."),
    ]
    rows = [(row.role, row.text) async for row in Message.objects.in_order()]
    assert rows == [
        ("user", "hi"),
        ("assistant", "Hello."),
        ("user", "An umbrella?"),
        ("assistant", ""),
        ("tool", "Rain in Oslo."),
        ("assistant", "Take an umbrella."),
    ]


async def test_a_run_uses_the_limit_of_the_session():
    await session_of().add_items(user_items(*"abcd"))
    model = ListedModel(reply("Hello."))
    await run(model, "hi", session_of(session_settings={"limit": 2}))
    assert texts_of(model.inputs[0]) == ["c", "d", "hi"]


async def test_runs_of_different_sessions_do_not_mix():
    model = ListedModel(reply("cats"), reply("dogs"), reply("cats again"))
    for key, text in (("one", "I like cats"), ("two", "I like dogs"), ("one", "And?")):
        await run(model, text, session_of(key))
    assert texts_of(model.inputs[2]) == ["I like cats", "cats", "And?"]


async def test_a_run_stores_no_reply_after_a_clear():
    class Clearing(ListedModel):
        async def get_response(self, *arguments: Any, **keywords: Any) -> Any:
            await services.aclear_session(**TALK, reason="asked for it")
            return await super().get_response(*arguments, **keywords)

    await session_of().add_items(user_items("My loan is 5,000."))
    with pytest.raises(HistoryCleared):
        await run(Clearing(reply("Noted.")), "And the rate?", session_of())
    assert await session_of().get_items() == []


async def test_a_failed_run_leaves_the_question():
    with pytest.raises((ModelBehaviorError, IndexError)):
        await run(ListedModel(), "hi", session_of())
    assert texts_of(await session_of().get_items()) == ["hi"]


async def test_concurrent_adds_are_all_stored():
    await asyncio.gather(*(session_of().add_items(user_items(f"{n}a", f"{n}b")) for n in range(6)))
    found = texts_of(await session_of().get_items())
    assert sorted(found) == sorted(f"{n}{part}" for n in range(6) for part in "ab")
    assert [f"{a[0]}b" for a in found[::2]] == found[1::2]  # a batch stays together


def test_concurrent_pops_return_different_items():
    messages = [{"role": "user", "content": str(n)} for n in range(8)]
    services.append_messages(**TALK, messages=messages, create=True)

    def pop() -> Any:
        return texts_of([withdraw_newest(item_of, **TALK, reason="test")])

    assert sorted(concurrently(*[pop] * 6)) == [["2"], ["3"], ["4"], ["5"], ["6"], ["7"]]
    assert texts_of(read_newest(item_of, **TALK, limit=None)[1]) == ["0", "1"]


async def test_a_sync_function_in_an_event_loop_names_its_async_version():
    with pytest.raises(SynchronousOnlyOperation, match=r"`await awithdraw_newest\(…\)`"):
        withdraw_newest(item_of, **TALK, reason="test")


_WITHOUT_SDK = """
import os, sys, pkgutil
sys.modules["agents"] = None
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
import django
django.setup()
from django.core.management import call_command
call_command("check")
import chatmemory
for found in pkgutil.walk_packages(chatmemory.__path__, "chatmemory.", onerror=id):
    if not found.name.startswith(("chatmemory.agents", "chatmemory.testing")):
        __import__(found.name)
from django.core.exceptions import ImproperlyConfigured
try:
    import chatmemory.agents
except ImproperlyConfigured as error:
    print(error)
"""


def test_without_the_sdk_all_other_modules_are_imported():
    command = [sys.executable, "-c", _WITHOUT_SDK]
    done = subprocess.run(  # noqa: S603  # our own code
        command, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "System check identified no issues (0 silenced).",
        'chatmemory.agents needs openai-agents: pip install "django-chatmemory[agents]".',
    ]
