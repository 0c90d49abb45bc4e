"""The task that reads the frames of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from chatmemory import codec, protocol
from chatmemory.consumers.bucket import Bucket
from chatmemory.consumers.handler import Handler
from chatmemory.consumers.inbox import Inbox, Received
from chatmemory.consumers.lifecycle import Lifecycle
from chatmemory.errors import BadInput
from chatmemory.live.credit import Credit
from chatmemory.protocol import Frame, Hello, Pong

FLOOD_PAUSE_MS = 10_000
"""How long a client that sent too many frames must wait before it reconnects."""


class Reader:
    """Processes pongs, and queues all other frames for the handler."""

    def __init__(
        self,
        *,
        bucket: Bucket,
        credit: Credit,
        handler: Handler,
        inbox: Inbox,
        lifecycle: Lifecycle,
        wake: Callable[[], object],
    ) -> None:
        self._bucket = bucket
        self._credit = credit
        self._handler = handler
        self._inbox = inbox
        self._lifecycle = lifecycle
        self._wake = wake

    async def read(self, receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Read frames until the client disconnects."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                await self._handler.finish()
                return
            if not self._lifecycle.is_closing:
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
            self._wake()
        else:
            if isinstance(frame, Hello):
                self._lifecycle.pause_hello()
            await self._make_room()
            self._inbox.append(Received(frame, protocol.id_of(raw), retry_after))
            self._handler.start()
        if self._bucket.is_overdrawn:
            self._lifecycle.begin_close("rate_limited", after_ms=FLOOD_PAUSE_MS)

    async def _make_room(self) -> None:
        """Wait until the inbox is not full, without the deadlines of pongs."""
        if self._inbox.is_full:
            with self._credit.paused():
                await self._inbox.wait_for_room()
            self._wake()  # the writer must compute its deadlines again


def _frame_text(text: str | None) -> str:
    """Return the text of a frame. Raises BadInput for bytes and above `MAX_FRAME_IN` bytes."""
    if text is None:
        raise BadInput("A frame must be text, not binary.", code="bad_frame")
    limit = protocol.MAX_FRAME_IN
    if len(text) > limit or len(text.encode(errors="surrogatepass")) > limit:
        raise BadInput(f"A frame has at most {limit} bytes.", code="too_large", limit=limit)
    return text
