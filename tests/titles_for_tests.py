"""Functions for the setting TITLE: sync and async, failing, slow, and with wrong results."""

from __future__ import annotations

import asyncio
import os
import threading
import time

from chatmemory.codec import text_of
from chatmemory.models import Message, Session

Messages = list[dict[str, object]]

CALLS: list[Messages] = []
"""The messages of each call in this process, newest last."""
BEGUN = threading.Event()
"""Set when a slow function has started to wait."""
GO = threading.Event()
"""Set by the test to let slow functions continue."""
MAX_BLOCK_SECONDS = 60.0
"""How long `blocking` waits for GO."""


def reset() -> None:
    """Forget all calls of earlier tests."""
    CALLS.clear()
    BEGUN.clear()
    GO.clear()


def first_words(messages: Messages, session: Session) -> str:
    """Return a title of the first message."""
    CALLS.append(messages)
    return f"About {text_of(messages[0]['content'])}"


async def slow(messages: Messages, session: Session) -> str:
    """Wait for GO."""
    CALLS.append(messages)
    BEGUN.set()
    while not GO.is_set():  # noqa: ASYNC110  # the test sets it in another thread
        await asyncio.sleep(0.01)
    return "About it"


def blocking(messages: Messages, session: Session) -> str:
    """Block its thread until GO."""
    CALLS.append(messages)
    BEGUN.set()
    GO.wait(MAX_BLOCK_SECONDS)
    return "Too late"


class Callable:
    """An object whose call returns a coroutine."""

    def __call__(self, messages: Messages, session: Session) -> object:
        return slow(messages, session)


an_object = Callable()


def failing(messages: Messages, session: Session) -> str:
    """Raise an error with a secret."""
    CALLS.append(messages)
    raise RuntimeError("secret")


def owners_name(messages: Messages, session: Session) -> str:
    """Query the database and read the owner."""
    count = Message.objects.filter(session=session).count()
    return f"{count} messages of {session.owner}"


def own_thread(messages: Messages, session: Session) -> str:
    """Return the name of the thread."""
    return threading.current_thread().name


def untidy(messages: Messages, session: Session) -> str:
    """Return line breaks, control and invisible characters, and too much text."""
    return " \n A\u202e\x07 dog\u200b\n\tcalled\0 " + "x" * 1_000


def blank(messages: Messages, session: Session) -> str:
    """Return characters that nobody sees."""
    CALLS.append(messages)
    return " \n\u200b\u2800"


def number(messages: Messages, session: Session) -> int:
    """Return a value of a wrong type."""
    CALLS.append(messages)
    return 5


def after_two_turns(messages: Messages, session: Session) -> str:
    """Wait until the session has four messages; then name this process."""
    while Message.objects.filter(session=session).count() < 4:
        time.sleep(0.01)
    return f"Process {os.getpid()}"
