"""Responders for tests in this process: slow, blocking, failing, endless, with tools."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import AsyncGenerator, Mapping

from langchain_core.messages import AIMessage, HumanMessage

from chatmemory.codec import text_of
from chatmemory.derived import leave
from chatmemory.errors import ModelError, ModelUnavailable, NotFound
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import Session
from chatmemory.responders import Progress
from chatmemory.services.turns.run_context import is_in_run

Messages = list[dict[str, object]]

SEEN: list[Messages] = []
"""The messages of each call, newest last."""
IN_RUN: list[bool] = []
"""The results of `is_in_run` for their session."""
LOOPS: list[asyncio.AbstractEventLoop] = []
"""The event loops of `where`."""
LEFT: list[asyncio.Task[None]] = []
"""Tasks that outlive their reply."""
BEGUN = threading.Event()
"""Set when a responder has started to wait."""
GO = threading.Event()
"""Set by the test to let waiting responders continue."""
MAX_BLOCK_SECONDS = 60.0
"""How long `blocking` waits for GO."""


def reset() -> None:
    """Forget all calls of earlier tests."""
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
    """Repeat the last message, word by word."""
    SEEN.append(messages)
    IN_RUN.append(is_in_run(session.scope, session.key))
    for word in text_of(messages[-1]["content"]).split(" "):
        yield f"{word} "


async def where(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Record the event loop."""
    LOOPS.append(asyncio.get_running_loop())
    yield "Here."


