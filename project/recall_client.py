"""A person who says the turns of a dialogue, through servers that die, and asks for them later."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count

from chatmemory.client import Chat, ClientError, Refused
from project.recall_servers import Servers

TURN_SECONDS = 90.0
"""By when a turn must have ended, with a kill in between."""
AGAIN_SECONDS = 0.2


class Talk:
    """One session, seen by its user."""

    def __init__(self, number: int, servers: Servers, cookie: str) -> None:
        self.key = str(uuid.uuid4())
        self._servers = servers
        self._places = count(number)  # a socket that is opened again may meet another server
        self._chat = Chat(self._url, headers={"Cookie": cookie}, create=True, proxy=None)
        self._open = AsyncExitStack()
        self._is_begun = False
        self.interrupted = 0
        """How many of its turns a kill has interrupted."""
        self.is_answering = False
        """A turn is acknowledged, and its reply under way."""

    @property
    def is_open(self) -> bool:
        return self._chat.is_live

    async def say(self, text: str) -> str:
        """Say this once, whatever happens on the way; returns the reply.

        Raises RuntimeError if it is refused or doesn't end in time.
        """
        client_id = uuid.uuid4().hex
        try:
            async with asyncio.timeout(TURN_SECONDS):
                if not self._is_begun:
                    await self._open.enter_async_context(self._chat)
                    self._is_begun = True
                while True:
                    try:
                        turn = await self._chat.send(text, client_id=client_id)
                        break
                    except Refused as refused:
                        if not refused.retry:
                            raise
                        await asyncio.sleep(AGAIN_SECONDS)
                self.is_answering = True
                reply = await self._chat.reply(turn)
        except TimeoutError:
            raise RuntimeError(f"A turn has not ended within {TURN_SECONDS:.0f} s.") from None
        except ClientError as error:
            self._servers.check()
            raise RuntimeError(f"The server says {error}") from error
        finally:
            self.is_answering = False
        self.interrupted += reply.status != "complete"
        return reply.text

    async def close(self) -> None:
        await self._open.aclose()

    def _url(self) -> str:
        self._servers.check()
        return f"ws://{self._servers.address(next(self._places))}/ws/chat/{self.key}/"


async def kill_in_the_middle(
    talks: Sequence[Talk], servers: Servers, *, replies: int
) -> tuple[int, int]:
    """Kill the servers while at least so many replies are under way, and start them again.

    Returns how many sockets were open, and how many replies under way.
    """
    async with asyncio.timeout(TURN_SECONDS):
        while sum(talk.is_answering for talk in talks) < replies:  # noqa: ASYNC110  # told by none
            await asyncio.sleep(0.005)
    found = sum(talk.is_open for talk in talks), sum(talk.is_answering for talk in talks)
    servers.kill()
    servers.start()
    return found
