"""The websocket of a chat: a reader, a handler and a writer, which are three tasks.

The reader processes pongs itself and queues all other frames for the handler, which calls the
services. The handler does not send: it queues its answers and wakes the writer, which sends while
the client has credit (Note [Flow control] in credit.py).

Only the handler and the reads of the feed wait for the database. The reader and the writer wait for
neither of them, so a slow database delays answers but never closes a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import signal
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from channels.consumer import AsyncConsumer

from chatmemory import codec, protocol
from chatmemory.conf import settings
from chatmemory.consumers import calls
from chatmemory.consumers.answers import Caller
from chatmemory.consumers.bucket import Bucket
from chatmemory.consumers.connections import connections
from chatmemory.consumers.credit import Credit
from chatmemory.consumers.database_wait import DatabaseWait
from chatmemory.consumers.feed import Feed
from chatmemory.consumers.limits import SocketLimits
from chatmemory.consumers.logins import login_of, ticket_of
from chatmemory.consumers.origins import ais_allowed_origin, is_allowed_origin
from chatmemory.consumers.output import Output
from chatmemory.consumers.source import FrameSource
from chatmemory.database.pool import require_test_data
from chatmemory.database.watched import watched
from chatmemory.errors import (
    BadInput,
    ChatMemoryError,
    MemoryUnavailable,
    NotFound,
    RateLimited,
)
from chatmemory.live.blocks import language_of
from chatmemory.live.drain import drain
from chatmemory.live.hub import hub
from chatmemory.live.runner import runner
from chatmemory.logs import log_error
from chatmemory.models import Change, Session
from chatmemory.protocol import Fetch, Frame, FrameId, Hello, Pong, Request
from chatmemory.services import Login

logger = logging.getLogger(__name__)

MAX_UNANSWERED = 8
"""Frames of a client that may wait for an answer; above this no more are read."""
RETRY_SECONDS = 1.0
"""The average pause before a failed read is repeated."""
CLOSE_SECONDS = 5.0
"""How long a client may take to answer a close."""
MAX_MISTAKES = 3
"""A socket is closed after this number of errors with one of these codes."""
MISTAKE_CODES = frozenset({"bad_frame", "unknown_type", "not_ready"})
CLOSE_CODES = {
    "internal": 1011,
    "unauthenticated": 4401,
    "forbidden": 4403,
    "not_found": 4404,
    "too_many_connections": 4409,
    "unsupported_version": 4426,
    "rate_limited": 4429,
    "rotating": 4503,
    "unavailable": 4503,
    "shutting_down": 4503,
}
FINAL_CODES = frozenset({1009, 4400, 4401, 4403, 4404, 4409, 4426})
"""Close codes after which a client must not reconnect."""
MAX_UNSENT_CHARS = 512 * 1024
"""Characters of unsent answers; above this `fetch` is refused."""
FLOOD_PAUSE_MS = 10_000
"""How long a client that sent too many frames must wait before it reconnects."""
RECONNECT_MS = 1_000
"""Other clients reconnect at a random time within this interval."""


class ChatConsumer(AsyncConsumer):
    """Serves the protocol `chatmemory.v1` to the user, for the session key in the URL."""

    limits = SocketLimits()

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        await receive()  # websocket.connect
        await require_test_data()
        if ticket_of(scope) is None:
            is_allowed = is_allowed_origin(scope)
        else:
            is_allowed = await ais_allowed_origin(scope, may_be_missing=True, may_be_embed=True)
        if not is_allowed:
            await send({"type": "websocket.close"})
            return
        subprotocol = "chatmemory.v1" if "chatmemory.v1" in scope.get("subprotocols", ()) else None
        await send({"type": "websocket.accept", "subprotocol": subprotocol})
        runner.enable()
        drain.watch(signal.SIGTERM)
        client = Client(scope, send, self.limits)
        reader = asyncio.ensure_future(client.read(receive))
        writer = asyncio.ensure_future(client.write())
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and not reader.done():
                await client.close()
                await asyncio.wait({reader}, timeout=CLOSE_SECONDS)
        finally:
            client.leave()
            for task in (reader, writer):
                task.cancel()
            results = await asyncio.gather(reader, writer, return_exceptions=True)
        for result in results:
            # Servers raise OSError when the client has disconnected.
            if isinstance(result, Exception) and not isinstance(result, OSError):
                log_error(logger, "a socket's task failed", error=result)


@dataclass(frozen=True, slots=True)
class Received:
    """A frame that waits for its answer."""

    frame: Request | Exception
    """The frame, or the error for it."""
    id: FrameId | None
    retry_after: float
    """After how many seconds the client may repeat it; 0 within the client's rate."""


