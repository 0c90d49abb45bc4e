"""A client of the websocket protocol `chatmemory.v1`, for tests, scripts and terminals.

    async with connect("http://127.0.0.1:8000/ws/chat/my-session/", cookies=cookies) as chat:
        reply = await chat.ask("Where is my order?")
        print(reply.text)

It stands on the package `websockets` (the extra `client`) and needs no Django.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakSet

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import (
    ConnectionClosed,
    InvalidMessage,
    InvalidStatus,
    WebSocketException,
)
from websockets.typing import Origin, Subprotocol

logger = logging.getLogger(__name__)

VERSION = 1
SILENCE_SECONDS = 45.0
"""After how long without a frame the connection counts as lost."""
FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 10.0
LONGEST_AFTER_MS = 10 * 60 * 1000
"""Longest pause that a server can ask for."""
FIRST_CONNECTION_SECONDS = 30.0
"""How long the first connection is retried: a server that a deploy starts may need that long."""
FIRST_LONGEST_RETRY_SECONDS = 2.0
FIRST_RETRIED = frozenset({1001, 1006, 1012, 1013, 502, 503, 504})
"""Closes, and HTTP statuses of proxies, after which the first connection is retried."""
ASK_AGAIN_SECONDS = 5.0
"""How often the state of a turn is asked for, of which no session frame has told."""
ID_BYTES = 40
"""Room for the id of a frame."""
NORMAL = 1000
"""The code of a close by this client."""
MAX_FRAME_BYTES = 4 * 1024 * 1024
HOPELESS = frozenset({4401, 4403, 4404, 4409, 4426})
"""Closes after which it makes no sense to come again."""

WRONG_ADDRESS_ERRORS = (socket.gaierror, ssl.SSLError, WebSocketException)
"""Unknown host, wrong certificate, no websocket: waiting does not change them."""

Frame = dict[str, Any]


class ClientError(Exception):
    """Something went wrong between this client and its server."""


class Refused(ClientError):
    """The server said no to a frame; `code` is one of docs/protocol.md."""

    def __init__(self, frame: Mapping[str, Any], client_id: str | None = None) -> None:
        self.code = str(frame.get("code"))
        self.retry = bool(frame.get("retry"))
        """Whether the same may succeed later; send it again with `client_id`."""
        self.retry_after = (frame.get("retry_after_ms") or 0) / 1000
        """Seconds to wait before, if the server has said."""
        self.field: str | None = frame.get("field")
        self.limit: int | None = frame.get("limit")
        self.turn: str | None = frame.get("turn")
        """The turn that is in the way."""
        self.client_id = client_id
        super().__init__(f"{self.code}: {frame.get('message') or 'refused'}")


class Closed(ClientError):
    """The connection has ended for good; `code` is that of the close, or of HTTP."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{code}: {reason}")


