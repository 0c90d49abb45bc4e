"""The websocket of a chat: a reader, a handler and a writer, which are three tasks.

The reader processes pongs itself and queues all other frames for the handler, which calls the
services. The handler does not send: it queues its answers and wakes the writer, which sends while
the client has credit (Note [Flow control] in live/credit.py). Other threads call the watcher.

Only the handler and the reads of the feed wait for the database. The reader and the writer wait for
neither of them, so a slow database delays answers but never closes a socket.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from channels.consumer import AsyncConsumer

from chatmemory.consumers.bucket import Bucket
from chatmemory.consumers.database_wait import DatabaseWait
from chatmemory.consumers.handler import Handler
from chatmemory.consumers.inbox import Inbox
from chatmemory.consumers.lifecycle import CLOSE_SECONDS, Lifecycle
from chatmemory.consumers.limits import SocketLimits
from chatmemory.consumers.logins import ticket_of
from chatmemory.consumers.origins import ais_allowed_origin, is_allowed_origin
from chatmemory.consumers.output import Output
from chatmemory.consumers.reader import Reader
from chatmemory.consumers.watcher import Watcher
from chatmemory.consumers.writer import Writer
from chatmemory.database.pool import require_test_data
from chatmemory.live.credit import Credit
from chatmemory.live.drain import drain
from chatmemory.live.runner import runner
from chatmemory.logs import log_error

logger = logging.getLogger(__name__)


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
        client = Client(send, self.limits)
        client.handler.authenticate(scope)
        reader = asyncio.ensure_future(client.reader.read(receive))
        writer = asyncio.ensure_future(client.writer.write())
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and not reader.done():
                await client.writer.close()
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


class Client:
    """One open socket: its tasks, and what other threads know of it."""

    def __init__(
        self, send: Callable[[Mapping[str, Any]], Awaitable[None]], limits: SocketLimits
    ) -> None:
        wake = asyncio.Event()
        """Set when the writer has something to do."""
        credit, inbox = Credit(limits), Inbox()
        output = Output(send, credit, limits.send_seconds)
        database_wait = DatabaseWait(limits.answer_seconds)
        lifecycle = Lifecycle(limits.hello_seconds, wake.set)
        self.watcher = Watcher(lifecycle=lifecycle, wake=wake.set)
        self.handler = Handler(
            database_wait=database_wait,
            inbox=inbox,
            lifecycle=lifecycle,
            limits=limits,
            output=output,
            wake=wake.set,
            watcher=self.watcher,
        )
        self.reader = Reader(
            bucket=Bucket(limits),
            credit=credit,
            handler=self.handler,
            inbox=inbox,
            lifecycle=lifecycle,
            wake=wake.set,
        )
        self.writer = Writer(
            credit=credit,
            database_wait=database_wait,
            lifecycle=lifecycle,
            output=output,
            wake=wake,
            watcher=self.watcher,
        )

    def leave(self) -> None:
        """Unregister the socket and cancel its database work."""
        self.watcher.leave()
        self.writer.cancel_read()
        self.handler.cancel()
