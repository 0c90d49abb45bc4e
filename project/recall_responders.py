"""The demo model on the servers of `chatmemory_recall`, where its input is written down."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from chatmemory.models import Session
from chatmemory.responders import demo

PAUSE = 0.05
"""Seconds between the two halves of a reply: time to be killed in."""

Messages = list[dict[str, object]]

_remembered: dict[int, Messages] = {}


async def window(messages: Messages, session: Session) -> AsyncIterator[str]:
    """Answer from the window."""
    _write_down(messages, session)
    text = demo.reply(messages)
    for half in _halves(text):
        yield half
        await asyncio.sleep(PAUSE)


async def process(messages: Messages, session: Session) -> AsyncIterator[str]:
    """Answer from what this process remembers, as bots do that forget at each restart."""
    memory = _remembered.setdefault(session.pk, [])
    memory.append(messages[-1])
    _write_down(memory, session)
    text = demo.reply(memory)
    memory.append({"role": "assistant", "content": text})
    for half in _halves(text):
        yield half
        await asyncio.sleep(PAUSE)


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _write_down(messages: Messages, session: Session) -> None:
    """Append what the user said in these messages as a line to the file RECALL_FILE.

    The line break goes first, so that a line cut by a kill spoils no other.
    """
    said = [message["content"] for message in messages if message["role"] == "user"]
    line = "\n" + json.dumps({"key": session.key, "said": said})
    file = os.open(Path(os.environ["RECALL_FILE"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
