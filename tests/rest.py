"""A client of the REST API over a network, for many concurrent requests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http.client import HTTPResponse
from io import BytesIO
from typing import Any

from django.conf import settings

from tests.servers import DEADLINE, Person, Server

CSRF_TOKEN = "a" * 32


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _Buffer:
    """Bytes in place of the socket that `HTTPResponse` reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> BytesIO:
        return BytesIO(self._data)


async def request(server: Server, person: Person, path: str, body: object = None) -> Answer:
    """GET the path, or POST the body as JSON, as this user. Raises OSError, TimeoutError."""
    data = b"" if body is None else json.dumps(body).encode()
    cookies = f"{settings.SESSION_COOKIE_NAME}={person.cookie}; csrftoken={CSRF_TOKEN}"
    lines = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        f"Cookie: {cookies}",
        f"X-CSRFToken: {CSRF_TOKEN}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
    ]
    async with asyncio.timeout(2 * DEADLINE):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
            answer = HTTPResponse(_Buffer(await reader.read()))  # type: ignore[arg-type]  # it only calls makefile
        finally:
            writer.close()
    answer.begin()
    return Answer(answer.status, {**dict(answer.getheaders())}, answer.read())
