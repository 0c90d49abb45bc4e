"""A proxy that cuts connections after the server has answered, as networks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class CuttingProxy:
    """Forwards bytes to a server, and drops the next `drops` responses with their connections."""

    def __init__(self, target: str) -> None:
        self.drops = 0
        self.requests: list[str] = []
        """The first line of each request that reached the server."""
        self.address = ""
        parts = urlsplit(target)
        self._host, self._port = parts.hostname, parts.port
        self.open: set[asyncio.StreamWriter] = set()
        """The connections of clients."""

    async def forward(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Handle a connection."""
        begin = await self.begin(client)
        answer = self.refusal(begin)
        if answer is not None:
            back.write(answer)
            back.close()
            return
        server, out = await asyncio.open_connection(self._host, self._port)
        sending = asyncio.ensure_future(self._send(client, out, begin))
        self.open.add(back)
        try:
            with suppress(ConnectionError):
                while (data := await server.read(65_536)) and not self.drops:
                    back.write(data)
                    await back.drain()
                self.drops -= bool(data)
        finally:
            self.open.discard(back)
            sending.cancel()
            out.close()
            back.transport.abort()

    async def begin(self, client: asyncio.StreamReader) -> bytes:
        """Return the first bytes of a connection."""
        return await client.read(65_536)

    def refusal(self, begin: bytes) -> bytes | None:
        """Return the answer to a connection that is not forwarded."""
        return None

    def cut(self) -> None:
        """Break all connections."""
        for back in self.open:
            back.transport.abort()

    async def _send(
        self, client: asyncio.StreamReader, out: asyncio.StreamWriter, data: bytes
    ) -> None:
        with suppress(ConnectionError):
            while data:
                head, _, _ = data.partition(b"\r\n")
                if head.endswith(b"HTTP/1.1"):
                    self.requests.append(head.decode().removesuffix(" HTTP/1.1"))
                out.write(data)
                await out.drain()
                data = await client.read(65_536)


class RefusingProxy(CuttingProxy):
    """Forwards HTTP, but no websockets, as the proxies of some networks."""

    status: int | None = 400
    """The answer to an upgrade; None closes its connection instead."""
    is_refusing = True
    """Whether websockets are refused."""
    down: bytes | None = None
    """A part of the addresses that are answered with 502, as before a server that starts."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.upgrades = 0
        """The websockets that were refused."""

    def refusal(self, begin: bytes) -> bytes | None:
        line, _, _ = begin.partition(b"\r\n")
        status = 502 if self.down is not None and self.down in line else None
        if b"\r\nupgrade: websocket\r\n" in begin.lower() and self.is_refusing:
            self.upgrades += 1
            if self.status is None:
                return b""
            status = status or self.status
        if status is None:
            return None
        return f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n\r\n".encode()


@asynccontextmanager
async def cutting(target: str) -> AsyncIterator[CuttingProxy]:
    """Run a proxy in front of the server at this address."""
    proxy = CuttingProxy(target)
    async with _listening(proxy):
        yield proxy


@asynccontextmanager
async def refusing(target: str) -> AsyncIterator[RefusingProxy]:
    """Run a proxy without websockets in front of the server at this address."""
    proxy = RefusingProxy(target)
    async with _listening(proxy):
        yield proxy


@asynccontextmanager
async def _listening(proxy: CuttingProxy) -> AsyncIterator[None]:
    open_connections: set[asyncio.Task[None]] = set()

    def accept(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.forward(client, back))
        open_connections.add(task)
        task.add_done_callback(open_connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield
    finally:
        server.close()
        for task in open_connections:
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)
