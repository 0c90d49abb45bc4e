"""The demo model of the benchmark's servers; it records the user texts that it is given."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from chatmemory.models import Session
from chatmemory.responders import demo

PAUSE_SECONDS = 0.05
"""Delay between the two halves of a reply, in which the benchmark kills the server."""

Messages = list[dict[str, object]]

_remembered: dict[int, Messages] = {}


async def window(messages: Messages, session: Session) -> AsyncIterator[str]:
    """Answer from the window."""
    _record(messages, session)
    text = demo.reply(messages)
    for half in _halves(text):
        yield half
        await asyncio.sleep(PAUSE_SECONDS)


async def process(messages: Messages, session: Session) -> AsyncIterator[str]:
    """Answer from this process's memory, as a bot does that forgets at each restart."""
    memory = _remembered.setdefault(session.pk, [])
    memory.append(messages[-1])
    _record(memory, session)
    text = demo.reply(memory)
    memory.append({"role": "assistant", "content": text})
    for half in _halves(text):
        yield half
        await asyncio.sleep(PAUSE_SECONDS)


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _record(messages: Messages, session: Session) -> None:
    """Append the user texts of these messages to RECALL_FILE, as one JSON line."""
    texts = [message["content"] for message in messages if message["role"] == "user"]
    # The line break comes first, so that a line truncated by a kill does not damage the next.
    line = "\n" + json.dumps({"key": session.key, "texts": texts})
    file = os.open(Path(os.environ["RECALL_FILE"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
