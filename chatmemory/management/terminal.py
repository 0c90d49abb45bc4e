"""A chat in a terminal: what is typed is sent, what comes is shown as it comes."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import signal
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from urllib.parse import urlsplit

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
    connect,
)
from chatmemory.codec import HIDDEN
from chatmemory.management.signing_in import Door

DONE, NOT_ANSWERED, NO_CHAT, INTERRUPTED = 0, 1, 2, 130
"""Codes with which the program ends."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Where no proxy is asked."""
HISTORY = 20
"""Messages shown at the start."""

_UNSHOWABLE = re.compile(f"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{HIDDEN}]")


def shown(text: str) -> str:
    """A text as a terminal may have it: nothing in it moves the cursor or changes a colour."""
    return _UNSHOWABLE.sub("\ufffd", text)


def run(
    door: Door,
    ticket: str | None,
    out: Callable[[str], object],
    err: Callable[[str], object],
    *,
    wait_seconds: float = 0,
    fd: int = 0,
) -> int:
    """Chat until the input or the chat ends; return the code to end with."""
    work = _chat_in(door, ticket, out, err, wait_seconds, fd)
    try:
        return asyncio.run(work)
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except Closed as closed:
        err(f"\n[{shown(str(closed))}]\n")
        return NO_CHAT


async def _chat_in(
    door: Door,
    ticket: str | None,
    out: Callable[[str], object],
    err: Callable[[str], object],
    wait_seconds: float,
    fd: int,
) -> int:
    async def tell_ticket() -> str:
        return ticket or ""

    chat = connect(
        door.url,
        cookies=door.cookies,
        ticket=tell_ticket if ticket else None,
        create=door.create,
        first_connection_seconds=wait_seconds,
        proxy=None if urlsplit(door.url).hostname in LOOPBACK else True,
    )
    async with chat:
        if os.isatty(fd):
            return await converse(chat, lines(fd), out)
        return await answer_each(chat, lines(fd), out, err)


async def lines(fd: int) -> AsyncIterator[str]:
    """What is typed, line by line, until the input ends."""
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[bytes] = asyncio.Queue()

    def take() -> None:
        data = b"start"
        while data:
            data = os.read(fd, 65_536)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(read.put_nowait, data)

    # Not sys.stdin in an executor: a thread that waits in it keeps the program from ending.
    threading.Thread(target=take, daemon=True).start()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while data := await read.get():
        *whole, rest = (rest + decoder.decode(data)).split("\n")
        for line in whole:
            yield line
    if rest:
        yield rest


class Interrupt:
    """Ctrl-C: the first stops the reply, the next one the program."""

    def __init__(self, chat: Chat, note: Callable[[str], object]) -> None:
        self._chat = chat
        self._note = note
        self._task = asyncio.current_task()
        self._stopped: str | None = None
        self._stopping: asyncio.Task[None] | None = None

    def watch(self) -> None:
        with suppress(RuntimeError):  # only the main thread hears of signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._heard)

    def _heard(self) -> None:
        running = self._chat.session.get("running")
        if running and running["turn"] != self._stopped:
            self._stopped = running["turn"]
            self._note("stopping; Ctrl-C again to leave")
            self._stopping = asyncio.ensure_future(self._stop())
        elif self._task is not None:
            self._task.cancel()

    async def _stop(self) -> None:
        with suppress(Refused, Closed):  # it has just ended
            await self._chat.stop()


async def answer_each(
    chat: Chat,
    typed: AsyncIterator[str],
    out: Callable[[str], object],
    err: Callable[[str], object],
) -> int:
    """Send each line and print its reply, one after another; for scripts."""
    Interrupt(chat, note=lambda _: None).watch()
    code = DONE
    async for line in typed:
        if not line.strip():
            continue
        try:
            reply = await chat.ask(line)
        except (Refused, NoReply) as error:
            err(f"[{shown(str(error))}]\n")
            code = NOT_ANSWERED
            continue
        out(f"{shown(reply.text)}\n")
        if reply.status != "complete":
            err(f"[{shown(' '.join(filter(None, (reply.status, reply.error))))}]\n")
            code = NOT_ANSWERED
    return code


async def converse(chat: Chat, typed: AsyncIterator[str], out: Callable[[str], object]) -> int:
    """Show the newest messages, then what comes, and do what is typed, until `/quit`."""
    screen = Screen(chat, out)
    screen.begin()
    Interrupt(chat, screen.note).watch()
    showing = asyncio.ensure_future(screen.show(chat.events()))
    typing = asyncio.ensure_future(screen.obey(typed))
    try:
        await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            showing.result()  # raises Closed
    finally:
        for task in (showing, typing):
            task.cancel()
        await asyncio.gather(showing, typing, return_exceptions=True)
    return DONE


class Screen:
    """What stands on the terminal."""

    def __init__(self, chat: Chat, out: Callable[[str], object]) -> None:
        self._chat = chat
        self._out = out
        self._mine: set[str | None] = set()
        """What was sent from here: it stands there already."""
        self._streamed = ""
        self._stream: tuple[str, int] | None = None
        """The step whose text ends the screen, without its last line break."""
        self._is_lost = False
        self._is_busy = False
        """Something runs or waits: the next prompt comes after it."""

    def begin(self) -> None:
        title = self._chat.session.get("title") or "New chat"
        self._say(f"{shown(title)}  (/older, /stop, /quit)")
        for message in self._chat.messages[-HISTORY:]:
            self._stored(message)
        self._out("> ")

    async def obey(self, typed: AsyncIterator[str]) -> None:
        """Do what is typed, until that is over."""
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
                        await self._send(line)
            except Refused as refused:
                self._is_busy = False
                self.note(str(refused))
            if not self._is_busy:
                self._out("> ")

    async def show(self, events: AsyncIterator[Event]) -> None:
        """Show what comes, until the chat ends."""
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
                case Message(role="user", client_id=name) if name not in self._mine:
                    self._stored(event)
                case SessionChanged(fields=session):
                    self._look(is_busy=bool(session.get("running") or session.get("waiting")))
                case Lost(reason=reason, seconds=seconds):
                    self._is_lost = True
                    self.note(f"connection lost ({reason}), again in {seconds:.1f} s")
                case Synced() if self._is_lost:
                    self._is_lost = False
                    self.note("connected")
                case Reset(reason=reason, lost=lost):
                    self._note_reset(reason, lost)

    async def _send(self, line: str) -> None:
        client_id = uuid.uuid4().hex
        self._mine.add(client_id)
        self._is_busy = True
        await self._chat.send(line, client_id=client_id)

    async def _older(self) -> None:
        messages = await self._chat.fetch()
        self.note(f"{len(messages)} older")
        for message in messages:
            self._stored(message)

    def _look(self, *, is_busy: bool) -> None:
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
        """Show what of a finished reply has not been streamed."""
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
            self._say(f"{sign}{shown(message.text)}")
        self._note_end(message)

    def _note_end(self, message: Message) -> None:
        if message.role == "assistant" and message.status != "complete":
            self.note(" ".join(filter(None, (message.status, message.error))))

    def _note_reset(self, reason: str, lost: int | None) -> None:
        number = "unknown number" if lost is None else lost
        loss = "" if lost == 0 else f"; messages lost: {number}"
        self.note(f"the history is loaded again: {reason}{loss}")

    def note(self, text: str) -> None:
        self._say(f"[{shown(text)}]")

    def _say(self, line: str) -> None:
        self._end_line()
        self._out(f"{line}\n")

    def _end_line(self) -> None:
        if self._stream is not None:
            self._out("\n")
        self._stream, self._streamed = None, ""
