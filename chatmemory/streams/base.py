"""The base of the views whose answers are streams."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from asgiref.sync import SyncToAsync, sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from chatmemory.access import rates
from chatmemory.access.logins import login_of_session
from chatmemory.access.visits import visit_of_request
from chatmemory.api.authentication import SessionLogin
from chatmemory.api.base import WRITES, View
from chatmemory.api.errors import NotStreamable
from chatmemory.conf import settings
from chatmemory.database.pool import release_connections
from chatmemory.live.drain import drain
from chatmemory.live.runner import runner
from chatmemory.live.texts import SessionRef
from chatmemory.logs import log_error
from chatmemory.services import Login
from chatmemory.streams.turns import Event, Silence, follow
from chatmemory.streams.watching import Stream, StreamClosed, Watch, watches

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/event-stream"
COMMENT = ":\n\n"
"""What clients ignore; it keeps a connection open."""
MAX_PIECE_CHARS = 8 * 1024
"""Longest text that a server is given at a time."""


class Translator(Protocol):
    """Writes the events of a turn in the format of a client."""

    headers: Mapping[str, str]

    def begin(self) -> str: ...

    async def of(self, event: Event) -> str: ...

    def end(self) -> str: ...

    def broken(self, reason: str) -> str:
        """Return what reports an error, of a stream whose connection cannot be broken."""


class EventStreamRenderer(JSONRenderer):
    """Lets clients ask for a stream; errors before it are JSON."""

    media_type = CONTENT_TYPE


class StreamView(View):
    """The base of the views that send messages, or show them as a stream."""

    renderer_classes = (JSONRenderer, EventStreamRenderer)
    http_method_names = ("get", "post")  # a HEAD would hold its connection as long as a stream
    check_write = staticmethod(rates.check_rate)
    schema = None  # type: ignore[assignment]  # its answers are not JSON

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.visitor is not None and request.method in WRITES:
            rates.check_network(self.actor, self.visitor.network)

    def begin(self) -> None:
        """Let this process run turns, and end its streams at a restart. Raises NotStreamable."""
        if not isinstance(self.request._request, ASGIRequest):  # noqa: SLF001  # Django's own request
            raise NotStreamable
        runner.enable()
        drain.watch_from_view(signal.SIGTERM)

    @property
    def login(self) -> Login:
        """The login on which the stream depends, as a socket does."""
        login = self._login
        if settings.GATE is None and settings.IMPERSONATOR is None:
            return login
        request = self.request._request  # noqa: SLF001  # Django's own request
        visit = visit_of_request(request, kind="rest", by=login.actor, user=self.request.user)
        return replace(login, visit=visit, person=self.actor)

    @property
    def _login(self) -> Login:
        if self.visitor is not None:
            return self.visitor
        user: Any = self.request.user  # an account: `initial` has checked it
        if isinstance(self.request.successful_authenticator, SessionLogin):
            session = getattr(self.request, "session", None)
            key = None if session is None else session.session_key
            if key is not None and settings.IMPERSONATOR is not None:
                return login_of_session(key)  # a middleware may have replaced the user
            return Login.of(user, key)
        auth = self.request.auth
        return Login.of(user, credential=None if auth is None else str(auth))

    def turn_stream(
        self, ref: SessionRef, turn: str, translator: Translator
    ) -> StreamingHttpResponse:
        """Return the response that shows a turn up to its end."""
        texts = _turn_texts(self.login, ref, turn, translator)
        return event_stream(texts, translator.headers)


def event_stream(
    texts: AsyncGenerator[str, None], headers: Mapping[str, str] | None = None
) -> StreamingHttpResponse:
    """Return the response that sends these texts as they come."""
    response = EventStreamResponse(_until_closed(texts))
    response["Cache-Control"] = "no-store, no-transform"
    response["X-Accel-Buffering"] = "no"  # of nginx
    # Else Django's GZipMiddleware compresses each piece by itself, despite `no-transform`.
    response["Content-Encoding"] = "identity"
    for name, value in (headers or {}).items():
        response[name] = value
    return response


class EventStreamResponse(StreamingHttpResponse):
    """Ends its texts with its request: Django leaves them to the garbage collector."""

    def __init__(self, texts: AsyncGenerator[str, None]) -> None:
        super().__init__(texts, content_type=CONTENT_TYPE)
        self._texts = texts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._texts):
            async for part in super().__aiter__():
                yield part


async def _until_closed(texts: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """Break the connection of a stream that must not end as if it were complete."""
    try:
        async with aclosing(texts):
            async for text in texts:
                # In pieces, so that a server buffers one of them, not a long message.
                for begin in range(0, len(text), MAX_PIECE_CHARS):
                    yield text[begin : begin + MAX_PIECE_CHARS]
    except StreamClosed as closed:
        # Django ends a request without an error when its client disconnects; then the server finds
        # that the response is not complete, and closes the connection.
        raise asyncio.CancelledError from closed


async def _turn_texts(
    login: Login, ref: SessionRef, turn: str, translator: Translator
) -> AsyncGenerator[str, None]:
    try:
        async with aclosing(_texts_of_turn(login, ref, turn, translator)) as texts:
            async for text in texts:
                yield text
    except StreamClosed as closed:
        if not is_daphne():
            raise
        yield translator.broken(closed.reason)


async def _texts_of_turn(
    login: Login, ref: SessionRef, turn: str, translator: Translator
) -> AsyncGenerator[str, None]:
    async with opened(login, ref) as (watch, stream):
        with stream.sending():
            yield COMMENT + translator.begin()
        async with aclosing(follow(watch, stream, ref, turn)) as events:
            async for event in events:
                text = COMMENT if isinstance(event, Silence) else await translator.of(event)
                if text:
                    with stream.sending():
                        yield text
        with stream.sending():
            yield translator.end()


def is_daphne() -> bool:
    """Whether the server is Daphne: it buffers what a client does not read, without a limit.

    It also leaves the connection of an incomplete response open.
    """
    reactor = sys.modules.get("twisted.internet.reactor")
    return bool(reactor is not None and getattr(reactor, "running", False))


def _end_request_thread() -> None:
    """End the thread that Django keeps for this request; a later call starts another one.

    Otherwise each stream has a thread, which is half of its memory. asgiref has no public name for
    it: if its attributes change, the threads stay.
    """
    context = getattr(SyncToAsync, "thread_sensitive_context", _NO_CONTEXT).get(None)
    executor = getattr(SyncToAsync, "context_to_thread_executor", {}).pop(context, None)
    if executor is not None:
        executor.shutdown(wait=False)


_NO_CONTEXT: ContextVar[None] = ContextVar("chatmemory_no_context")


@asynccontextmanager
async def opened(login: Login, ref: SessionRef) -> AsyncIterator[tuple[Watch, Stream]]:
    """Watch a session while a response is sent. No connection to the database is held meanwhile.

    An unexpected error is logged, and breaks the connection: a stream that ends without its last
    event must not seem complete.
    """
    await sync_to_async(release_connections)()  # of the request's thread
    _end_request_thread()
    with watches.watching(login, ref) as found:
        try:
            yield found
        except StreamClosed as closed:
            logger.info("a stream ends: %s", closed.reason)
            raise
        except Exception as error:
            log_error(logger, "a stream failed", error=error)
            raise StreamClosed("internal") from error
