"""A chat in a terminal: sends typed lines and shows messages and streamed replies."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from chatmemory.client import (
    Chat,
    Closed,
    Event,
    Lost,
    Message,
    NoReply,
    Piece,
    Progress,
    Refused,
    Reset,
    SessionChanged,
    Synced,
)

EXIT_OK, EXIT_NOT_ANSWERED, EXIT_NO_CHAT, EXIT_INTERRUPTED = 0, 1, 2, 130
HIDDEN = "\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f"
"""Equal to `chatmemory.codec.HIDDEN`, since this package must not import Django."""
HISTORY = 20
"""Number of messages shown at the start."""

_UNSHOWABLE = re.compile(f"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{HIDDEN}]")


def shown(text: str) -> str:
    """Replace the characters that could move the cursor or change colors."""
    return _UNSHOWABLE.sub("\ufffd", text)


def run(
    chat: Chat,
    out: Callable[[str], object],
    err: Callable[[str], object],
    *,
    fd: int = 0,
) -> int:
    """Chat until the input or the chat ends; return the exit code."""
    try:
        return asyncio.run(_run_chat(chat, out, err, fd))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Closed as closed:
        err(f"\n[{shown(str(closed))}]\n")
        return EXIT_NO_CHAT


async def _run_chat(
    chat: Chat, out: Callable[[str], object], err: Callable[[str], object], fd: int
) -> int:
    async with chat:
        if os.isatty(fd):
            return await converse(chat, lines(fd), out)
        return await answer_each(chat, lines(fd), out, err)


async def lines(fd: int) -> AsyncIterator[str]:
    """Yield the lines of the input until it ends."""
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[bytes] = asyncio.Queue()

    def read_input() -> None:
        data = b"start"
        while data:
            data = os.read(fd, 65_536)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(read.put_nowait, data)

    # Not sys.stdin in an executor: the program could not exit while its thread waits for input.
    threading.Thread(target=read_input, daemon=True).start()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while data := await read.get():
        *whole, rest = (rest + decoder.decode(data)).split("\n")
        for line in whole:
            yield line
    if rest:
        yield rest


class Interrupt:
    """Handles Ctrl-C: the first stops the reply, the second exits."""

    def __init__(self, chat: Chat, note: Callable[[str], object]) -> None:
        self._chat = chat
        self._note = note
        self._task = asyncio.current_task()
        self._stopped: str | None = None
        self._stopping: asyncio.Task[None] | None = None

    def install(self) -> None:
        with suppress(RuntimeError):  # only the main thread receives signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_sigint)

    def _on_sigint(self) -> None:
        running = self._chat.session.get("running")
        if running and running["turn"] != self._stopped:
            self._stopped = running["turn"]
            self._note("stopping; press Ctrl-C again to exit")
            self._stopping = asyncio.ensure_future(self._stop_turn())
        elif self._task is not None:
            self._task.cancel()

    async def _stop_turn(self) -> None:
        with suppress(Refused, Closed):  # the run has just ended
            await self._chat.stop()


async def answer_each(
    chat: Chat,
    typed: AsyncIterator[str],
    out: Callable[[str], object],
    err: Callable[[str], object],
) -> int:
    """Send each line and print its reply, one at a time; return the exit code."""
    Interrupt(chat, note=lambda _: None).install()
    code = EXIT_OK
    async for line in typed:
        if not line.strip():
            continue
        try:
            reply = await chat.ask(line)
        except (Refused, NoReply) as error:
            err(f"[{shown(str(error))}]\n")
            code = EXIT_NOT_ANSWERED
            continue
        out(f"{shown(reply.text)}\n")
        if reply.status != "complete":
            err(f"[{shown(' '.join(filter(None, (reply.status, reply.error))))}]\n")
            code = EXIT_NOT_ANSWERED
    return code


async def converse(chat: Chat, typed: AsyncIterator[str], out: Callable[[str], object]) -> int:
    """Show messages as they arrive and execute typed lines until `/quit`; return the exit code."""
    screen = Screen(chat, out)
    screen.show_history()
    Interrupt(chat, screen.note).install()
    showing = asyncio.ensure_future(screen.show(chat.events()))
    typing = asyncio.ensure_future(screen.execute(typed))
    try:
        await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            showing.result()  # raises Closed
    finally:
        for task in (showing, typing):
            task.cancel()
        await asyncio.gather(showing, typing, return_exceptions=True)
    return EXIT_OK


class Screen:
    """The output in a terminal."""

    def __init__(self, chat: Chat, out: Callable[[str], object]) -> None:
        self._chat = chat
        self._out = out
        self._sent: set[str | None] = set()
        """Client ids of typed messages, which are on the screen already."""
        self._streamed = ""
        self._stream: tuple[str, int] | None = None
        """Turn and step of the text on the last, unfinished line."""
        self._is_lost = False
        self._is_busy = False
        """A turn runs or waits; the prompt is shown when it ends."""

    def show_history(self) -> None:
        title = self._chat.session.get("title") or "New chat"
        self._print_line(f"{shown(title)}  (/older, /stop, /quit)")
        for message in self._chat.messages[-HISTORY:]:
            self._stored(message)
        self._out("> ")

    async def execute(self, typed: AsyncIterator[str]) -> None:
        """Execute typed lines until `/quit` or the end of the input."""
        async for line in typed:
            try:
                match line.strip():
                    case "":
                        pass
                    case "/quit":
                        return
                    case "/stop":
                        await self._chat.stop()
                    case "/older":
                        await self._older()
                    case _:
                        await self._send_line(line)
            except Refused as refused:
                self._is_busy = False
                self.note(str(refused))
            if not self._is_busy:
                self._out("> ")

    async def show(self, events: AsyncIterator[Event]) -> None:
        """Show events until the chat ends. Raises Closed."""
        async for event in events:
            match event:
                case Piece():
                    self._piece(event)
                case Progress(kind="tool", name=name, state=state):
                    self.note(f"{name} {state}")
                case Progress(kind=kind, state=state):
                    self.note(f"{kind} {state}")
                case Message(role="assistant"):
                    self._reply(event)
                case Message(role="user", client_id=name) if name not in self._sent:
                    self._stored(event)
                case SessionChanged(fields=session):
                    self._set_busy(is_busy=bool(session.get("running") or session.get("waiting")))
                case Lost(reason=reason, seconds=seconds):
                    self._is_lost = True
                    self.note(f"connection lost ({reason}); reconnecting in {seconds:.1f} s")
                case Synced() if self._is_lost:
                    self._is_lost = False
                    self.note("connected")
                case Reset(reason=reason, lost=lost):
                    self._note_reset(reason, lost)

    async def _send_line(self, line: str) -> None:
        client_id = secrets.token_urlsafe(16)
        self._sent.add(client_id)
        self._is_busy = True
        await self._chat.send(line, client_id=client_id)

    async def _older(self) -> None:
        messages = await self._chat.fetch()
        self.note(f"{len(messages)} older")
        for message in messages:
            self._stored(message)

    def _set_busy(self, *, is_busy: bool) -> None:
        if self._is_busy and not is_busy:
            self._end_line()
            self._out("> ")
        self._is_busy = is_busy

    def _piece(self, piece: Piece) -> None:
        place = (piece.turn, piece.step)
        whole = piece.text if piece.is_whole else self._streamed + piece.text
        if place != self._stream or not whole.startswith(self._streamed):
            self._end_line()
            self._stream, self._streamed = place, ""
            whole = piece.text
        self._out(shown(whole[len(self._streamed) :]))
        self._streamed = whole

    def _reply(self, message: Message) -> None:
        """Show the part of a stored reply that was not streamed."""
        if self._stream != (message.turn, message.fields.get("step")):
            self._end_line()
            self._stored(message)
        else:
            text = message.text
            if text.startswith(self._streamed):
                self._out(shown(text[len(self._streamed) :]))
            else:
                self._out(f"\n{shown(text)}")
            self._end_line()
            self._note_end(message)

    def _stored(self, message: Message) -> None:
        sign = "> " if message.role == "user" else ""
        if message.role in ("user", "assistant") and message.text.strip():
            self._print_line(f"{sign}{shown(message.text)}")
        self._note_end(message)

    def _note_end(self, message: Message) -> None:
        if message.role == "assistant" and message.status != "complete":
            self.note(" ".join(filter(None, (message.status, message.error))))

    def _note_reset(self, reason: str, lost: int | None) -> None:
        number = "unknown number" if lost is None else lost
        loss = "" if lost == 0 else f"; messages lost: {number}"
        self.note(f"history reloaded: {reason}{loss}")

    def note(self, text: str) -> None:
        self._print_line(f"[{shown(text)}]")

    def _print_line(self, line: str) -> None:
        self._end_line()
        self._out(f"{line}\n")

    def _end_line(self) -> None:
        if self._stream is not None:
            self._out("\n")
        self._stream, self._streamed = None, ""
