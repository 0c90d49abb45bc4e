"""At random moments: what each page shows in the end is what is stored, and in its order."""

from __future__ import annotations

import asyncio
import json
import os
import random

import pytest

from tests.servers import live_process, person_with_talk, serving, use_responder
from tests.streams.front import Chunk, Front
from tests.streams.page import shown

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process

RUNS = int(os.environ.get("STREAM_RUNS", "60"))
"""How many random turns the long test runs."""


@pytest.fixture(autouse=True)
def _live(live):
    pass


async def watch(page: Front, pause: float) -> list[Chunk]:
    """Resume after a pause, and return the chunks of the stream."""
    await asyncio.sleep(pause)
    async with page.resume() as stream:
        return await stream.rest()


async def check_turn(page: Front, seed: str, chance: random.Random) -> None:
    """Run a turn, which several pages watch from different moments on."""
    pauses = [chance.uniform(0, 0.3) for _ in range(3)]
    watchers = [asyncio.ensure_future(watch(page, pause)) for pause in pauses]
    async with page.send(seed, seed) as stream:
        found = [await stream.rest()]
    found += await asyncio.gather(*watchers)
    [reply] = [each for each in await page.history() if each["id"] == f"a.{seed}"]
    for chunks in found:
        if chunks and chunks[0]["messageId"] == reply["id"]:
            assert shown(chunks) == reply["parts"], seed
            is_failed = reply["metadata"]["status"] == "failed"
            assert chunks[-1]["type"] == ("error" if is_failed else "finish")
            if not is_failed:
                assert chunks[-1]["messageMetadata"] == reply["metadata"]
            else:
                assert json.loads(chunks[-1]["errorText"])["turn"] == seed


async def check_turns(ann, settings, number: int) -> None:
    use_responder(settings, "by_seed", READS_PER_MINUTE=None)
    chance = random.Random(7)  # noqa: S311  # no secret
    async with serving() as address, Front(address, ann) as page:
        for turn in range(number):
            await check_turn(page, f"s{turn}", chance)


@pytest.mark.slow
async def test_pages_show_what_is_stored(ann, settings):
    await check_turns(ann, settings, 12)


@pytest.mark.long
async def test_many_pages_show_what_is_stored(ann, settings):
    await check_turns(ann, settings, RUNS)
