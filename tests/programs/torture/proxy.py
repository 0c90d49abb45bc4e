"""A TCP proxy that can cut and stall its connections, and one that cuts PostgreSQL commits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

CHUNK = 65_536
APPEND = (b"WITH lock_limit AS",)
"""The beginnings of statements that are a transaction by themselves."""
END_OF_BLOCK = (b"COMMIT\0",)


class Link:
    """One connection through the proxy, with both its ends."""

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
        """The server's next data are dropped, and end the link."""

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(self.forward()), asyncio.ensure_future(self.backward())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.cut()

    def cut(self) -> None:
        """Abort both sides."""
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
    """Listens on a free port, and forwards to a server."""

    link = Link

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.port = 0
        self.flows = asyncio.Event()
        """While it is clear, no data pass."""
        self.flows.set()
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def environment_of(self, url: str) -> dict[str, str]:
        """Return the environment of a process that uses this database through the proxy."""
        address = urlsplit(url)
        user = address.netloc.rpartition("@")[0]
        netloc = f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}"
        return {"DATABASE_URL": address._replace(netloc=netloc).geturl(), "PGSSLMODE": "disable"}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> int:
        """Abort all connections; return their number."""
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection(*self.target)
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
    """Parses the client's messages, and is cut at those commits that the proxy chooses."""

    proxy: CommitCutter

    async def forward(self) -> None:
        reader, writer, is_in_block = self.client[0], self.server[1], False
        prepared: dict[bytes, bytes] = {}
        with suppress(OSError, asyncio.IncompleteReadError):
            # A StartupMessage has a length and no type (PostgreSQL, 55.7).
            length = await reader.readexactly(4)
            writer.write(length + await reader.readexactly(int.from_bytes(length) - 4))
            while True:
                kind = await reader.readexactly(1)
                length = await reader.readexactly(4)
                body = await reader.readexactly(int.from_bytes(length) - 4)
                sql = statement_in(kind, body, prepared)
                is_commit = sql.startswith(END_OF_BLOCK if is_in_block else APPEND)
                is_in_block = sql.startswith(b"BEGIN") or (
                    is_in_block and not sql.startswith((*END_OF_BLOCK, b"ROLLBACK\0"))
                )
                cut = self.proxy.choose_cut() if is_commit else ""
                if cut == "before":
                    return
                self.is_mute = cut == "after"
                writer.write(kind + length + body)
                await writer.drain()


class CommitCutter(Proxy):
    """Forwards to PostgreSQL, and cuts a share of all commits: the commit, or its answer.

    The client cannot distinguish the two.
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

    def choose_cut(self) -> str:
        """Return whether to cut a commit: `before`, `after`, or empty for not at all."""
        if self._chance.random() >= self.share:
            return ""
        cut = self._chance.choice(["before", "after"])
        self._note(f"commit cut {cut}")
        return cut


def statement_in(kind: bytes, body: bytes, prepared: dict[bytes, bytes]) -> bytes:
    """Return the statement that a message executes, else nothing.

    A Parse names a statement, and a Bind precedes its execution (PostgreSQL, 55.2.3 and 55.7).
    """
    match kind:
        case b"Q":
            return body
        case b"P":
            name, _, sql = body.partition(b"\0")
            prepared[name] = sql
        case b"B":
            _, name, _ = body.split(b"\0", 2)
            return prepared.get(name, b"")
    return b""