async def not_found(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Raise an error of the app that is not a model error."""
    yield "So far, "
    raise NotFound


async def slow(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Pause in the middle until GO."""
    yield "So far, "
    await _wait()
    yield "so good."


async def echo_with_pause(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Repeat the message, with a pause in the middle until GO."""
    text = str(messages[-1]["content"])
    middle = len(text) // 2
    yield text[:middle]
    await _wait()
    yield text[middle:]


async def silent(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """End without text after GO."""
    await _wait()
    for word in "":
        yield word


async def blocking(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Block the event loop until GO."""
    yield "So far, "
    BEGUN.set()
    GO.wait(MAX_BLOCK_SECONDS)  # blocks on purpose
    yield "so good."


async def failing(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Raise an error in the middle."""
    yield "So far, "
    raise RuntimeError("secret words")


async def filtered(
    messages: Messages, session: Session
) -> AsyncGenerator[Mapping[str, object], None]:
    """Reply as a model whose provider ends the reply with a filter."""
    metadata = {"finish_reason": "content_filter"}
    yield {"role": "assistant", "content": "So far, ", "response_metadata": metadata}


class Blocked(ModelError):
    """A host's own model error."""

    code = "blocked"


async def blocked(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Raise a host's own model error."""
    yield "So far, "
    raise Blocked("filter 7 refused")


async def unreachable(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Raise a model error without a cause."""
    yield "So far, "
    raise ModelUnavailable


async def refused(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Raise a model error with its cause."""
    yield "So far, "
    raise ModelUnavailable from ConnectionError("port 7 is closed")


async def quitting(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Call `sys.exit`, as the main function of a script does."""
    yield "So far, "
    sys.exit(1)


async def cancelling(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Raise CancelledError although it was not cancelled, like a cancel scope that leaks."""
    yield "So far, "
    raise asyncio.CancelledError


async def closing(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Raise GeneratorExit although it was not closed."""
    yield "So far, "
    raise GeneratorExit


async def greedy(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Reply to "talk" without ever waiting, until GO; reply to other texts with one word."""
    BEGUN.set()
    while text_of(messages[-1]["content"]) == "talk" and not GO.is_set():
        yield "x"
    yield "Well."


async def leaving_a_task_that_exits(
    messages: Messages, session: Session
) -> AsyncGenerator[str, None]:
    """Start a task that calls `sys.exit` after the reply."""

    async def quit_later() -> None:
        await _wait()
        sys.exit(1)

    LEFT.append(asyncio.ensure_future(quit_later()))
    yield "Good bye."


async def unstorable(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Send characters that databases cannot store, and pause until GO."""
    yield "a\0b\ud800c"
    await _wait()


async def endless(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Stream without an end."""
    while True:
        yield "word "
        BEGUN.set()
        await asyncio.sleep(0.01)


async def flooding(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """More text than a connection buffers, up to `GO`."""
    while not GO.is_set():
        yield "x" * 5_000
        await asyncio.sleep(0.001)


async def pausing(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Send empty pieces too."""
    for piece in ("", "So ", "", "", "far.", ""):
        yield piece


async def stubborn(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Continue after a cancellation, until GO."""
    yield "So far, "
    while not GO.is_set():
        BEGUN.set()
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            yield "I won't stop. "


async def long(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Send a megabyte."""
    for _ in range(64):
        yield "x" * 16_384


async def with_tools(
    messages: Messages, session: Session
) -> AsyncGenerator[str | dict[str, object], None]:
    """Call a tool before the reply."""
    yield "Let me look. "
    call: dict[str, object] = {"id": "call1", "name": "weather", "args": {}}
    yield {"role": "assistant", "content": "Let me look. ", "tool_calls": [call]}
    yield {"role": "tool", "content": "rain", "tool_call_id": "call1"}
    yield "It rains."


async def with_tools_and_pause(
    messages: Messages, session: Session
) -> AsyncGenerator[str | dict[str, object], None]:
    """Call a tool, and pause in the middle of the reply until GO."""
    async for piece in with_tools(messages, session):
        yield piece
    await _wait()
    yield " Still."


async def counting_steps(
    messages: Messages, session: Session
) -> AsyncGenerator[dict[str, object], None]:
    """Call a tool, then reply; report the usage of both."""
    call: dict[str, object] = {"id": "call1", "name": "weather", "args": {}}
    usage = {"input_tokens": 10, "output_tokens": 3, "input_token_details": {"cache_read": 4}}
    yield {"role": "assistant", "content": "", "tool_calls": [call], "usage": usage}
    yield {"role": "tool", "content": "rain", "tool_call_id": "call1"}
    yield {"role": "assistant", "content": "Rain.", "usage": {**usage, "output_tokens": 5}}


async def with_progress(
    messages: Messages, session: Session
) -> AsyncGenerator[str | Progress, None]:
    """Report progress, and pause in the middle until GO."""
    yield Progress("thinking", "", "started")
    yield "So far, "
    yield Progress("tool", "weather", "started")
    yield "so good"
    await _wait()
    yield Progress("tool", "weather", "ended")
    yield "."


async def with_progress_and_pauses(
    messages: Messages, session: Session
) -> AsyncGenerator[str | Progress, None]:
    """Also pause before the end, until GO is set again: the row replaces text of the last tick."""
    async for piece in with_progress(messages, session):
        if piece == ".":
            await _wait()
        elif piece == Progress("tool", "weather", "ended"):
            GO.clear()
        yield piece


async def restless(messages: Messages, session: Session) -> AsyncGenerator[str | Progress, None]:
    """Report progress 5,000 times, with tool names that a model invented."""
    for number in range(5_000):
        yield Progress("tool", f"{number}\x1b[2J\u202e" + "x" * 500, "a\nb")
    await _wait()
    yield "Done."


async def asking_and_continuing(
    messages: Messages, session: Session
) -> AsyncGenerator[dict[str, object], None]:
    """Ask the user as a graph does, and do not end."""
    asks = {"thread": "t", "interrupts": [{"id": "i", "value": "Sure?"}]}
    yield {"role": "assistant", "content": "Sure?", "asks": asks}
    await _wait()


async def tool_that_hangs(
    messages: Messages, session: Session
) -> AsyncGenerator[str | dict[str, object], None]:
    """Call a tool that never answers."""
    call: dict[str, object] = {"id": "call1", "name": "weather", "args": {}}
    yield {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    await _wait()


async def two_messages(
    messages: Messages, session: Session
) -> AsyncGenerator[str | dict[str, object], None]:
    """Finish a message, and pause in the middle of the next until GO."""
    yield "The first."
    yield {"role": "assistant", "content": "The first."}
    yield "The sec"
    await _wait()
    yield "ond."


async def other_final_text(
    messages: Messages, session: Session
) -> AsyncGenerator[str | dict[str, object], None]:
    """Pause in the middle until GO, then end with a message that the text does not begin."""
    yield "So far, "
    await _wait()
    yield {"role": "assistant", "content": "Sorry, no."}


async def with_history(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Read and write LangChain's memory of the same session, as a wrapped chain does."""
    history = DjangoChatMessageHistory(session.key, owner=session.owner)
    before = await history.aget_messages()
    await history.aadd_messages([HumanMessage("twice"), AIMessage("twice")])
    yield f"{len(before)} messages"


USAGE: dict[str, object] = {}
"""The usage that `counting` reports."""


async def counting(messages: Messages, session: Session) -> AsyncGenerator[dict[str, object], None]:
    """Send 400 characters, and the usage."""
    usage = {"usage": USAGE} if USAGE else {}
    yield {"role": "assistant", "content": "word " * 80, **usage}


async def leaving_words(messages: Messages, session: Session) -> AsyncGenerator[str, None]:
    """Leave the reply for the end of the turn."""
    leave("words", "a long reply")
    yield "a long reply"


async def by_seed(
    messages: Messages, session: Session
) -> AsyncGenerator[str | Progress | dict[str, object], None]:
    """Stream steps with tools and pauses that depend on the message alone.

    The stored text of a step may differ from the streamed one, or be longer or shorter; a run may
    fail.
    """
    chance = random.Random(text_of(messages[-1]["content"]))  # noqa: S311  # no secret
    for step in range(chance.randint(1, 4)):
        streamed = ""
        for _ in range(chance.randint(0, 6)):
            await asyncio.sleep(chance.choice([0, 0, 0.005, 0.05]))
            if chance.random() < 0.2:
                yield Progress("tool", f"step {step}", "started")
            streamed += (piece := "".join(chance.choices("abc ü😀\n", k=chance.randint(1, 40))))
            yield piece
        if chance.random() < 0.1:
            raise ModelError("failed on purpose")
        text = chance.choice([streamed, streamed, f"{streamed} more", streamed[:3], "other " * 50])
        call: dict[str, object] = {"id": "call", "name": "weather", "args": {"step": step}}
        if chance.random() < 0.6:
            yield {"role": "assistant", "content": text, "tool_calls": [call]}
            await asyncio.sleep(chance.choice([0, 0.02]))
            yield {"role": "tool", "content": f"rain {step}", "tool_call_id": "call"}
        else:
            yield {"role": "assistant", "content": text}
