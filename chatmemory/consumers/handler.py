"""The task that answers the frames of a client."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from chatmemory import protocol
from chatmemory.conf import settings
from chatmemory.consumers.answers import Caller
from chatmemory.consumers.database_wait import DatabaseWait, retry_seconds
from chatmemory.consumers.inbox import Inbox, Received
from chatmemory.consumers.lifecycle import CLOSE_SECONDS, Lifecycle
from chatmemory.consumers.limits import SocketLimits
from chatmemory.consumers.logins import login_of
from chatmemory.consumers.output import Output
from chatmemory.consumers.watcher import Watcher
from chatmemory.errors import (
    BadInput,
    ChatMemoryError,
    MemoryUnavailable,
    NotFound,
    RateLimited,
    Refused,
)
from chatmemory.live.blocks import language_of
from chatmemory.live.feed import Feed
from chatmemory.logs import log_error
from chatmemory.models import Session
from chatmemory.protocol import Fetch, FrameId, Hello, Request

logger = logging.getLogger(__name__)

MAX_MISTAKES = 3
"""A socket is closed after this number of errors with one of these codes."""
MISTAKE_CODES = frozenset({"bad_frame", "unknown_type", "not_ready"})
FINAL_ERRORS = frozenset({"unsupported_version", "unauthenticated", "other_person", "forbidden"})
"""A socket is closed after an error with one of these codes."""
MAX_UNSENT_CHARS = 512 * 1024
"""Characters of unsent answers; above this `fetch` is refused."""


class Handler:
    """Authenticates the user, and answers the frames in the inbox in the order of their arrival."""

    def __init__(
        self,
        *,
        database_wait: DatabaseWait,
        inbox: Inbox,
        lifecycle: Lifecycle,
        limits: SocketLimits,
        output: Output,
        wake: Callable[[], object],
        watcher: Watcher,
    ) -> None:
        self._database_wait = database_wait
        self._inbox = inbox
        self._lifecycle = lifecycle
        self._limits = limits
        self._output = output
        self._wake = wake
        self._watcher = watcher
        self._caller: Caller | None = None
        self._mistakes = 0
        self._task: asyncio.Future[None] | None = None

    def authenticate(self, scope: Mapping[str, Any]) -> None:
        """Start the task, which authenticates the user before it answers frames."""
        self._lifecycle.await_hello()
        self._task = asyncio.ensure_future(self._authenticate(scope))

    def start(self) -> None:
        """Start the task, unless it runs: one for a socket, so that answers keep their order."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._handle_all())

    async def finish(self) -> None:
        """Wait for the answers to the frames of a client that disconnected."""
        if self._task is not None and not self._lifecycle.is_closing:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _authenticate(self, scope: Mapping[str, Any]) -> None:
        """Authenticate the user, then handle the queued frames."""
        try:
            login = await login_of(scope)
        except ChatMemoryError as error:
            self._lifecycle.begin_close_for(error)
        except Exception as error:  # the host's function may raise any error
            log_error(logger, "the login of a socket failed", error=error)
            self._lifecycle.begin_close_for(ChatMemoryError())
        else:
            self._caller = Caller(
                login=login,
                session_key=scope["url_route"]["kwargs"]["key"],
                answer_seconds=self._limits.answer_seconds,
            )
            self._watcher.connect(login)
            await self._handle_all()

    async def _handle_all(self) -> None:
        """Answer the queued frames in the order of their arrival."""
        while not self._lifecycle.is_closing and (received := self._inbox.first()) is not None:
            await self._handle(received)
            if isinstance(received.frame, Hello):
                self._lifecycle.await_hello()  # a refused `hello` must be followed by another one
            self._inbox.remove_first()  # after the answer: the reader counts this frame too

    async def _handle(self, received: Received) -> None:
        try:
            await self._dispatch_frame(received.frame, received.retry_after)
        except ChatMemoryError as error:
            self._answer_error(error, received.id)
        except Exception as error:
            ref = uuid.uuid4().hex[:12]
            log_error(logger, "a frame failed, ref %s", ref, error=error)
            self._queue_answer(protocol.dump_error(ChatMemoryError(), id=received.id, ref=ref))

    def _answer_error(self, error: ChatMemoryError, frame_id: FrameId | None) -> None:
        self._queue_answer(protocol.dump_error(error, id=frame_id))
        if error.code in FINAL_ERRORS:
            self._lifecycle.begin_close(error.code)
        elif isinstance(error, Refused) and error.is_final:
            self._lifecycle.begin_close_for(error)
        elif error.code == "too_large" and frame_id is None:
            self._lifecycle.begin_close(error.code, close_code=1009)
        elif error.code in MISTAKE_CODES:
            self._mistakes += 1
            if self._mistakes >= MAX_MISTAKES:
                self._lifecycle.begin_close(error.code, close_code=4400)

    async def _dispatch_frame(self, frame: Request | Exception, retry_after: float) -> None:
        feed = self._watcher.feed
        match frame:
            case Exception():
                raise frame
            case _ if retry_after:
                rate = self._limits.frames_per_second
                message = f"More than {rate:g} frames per second. Wait, then send this frame again."
                raise RateLimited(message, retry_after=retry_after)
            case Hello():
                await self._hello(frame)
            case _ if feed is None:
                raise BadInput("The first frame must be hello.", code="not_ready")
            case Fetch() if self._output.unsent_chars > MAX_UNSENT_CHARS:
                message = "Read the answers to earlier frames, then fetch again."
                raise RateLimited(message, retry_after=1)
            case _:
                self._queue_answer(await self._authenticated.answer(frame, feed))

    @property
    def _authenticated(self) -> Caller:
        """The authenticated user."""
        assert self._caller is not None  # noqa: S101  # without a login the socket is closed
        return self._caller

    async def _hello(self, frame: Hello) -> None:
        if self._watcher.feed is not None:
            raise BadInput("hello was already accepted. Send it only once.", code="not_ready")
        if frame.v != protocol.VERSION:
            raise BadInput(
                f"v is {frame.v}; the server supports version {protocol.VERSION}.",
                code="unsupported_version",
            )
        if frame.person is not None and self._watcher.login.by.owner != f"user:{frame.person}":
            # What the page has not sent yet was written by someone else.
            self._lifecycle.begin_close("other_person")
            return
        try:
            session = await self._open_session(create=frame.create)
        except NotFound:
            self._lifecycle.begin_close("not_found")
            return
        language = None if frame.html is None else language_of(frame.html)
        self._lifecycle.accept_hello()
        self._watcher.follow(Feed(session, frame.cursor, language))
        self._queue_answer(welcome_frame(session))

    async def _open_session(self, *, create: bool) -> Session:
        """Return the session of this socket's key; retry until the database is available."""
        self._database_wait.begin()
        self._wake()  # the writer sends the notice at the deadline
        while True:
            try:
                session = await self._authenticated.open_session(
                    create=create, fresh_seconds=self._limits.fresh_seconds
                )
            except MemoryUnavailable:
                await asyncio.sleep(retry_seconds())
            else:
                self._database_wait.end()
                return session

    def _queue_answer(self, frame: str) -> None:
        self._output.queue(frame)
        self._wake()


def welcome_frame(session: Session) -> str:
    """Return the frame that precedes all others of a session."""
    limits = {
        "max_message_chars": settings.MAX_MESSAGE_CHARS,
        "max_frame_bytes": protocol.MAX_FRAME_IN,
    }
    about = {"key": session.key, "title": session.title}
    return protocol.dump("welcome", v=protocol.VERSION, session=about, limits=limits)
