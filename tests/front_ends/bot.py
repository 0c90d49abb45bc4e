"""A responder that follows commands in the user's message, for the servers of these tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence

from chatmemory.codec import text_of
from chatmemory.models import Session
from chatmemory.responders import Progress

Piece = str | Mapping[str, object] | Progress

LETTERS = 'abc defghij klmnop qrs\ntuvwxyz 0123456789 äöü ßéñ 漢字 🙂👩‍💻"\\</data>:'
USAGE = {"input_tokens": 20, "output_tokens": 8, "input_token_details": {"cache_read": 4}}
PAUSE = 0.02
"""The longest pause between two pieces, in seconds."""


async def answer(
    messages: Sequence[Mapping[str, object]], session: Session
) -> AsyncGenerator[Piece, None]:
    """Execute a command, or repeat any other text.

    `count 30` counts slowly to 30; `weather` uses a tool; `other` finishes with another text than
    it streamed; `fail` raises; `endless` never ends; `counted` has a usage; `mixed 7` streams texts
    and uses tools, each by chance with the seed 7.
    """
    text = text_of(messages[-1]["content"])
    match text.split():
        case ["count", end, *_]:
            for number in range(1, int(end) + 1):
                yield f"{number} "
                await asyncio.sleep(PAUSE)
        case ["weather"]:
            yield "Let me look. "
            yield Progress("tool", "weather", "started")
            yield call("Let me look. ", "call1", "weather", {"place": "Bern"})
            yield result("call1", "rain")
            yield "It rains."
        case ["other"]:
            yield "So far, so good."
            await asyncio.sleep(PAUSE)
            yield {"role": "assistant", "content": "Something else."}
        case ["counted"]:
            yield {"role": "assistant", "content": "Counted.", "usage": USAGE}
        case ["fail"]:
            yield "So far, "
            raise RuntimeError("requested by the test")
        case ["endless"]:
            while True:
                yield "word "
                await asyncio.sleep(PAUSE)
        case ["mixed", seed, *_]:
            async for piece in mixed(random.Random(seed)):  # noqa: S311  # no secret
                yield piece
        case _:
            for word in text.split(" "):
                yield f"{word} "


async def mixed(chance: random.Random) -> AsyncGenerator[Piece, None]:
    """Stream one to four steps; all but the last end with a tool's result."""
    for step in range(chance.randrange(4)):
        sent = ""
        async for piece in words(chance, chance.randrange(20)):
            sent += piece
            yield piece
        yield call(sent, f"call{step}", "look", {"up": chance.random()})
        await asyncio.sleep(PAUSE * chance.random())
        yield result(f"call{step}", sent[::-1])
    async for piece in words(chance, chance.randrange(10, 80)):
        yield piece


async def words(chance: random.Random, number: int) -> AsyncGenerator[str, None]:
    for _ in range(number):
        yield "".join(chance.choices(LETTERS, k=chance.randrange(1, 12)))
        await asyncio.sleep(PAUSE * chance.random())


def call(text: str, call_id: str, name: str, args: Mapping[str, object]) -> dict[str, object]:
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": call_id, "name": name, "args": args}],
    }


def result(call_id: str, text: str) -> dict[str, object]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}
