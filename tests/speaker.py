"""A responder that does what it is told, for servers that tests start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence

from chatmemory.codec import text_of
from chatmemory.models import Session
from chatmemory.responders import Progress

PAUSE = 0.1
"""Seconds between two numbers."""


async def answer(
    messages: Sequence[Mapping[str, object]], session: Session
) -> AsyncGenerator[str | Progress, None]:
    """`count 30` counts so far, slowly; `search x` uses a tool until it is stopped; `hang` waits
    for ever in a thread; `fail` breaks off; anything else is said again."""
    text = text_of(messages[-1]["content"])
    match text.split():
        case ["count", end]:
            for number in range(1, int(end) + 1):
                yield f"{number} "
                await asyncio.sleep(PAUSE)
        case ["search", name]:
            yield Progress("tool", name, "started")
            await asyncio.Event().wait()
        case ["hang"]:
            yield "So far, "
            await asyncio.to_thread(threading.Event().wait)
        case ["fail"]:
            yield "So far, "
            raise RuntimeError("as told")
        case _:
            yield text
