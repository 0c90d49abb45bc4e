"""The reply of the benchmark's servers: 20 pieces immediately, or 50 pieces in one second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence

from chatmemory.codec import text_of
from chatmemory.models import Session

PIECES = [f"{number:03} {'piece of a reply':<26}" for number in range(20)]
"""600 characters."""
SLOW = "slow"
"""The first word of a message whose reply is slow."""
SLOW_PIECES = [f"{number:03} piece " for number in range(50)]
PIECES_PER_SECOND = 50
SLOW_SECONDS = len(SLOW_PIECES) / PIECES_PER_SECOND


def reply_to(text: str) -> str:
    """Return the whole reply to a message."""
    return "".join(SLOW_PIECES if text.startswith(SLOW) else PIECES)


async def pieces_for(text: str) -> AsyncGenerator[str, None]:
    """Yield the reply to a message in pieces."""
    if not text.startswith(SLOW):
        for piece in PIECES:
            yield piece
        return
    begin = time.monotonic()
    for number, piece in enumerate(SLOW_PIECES, 1):
        await asyncio.sleep(max(0.0, begin + number / PIECES_PER_SECOND - time.monotonic()))
        yield piece


async def answer(messages: Sequence[Mapping[str, object]], _: Session) -> AsyncGenerator[str, None]:
    """The responder."""
    async for piece in pieces_for(text_of(messages[-1]["content"])):
        yield piece
