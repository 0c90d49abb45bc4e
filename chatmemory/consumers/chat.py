"""The socket of a chat: one reader, one writer.

Handlers never send: they leave an answer and wake the writer, which sends as long as the client
has confirmed what came before. So a slow client gets later one longer piece of text, never a
growing buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from channels.consumer import AsyncConsumer

from chatmemory import codec, protocol, services
from chatmemory.conf import settings
from chatmemory.consumers.credit import PONG_SECONDS, Credit
from chatmemory.consumers.feed import Feed
from chatmemory.consumers.origins import is_allowed_origin
from chatmemory.drain import drain
from chatmemory.errors import BadInput, ChatMemoryError, NotFound
from chatmemory.hub import hub
from chatmemory.models import Session
from chatmemory.protocol import Fetch, Frame, FrameId, Hello, Pong, Send, Stop
from chatmemory.runner import runner
from chatmemory.services import Actor

logger = logging.getLogger(__name__)

HELLO_SECONDS = 10.0
CLOSE_SECONDS = 5.0
"""How long a client may take to answer a close."""
MISTAKES = 3
MISTAKE_CODES = frozenset({"bad_frame", "unknown_type", "not_ready"})
CLOSES = {
    "unauthenticated": 4401,
    "not_found": 4404,
    "unsupported_version": 4426,
    "shutting_down": 4503,
}


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
        if not is_allowed_origin(scope):
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
                logger.error("a socket's task failed", exc_info=result)


class Client:
    """One open socket."""

    def __init__(
        self, scope: Mapping[str, Any], send: Callable[[Mapping[str, Any]], Awaitable[None]]
    ) -> None:
        user = scope.get("user")
        self._actor = Actor.user(user) if user is not None and user.is_authenticated else None
        login = scope.get("session")
        self.user_pk = self._actor.id if self._actor else ""
        self.login_key: str | None = login.session_key if login is not None else None
        self._key: str = scope["url_route"]["kwargs"]["key"]
        self._send_event = send
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._answers: deque[str] = deque()
        self._bye: str | None = None
        self._close_code = 1011
        self._is_closed = False
        self._feed: Feed | None = None
        self._mistakes = 0
        self._credit = Credit()
        self._hello_until = time.monotonic() + HELLO_SECONDS
        if self._actor is None:
            self._say_bye("unauthenticated", reconnect=False)

    # What the hub calls, from any thread.

    def poke(self) -> None:
        self._from_thread(self._look)

    def say(self) -> None:
        self._from_thread(self._wake.set)

    def expel(self) -> None:
        self._from_thread(self._say_bye, "unauthenticated")

    def retire(self, reason: str, after_ms: int) -> None:
        self._from_thread(partial(self._say_bye, reason, reconnect=True, after_ms=after_ms))

    def _from_thread(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the server's loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _look(self) -> None:
        if self._feed is not None:
            self._feed.has_news = True
        self._wake.set()

    def leave(self) -> None:
        """Tell the hub that the socket is gone."""
        if self._feed is not None:
            hub.leave(self._feed.session_pk, self)

    # The reader.

    async def read(self, receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Take frames until the socket is gone."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            if self._bye is None:
                await self._take(message.get("text"))

    async def _take(self, text: str | None) -> None:
        frame: object = None
        try:
            frame = codec.parse_json(_frame_text(text))
            await self._handle(protocol.parse(frame))
        except ChatMemoryError as error:
            self._refuse(error, protocol.id_of(frame))
        except Exception:
            ref = uuid.uuid4().hex[:12]
            logger.exception("a frame failed, ref %s", ref)
            self._answer(protocol.dump_error(ChatMemoryError(), id=protocol.id_of(frame), ref=ref))

    def _refuse(self, error: ChatMemoryError, frame_id: FrameId | None) -> None:
        self._answer(protocol.dump_error(error, id=frame_id))
        if error.code == "unsupported_version":
            self._say_bye(error.code, reconnect=False)
        elif error.code == "too_large" and frame_id is None:
            self._say_bye(error.code, close_code=1009, reconnect=False)
        elif error.code in MISTAKE_CODES:
            self._mistakes += 1
            if self._mistakes >= MISTAKES:
                self._say_bye(error.code, close_code=4400, reconnect=False)

    async def _handle(self, frame: Frame) -> None:
        match frame:
            case Pong(n=n):
                self._credit.confirm(n)
                self._wake.set()
            case Hello():
                await self._hello(frame)
            case _ if self._feed is None:
                raise BadInput("Say hello first.", code="not_ready")
            case Send():
                await self._admit(frame, self._feed.epoch)
            case Stop(id=frame_id, turn=turn):
                status = await services.astop_turn(session_key=self._key, turn=turn, by=self._by)
                self._answer(protocol.dump("ok", id=frame_id, turn=turn, status=status))
            case Fetch():
                await self._fetch(frame)

    @property
    def _by(self) -> Actor:
        assert self._actor is not None  # noqa: S101  # without one the socket says bye at once
        return self._actor

    async def _hello(self, frame: Hello) -> None:
        if self._feed is not None:
            raise BadInput("You said hello before.", code="not_ready")
        if frame.v != protocol.VERSION:
            raise BadInput("Only version 1 is spoken here.", code="unsupported_version")
        try:
            session = await self._session(create=frame.create)
        except NotFound:
            self._say_bye("not_found", reconnect=False)
            return
        self._feed = Feed(session, frame.cursor)
        hub.join(session.pk, self)
        limits = {
            "max_message_chars": settings.MAX_MESSAGE_CHARS,
            "max_frame_bytes": protocol.MAX_FRAME_IN,
        }
        about = {"key": session.key, "title": session.title}
        self._answer(protocol.dump("welcome", v=protocol.VERSION, session=about, limits=limits))

    async def _session(self, *, create: bool) -> Session:
        """The session of the address. Unknown, another's, and no key at all are alike."""
        key = codec.key_of_address(self._key)
        try:
            return await services.aget_session(session_key=key, by=self._by)
        except NotFound:
            if not create or not codec.is_new_key(key):
                raise
        return await services.aopen_session(session_key=key, by=self._by)

    async def _admit(self, frame: Send, epoch: int) -> None:
        await services.acheck_rate(self._by)
        admitted = await services.aadmit_turn(
            session_key=self._key,
            client_id=frame.client_id,
            content=frame.content,
            by=self._by,
            epoch=epoch if frame.epoch is None else frame.epoch,
            owner=runner.owner,
            if_busy=frame.if_busy,
            replaces=frame.replaces,
            expect_seq=frame.expect_seq,
        )
        if admitted.claim is not None:
            runner.launch(admitted.claim)
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

    async def _fetch(self, frame: Fetch) -> None:
        page = await services.aread_page(
            session_key=self._key, by=self._by, before=frame.before_seq, limit=frame.limit
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
            self._close_code = close_code or CLOSES[reason]
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
                async with asyncio.timeout(PONG_SECONDS):
                    await self._send_all()
            except TimeoutError:
                return  # a client that doesn't read: the server can't even tell it so
            except ChatMemoryError as error:
                self._answers.append(protocol.dump_error(error))
                await asyncio.sleep(1)
                self._look()
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
                    self._say_bye("internal", close_code=1011, reconnect=True)
                await self._send({"type": "websocket.send", "text": self._bye})
                try:
                    await self._send({"type": "websocket.close", "code": self._close_code})
                except OSError:
                    raise
                except Exception:  # of Daphne, which can't say 1009 or 1011; the bye has
                    await self._send({"type": "websocket.close", "code": 1000})

    def _patience(self) -> float:
        until = self._credit.next_deadline()
        if self._feed is None:
            until = min(until, self._hello_until)
        return max(0.01, until - time.monotonic())

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._feed is None and now >= self._hello_until:
            self._say_bye("no_hello", close_code=4408, reconnect=True)
        elif self._credit.is_overdue(now):
            code = 4410 if self._credit.is_spent() else 4408
            self._say_bye("no_pong", close_code=code, reconnect=True)

    async def _send_all(self) -> None:
        while self._answers and self._credit.is_left():
            await self._put(self._answers.popleft())
        if self._bye is None and self._feed is not None:
            async for frame in self._feed.frames(self._credit):
                await self._put(frame)
                while self._answers and self._credit.is_left():
                    await self._put(self._answers.popleft())
            if self._feed.is_gone:
                self._say_bye("not_found", reconnect=False)
        if self._bye is None and self._credit.is_ping_due():
            await self._put(protocol.dump("ping", n=self._credit.ping()))

    async def _send(self, event: Mapping[str, Any]) -> None:
        """Hand an event to the server. Raises OSError if the client is gone."""
        try:
            await self._send_event(event)
        except Exception as error:
            if type(error).__name__ == "Disconnected":  # as Daphne's library says it
                raise ConnectionResetError from error
            raise

    async def _put(self, frame: str) -> None:
        await self._send({"type": "websocket.send", "text": frame})
        if self._credit.spend(len(frame.encode())):
            ping = protocol.dump("ping", n=self._credit.ping())
            await self._send({"type": "websocket.send", "text": ping})


def _frame_text(text: str | None) -> str:
    """The text of a frame, if it is one and no larger than frames may be."""
    if text is None:
        raise BadInput("Frames are text, not bytes.", code="bad_frame")
    limit = protocol.MAX_FRAME_IN
    if len(text) > limit or len(text.encode(errors="surrogatepass")) > limit:
        raise BadInput("This frame is too large.", code="too_large", limit=limit)
    return text
