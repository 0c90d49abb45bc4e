"""A way through TCP that can be cut and stalled, and one to PostgreSQL that cuts commits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

CHUNK = 65_536
APPEND = (b"WITH bounded AS",)
"""How a statement begins that is a transaction by itself."""
END_OF_BLOCK = (b"COMMIT\0",)


class Link:
    """One connection, and both its ends."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.is_mute = False
        """What the server says is not passed on; its next word ends the link."""

    async def run(self) -> None:
        there = asyncio.ensure_future(self.forward())
        back = asyncio.ensure_future(self.backward())
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for task in (there, back):
            task.cancel()
        await asyncio.gather(there, back, return_exceptions=True)
        self.cut()

    def cut(self) -> None:
        """End it, at once and on both sides."""
        for _, writer in (self.client, self.server):
            with suppress(OSError, RuntimeError):
                writer.transport.abort()

    async def forward(self) -> None:
        with suppress(OSError):
            while data := await self.client[0].read(CHUNK):
                await self.proxy.flows.wait()
                self.server[1].write(data)
                await self.server[1].drain()

    async def backward(self) -> None:
        with suppress(OSError):
            while data := await self.server[0].read(CHUNK):
                await self.proxy.flows.wait()
                if self.is_mute:
                    return
                self.client[1].write(data)
                await self.client[1].drain()


class Proxy:
    """Listens at a free port, and leads to a server."""

    link = Link

    def __init__(self, host: str, port: int) -> None:
        self.there = (host, port)
        self.port = 0
        self.flows = asyncio.Event()
        """Clear, nothing gets through."""
        self.flows.set()
        self._links: set[Link] = set()
        self._meetings: set[asyncio.Task[None]] = set()

    def led_through(self, url: str) -> dict[str, str]:
        """The environment of a process that reaches this database through the proxy."""
        place = urlsplit(url)
        user = place.netloc.rpartition("@")[0]
        netloc = f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}"
        return {"DATABASE_URL": place._replace(netloc=netloc).geturl(), "PGSSLMODE": "disable"}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._meetings:
            task.cancel()
        await asyncio.gather(*self._meetings, return_exceptions=True)

    def cut(self) -> int:
        """End all connections; returns how many there were."""
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        meeting = asyncio.ensure_future(self._meet(reader, writer))
        self._meetings.add(meeting)
        meeting.add_done_callback(self._meetings.discard)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection(*self.there)
        except OSError:
            writer.transport.abort()
            return
        link = self.link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


class PostgresLink(Link):
    """Reads what the client asks, and cuts the link where the proxy says so at a commit."""

    proxy: CommitCutter

    async def forward(self) -> None:
        reader, writer, is_in_block = self.client[0], self.server[1], False
        with suppress(OSError, asyncio.IncompleteReadError):
            # "Start-up Message": a length and no type (PostgreSQL, 55.7).
            length = await reader.readexactly(4)
            writer.write(length + await reader.readexactly(int.from_bytes(length) - 4))
            while True:
                kind = await reader.readexactly(1)
                length = await reader.readexactly(4)
                body = await reader.readexactly(int.from_bytes(length) - 4)
                asked = asked_in(kind, body)
                is_commit = asked.startswith(APPEND if not is_in_block else END_OF_BLOCK)
                is_in_block = asked.startswith(b"BEGIN") or (
                    is_in_block and not asked.startswith((*END_OF_BLOCK, b"ROLLBACK\0"))
                )
                cut = self.proxy.judge() if is_commit else ""
                if cut == "before":
                    return
                self.is_mute = cut == "after"
                writer.write(kind + length + body)
                await writer.drain()


class CommitCutter(Proxy):
    """Leads to PostgreSQL, and cuts a share of all commits: before they get there, or the answer.

    Who commits can't tell the one from the other.
    """

    link = PostgresLink

    def __init__(
        self,
        host: str,
        port: int,
        *,
        chance: random.Random,
        share: float,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(host, port)
        self.share = share
        self._chance = chance
        self._note = note

    def judge(self) -> str:
        """Whether this commit is cut: `before`, `after`, or not at all."""
        if self._chance.random() >= self.share:
            return ""
        cut = self._chance.choice(["before", "after"])
        self._note(f"commit cut {cut}")
        return cut


def asked_in(kind: bytes, body: bytes) -> bytes:
    """The statement in a message, if it has one ("Query" and "Parse")."""
    return body if kind == b"Q" else body.partition(b"\0")[2] if kind == b"P" else b""
