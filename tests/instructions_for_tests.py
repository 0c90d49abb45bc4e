"""Functions for the setting INSTRUCTIONS_FOR: slow, failing, and with wrong results."""

from __future__ import annotations

import asyncio
import threading

from asgiref.sync import sync_to_async

from chatmemory.models import Message, Session

BEGUN = threading.Event()
"""Set when a slow function has started to wait."""
GO = threading.Event()
"""Set by the test to let slow functions continue."""
MAX_BLOCK_SECONDS = 60.0
"""How long `blocking` waits for GO."""


async def slow(session: Session) -> str:
    """Wait for GO."""
    BEGUN.set()
    await asyncio.to_thread(GO.wait, MAX_BLOCK_SECONDS)
    return "late"


def blocking(session: Session) -> str:
    """Wait for GO in a thread."""
    BEGUN.set()
    GO.wait(MAX_BLOCK_SECONDS)
    return "late"


def owners_name(session: Session) -> str:
    """Query the database, and read the owner."""
    count = Message.objects.filter(session=session).count()
    return f"Greet {session.owner}, after {count} message."


async def of_metadata(session: Session) -> str:
    """Return the prompt of the session's customer group, read in a thread."""
    group = await sync_to_async(lambda: Session.objects.get(pk=session.pk).metadata["group"])()
    return f"You serve the group {group}."


def nothing(session: Session) -> None:
    """Return no prompt."""


def failing(session: Session) -> str:
    """Raise an error with a text that no log may contain."""
    raise LookupError("secret word")


def a_list(session: Session) -> list[str]:
    """Return a wrong type."""
    return ["Be short."]
