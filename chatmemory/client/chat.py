"""A client of the protocol `chatmemory.v1`, for tests, scripts and terminals.

    async with connect("http://127.0.0.1:8000/ws/chat/my-session/", cookies=cookies) as chat:
        reply = await chat.ask("Where is my order?")
        print(reply.text)

It uses the packages `websockets` and `httpx` (the extra `client`) and needs no Django.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit, urlunsplit
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

from chatmemory.client.events import (
    Closed,
    Event,
    Frame,
    Lost,
    Message,
    NoReply,
    Piece,
    Progress,
    Refused,
    Reset,
    SessionChanged,
    Synced,
    Turn,
)
from chatmemory.client.http import ApiError
from chatmemory.client.pauses import max_pause
from chatmemory.client.posts import RestPosts
from chatmemory.client.rest import RestClient

logger = logging.getLogger(__name__)

VERSION = 1
SILENCE_SECONDS = 45.0
"""Time without a frame after which the connection counts as lost."""
MAX_AFTER_MS = 10 * 60 * 1000
"""Longest pause that a server can request."""
FIRST_CONNECTION_SECONDS = 30.0
"""How long the first connection is retried; a server may need that long to start."""
FIRST_MAX_RETRY_SECONDS = 2.0
FIRST_RETRY_CODES = frozenset({1001, 1006, 1012, 1013, 502, 503, 504})
"""Close codes, and HTTP statuses of proxies, after which the first connection is retried."""
STATUS_POLL_SECONDS = 5.0
"""How often the client requests the status of a turn that no session frame has named."""
ID_BYTES = 40
"""Bytes of JSON for the id that a request adds to its frame."""
NORMAL_CLOSE = 1000
MAX_FRAME_BYTES = 4 * 1024 * 1024
FATAL_CLOSES = frozenset({1008, 4401, 4403, 4404, 4409, 4426})
"""Close codes after which a new connection would be closed too."""

MAX_UNOPENED = 2
"""How many websockets may close before their first frame until an event stream replaces them."""
LOGIN_STATUSES = frozenset({401, 403, 407})
"""HTTP statuses after which an event stream would be refused too."""
TEMPORARY_STATUSES = frozenset({429, 502, 503, 504})
"""HTTP statuses that do not show that a proxy refuses websockets."""

Transport = Literal["auto", "websocket", "events"]

WRONG_ADDRESS_ERRORS = (socket.gaierror, ssl.SSLError, WebSocketException)
"""Unknown host, invalid certificate, no websocket: a retry would fail too."""
UNREACHABLE_ERRORS = (socket.gaierror, ssl.SSLError, ConnectionRefusedError)
"""After these an event stream would fail too."""


class Chat:
    """A live session that reconnects by itself; `async with` waits for its newest messages.

    `url` is the websocket's, or a function that returns it for each connection. `ticket` returns
    a new ticket for each connection; its OSError counts as a lost connection. `create` creates the
    session if it does not exist; its key must be a version-4 UUID. With the `cursor` of an earlier
    chat the server sends only what changed since. The first connection is retried for
    `first_connection_seconds` while the server may be starting. `options` are passed to
    `websockets.connect`.

    With `rest`, server-sent events and calls of this client replace a websocket that cannot be
    opened, as behind a proxy that refuses it. `transport` forces one of them.
    Raises Closed if the session is not found or the server does not respond.
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
        rest: RestClient | None = None,
        transport: Transport = "auto",
        **options: Any,
    ) -> None:
        if transport not in ("auto", "websocket", "events"):
            raise ValueError("transport must be auto, websocket or events")
        if transport == "events" and rest is None:
            raise ValueError("an event stream needs a RestClient as `rest`")
        self.rows: dict[int, Message] = {}
        """The received messages, by seq."""
        self.session: Frame = {}
        """The newest session frame."""
        self.texts: dict[tuple[str, int], str] = {}
        """The streamed text of running turns, by turn and step."""
        self.limits: Frame = {}
        self.cursor = cursor
        """This client's position in the session."""
        self.is_live = False
        """Whether the connection is open and the rows equal the server's."""
        self._url = url
        self._cookies = dict(cookies or {})
        self._ticket = ticket
        self._headers = dict(headers or {})
        self._create = create
        self._options = options
        self._rest = None if transport == "websocket" else rest
        self._is_forced = transport == "events"
        self.uses_events = self._is_forced
        """Whether the connection is an event stream instead of a websocket."""
        self._unopened = 0
        """The websockets that closed before their first frame, since one had a frame."""
        self._is_welcome = False
        """Whether the server has answered on this connection."""
        self._has_had_socket = False
        self._socket: ClientConnection | RestPosts | None = None
        self._ids = 0
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        # Weak: an iterator that its owner has dropped must not collect events for ever.
        self._listeners: WeakSet[Events] = WeakSet()
        self._changed = asyncio.Condition()
        self._sending = asyncio.Lock()
        self._named_turns: set[str] = set()
        """All turns that a session frame has named."""
        self._stored_steps: set[tuple[str, int]] = set()
        """Turn and step of each row; their streams have ended."""
        self._bye: Frame | None = None
        self._end: Closed | None = None
        self._was_live = False
        self._first_seconds = first_connection_seconds
        self._is_wrong_address = False
        self._is_unreachable = False
        """Whether the last connection found no server, so no proxy has refused it."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._stay_connected())
        try:
            await self._wait_until(lambda: self.is_live)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the socket and do not reconnect. A run continues on the server."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    @property
    def messages(self) -> list[Message]:
        """The rows in order of seq, without superseded ones."""
        superseded = self.session.get("superseded") or []
        return [
            self.rows[seq]
            for seq in sorted(self.rows)
            if not any(first <= seq <= last for first, last in superseded)
        ]

    def events(self) -> Events:
        """Return an iterator over later events; it raises Closed if the server ends the chat."""
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
        """Send a message; return when it is committed. Resends it after a lost connection.

        `fields` are other fields of the frame: `if_busy`, `replaces`, `expect_seq`, `epoch`.
        Raises Refused, Closed.
        """
        client_id = client_id or secrets.token_urlsafe(16)
        body = {"text": text} if content is None else {"content": content}
        options = {name: value for name, value in fields.items() if value is not None}
        # One send at a time: a resend after a lost connection would overtake the next message.
        async with self._sending:
            await self._wait_until(lambda: self.is_live)
            epoch = {"epoch": self.session["epoch"]} if "epoch" in self.session else {}
            frame = {"type": "send", "client_id": client_id, **body, **epoch, **options}
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
        while not self._has_ended(turn):
            with suppress(TimeoutError):
                async with asyncio.timeout(STATUS_POLL_SECONDS):
                    await self._wait_until(lambda: self._has_ended(turn))
            if self.is_live and turn.turn not in self._named_turns and self._seq_of(turn) is None:
                # No frame names a turn that was cancelled before the next session frame. A resend
                # stores nothing: it is a duplicate, and its answer has the turn's status.
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
        """Send a message and wait for the reply."""
        return await self.reply(await self.send(text, **fields))

    async def stop(self, turn: Turn | str | None = None) -> str:
        """End a turn, by default the running one; return its status. Raises Refused, Closed."""
        running = self.session.get("running")
        name = turn.turn if isinstance(turn, Turn) else turn or (running and running["turn"])
        if name is None:
            raise Refused({"code": "unknown_turn", "message": "No turn runs."})
        return str((await self._request({"type": "stop", "turn": name}))["status"])

    async def rename(self, title: str) -> None:
        """Change the session's title, of up to 200 characters. Raises Refused, Closed."""
        await self._request({"type": "rename", "title": title})

    async def feedback(self, turn: Turn | str, value: int | None, reason: str = "") -> None:
        """Rate the reply of an ended turn with 1 (good) or -1 (bad); None withdraws it.

        Raises Refused, Closed.
        """
        name = turn.turn if isinstance(turn, Turn) else turn
        frame = {"type": "feedback", "turn": name, "value": value, "reason": reason}
        await self._request(frame)

    async def fetch(self, before_seq: int | None = None, limit: int = 50) -> list[Message]:
        """Load the newest messages below a seq, by default below the loaded ones."""
        if before_seq is None:
            before_seq = min(self.rows, default=int(self.session.get("last_seq", 0)) + 1)
        answer = await self._request({"type": "fetch", "before_seq": before_seq, "limit": limit})
        messages = [Message(fields) for fields in answer["messages"]]
        for message in messages:
            self._put_row(message)
        return messages

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. Raises Closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._end is not None or condition())
        if self._end is not None and not condition():
            raise self._end

    def _has_ended(self, turn: Turn) -> bool:
        """Whether a session frame shows that the turn ended.

        The server sends a turn's rows before that frame, so `rows` has the reply.
        """
        if not self.session or not self.is_live or turn.turn in self._active_turns():
            return False
        seq = self._seq_of(turn)
        return turn.turn in self._named_turns or (
            seq is not None and self.session["last_seq"] >= seq
        )

    def _active_turns(self) -> set[str]:
        """Return the running and waiting turns."""
        running = self.session.get("running")
        waiting = {turn["turn"] for turn in self.session.get("waiting") or []}
        return waiting | ({running["turn"]} if running else set())

    def _seq_of(self, turn: Turn) -> int | None:
        """Return the seq of the turn's message; None while it waits."""
        own = (row.seq for row in self.rows.values() if row.client_id == turn.turn)
        return turn.seq if turn.seq is not None else next(own, None)

    async def _request(self, frame: Frame) -> Frame:
        """Send a frame until the server answers it; return the `ok` frame.

        Raises Refused, Closed.
        """
        while True:
            await self._wait_until(lambda: self.is_live)
            socket = self._socket
            self._ids += 1
            frame_id = self._ids
            answer = self._answers[frame_id] = asyncio.get_running_loop().create_future()
            try:
                await self._post({**frame, "id": frame_id})
                response: Frame = await answer
            except (ConnectionClosed, _Disconnected):
                # Wait for another socket, not for the loss: the client may be live again already.
                await self._wait_until(lambda: self._socket is not socket)  # noqa: B023  # called here
                continue
            finally:
                self._answers.pop(frame_id, None)
            if response["type"] == "error":
                raise Refused(response)
            return response

    def _check_size(self, frame: Frame) -> None:
        limit = self.limits.get("max_frame_bytes")
        # The server would close the socket, and each resend would be closed too.
        if limit and len(json.dumps(frame).encode()) + ID_BYTES > limit:
            message = "The message is too large."
            raise Refused({"code": "too_large", "message": message, "limit": limit})

    async def _stay_connected(self) -> None:
        """Connect, and reconnect until the server or an error forbids it."""
        failures = 0
        first_deadline = time.monotonic() + self._first_seconds
        end = Closed(1011, "the client failed")
        try:
            while True:
                code, reason = await self._connect_once()
                is_replaced = self._choose_transport(code)
                bye, self._bye = self._bye or {}, None
                code, reason = bye.get("code", code), bye.get("reason", reason)
                failures = 0 if self.is_live else failures + 1
                await self._lose()
                after = min(max(bye.get("after_ms") or 0, 0), MAX_AFTER_MS) / 1000
                pause = max_pause(failures)
                if not self._was_live:
                    pause = min(pause, FIRST_MAX_RETRY_SECONDS)
                # Random, so that the clients of a restarted server do not return all together.
                wait = after + random.uniform(0, pause)  # noqa: S311  # no secret
                is_late = not self._was_live and time.monotonic() + wait > first_deadline
                if is_replaced:
                    wait = 0
                elif is_late or not self._should_reconnect(code, bye):
                    end = Closed(code, reason)
                    return
                self._emit(Lost(code, reason, wait))
                await asyncio.sleep(wait)
        except asyncio.CancelledError:
            end = Closed(NORMAL_CLOSE, "closed by this client")
            raise
        finally:
            self._end = end
            await self._lose()
            self._emit(end)

    def _should_reconnect(self, code: int, bye: Frame) -> bool:
        if "reconnect" in bye:
            return bool(bye["reconnect"])
        if not self._was_live:
            return code in FIRST_RETRY_CODES and not self._is_wrong_address
        is_refused = 400 <= code < 500 and code != 429  # an HTTP status
        return code not in FATAL_CLOSES and not is_refused

    async def _lose(self) -> None:
        """Mark the connection as lost; `_request` resends what has no answer."""
        self.is_live, self._socket = False, None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_Disconnected())
        await self._notify()

    def _choose_transport(self, code: int) -> bool:
        """Choose the next connection's; return whether an event stream replaces the websocket."""
        if self._rest is None or self._is_forced:
            return False
        if self.uses_events:
            # A websocket that has worked may work again; and so may one if the events do not.
            self.uses_events = self._is_welcome and not self._has_had_socket
            return False
        if self._is_welcome:
            self._has_had_socket, self._unopened = True, 0
        elif not (self._is_unreachable or code in LOGIN_STATUSES or code in FATAL_CLOSES):
            is_status = 200 <= code < 600 and code not in TEMPORARY_STATUSES
            self._unopened += MAX_UNOPENED if is_status or self._is_wrong_address else 1
            self.uses_events = self._unopened >= MAX_UNOPENED
        return self.uses_events

    async def _connect_once(self) -> tuple[int, str]:
        """Open a connection and process frames until it closes; return code and reason."""
        self._is_welcome = self._is_unreachable = self._is_wrong_address = False
        return await (self._read_events() if self.uses_events else self._read_socket())

    async def _read_events(self) -> tuple[int, str]:
        assert self._rest is not None  # noqa: S101  # the constructor has checked it
        key = unquote(urlsplit(self._next_url()).path.rstrip("/").rpartition("/")[2])
        posts = RestPosts(self._rest, key, answer=self._process, fail=self._fail)
        try:
            if self._create:
                await self._rest.open_session(key)
            self._begin(posts)
            async with aclosing(self._rest.events(key, cursor=self.cursor)) as frames:
                async for frame in frames:
                    await self._process_checked(frame)
                    if self._bye is not None:
                        break
        except ApiError as error:
            # A response of no API is a proxy's, or that of a host without these addresses.
            return error.status or 1006, error.message
        except (ValueError, RecursionError, _InvalidFrame):  # the first two: no event, or no JSON
            return self._drop_invalid()
        finally:
            await posts.close()
        return 1006, "the event stream has ended"

    async def _read_socket(self) -> tuple[int, str]:
        try:
            url, options = await self._next_address()
            async with open_socket(url, **options) as socket:
                await self._exchange(socket)
        except InvalidStatus as error:
            return error.response.status_code, "the handshake was refused"
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1006, "lost")
        except _InvalidFrame:
            return self._drop_invalid()
        except TimeoutError:
            return 1006, "the server does not respond"
        except (OSError, WebSocketException) as error:
            # A server that starts or stops may close the socket before it answers
            # (InvalidMessage); its address is right.
            self._is_wrong_address = isinstance(error, WRONG_ADDRESS_ERRORS) and not isinstance(
                error, InvalidMessage
            )
            self._is_unreachable = isinstance(error, UNREACHABLE_ERRORS)
            return 1006, str(error) or type(error).__name__
        return 1000, "closed"

    def _drop_invalid(self) -> tuple[int, str]:
        """Drop everything after a frame that cannot be parsed; return code and reason."""
        self._clear_rows()
        self.session, self.cursor = {}, None
        return 1007, "the server sent an invalid frame"

    def _next_url(self) -> str:
        return self._url() if callable(self._url) else self._url

    async def _next_address(self) -> tuple[str, dict[str, Any]]:
        """Return the URL and the options of the next connection."""
        url = self._next_url()
        parts = urlsplit(url)
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        if scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a websocket")
        page = "https" if scheme == "wss" else "http"
        origin: Origin | None = Origin(f"{page}://{parts.netloc.rpartition('@')[2]}")
        protocols = [Subprotocol("chatmemory.v1")]
        if self._ticket is not None:
            # Not in the URL, because servers log URLs.
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
            "ping_interval": None,  # the protocol has its own pings
        }
        address = urlunsplit((scheme, parts.netloc, parts.path, parts.query, ""))
        return address, {**defaults, **self._options}

    def _begin(self, socket: ClientConnection | RestPosts) -> None:
        self._socket = socket
        if self.cursor is None:
            self._clear_rows()  # the newest rows follow; there may be a gap before them

    async def _exchange(self, socket: ClientConnection) -> None:
        self._begin(socket)
        hello: Frame = {"type": "hello", "v": VERSION}
        hello |= {} if self.cursor is None else {"cursor": self.cursor}
        hello |= {"create": True} if self._create else {}
        # A server that refuses the connection sends `bye` and closes. Its frame can still be read.
        with suppress(ConnectionClosed):
            await self._post(hello)
        while self._bye is None:
            async with asyncio.timeout(SILENCE_SECONDS):
                data = await socket.recv()
            try:
                frame = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise _InvalidFrame from error
            await self._process_checked(frame)

    async def _post(self, frame: Frame) -> None:
        match self._socket:
            case RestPosts() as posts:
                posts.send(frame)
            case ClientConnection() as socket:
                await socket.send(json.dumps(frame))

    async def _process_checked(self, frame: Frame) -> None:
        """Process what the server sent. Raises _InvalidFrame."""
        try:
            await self._process(frame)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise _InvalidFrame from error

    async def _process(self, frame: Frame) -> None:
        match frame:
            case {"type": "ping", "n": n}:
                with suppress(ConnectionClosed):
                    await self._post({"type": "pong", "n": n})
                return
            case {"type": "snapshot" | "delta" as kind, "turn": turn, "step": step}:
                self._put_text((turn, step), frame, is_whole=kind == "snapshot")
                return
            case {"type": "welcome"}:
                self._is_welcome = True
                self._create = False  # a reconnect must not create a purged session again
                self.limits = frame.get("limits") or {}
            case {"type": "session"}:
                self._put_session(frame)
            case {"type": "message"}:
                message = Message(frame)
                # A change of a row that is not loaded would leave a gap; `fetch` loads it later.
                if message.seq >= min(self.rows, default=0) and self._put_row(message):
                    self._emit(message)
            case {"type": "reset"}:
                self._clear_rows()
                self.session, self.cursor = {}, None
                self._emit(Reset(frame.get("reason", ""), frame.get("lost", 0)))
            case {"type": "synced", "cursor": cursor}:
                self.cursor, self.is_live, self._was_live = cursor, True, True
                self._emit(Synced(cursor))
            case {"type": "ok" | "error", "id": int(frame_id)}:
                answer = self._answers.get(frame_id)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
            case {"type": "error", "code": code}:
                logger.warning("The server sent the error %s.", code)
            case {
                "type": "bye",
                "code": int(),
                "reason": str(),
                "reconnect": bool(),
                "after_ms": int() | None,
            }:
                self._bye, self._is_welcome = frame, True
        await self._notify()

    def _fail(self, frame_id: object, error: BaseException) -> None:
        """Raise an error where the answer of a frame is awaited."""
        answer = self._answers.get(frame_id) if isinstance(frame_id, int) else None
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def _put_session(self, frame: Frame) -> None:
        """Replace the session, unless the frame is older. Drop what it removed or ended."""
        known = self.session
        # Revisions can be compared only within one epoch: after a restore of the database, an
        # older revision number can be newer.
        if known and known["epoch"] == frame["epoch"] and known["revision"] > frame["revision"]:
            return
        self.session = frame
        for seq in [seq for seq in self.rows if seq < frame["first_seq"]]:
            del self.rows[seq]
        active = self._active_turns()
        self._named_turns |= active
        for key in [key for key in self.texts if key[0] not in active]:
            del self.texts[key]
        self._emit(SessionChanged(frame))

    def _put_row(self, message: Message) -> bool:
        """Add or replace a row; False if the message is outdated or removed."""
        known = self.rows.get(message.seq)
        if known is not None and known.fields["revision"] > message.fields["revision"]:
            return False
        if message.seq < self.session.get("first_seq", 0):
            return False
        self.rows[message.seq] = message
        step = message.fields.get("step")
        if message.turn is not None and step is not None:
            self._stored_steps.add((message.turn, step))
            self.texts.pop((message.turn, step), None)
        return True

    def _put_text(self, place: tuple[str, int], frame: Frame, *, is_whole: bool) -> None:
        """Set or append streamed text, and emit events, unless the message is stored already."""
        # A delta can arrive after the row of its step: they are sent by different paths.
        if place in self._stored_steps:
            return
        if (text := frame.get("text")) is not None:
            self.texts[place] = ("" if is_whole else self.texts.get(place, "")) + text
            self._emit(Piece(*place, text, is_whole))
        if event := frame.get("event"):
            self._emit(Progress(*place, event["kind"], event["name"], event["state"]))

    def _clear_rows(self) -> None:
        self.rows.clear()
        self.texts.clear()
        self._stored_steps.clear()

    def _emit(self, event: Event | Closed) -> None:
        for listener in tuple(self._listeners):
            listener.put(event)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Events:
    """The events of a chat, from the creation of this iterator on."""

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
        self.put(event)  # another iteration ends the same way
        if event.code == NORMAL_CLOSE:
            raise StopAsyncIteration
        raise event


class _Disconnected(Exception):
    """The connection was lost before the answer."""


class _InvalidFrame(Exception):
    """The server sent a frame that cannot be parsed."""


connect = Chat
