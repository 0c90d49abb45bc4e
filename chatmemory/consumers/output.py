"""The frames to a client: its queued answers, and what is sent while credit is left."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from chatmemory import protocol
from chatmemory.live.credit import Credit


class Output:
    """Sends frames and pings, and queues answers. Only one task at a time sends."""

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
        credit: Credit,
        send_seconds: float,
    ) -> None:
        self._asgi_send = send
        self._credit = credit
        self._send_seconds = send_seconds
        self._answers: deque[str] = deque()

    def queue(self, answer: str) -> None:
        """Send an answer when credit is left, before the frames of the feed."""
        self._answers.append(answer)

    @property
    def unsent_chars(self) -> int:
        """The length of the queued answers."""
        return sum(map(len, self._answers))

    @property
    def has_ready_answers(self) -> bool:
        """Whether an answer can be sent now."""
        return bool(self._answers) and self._credit.is_left()

    async def send_answers(self) -> None:
        """Send answers while credit is left. Raises TimeoutError, OSError."""
        while self.has_ready_answers:
            await self.send(self._answers.popleft())

    async def send(self, frame: str) -> None:
        """Send a frame, and a ping after it if one is due. Raises TimeoutError, OSError."""
        async with asyncio.timeout(self._send_seconds):
            await self._send_event({"type": "websocket.send", "text": frame})
            if self._credit.spend(len(frame.encode())):
                ping = protocol.dump("ping", n=self._credit.ping())
                await self._send_event({"type": "websocket.send", "text": ping})

    async def close(self, bye: str, code: int) -> None:
        """Send the last frame, also without credit, and close the socket. Raises OSError."""
        await self._send_event({"type": "websocket.send", "text": bye})
        try:
            await self._send_event({"type": "websocket.close", "code": code})
        except OSError:
            raise
        except Exception:  # Daphne rejects the codes 1009 and 1011; the bye contains them
            await self._send_event({"type": "websocket.close", "code": 1000})

    async def _send_event(self, event: Mapping[str, Any]) -> None:
        """Send an event to the server. Raises OSError if the client has disconnected."""
        try:
            await self._asgi_send(event)
        except Exception as error:
            if type(error).__name__ == "Disconnected":  # autobahn's, in Daphne
                raise ConnectionResetError from error
            raise
