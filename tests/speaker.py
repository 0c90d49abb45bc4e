"""A responder that follows commands in the user's message, for servers that tests start."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence

from chatmemory.codec import text_of
from chatmemory.models import Session
from chatmemory.responders import Progress

PIECE = re.compile(".{1,8}", re.DOTALL)
PAUSE = 0.1
"""Seconds between two numbers."""


async def answer(
    messages: Sequence[Mapping[str, object]], session: Session
) -> AsyncGenerator[str | Progress, None]:
    """Execute a command, or repeat any other text.

    `count 30` counts slowly to 30; `search x` uses a tool until it is stopped; `hang` waits in a
    thread forever; `fail` raises; `slowly x` repeats x, 50 pieces in a second.
    """
    text = text_of(messages[-1]["content"])
    match text.split():
        case ["count", end]:
            for number in range(1, int(end) + 1):
                yield f"{number} "
                await asyncio.sleep(PAUSE)
        case ["search", name]:
            yield Progress("tool", name, "started")
            await asyncio.Event().wait()
        case ["slowly", *_]:
            for piece in PIECE.findall(text.removeprefix("slowly").strip()):
                yield piece
                await asyncio.sleep(0.02)
        case ["hang"]:
            yield "So far, "
            await asyncio.to_thread(threading.Event().wait)
        case ["fail"]:
            yield "So far, "
            raise RuntimeError("requested by the test")
        case _:
            yield text
