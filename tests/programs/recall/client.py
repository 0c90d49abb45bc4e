"""A simulated user, who sends a dialogue's texts to servers that are killed meanwhile."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count

from chatmemory.client import Chat, ClientError, Refused
from tests.programs.recall.servers import Servers

TURN_SECONDS = 90.0
"""Maximum duration of a turn, including a kill and a restart of the servers."""
RETRY_SECONDS = 0.2


class SimulatedUser:
    """A user with one session."""

    def __init__(self, number: int, servers: Servers, cookie: str) -> None:
        self.key = str(uuid.uuid4())
        self._servers = servers
        self._server_numbers = count(number)  # each reconnect uses the next server
        self._chat = Chat(self._url, headers={"Cookie": cookie}, create=True, proxy=None)
        self._open = AsyncExitStack()
        self._has_connected = False
        self.interrupted = 0
        """Number of turns that did not complete."""
        self.is_waiting_for_reply = False
        """The server acknowledged a turn, which has not ended."""

    @property
    def is_connected(self) -> bool:
        return self._chat.is_live

    async def send(self, text: str) -> str:
        """Send the text exactly once, across reconnects; return the reply.

        Raises RuntimeError if the server refuses it, or the turn does not end in time.
        """
        client_id = uuid.uuid4().hex
        try:
            async with asyncio.timeout(TURN_SECONDS):
                if not self._has_connected:
                    await self._open.enter_async_context(self._chat)
                    self._has_connected = True
                while True:
                    try:
                        turn = await self._chat.send(text, client_id=client_id)
                        break
                    except Refused as refused:
                        if not refused.retry:
                            raise
                        await asyncio.sleep(RETRY_SECONDS)
                self.is_waiting_for_reply = True
                reply = await self._chat.reply(turn)
        except TimeoutError:
            raise RuntimeError(f"A turn did not end within {TURN_SECONDS:.0f} s.") from None
        except ClientError as error:
            self._servers.check()
            raise RuntimeError(f"The server answered: {error}") from error
        finally:
            self.is_waiting_for_reply = False
        self.interrupted += reply.status != "complete"
        return reply.text

    async def close(self) -> None:
        await self._open.aclose()

    def _url(self) -> str:
        self._servers.check()
        return f"ws://{self._servers.address(next(self._server_numbers))}/ws/chat/{self.key}/"


async def kill_during_replies(
    users: Sequence[SimulatedUser], servers: Servers, *, replies: int
) -> tuple[int, int]:
    """Kill and restart the servers as soon as this number of replies is running.

    Returns the number of open sockets and of running replies at the kill.
    """
    async with asyncio.timeout(TURN_SECONDS):
        while sum(user.is_waiting_for_reply for user in users) < replies:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.005)
    found = sum(user.is_connected for user in users), sum(u.is_waiting_for_reply for u in users)
    servers.kill()
    servers.start()
    return found
