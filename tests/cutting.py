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

    async def forward(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Handle a connection."""
        server, out = await asyncio.open_connection(self._host, self._port)
        sending = asyncio.ensure_future(self._send(client, out))
        try:
            with suppress(ConnectionError):
                while (data := await server.read(65_536)) and not self.drops:
                    back.write(data)
                    await back.drain()
                self.drops -= bool(data)
        finally:
            sending.cancel()
            out.close()
            back.transport.abort()

    async def _send(self, client: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await client.read(65_536):
                head, _, _ = data.partition(b"\r\n")
                if head.endswith(b"HTTP/1.1"):
                    self.requests.append(head.decode().removesuffix(" HTTP/1.1"))
                out.write(data)
                await out.drain()


@asynccontextmanager
async def cutting(target: str) -> AsyncIterator[CuttingProxy]:
    """Run a proxy in front of the server at this address."""
    proxy = CuttingProxy(target)
    open_connections: set[asyncio.Task[None]] = set()

    def accept(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.forward(client, back))
        open_connections.add(task)
        task.add_done_callback(open_connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in open_connections:
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)
