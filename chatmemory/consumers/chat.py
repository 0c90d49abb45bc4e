"""The socket of a chat: one reader, one handler, one writer.

The reader confirms pongs itself and leaves all other frames to the handler, which calls the
services. The handler never sends: it leaves an answer and wakes the writer, which sends while the
client has credit. So a slow client gets one longer piece of text later, never a growing buffer.

Only the handler and the feed's reads wait for the database, and neither reader nor writer waits for
them. A slow database therefore delays answers, but never closes a socket.
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
from functools import partial
from typing import Any, TypedDict, TypeVar

from channels.consumer import AsyncConsumer

from chatmemory import codec, protocol
from chatmemory.conf import settings
from chatmemory.consumers import acts
from chatmemory.consumers.credit import Credit
from chatmemory.consumers.feed import Feed
from chatmemory.consumers.limits import Bucket, guests
from chatmemory.consumers.logins import login_of, ticket_of
from chatmemory.consumers.origins import is_allowed_origin
from chatmemory.consumers.source import FrameSource
from chatmemory.drain import drain
from chatmemory.errors import (
    BadInput,
    ChatMemoryError,
    MemoryUnavailable,
    NotFound,
    RateLimited,
    Unauthenticated,
)
from chatmemory.hub import hub
from chatmemory.logs import log_error
from chatmemory.models import Session
from chatmemory.protocol import Fetch, Frame, FrameId, Hello, Pong, Send, Stop
from chatmemory.runner import runner
from chatmemory.services import Actor, Login
from chatmemory.services.pool import require_test_data

logger = logging.getLogger(__name__)

T = TypeVar("T")

HELLO_SECONDS = 10.0
SEND_SECONDS = 30.0
"""How long it may take to send one frame. After that the client is not reading."""
ANSWER_SECONDS = 10.0
"""How long the database may take before the client is sent `unavailable`."""
RETRY_SECONDS = 1.0
"""About how long to wait before a failed read is repeated."""
MAX_UNANSWERED = 8
"""Frames that one client may have waiting for an answer before the next is read."""
FRESH_SECONDS = 2.0
"""For how long a `hello` needs no other look at the login than the handshake's. When many come at
once, as after a server's end, that is a third of what they ask the database."""
CLOSE_SECONDS = 5.0
"""How long a client may take to answer a close."""
MISTAKES = 3
MISTAKE_CODES = frozenset({"bad_frame", "unknown_type", "not_ready"})
CLOSES = {
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
MOST_OWED = 512 * 1024
"""Characters of answers that wait for a client to read; it can fetch no more."""
FLOOD_PAUSE_MS = 10_000
"""When a client may come again that was sent away for its many frames."""
RETURN_MS = 1_000
"""Within which sockets that are sent away for a while come again: not all at once."""


class Address(TypedDict):
    """Which session, and for whom."""

    session_key: str
    by: Actor


class ChatConsumer(AsyncConsumer):
    """Speaks `chatmemory.v1` for the signed-in user and the key in the address."""

    # With a channel layer of its own, no socket could connect while Redis is down.
    channel_layer_alias = None

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        await receive()  # websocket.connect
        await require_test_data()
        if not is_allowed_origin(scope, may_be_missing=ticket_of(scope) is not None):
            await send({"type": "websocket.close"})
            return
        spoken = "chatmemory.v1" if "chatmemory.v1" in scope.get("subprotocols", ()) else None
        await send({"type": "websocket.accept", "subprotocol": spoken})
        runner.enable()
        drain.watch(signal.SIGTERM)
        client = Client(scope, send)
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
            # An OSError is a server's way to say that the client is gone.
            if isinstance(result, Exception) and not isinstance(result, OSError):
                log_error(logger, "a socket's task failed", error=result)


@dataclass(frozen=True, slots=True)
class Received:
    """A frame that waits for its answer."""

    frame: Frame | Exception
    """The frame, or what is wrong with it."""
    id: FrameId | None
    early: float
    """By how many seconds it exceeds the client's rate."""


class Slowness:
    """Whether the client has been waiting so long for the database that it must be notified."""

    def __init__(self) -> None:
        self._is_waiting = False
        self.notice_at = math.inf

    def begin(self) -> None:
        """The client waits, perhaps already."""
        if not self._is_waiting:
            self._is_waiting, self.notice_at = True, time.monotonic() + ANSWER_SECONDS

    def end(self) -> None:
        """The database has answered."""
        self._is_waiting, self.notice_at = False, math.inf

    def is_notice_due(self, now: float) -> bool:
        """True once each time that the database is slow: notices must not replace pings."""
        if now < self.notice_at:
            return False
        self.notice_at = math.inf
        return True


class Client:
    """One open socket."""

    def __init__(
        self, scope: Mapping[str, Any], send: Callable[[Mapping[str, Any]], Awaitable[None]]
    ) -> None:
        self._login: Login | None = None
        self._let_in_at = 0.0
        self.user_pk = ""
        self._scope = scope
        self._key: str = scope["url_route"]["kwargs"]["key"]
        self._send_event = send
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._inbox: deque[Received] = deque()
        self._has_room = asyncio.Event()
        self._handler: asyncio.Future[None] | None = None
        self._answers: deque[str] = deque()
        self._bye: str | None = None
        self._close_code = 1011
        self._is_closed = False
        self._feed: Feed | None = None
        self._source: FrameSource | None = None
        self._slowness = Slowness()
        self._followed: int | None = None
        """The primary key under which the hub knows this socket's session."""
        self._mistakes = 0
        self._bucket = Bucket()
        self._credit = Credit()
        self._hello_until = math.inf
        """When a `hello` must have arrived; none is awaited before the reader begins."""
        # Not all at once, where many came at once.
        age = settings.CONNECTION_AGE * random.uniform(0.9, 1)  # noqa: S311  # no secret
        self._rotates_at = time.monotonic() + age

    # What the hub calls, from any thread.

    def poke(self) -> None:
        self._from_thread(self._look)

    def say(self) -> None:
        self._from_thread(self._wake.set)

    def expel(self) -> None:
        self._from_thread(self._say_bye, "unauthenticated")

    def retire(self, reason: str, after_ms: int) -> None:
        self._from_thread(partial(self._say_bye, reason, reconnect=True, after_ms=after_ms))

    def crowd_out(self) -> None:
        self._from_thread(self._say_bye, "too_many_connections")

    def _from_thread(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the server's loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _look(self) -> None:
        if self._feed is not None:
            self._feed.has_news = True
        self._wake.set()

    def leave(self) -> None:
        """The socket is gone."""
        guests.remove(self)
        if self._followed is not None:
            hub.leave(self._followed, self)
        if self._source is not None:
            self._source.close()
        if self._handler is not None:
            self._handler.cancel()

    def _follow(self, feed: Feed) -> None:
        """Get the hints of the feed's session, under the primary key that it has now."""
        if self._followed == feed.place.session_pk:
            return
        if self._followed is not None:
            hub.leave(self._followed, self)
        self._followed = feed.place.session_pk
        hub.join(feed.place, self)
        self._look()

    # The reader.

    async def read(self, receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Take frames until the socket is gone."""
        self._hello_until = time.monotonic() + HELLO_SECONDS
        self._handler = asyncio.ensure_future(self._authenticate())
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                await self._finish()
                return
            if self._bye is None:
                await self._take(message.get("text"))
                await asyncio.sleep(0)  # the next may be here already: others first

    async def _take(self, text: str | None) -> None:
        """Confirm a pong, or leave another frame to the handler."""
        early = self._bucket.take()
        raw: object = None
        try:
            raw = codec.parse_json(_frame_text(text))
            frame: Frame | Exception = protocol.parse(raw)
        except Exception as error:  # the handler answers it in its turn
            frame = error
        if isinstance(frame, Pong):
            if self._credit.confirm(frame.n):
                self._bucket.give_back()
            self._wake.set()
        else:
            if isinstance(frame, Hello):
                self._hello_until = math.inf
            await self._make_room()
            self._inbox.append(Received(frame, protocol.id_of(raw), early))
            if self._handler is None or self._handler.done():
                self._handler = asyncio.ensure_future(self._handle_all())
        if self._bucket.is_overdrawn:
            self._say_bye("rate_limited", reconnect=True, after_ms=FLOOD_PAUSE_MS)

    async def _make_room(self) -> None:
        """Wait until the client has few enough frames without an answer."""
        if len(self._inbox) < MAX_UNANSWERED:
            return
        with self._credit.paused():
            while len(self._inbox) >= MAX_UNANSWERED:
                self._has_room.clear()
                await self._has_room.wait()
        self._wake.set()  # the deadlines count again

    async def _finish(self) -> None:
        """Let the handler finish the frames of a client that is gone."""
        if self._handler is not None and self._bye is None:
            await asyncio.wait({self._handler}, timeout=CLOSE_SECONDS)

    # The handler.

    async def _authenticate(self) -> None:
        """Find out who opened the socket, then handle the frames that have arrived."""
        try:
            login = await login_of(self._scope)
        except ChatMemoryError as error:
            self._reject(error)
        except Exception as error:  # of the host's function too
            log_error(logger, "the login of a socket failed", error=error)
            self._reject(ChatMemoryError())
        else:
            self._login, self._let_in_at = login, time.monotonic()
            self.user_pk = login.actor.id
            guests.add(self)
            await self._handle_all()

    def _reject(self, error: ChatMemoryError) -> None:
        after_ms = _return_ms() if error.retry else None
        self._say_bye(
            error.code, reconnect=not isinstance(error, Unauthenticated), after_ms=after_ms
        )

    async def _handle_all(self) -> None:
        """Answer the frames in the inbox, in the order in which they arrived."""
        while self._inbox and self._bye is None:
            await self._handle(self._inbox[0])
            if isinstance(self._inbox.popleft().frame, Hello):
                self._hello_until = time.monotonic() + HELLO_SECONDS  # if it was refused
            self._has_room.set()

    async def _handle(self, received: Received) -> None:
        try:
            await self._act(received.frame, received.early)
        except ChatMemoryError as error:
            self._refuse(error, received.id)
        except Exception as error:
            ref = uuid.uuid4().hex[:12]
            log_error(logger, "a frame failed, ref %s", ref, error=error)
            self._answer(protocol.dump_error(ChatMemoryError(), id=received.id, ref=ref))

    def _refuse(self, error: ChatMemoryError, frame_id: FrameId | None) -> None:
        self._answer(protocol.dump_error(error, id=frame_id))
        if error.code in ("unsupported_version", "unauthenticated", "forbidden"):
            self._say_bye(error.code)
        elif error.code == "too_large" and frame_id is None:
            self._say_bye(error.code, close_code=1009)
        elif error.code in MISTAKE_CODES:
            self._mistakes += 1
            if self._mistakes >= MISTAKES:
                self._say_bye(error.code, close_code=4400)

    async def _act(self, frame: Frame | Exception, early: float) -> None:
        match frame:
            case Exception():
                raise frame
            case _ if early:
                raise RateLimited("Too many frames in a short time.", retry_after=early)
            case Hello():
                await self._hello(frame)
            case _ if self._feed is None:
                raise BadInput("Say hello first.", code="not_ready")
            case Send():
                await self._admit(frame, self._feed.place.epoch)
            case Stop(id=frame_id, turn=turn):
                status = await _in_time(acts.astop(self.login, **self._address, turn=turn))
                self._answer(protocol.dump("ok", id=frame_id, turn=turn, status=status))
            case Fetch():
                await self._fetch(frame, self._feed)

    @property
    def login(self) -> Login:
        """How the person was authenticated."""
        assert self._login is not None  # noqa: S101  # without one the socket is closed
        return self._login

    @property
    def _address(self) -> Address:
        return {"session_key": self._key, "by": self.login.actor}

    async def _hello(self, frame: Hello) -> None:
        if self._feed is not None:
            raise BadInput("You said hello before.", code="not_ready")
        if frame.v != protocol.VERSION:
            raise BadInput("Only version 1 is spoken here.", code="unsupported_version")
        try:
            session = await self._greet(create=frame.create)
        except NotFound:
            self._say_bye("not_found")
            return
        self._feed = Feed(session, frame.cursor)
        self._source = FrameSource(self._feed, self._credit, self._wake.set)
        self._follow(self._feed)
        limits = {
            "max_message_chars": settings.MAX_MESSAGE_CHARS,
            "max_frame_bytes": protocol.MAX_FRAME_IN,
        }
        about = {"key": session.key, "title": session.title}
        self._answer(protocol.dump("welcome", v=protocol.VERSION, session=about, limits=limits))

    async def _greet(self, *, create: bool) -> Session:
        """Return the session of the address, however long the database takes."""
        self._slowness.begin()
        self._wake.set()
        while True:
            is_fresh = time.monotonic() - self._let_in_at < FRESH_SECONDS
            try:
                session = await acts.agreet(
                    self.login, **self._address, is_fresh=is_fresh, create=create
                )
            except MemoryUnavailable:
                await asyncio.sleep(_retry_seconds())
            else:
                self._slowness.end()
                return session

    async def _admit(self, frame: Send, epoch: int) -> None:
        admitted = await _in_time(
            acts.asend(
                self.login,
                **self._address,
                client_id=frame.client_id,
                content=frame.content,
                epoch=epoch if frame.epoch is None else frame.epoch,
                if_busy=frame.if_busy,
                replaces=frame.replaces,
                expect_seq=frame.expect_seq,
            )
        )
        self._answer(
            protocol.dump(
                "ok",
                id=frame.id,
                turn=admitted.turn,
                status=admitted.status,
                seq=admitted.seq,
                duplicate=admitted.is_duplicate,
            )
        )

    async def _fetch(self, frame: Fetch, feed: Feed) -> None:
        if sum(map(len, self._answers)) > MOST_OWED:
            raise RateLimited("Read what you asked for first.", retry_after=1)
        feed.fetches(frame.before_seq - frame.limit)
        page = await _in_time(
            acts.afetch(self.login, **self._address, before=frame.before_seq, limit=frame.limit)
        )
        messages: deque[dict[str, object]] = deque()
        left = protocol.MAX_FRAME_OUT // 2
        for row in reversed(page.rows):
            fields = row.public()
            size = len(codec.dump_json(fields).encode())
            if size > left and messages:
                break
            messages.appendleft(fields if size <= left else protocol.shortened(fields, left // 8))
            left -= size
        self._answer(protocol.dump("ok", id=frame.id, messages=list(messages)))

    def _answer(self, frame: str) -> None:
        self._answers.append(frame)
        self._wake.set()

    def _say_bye(
        self,
        reason: str,
        *,
        close_code: int | None = None,
        reconnect: bool = False,
        after_ms: int | None = None,
    ) -> None:
        if self._bye is None:
            self._close_code = close_code or CLOSES.get(reason, CLOSES["internal"])
            self._bye = protocol.dump(
                "bye",
                code=self._close_code,
                reason=reason,
                reconnect=reconnect,
                after_ms=after_ms,
            )
            self._wake.set()

    # The writer.

    async def write(self) -> None:
        """Send what there is to send, until the socket is closed from this side."""
        while True:
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets its result.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience()):
                    await self._wake.wait()
            self._wake.clear()
            self._check_deadlines()
            try:
                await self._send_all()
            except TimeoutError:
                return  # the client does not read, so it can't be notified either
            if self._bye is not None and not (self._answers and self._credit.is_left()):
                await self.close()
                return

    async def close(self) -> None:
        """Say why, and close; as an internal error, where nothing else was said."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._bye is None:
                    self._say_bye("internal", reconnect=True)
                await self._send({"type": "websocket.send", "text": self._bye})
                try:
                    await self._send({"type": "websocket.close", "code": self._close_code})
                except OSError:
                    raise
                except Exception:  # of Daphne, which can't say 1009 or 1011; the bye has
                    await self._send({"type": "websocket.close", "code": 1000})

    def _patience(self) -> float:
        until = min(self._credit.next_deadline(), self._rotates_at, self._slowness.notice_at)
        if self._feed is None:
            until = min(until, self._hello_until)
        return max(0.01, until - time.monotonic())

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._slowness.is_notice_due(now):
            self._answers.append(protocol.dump_error(MemoryUnavailable()))
        if self._feed is None and now >= self._hello_until:
            self._say_bye("no_hello", close_code=4408, reconnect=True)
        elif self._credit.is_overdue(now):
            code = 4410 if self._credit.is_spent() else 4408
            self._say_bye("no_pong", close_code=code, reconnect=True)
        elif now >= self._rotates_at:
            self._say_bye("rotating", reconnect=True, after_ms=_return_ms())

    async def _send_all(self) -> None:
        """Send what is ready. Raises TimeoutError if the client does not read."""
        await self._send_answers()
        if self._bye is None and self._feed is not None and self._source is not None:
            await self._send_news(self._source)
            if self._feed.is_gone:
                self._say_bye("not_found")
            else:
                self._follow(self._feed)
        if self._bye is None and self._credit.is_ping_due():
            await self._put(protocol.dump("ping", n=self._credit.ping()))

    async def _send_news(self, source: FrameSource) -> None:
        """Send the feed's frames until it waits for the database."""
        try:
            while (frame := await source.take()) is not None:
                await self._put(frame)
                await self._send_answers()
        except MemoryUnavailable:
            self._slowness.begin()
            self._loop.call_later(_retry_seconds(), self._look)
        else:
            if source.is_waiting:
                self._slowness.begin()
            else:
                self._slowness.end()

    async def _send_answers(self) -> None:
        while self._answers and self._credit.is_left():
            await self._put(self._answers.popleft())

    async def _send(self, event: Mapping[str, Any]) -> None:
        """Hand an event to the server. Raises OSError if the client is gone."""
        try:
            await self._send_event(event)
        except Exception as error:
            if type(error).__name__ == "Disconnected":  # as Daphne's library says it
                raise ConnectionResetError from error
            raise

    async def _put(self, frame: str) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await self._send({"type": "websocket.send", "text": frame})
            if self._credit.spend(len(frame.encode())):
                ping = protocol.dump("ping", n=self._credit.ping())
                await self._send({"type": "websocket.send", "text": ping})


async def _in_time(call: Awaitable[T]) -> T:
    """Wait `ANSWER_SECONDS` for a database call, which continues if it takes longer.

    Raises MemoryUnavailable, and what the call raises.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await call
    except TimeoutError:
        raise MemoryUnavailable from None


def _retry_seconds() -> float:
    """When to repeat a failed read: not all sockets at the same time."""
    return RETRY_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311  # no secret


def _return_ms() -> int:
    return random.randrange(RETURN_MS)  # noqa: S311  # no secret


def _frame_text(text: str | None) -> str:
    """The text of a frame, if it is one and no larger than frames may be."""
    if text is None:
        raise BadInput("Frames are text, not bytes.", code="bad_frame")
    limit = protocol.MAX_FRAME_IN
    if len(text) > limit or len(text.encode(errors="surrogatepass")) > limit:
        raise BadInput("This frame is too large.", code="too_large", limit=limit)
    return text
