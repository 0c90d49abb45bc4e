"""The frames of a session's websocket as server-sent events, for clients without websockets.

Each event is one frame, in JSON. The id of an event is the cursor of a `synced` frame, so a client
that reconnects with `Last-Event-ID`, as browsers do by themselves, gets what it has missed.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from chatmemory import protocol, services
from chatmemory.consumers.handler import welcome_frame
from chatmemory.consumers.lifecycle import CLOSE_CODES, FINAL_CODES
from chatmemory.errors import MemoryUnavailable
from chatmemory.live.blocks import language_of
from chatmemory.live.credit import Credit, CreditLimits
from chatmemory.live.feed import PAGE_ROWS, Feed
from chatmemory.models import Session
from chatmemory.protocol import Cursor
from chatmemory.protocol.shapes import Shape
from chatmemory.services import Login
from chatmemory.services.audit.readings import record_reading
from chatmemory.services.catch_up import NextRows, next_rows
from chatmemory.streams.base import COMMENT, StreamView, event_stream, is_daphne, opened
from chatmemory.streams.sending import key_of_url
from chatmemory.streams.turns import RETRY_SECONDS
from chatmemory.streams.watching import Stream, StreamClosed, Watch

MAX_CHARS_ON_DAPHNE = 512 * 1024
"""After these characters a stream of Daphne ends, which keeps what a client does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """What a client has, and wants."""

    cursor: str | None = None
    """`cursor` of a `synced` frame; a `Last-Event-ID` replaces it"""
    html: str | None = None
    """a language tag: also send finished parts of a reply as HTML, in `block` frames"""


EVENT_QUERY = Shape(EventQuery)


class Events(StreamView):
    """Streams the frames of a session."""

    def get(self, request: Request, chat: str) -> HttpResponseBase:
        self.begin()
        query = self.query(EVENT_QUERY)
        session = services.get_session(session_key=key_of_url(chat, self.actor), by=self.actor)
        if self.actor.real is not None:
            record_reading(session=session, by=self.actor.real)
        cursor = request.headers.get("Last-Event-ID", query.cursor)
        language = None if query.html is None else language_of(query.html)
        return event_stream(_event_texts(self.login, session, cursor, language))


class SharingFeed(Feed):
    """A feed that shares its reads with the other streams of the session."""

    is_shared = True
    watch: Watch
    news = 0
    """The number of the last notification before its reads: Note [News] in reads.py."""

    async def read_rows(
        self, cursor: Cursor | str | None, row_digests: Mapping[int, str]
    ) -> NextRows:
        read = partial(
            next_rows, *self.address, cursor, limit=PAGE_ROWS, row_digests=dict(row_digests)
        )
        key = (str(cursor), *row_digests.items())
        return await self.watch.reads.read(key, self.news, read)


async def _event_texts(
    login: Login, session: Session, cursor: str | None, language: str | None
) -> AsyncGenerator[str, None]:
    feed = SharingFeed(session, cursor, language)
    ref = feed.ref
    try:
        async with opened(login, ref) as (watch, stream):
            feed.watch = watch
            yield COMMENT
            for text in _event(welcome_frame(session)):
                yield text
            left = MAX_CHARS_ON_DAPHNE if is_daphne() else math.inf
            while left > 0 and not feed.is_removed and feed.ref.session_pk == ref.session_pk:
                async for text in _news(feed, watch, stream):
                    with stream.sending():
                        yield text
                    left -= len(text)
    except StreamClosed as closed:
        if closed.reason == "internal":
            raise
        yield _bye(closed.reason, closed.after_ms)
    else:
        yield _bye("not_found" if feed.is_removed else "rotating")


async def _news(feed: SharingFeed, watch: Watch, stream: Stream) -> AsyncIterator[str]:
    """Yield the frames that are due, then wait for news."""
    stream.check()
    if watch.news > feed.news:
        feed.news = watch.news
        feed.receive(None)
    try:
        # Credit that is never spent: the server waits until the client has read.
        async for frame in feed.frames(Credit(CreditLimits())):
            for text in _event(frame):
                yield text
    except MemoryUnavailable:
        feed.receive(None)
        await stream.pause(RETRY_SECONDS)
        yield COMMENT
        return
    if not feed.is_removed and not await stream.wait():
        yield COMMENT


def _event(frame: str) -> Iterator[str]:
    """Yield the parts of an event. The frame itself, which streams share, is not copied."""
    if frame.startswith('{"type":"synced"'):
        yield f"id: {json.loads(frame)['cursor']}\n"
    yield "data: "
    yield frame
    yield "\n\n"


def _bye(reason: str, after_ms: int | None = None) -> str:
    code = CLOSE_CODES.get(reason, CLOSE_CODES["internal"])
    frame = protocol.dump(
        "bye", code=code, reason=reason, reconnect=code not in FINAL_CODES, after_ms=after_ms
    )
    pause = "" if after_ms is None else f"retry: {after_ms}\n"
    return f"{pause}data: {frame}\n\n"
