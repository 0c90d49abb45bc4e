"""A responder whose reply depends only on the question, so that the checker knows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

from chatmemory.codec import text_of
from chatmemory.models import Session
from tests.programs.torture import steps

PAUSE = 0.05
"""Seconds between two numbers."""
BLOCK = 16_384


def pieces_of(text: str) -> Iterator[str]:
    """Yield the reply to a text: the result of a command, or the text itself.

    `count 30` counts to 30, `say 1000 word` repeats the word 1000 times, `fill 64` is 64 blocks of
    16 KB, and `table 9 99` has 9 columns and 99 rows. Words after the command are ignored.
    """
    match text.split():
        case ["count", end, *_]:
            for number in range(1, int(end) + 1):
                yield f"{number} "
        case ["say", times, word, *_]:
            for _ in range(0, int(times), 10):
                yield f"{word} " * 10
        case ["fill", blocks, *_]:
            for _ in range(int(blocks)):
                yield "x" * BLOCK
        case ["table", columns, rows, *_]:
            yield "|".join("a" * int(columns)) + "\n" + "|".join("-" * int(columns)) + "\n"
            yield "a\n" * int(rows)
        case words:
            for word in words:
                yield f"{word} "


def reply_to(text: str) -> str:
    """Return the whole reply."""
    return "".join(pieces_of(text))


async def answer(
    messages: Sequence[Mapping[str, object]], session: Session
) -> AsyncGenerator[str, None]:
    """Stream the reply; `count` pauses after each number."""
    text = text_of(messages[-1]["content"])
    pause = PAUSE if text.startswith("count ") else 0.0
    for place, piece in enumerate(pieces_of(text)):
        if place == 2:
            steps.reach("in_stream")
        yield piece
        await asyncio.sleep(pause)