class State(Enum):
    """The state of a connection, in the order of its life."""

    AWAITING_HELLO = "awaiting_hello"
    """No `hello` was accepted yet."""
    OPEN = "open"
    CLOSING = "closing"
    """`bye` is set. Frames are ignored; queued answers are sent while credit is left."""
    CLOSED = "closed"


class Client:
    """One open socket."""

    def __init__(
        self,
        scope: Mapping[str, Any],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
        limits: SocketLimits,
    ) -> None:
        self._limits = limits
        self._caller: Caller | None = None
        self._authenticated_at = 0.0
        self.owner = ""
        self._scope = scope
        self._key: str = scope["url_route"]["kwargs"]["key"]
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._inbox: deque[Received] = deque()
        self._has_room = asyncio.Event()
        self._handler: asyncio.Future[None] | None = None
        self._bye = ""
        """The last frame; set from the state CLOSING on."""
        self._close_code = 1011
        self._state = State.AWAITING_HELLO
        self._feed: Feed | None = None
        self._source: FrameSource | None = None
        self._database_wait = DatabaseWait(limits.answer_seconds)
        self._joined_pk: int | None = None
        """The primary key under which the hub knows this socket's session."""
        self._mistakes = 0
        self._bucket = Bucket(limits)
        self._credit = Credit(limits)
        self._output = Output(send, self._credit, limits.send_seconds)
        self._hello_until = math.inf
        """The deadline of `hello`; infinite while none is needed."""
        # Random: clients that connected at the same time must not reconnect at the same time.
        age = settings.CONNECTION_AGE * random.uniform(0.9, 1)  # noqa: S311  # no secret
        self._rotates_at = time.monotonic() + age

    # The methods of `Socket` and `Connection`, which any thread may call.

    def hint(self, change: Change | None = None) -> None:
        self._from_thread(self._show, change)

    def notify_text(self) -> None:
        self._from_thread(self._wake.set)

    def close_unauthorized(self) -> None:
        self._from_thread(self._begin_close, "unauthenticated")

    def close_for_restart(self, reason: str, after_ms: int) -> None:
        self._from_thread(partial(self._begin_close, reason, after_ms=after_ms))

    def close_as_oldest(self) -> None:
        self._from_thread(self._begin_close, "too_many_connections")

    @property
    def _is_closing(self) -> bool:
        return self._state in (State.CLOSING, State.CLOSED)

    def _from_thread(self, function: Callable[..., None], *args: object) -> None:
        # Only the server's loop changes a socket, so it needs no lock. Note [Threads and loops].
        with contextlib.suppress(RuntimeError):  # the server's loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _request_read(self) -> None:
        self._show(None)

    def _show(self, change: Change | None) -> None:
        """Show a change of the session; without one, read it."""
        if self._feed is not None:
            self._feed.receive(change)
        self._wake.set()

    def leave(self) -> None:
        """Unregister the socket and cancel its database work."""
        connections.remove(self)
        self._leave_hub()
        if self._source is not None:
            self._source.close()
        if self._handler is not None:
            self._handler.cancel()

    def _join_hub(self, feed: Feed) -> None:
        """Subscribe to the hints of the feed's session. A restore may change its primary key."""
        if self._joined_pk == feed.place.session_pk:
            return
        self._leave_hub()
        self._joined_pk = feed.place.session_pk
        watched.add(self._joined_pk, *feed.address)
        hub.join(feed.place, self)
        self._request_read()  # for changes between the feed's last read and the subscription

    def _leave_hub(self) -> None:
        if self._joined_pk is not None and self._feed is not None:
            hub.leave(self._joined_pk, self)
            watched.remove(self._joined_pk, *self._feed.address)

    # The task of the reader.

    async def read(self, receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Read frames until the client disconnects."""
        self._hello_until = time.monotonic() + self._limits.hello_seconds
        self._handler = asyncio.ensure_future(self._authenticate())
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                await self._finish()
                return
            if not self._is_closing:
                await self._receive(message.get("text"))
                # `receive` does not suspend this task while frames are queued, so a client that
                # sends many would block the other sockets.
                await asyncio.sleep(0)

    async def _receive(self, text: str | None) -> None:
        """Process a pong; queue any other frame for the handler."""
        retry_after = self._bucket.consume()
        raw: object = None
        try:
            raw = codec.parse_json(_frame_text(text))
            frame: Frame | Exception = protocol.parse(raw)
        except Exception as error:  # the handler reports it, so that answers keep the frames' order
            frame = error
        if isinstance(frame, Pong):
            if self._credit.confirm(frame.n):
                self._bucket.refund()
            self._wake.set()
        else:
            if isinstance(frame, Hello):
                self._hello_until = math.inf  # the handler may wait for the database first
            await self._make_room()
            self._inbox.append(Received(frame, protocol.id_of(raw), retry_after))
            # One handler for a socket, so that answers keep the order of the frames.
            if self._handler is None or self._handler.done():
                self._handler = asyncio.ensure_future(self._handle_all())
        if self._bucket.is_overdrawn:
            self._begin_close("rate_limited", after_ms=FLOOD_PAUSE_MS)

    async def _make_room(self) -> None:
        """Wait until fewer than `MAX_UNANSWERED` frames wait for an answer."""
        if len(self._inbox) < MAX_UNANSWERED:
            return
        with self._credit.paused():
            while len(self._inbox) >= MAX_UNANSWERED:
                self._has_room.clear()
                await self._has_room.wait()
        self._wake.set()  # the writer must compute its deadlines again

    async def _finish(self) -> None:
        """Let the handler finish the frames of a client that disconnected."""
        if self._handler is not None and not self._is_closing:
            await asyncio.wait({self._handler}, timeout=CLOSE_SECONDS)

    # The task of the handler.

    async def _authenticate(self) -> None:
        """Authenticate the user, then handle the queued frames."""
        try:
            login = await login_of(self._scope)
        except ChatMemoryError as error:
            self._refuse_login(error)
        except Exception as error:  # the host's function may raise any error
            log_error(logger, "the login of a socket failed", error=error)
            self._refuse_login(ChatMemoryError())
        else:
            self._caller = Caller(
                login=login, session_key=self._key, answer_seconds=self._limits.answer_seconds
            )
            self._authenticated_at = time.monotonic()
            self.owner = login.actor.owner
            connections.add(self)
            await self._handle_all()

    def _refuse_login(self, error: ChatMemoryError) -> None:
        self._begin_close(error.code, after_ms=_reconnect_ms() if error.retry else None)

    async def _handle_all(self) -> None:
        """Answer the queued frames in the order of their arrival."""
        while self._inbox and not self._is_closing:
            await self._handle(self._inbox[0])
            # Removed after the answer, because `_make_room` counts this frame too.
            if isinstance(self._inbox.popleft().frame, Hello):
                # A refused `hello` must be followed by another one.
                self._hello_until = time.monotonic() + self._limits.hello_seconds
            self._has_room.set()

    async def _handle(self, received: Received) -> None:
        try:
            await self._dispatch(received.frame, received.retry_after)
        except ChatMemoryError as error:
            self._answer_error(error, received.id)
        except Exception as error:
            ref = uuid.uuid4().hex[:12]
            log_error(logger, "a frame failed, ref %s", ref, error=error)
            self._answer(protocol.dump_error(ChatMemoryError(), id=received.id, ref=ref))

    def _answer_error(self, error: ChatMemoryError, frame_id: FrameId | None) -> None:
        self._answer(protocol.dump_error(error, id=frame_id))
        if error.code in ("unsupported_version", "unauthenticated", "forbidden"):
            self._begin_close(error.code)
        elif error.code == "too_large" and frame_id is None:
            self._begin_close(error.code, close_code=1009)
        elif error.code in MISTAKE_CODES:
            self._mistakes += 1
            if self._mistakes >= MAX_MISTAKES:
                self._begin_close(error.code, close_code=4400)

    async def _dispatch(self, frame: Request | Exception, retry_after: float) -> None:
        match frame:
            case Exception():
                raise frame
            case _ if retry_after:
                rate = self._limits.frames_per_second
                message = f"More than {rate:g} frames per second. Wait, then send this frame again."
                raise RateLimited(message, retry_after=retry_after)
            case Hello():
                await self._hello(frame)
            case _ if self._feed is None:
                raise BadInput("The first frame must be hello.", code="not_ready")
            case Fetch() if self._output.unsent_chars > MAX_UNSENT_CHARS:
                message = "Read the answers to earlier frames, then fetch again."
                raise RateLimited(message, retry_after=1)
            case _:
                self._answer(await self.caller.answer(frame, self._feed))

    @property
    def caller(self) -> Caller:
        """The authenticated user."""
        assert self._caller is not None  # noqa: S101  # without a login the socket is closed
        return self._caller

    @property
    def login(self) -> Login:
        return self.caller.login

    async def _hello(self, frame: Hello) -> None:
        if self._feed is not None:
            raise BadInput("hello was already accepted. Send it only once.", code="not_ready")
        if frame.v != protocol.VERSION:
            raise BadInput(
                f"v is {frame.v}; the server supports version {protocol.VERSION}.",
                code="unsupported_version",
            )
        if frame.person is not None and self.owner != f"user:{frame.person}":
            # What the page has not sent yet was written by someone else.
            self._begin_close("unauthenticated")
            return
        try:
            session = await self._open_session(create=frame.create)
        except NotFound:
            self._begin_close("not_found")
            return
        language = None if frame.html is None else language_of(frame.html)
        self._feed = Feed(session, frame.cursor, language)
        self._source = FrameSource(self._feed, self._credit, self._wake.set)
        if not self._is_closing:
            self._state = State.OPEN
        self._join_hub(self._feed)
        limits = {
            "max_message_chars": settings.MAX_MESSAGE_CHARS,
            "max_frame_bytes": protocol.MAX_FRAME_IN,
        }
        about = {"key": session.key, "title": session.title}
        self._answer(protocol.dump("welcome", v=protocol.VERSION, session=about, limits=limits))

    async def _open_session(self, *, create: bool) -> Session:
        """Return the session of this socket's key; retry until the database is available."""
        self._database_wait.begin()
        self._wake.set()  # the writer sends the notice at the deadline
        while True:
            is_fresh = time.monotonic() - self._authenticated_at < self._limits.fresh_seconds
            try:
                session = await calls.aopen(
                    self.login, **self.caller.address, is_fresh=is_fresh, create=create
                )
            except MemoryUnavailable:
                await asyncio.sleep(_retry_seconds())
            else:
                self._database_wait.end()
                return session

    def _answer(self, frame: str) -> None:
        self._output.queue(frame)
        self._wake.set()

    def _begin_close(
        self, reason: str, *, close_code: int | None = None, after_ms: int | None = None
    ) -> None:
        if not self._is_closing:
            self._state = State.CLOSING
            code = close_code or CLOSE_CODES.get(reason, CLOSE_CODES["internal"])
            self._close_code = code
            self._bye = protocol.dump(
                "bye",
                code=code,
                reason=reason,
                reconnect=code not in FINAL_CODES,
                after_ms=after_ms,
            )
            self._wake.set()

    # The task of the writer.

    async def write(self) -> None:
        """Send what is ready, until this side closes the socket."""
        while True:
            # Note [Timeouts]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_deadline()):
                    await self._wake.wait()
            self._wake.clear()  # first: what becomes ready from now on wakes the writer again
            self._check_deadlines()
            try:
                await self._send_all()
            except TimeoutError:
                return  # a client that does not read cannot receive the bye either
            if self._is_closing and not self._output.has_ready_answers:
                await self.close()
                return

    async def close(self) -> None:
        """Send the bye and close the socket. Without a bye, the reason is an internal error."""
        if self._state is State.CLOSED:
            return
        if not self._is_closing:
            self._begin_close("internal")
        self._state = State.CLOSED
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._output.close(self._bye, self._close_code)

    def _seconds_to_deadline(self) -> float:
        until = min(self._credit.next_deadline(), self._rotates_at, self._database_wait.notice_at)
        if self._state is State.AWAITING_HELLO:
            until = min(until, self._hello_until)
        return max(0.01, until - time.monotonic())

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._database_wait.is_notice_due(now):
            self._output.queue(protocol.dump_error(MemoryUnavailable()))
        if self._state is State.AWAITING_HELLO and now >= self._hello_until:
            self._begin_close("no_hello", close_code=4408)
        elif self._credit.is_overdue(now):
            code = 4410 if self._credit.is_spent() else 4408
            self._begin_close("no_pong", close_code=code)
        elif now >= self._rotates_at:
            self._begin_close("rotating", after_ms=_reconnect_ms())

    async def _send_all(self) -> None:
        """Send what is ready. Raises TimeoutError if the client does not read."""
        await self._output.send_answers()
        if not self._is_closing and self._feed is not None and self._source is not None:
            await self._send_feed(self._source)
            if self._feed.is_removed:
                self._begin_close("not_found")
            else:
                self._join_hub(self._feed)
        if not self._is_closing and self._credit.is_ping_due():
            await self._output.send(protocol.dump("ping", n=self._credit.ping()))

    async def _send_feed(self, source: FrameSource) -> None:
        """Send the frames of the feed until it has none or waits for the database."""
        try:
            while (frame := await source.next_ready()) is not None:
                await self._output.send(frame)
                await self._output.send_answers()
        except MemoryUnavailable:
            self._database_wait.begin()
            self._loop.call_later(_retry_seconds(), self._request_read)
        else:
            if source.is_reading:
                self._database_wait.begin()
            else:
                self._database_wait.end()


def _retry_seconds() -> float:
    """Return a random pause, so that the sockets do not repeat their reads simultaneously."""
    return RETRY_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311  # no secret


def _reconnect_ms() -> int:
    return random.randrange(RECONNECT_MS)  # noqa: S311  # no secret


def _frame_text(text: str | None) -> str:
    """Return the text of a frame. Raises BadInput for bytes and above `MAX_FRAME_IN` bytes."""
    if text is None:
        raise BadInput("A frame must be text, not binary.", code="bad_frame")
    limit = protocol.MAX_FRAME_IN
    if len(text) > limit or len(text.encode(errors="surrogatepass")) > limit:
        raise BadInput(f"A frame has at most {limit} bytes.", code="too_large", limit=limit)
    return text
