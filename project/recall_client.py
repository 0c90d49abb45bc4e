"""A person who says the turns of a dialogue, through servers that die, and asks for them later."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Origin, Subprotocol

from project.recall_servers import Servers

TURN_SECONDS = 90.0
"""By when a turn must have ended, with a kill in between."""
AGAIN_SECONDS = 0.2


class Lost(Exception):
    """The socket is gone, or the turn can't begin yet; it is tried again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """How a turn ended."""

    text: str
    status: str


class Talk:
    """One session, seen by its user."""

    def __init__(self, number: int, servers: Servers, cookie: str) -> None:
        self.key = str(uuid.uuid4())
        self._servers = servers
        self._cookie = cookie
        self._places = count(number)  # a socket that is opened again may meet another server
        self._ids = count(1)
        self._socket: ClientConnection | None = None
        self._replies: dict[str, Reply] = {}
        self.interrupted = 0
        """How many of its turns a kill has interrupted."""
        self.is_answering = False
        """A turn is acknowledged, and its reply under way."""

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    async def say(self, text: str) -> str:
        """Say this once, whatever happens on the way; returns the reply.

        Raises RuntimeError if it is refused or doesn't end in time.
        """
        client_id = uuid.uuid4().hex
        try:
            async with asyncio.timeout(TURN_SECONDS):
                while True:
                    try:
                        reply = await self._turn(client_id, text)
                        break
                    except Lost:
                        self._servers.check()
                        await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError:
            raise RuntimeError(f"A turn has not ended within {TURN_SECONDS:.0f} s.") from None
        self.interrupted += reply.status != "complete"
        return reply.text

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _turn(self, client_id: str, text: str) -> Reply:
        try:
            socket = self._socket = self._socket or await self._connect()
            return await self._exchange(socket, client_id, text)
        except (OSError, TimeoutError, WebSocketException) as error:
            await self._leave()
            raise Lost from error
        finally:
            self.is_answering = False

    async def _leave(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(ConnectionClosed):
                await socket.close()

    async def _connect(self) -> ClientConnection:
        address = self._servers.address(next(self._places))
        socket = await connect(
            f"ws://{address}/ws/chat/{self.key}/",
            origin=Origin(f"http://{address}"),
            subprotocols=[Subprotocol("chatmemory.v1")],
            additional_headers={"Cookie": self._cookie},
            proxy=None,
        )
        await socket.send(json.dumps({"type": "hello", "v": 1, "create": True}))
        return socket

    async def _exchange(self, socket: ClientConnection, client_id: str, text: str) -> Reply:
        frame_id = next(self._ids)
        frame = {"type": "send", "id": frame_id, "client_id": client_id, "text": text}
        await socket.send(json.dumps(frame))
        is_acknowledged = False
        while True:
            if is_acknowledged and client_id in self._replies:
                return self._replies.pop(client_id)
            match json.loads(await socket.recv()):
                case {"type": "ok", "id": id_} if id_ == frame_id:
                    is_acknowledged = self.is_answering = True
                case {
                    "type": "message",
                    "role": "assistant",
                    "turn": str(turn),
                    "text": str(reply),
                    "status": str(status),
                }:
                    self._replies[turn] = Reply(reply, status)
                case {"type": "ping", "n": n}:
                    await socket.send(json.dumps({"type": "pong", "n": n}))
                case {"type": "error", "code": code, "retry": is_worth_it, **about}:
                    if not is_worth_it:
                        raise RuntimeError(f"The server answers {code}: {about.get('message')}")
                    raise Lost(code)
                case {"type": "bye", "reason": reason, "reconnect": False}:
                    raise RuntimeError(f"The server says bye: {reason}")


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