class NoReply(ClientError):
    """The turn ended without a reply: it was cancelled, or its messages were removed."""

    def __init__(self) -> None:
        super().__init__("no reply: the turn was cancelled, or its messages were removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message that is in the server's database, and how its turn stood then."""

    turn: str
    status: str
    seq: int | None
    """The message's number; None while it waits."""
    is_duplicate: bool
    frame: Frame = field(repr=False)
    """What was sent."""


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message."""

    fields: Frame
    """All fields of its frame."""

    @property
    def seq(self) -> int:
        return int(self.fields["seq"])

    @property
    def role(self) -> str:
        return str(self.fields["role"])

    @property
    def text(self) -> str:
        return str(self.fields["text"])

    @property
    def turn(self) -> str | None:
        """The turn that it belongs to."""
        return self.fields.get("turn")

    @property
    def client_id(self) -> str | None:
        """The name that the sender gave it."""
        return self.fields.get("client_id")

    @property
    def status(self) -> str:
        """`complete`, `interrupted` or `failed`."""
        return str(self.fields["status"])

    @property
    def error(self) -> str:
        """The code of what failed, or nothing."""
        return str(self.fields.get("error") or "")

    @property
    def asks(self) -> Frame | None:
        """What the message asks, if the next one answers it."""
        return self.fields.get("asks")


@dataclass(frozen=True, slots=True)
class Piece:
    """Streamed text of a reply that is not stored yet."""

    turn: str
    step: int
    text: str
    is_whole: bool
    """It is all so far, in place of the pieces before it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run is at."""

    turn: str
    step: int
    kind: str
    """`thinking` or `tool`."""
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The session as it is now: `chat.session` has the fields."""

    fields: Frame


@dataclass(frozen=True, slots=True)
class Reset:
    """All rows were dropped; the newest follow."""

    reason: str
    lost: int | None = 0
    """How many of them the server has lost; None if it lost some and their number is unknown."""


@dataclass(frozen=True, slots=True)
class Synced:
    """All rows that there were have come."""

    cursor: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection is lost, and opened again after so many seconds."""

    code: int
    reason: str
    seconds: float


Event = Message | Piece | Progress | SessionChanged | Reset | Synced | Lost


class Chat:
    """A session, live, that comes back by itself; `async with` waits for its newest messages.

    `url` is that of the websocket, or a function that is asked for one at each connection.
    `ticket` is asked for a new ticket each time; its OSError counts as a lost connection. `create`
    makes the session if there is none; its key must be a version-4 UUID. With the `cursor` of an
    earlier chat only what was missed since comes. The first connection is retried for
    `first_connection_seconds` where the server may be starting. `options` go to
    `websockets.connect`.
    Raises Closed if there is no such chat, or nobody answers.
    """

    def __init__(
        self,
        url: str | Callable[[], str],
        *,
        cookies: Mapping[str, str] | None = None,
        ticket: Callable[[], Awaitable[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        create: bool = False,
        cursor: str | None = None,
        first_connection_seconds: float = FIRST_CONNECTION_SECONDS,
        **options: Any,
    ) -> None:
        self.rows: dict[int, Message] = {}
        """The messages that came, by number."""
        self.session: Frame = {}
        """The newest session frame."""
        self.texts: dict[tuple[str, int], str] = {}
        """What running turns have streamed, by turn and step."""
        self.limits: Frame = {}
        self.cursor = cursor
        """How far this client has seen."""
        self.is_live = False
        """Whether the connection is open and the rows are those of the server."""
        self._url = url
        self._cookies = dict(cookies or {})
        self._ticket = ticket
        self._headers = dict(headers or {})
        self._create = create
        self._options = options
        self._socket: ClientConnection | None = None
        self._ids = 0
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        self._listeners: WeakSet[Events] = WeakSet()
        self._changed = asyncio.Condition()
        self._sending = asyncio.Lock()
        self._seen: set[str] = set()
        """Turns that a frame has told of."""
        self._steps: set[tuple[str, int]] = set()
        """The steps of the rows: their streams have ended."""
        self._bye: Frame | None = None
        self._end: Closed | None = None
        self._has_lived = False
        self._first_seconds = first_connection_seconds
        self._is_wrong_address = False

    async def __aenter__(self) -> Self:
        self._living = asyncio.ensure_future(self._live())
        try:
            await self._until(lambda: self.is_live)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the socket and stay away. A run goes on without us."""
        self._living.cancel()
        with suppress(asyncio.CancelledError):
            await self._living

    @property
    def messages(self) -> list[Message]:
        """The rows in order, without those that a later turn replaced."""
        gone = self.session.get("superseded") or []
        return [
            self.rows[seq]
            for seq in sorted(self.rows)
            if not any(first <= seq <= last for first, last in gone)
        ]

    def events(self) -> Events:
        """What comes from now on; iterating raises Closed when the server has ended the chat."""
        events = Events()
        self._listeners.add(events)
        if self._end is not None:
            events.put(self._end)
        return events

    async def send(
        self,
        text: str | None = None,
        *,
        content: list[Frame] | None = None,
        client_id: str | None = None,
        **fields: object,
    ) -> Turn:
        """Say something; return when it is in the server's database, sent again if need be.

        `fields` are others of the frame: `if_busy`, `replaces`, `expect_seq`, `epoch`.
        Raises Refused, Closed.
        """
        client_id = client_id or uuid.uuid4().hex
        said = {"text": text} if content is None else {"content": content}
        more = {name: value for name, value in fields.items() if value is not None}
        async with self._sending:  # so that they arrive in order
            await self._until(lambda: self.is_live)
            epoch = {"epoch": self.session["epoch"]} if "epoch" in self.session else {}
            frame = {"type": "send", "client_id": client_id, **said, **epoch, **more}
            self._check_size(frame)
            try:
                answer = await self._request(frame)
            except Refused as refused:
                refused.client_id = client_id
                raise
        return Turn(
            turn=answer["turn"],
            status=answer["status"],
            seq=answer["seq"],
            is_duplicate=answer["duplicate"],
            frame=frame,
        )

    async def reply(self, turn: Turn) -> Message:
        """Wait until a turn has ended; return its last message. Raises NoReply, Closed."""
        while not self._is_over(turn):
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_SECONDS):
                    await self._until(lambda: self._is_over(turn))
            if self.is_live and turn.turn not in self._seen and self._seq_of(turn) is None:
                # It may have been cancelled before a frame could tell of it.
                answer = await self._request(turn.frame)
                if answer["status"] == "cancelled":
                    raise NoReply
        if turn.seq is not None and turn.seq < min(self.rows, default=0):
            await self.fetch(turn.seq + 50)
        replies = [row for row in self.rows.values() if row.turn == turn.turn != row.client_id]
        if not replies:
            raise NoReply
        return max(replies, key=lambda row: row.seq)

    async def ask(self, text: str, **fields: Any) -> Message:
        """Say something, and wait for the reply."""
        return await self.reply(await self.send(text, **fields))

    async def stop(self, turn: Turn | str | None = None) -> str:
        """End a turn, by default the running one; return its status. Raises Refused, Closed."""
        running = self.session.get("running")
        name = turn.turn if isinstance(turn, Turn) else turn or (running and running["turn"])
        if name is None:
            raise Refused({"code": "unknown_turn", "message": "No turn runs."})
        return str((await self._request({"type": "stop", "turn": name}))["status"])

    async def fetch(self, before_seq: int | None = None, limit: int = 50) -> list[Message]:
        """Load the newest messages below a number, by default below those that are here."""
        if before_seq is None:
            before_seq = min(self.rows, default=int(self.session.get("last_seq", 0)) + 1)
        answer = await self._request({"type": "fetch", "before_seq": before_seq, "limit": limit})
        messages = [Message(fields) for fields in answer["messages"]]
        for message in messages:
            self._keep(message)
        return messages

    # Waiting.

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is so. Raises Closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._end is not None or is_so())
        if self._end is not None and not is_so():
            raise self._end

    def _is_over(self, turn: Turn) -> bool:
        """Whether a session frame tells that the turn has ended; its rows came before it."""
        if not self.session or not self.is_live or turn.turn in self._alive():
            return False
        seq = self._seq_of(turn)
        return turn.turn in self._seen or (seq is not None and self.session["last_seq"] >= seq)

    def _alive(self) -> set[str]:
        """The turns that run or wait."""
        running = self.session.get("running")
        waiting = {one["turn"] for one in self.session.get("waiting") or []}
        return waiting | ({running["turn"]} if running else set())

    def _seq_of(self, turn: Turn) -> int | None:
        """The number of the turn's message, as soon as it has one."""
        own = (row.seq for row in self.rows.values() if row.client_id == turn.turn)
        return turn.seq if turn.seq is not None else next(own, None)

    async def _request(self, frame: Frame) -> Frame:
        """Send a frame until it is answered; return the `ok`. Raises Refused, Closed."""
        while True:
            await self._until(lambda: self.is_live)
            socket = self._socket
            self._ids += 1
            frame_id = self._ids
            answer = self._answers[frame_id] = asyncio.get_running_loop().create_future()
            try:
                await self._post({**frame, "id": frame_id})
                found: Frame = await answer
            except (ConnectionClosed, _Gone):
                # Not "until it isn't live": by now it may be live again.
                await self._until(lambda: self._socket is not socket)  # noqa: B023  # called here
                continue
            finally:
                self._answers.pop(frame_id, None)
            if found["type"] == "error":
                raise Refused(found)
            return found

    def _check_size(self, frame: Frame) -> None:
        most = self.limits.get("max_frame_bytes")
        if most and len(json.dumps(frame).encode()) + ID_BYTES > most:
            message = "The message is too large."
            raise Refused({"code": "too_large", "message": message, "limit": most})

    # The connection.

    async def _live(self) -> None:
        """Connect again and again, until there is no sense in it."""
        tries = 0
        first_until = time.monotonic() + self._first_seconds
        end = Closed(1011, "the client failed")
        try:
            while True:
                code, reason = await self._connection()
                bye, self._bye = self._bye or {}, None
                code, reason = bye.get("code", code), bye.get("reason", reason)
                tries = 0 if self.is_live else tries + 1
                await self._lose()
                after = min(max(bye.get("after_ms") or 0, 0), LONGEST_AFTER_MS) / 1000
                pause = longest_pause(tries)
                if not self._has_lived:
                    pause = min(pause, FIRST_LONGEST_RETRY_SECONDS)
                wait = after + random.uniform(0, pause)  # noqa: S311  # no secret
                is_late = not self._has_lived and time.monotonic() + wait > first_until
                if is_late or not self._is_worth_it(code, bye):
                    end = Closed(code, reason)
                    return
                self._tell(Lost(code, reason, wait))
                await asyncio.sleep(wait)
        except asyncio.CancelledError:
            end = Closed(NORMAL, "closed by this client")
            raise
        finally:
            self._end = end
            await self._lose()
            self._tell(end)

    def _is_worth_it(self, code: int, bye: Frame) -> bool:
        """Whether to connect again."""
        if "reconnect" in bye:
            return bool(bye["reconnect"])
        if not self._has_lived:
            return code in FIRST_RETRIED and not self._is_wrong_address
        is_refused = 400 <= code < 500 and code != 429  # of HTTP
        return code not in HOPELESS and not is_refused

    async def _lose(self) -> None:
        """The socket is gone: whoever waits for an answer asks again."""
        self.is_live, self._socket = False, None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_Gone())
        await self._notify()

    async def _connection(self) -> tuple[int, str]:
        """Open the socket and take what comes until it is lost; return why."""
        try:
            url, options = await self._address()
            async with open_socket(url, **options) as socket:
                await self._talk(socket)
        except InvalidStatus as error:
            return error.response.status_code, "the handshake was refused"
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1006, "lost")
        except _Nonsense:
            self._clear()
            self.session, self.cursor = {}, None
            return 1007, "what came is not of this protocol"
        except TimeoutError:
            return 1006, "nobody answers"
        except (OSError, WebSocketException) as error:
            # A server that starts or ends may close before it answers: InvalidMessage.
            self._is_wrong_address = isinstance(error, WRONG_ADDRESS_ERRORS) and not isinstance(
                error, InvalidMessage
            )
            return 1006, str(error) or type(error).__name__
        return 1000, "closed"

    async def _address(self) -> tuple[str, dict[str, Any]]:
        """Where the next socket goes, and what it takes along."""
        url = self._url() if callable(self._url) else self._url
        parts = urlsplit(url)
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        if scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a websocket")
        page = "https" if scheme == "wss" else "http"
        origin: Origin | None = Origin(f"{page}://{parts.netloc.rpartition('@')[2]}")
        protocols = [Subprotocol("chatmemory.v1")]
        if self._ticket is not None:
            # Not in the address, which servers log.
            protocols.append(Subprotocol(f"ticket.{await self._ticket()}"))
            origin = None
        headers = dict(self._headers)
        if self._cookies:
            headers["Cookie"] = "; ".join(
                f"{name}={value}" for name, value in self._cookies.items()
            )
        defaults = {
            "origin": origin,
            "subprotocols": protocols,
            "additional_headers": headers,
            "max_size": MAX_FRAME_BYTES,
            "ping_interval": None,  # the protocol has pings of its own
        }
        address = urlunsplit((scheme, parts.netloc, parts.path, parts.query, ""))
        return address, {**defaults, **self._options}

    async def _talk(self, socket: ClientConnection) -> None:
        self._socket = socket
        if self.cursor is None:
            self._clear()  # the newest rows come, and may not join to these
        hello: Frame = {"type": "hello", "v": VERSION}
        hello |= {} if self.cursor is None else {"cursor": self.cursor}
        hello |= {"create": True} if self._create else {}
        with suppress(ConnectionClosed):  # what the server has said before is still to read
            await self._post(hello)
        while self._bye is None:
            async with asyncio.timeout(SILENCE_SECONDS):
                data = await socket.recv()
            try:
                await self._take(json.loads(data))
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                raise _Nonsense from error

    async def _post(self, frame: Frame) -> None:
        if self._socket is not None:
            await self._socket.send(json.dumps(frame))

    # What comes.

    async def _take(self, frame: Frame) -> None:
        match frame:
            case {"type": "ping", "n": n}:
                with suppress(ConnectionClosed):
                    await self._post({"type": "pong", "n": n})
                return
            case {"type": "snapshot" | "delta" as kind, "turn": turn, "step": step}:
                self._stream((turn, step), frame, is_whole=kind == "snapshot")
                return
            case {"type": "welcome"}:
                self._create = False  # were it purged now, it must not come back
                self.limits = frame.get("limits") or {}
            case {"type": "session"}:
                self._show(frame)
            case {"type": "message"}:
                message = Message(frame)
                # A changed one may be older than all that are here; `fetch` brings it as it is.
                if message.seq >= min(self.rows, default=0) and self._keep(message):
                    self._tell(message)
            case {"type": "reset"}:
                self._clear()
                self.session, self.cursor = {}, None
                self._tell(Reset(frame.get("reason", ""), frame.get("lost", 0)))
            case {"type": "synced", "cursor": cursor}:
                self.cursor, self.is_live, self._has_lived = cursor, True, True
                self._tell(Synced(cursor))
            case {"type": "ok" | "error", "id": int(frame_id)}:
                answer = self._answers.get(frame_id)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
            case {"type": "error", "code": code}:
                logger.warning("the server says %s", code)
            case {
                "type": "bye",
                "code": int(),
                "reason": str(),
                "reconnect": bool(),
                "after_ms": int() | None,
            }:
                self._bye = frame
        await self._notify()

    def _show(self, frame: Frame) -> None:
        """Take a session frame, unless a newer one came before."""
        known = self.session
        if known and known["epoch"] == frame["epoch"] and known["revision"] > frame["revision"]:
            return
        self.session = frame
        for seq in [seq for seq in self.rows if seq < frame["first_seq"]]:
            del self.rows[seq]
        alive = self._alive()
        self._seen |= alive
        for key in [key for key in self.texts if key[0] not in alive]:
            del self.texts[key]
        self._tell(SessionChanged(frame))

    def _keep(self, message: Message) -> bool:
        """Take a message; False if it is older than what is here, or removed."""
        known = self.rows.get(message.seq)
        if known is not None and known.fields["revision"] > message.fields["revision"]:
            return False
        if message.seq < self.session.get("first_seq", 0):
            return False
        self.rows[message.seq] = message
        step = message.fields.get("step")
        if message.turn is not None and step is not None:
            self._steps.add((message.turn, step))
            self.texts.pop((message.turn, step), None)
        return True

    def _stream(self, place: tuple[str, int], frame: Frame, *, is_whole: bool) -> None:
        """Take a piece of text or an event, if the message is not here yet."""
        if place in self._steps:
            return
        if (text := frame.get("text")) is not None:
            self.texts[place] = ("" if is_whole else self.texts.get(place, "")) + text
            self._tell(Piece(*place, text, is_whole))
        if event := frame.get("event"):
            self._tell(Progress(*place, event["kind"], event["name"], event["state"]))

    def _clear(self) -> None:
        self.rows.clear()
        self.texts.clear()
        self._steps.clear()

    def _tell(self, event: Event | Closed) -> None:
        for listener in tuple(self._listeners):
            listener.put(event)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Events:
    """What comes, in order, from the moment on when this was made."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | Closed] = asyncio.Queue()

    def put(self, event: Event | Closed) -> None:
        self._queue.put_nowait(event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self._queue.get()
        if not isinstance(event, Closed):
            return event
        self.put(event)  # for whoever asks again
        if event.code == NORMAL:
            raise StopAsyncIteration
        raise event


class _Gone(Exception):
    """The connection was lost before the answer."""


class _Nonsense(Exception):
    """What came can't be read."""


def longest_pause(tries: int) -> float:
    """The most seconds to wait after so many connections in a row that came to nothing."""
    return min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(tries, 30))


connect = Chat
