"""Who answers in tests of this process: slow, blocking, failing, endless, with tools."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator

from langchain_core.messages import AIMessage, HumanMessage

from chatmemory.codec import text_of
from chatmemory.errors import ModelError, ModelUnavailable, NotFound
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import Session
from chatmemory.responders import Progress
from chatmemory.services import in_run

Messages = list[dict[str, object]]

SEEN: list[Messages] = []
"""What the responders were given, newest last."""
IN_RUN: list[bool] = []
"""What `in_run` said to them of their session."""
LOOPS: list[asyncio.AbstractEventLoop] = []
"""In which they ran."""
LEFT: list[asyncio.Task[None]] = []
"""Tasks that they left behind."""
BEGUN = threading.Event()
"""One that waits has begun to."""
GO = threading.Event()
"""Those that wait may go on."""
BLOCK_SECONDS = 3.0


def reset() -> None:
    """Forget what earlier tests did."""
    SEEN.clear()
    IN_RUN.clear()
    LOOPS.clear()
    LEFT.clear()
    BEGUN.clear()
    GO.clear()


async def _wait() -> None:
    BEGUN.set()
    while not GO.is_set():  # noqa: ASYNC110  # the test sets it in another thread
        await asyncio.sleep(0.01)


async def echo(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Say the last message again, word by word."""
    SEEN.append(messages)
    IN_RUN.append(in_run(session.scope, session.key))
    for word in text_of(messages[-1]["content"]).split(" "):
        yield f"{word} "


async def where(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Note the event loop."""
    LOOPS.append(asyncio.get_running_loop())
    yield "Here."


async def looking_in_vain(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Break off with an error of the app's own."""
    yield "So far, "
    raise NotFound


async def slow(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Stop in the middle until the test says GO."""
    yield "So far, "
    await _wait()
    yield "so good."


async def silent(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Say nothing until the test says GO, and then nothing."""
    await _wait()
    for word in "":
        yield word


async def blocking(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Hold up the whole event loop, as careless code does, until the test says GO."""
    yield "So far, "
    BEGUN.set()
    GO.wait(BLOCK_SECONDS)  # which is the point: nothing is awaited
    yield "so good."


async def failing(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Break off."""
    yield "So far, "
    raise RuntimeError("secret words")


class Blocked(ModelError):
    """An error of the host's."""

    code = "blocked"


async def blocked(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Break off with an error of the host's own kind."""
    yield "So far, "
    raise Blocked("filter 7 says no")


async def unreachable(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Break off with an error of the app's, and say nothing of its cause."""
    yield "So far, "
    raise ModelUnavailable


async def refused(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Break off with an error of the app's, and its cause."""
    yield "So far, "
    raise ModelUnavailable from ConnectionError("port 7 is closed")


async def quitting(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """End the process, as the main function of a script does."""
    yield "So far, "
    sys.exit(1)


async def cancelling(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Break off as if it had been told to, as a cancel scope that leaks does."""
    yield "So far, "
    raise asyncio.CancelledError


async def closing(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Break off as if it had been closed."""
    yield "So far, "
    raise GeneratorExit


async def greedy(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Asked for it, talk without ever waiting until the test says GO; else say one word."""
    BEGUN.set()
    while text_of(messages[-1]["content"]) == "talk" and not GO.is_set():
        yield "x"
    yield "Well."


async def leaving_one_that_quits(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Begin a task that ends the process after the reply."""

    async def quit_later() -> None:
        await _wait()
        sys.exit(1)

    LEFT.append(asyncio.ensure_future(quit_later()))
    yield "Good bye."


async def unstorable(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Say what no database holds, and stop in the middle until the test says GO."""
    yield "a\0b\ud800c"
    await _wait()


async def endless(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Never stop talking."""
    while True:
        yield "word "
        BEGUN.set()
        await asyncio.sleep(0.01)


async def pausing(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Say nothing now and then."""
    for piece in ("", "So ", "", "", "far.", ""):
        yield piece


async def stubborn(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Go on when told to end, until the test says GO."""
    yield "So far, "
    while not GO.is_set():
        BEGUN.set()
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            yield "I won't stop. "


async def long(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Say a megabyte."""
    for _ in range(64):
        yield "x" * 16_384


async def with_tools(
    messages: Messages, session: Session
) -> AsyncGenerator[str | dict[str, object], None]:
    """Ask a tool before the reply."""
    yield "Let me look. "
    call: dict[str, object] = {"id": "call1", "name": "weather", "args": {}}
    yield {"role": "assistant", "content": "Let me look. ", "tool_calls": [call]}
    yield {"role": "tool", "content": "rain", "tool_call_id": "call1"}
    yield "It rains."


async def with_progress(
    messages: Messages, session: Session
) -> AsyncGenerator[str | Progress, None]:
    """Tell what it is at, and stop in the middle until the test says GO."""
    yield Progress("thinking", "", "started")
    yield "So far, "
    yield Progress("tool", "weather", "started")
    yield "so good"
    await _wait()
    yield Progress("tool", "weather", "ended")
    yield "."


async def restless(messages: Messages, session: Session) -> AsyncGenerator[str | Progress, None]:
    """Tell more than anybody wants to know, with names that a model made up."""
    for number in range(5_000):
        yield Progress("tool", f"{number}\x1b[2J\u202e" + "x" * 500, "a\nb")
    await _wait()
    yield "Done."


async def asking_and_going_on(
    messages: Messages, session: Session
) -> AsyncGenerator[dict[str, object], None]:
    """Ask as a graph does, and don't end."""
    asks = {"thread": "t", "interrupts": [{"id": "i", "value": "Sure?"}]}
    yield {"role": "assistant", "content": "Sure?", "asks": asks}
    await _wait()


async def tool_that_hangs(
    messages: Messages, session: Session
) -> AsyncGenerator[str | dict[str, object], None]:
    """Ask a tool that never answers."""
    call: dict[str, object] = {"id": "call1", "name": "weather", "args": {}}
    yield {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    await _wait()


async def two_messages(
    messages: Messages, session: Session
) -> AsyncGenerator[str | dict[str, object], None]:
    """Finish a message, and stop in the middle of the next."""
    yield "The first."
    yield {"role": "assistant", "content": "The first."}
    yield "The sec"
    await _wait()
    yield "ond."


async def with_history(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Read and write LangChain's memory of the same session, as a wrapped chain does."""
    history = DjangoChatMessageHistory(session.key, owner=session.owner)
    before = await history.aget_messages()
    await history.aadd_messages([HumanMessage("twice"), AIMessage("twice")])
    yield f"{len(before)} messages"


USAGE: dict[str, object] = {}
"""What `counting` reports that it used."""


async def counting(messages: Messages, session: Session) -> AsyncGenerator[dict[str, object], None]:
    """Say 400 characters, and how many tokens that took."""
    usage = {"usage": USAGE} if USAGE else {}
    yield {"role": "assistant", "content": "word " * 80, **usage}
