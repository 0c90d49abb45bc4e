"""A front end over HTTP: it sends, and reads streams of server-sent events."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import httpx
from django.conf import settings

from tests.servers import DEADLINE, Person

CSRF_TOKEN = "a" * 32

Chunk = dict[str, Any]


class Stream:
    """The events of one response, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.is_done = False
        """Whether the stream ended as complete."""
        self.last_id = ""
        """The id of the last event that has one."""

    async def next(self) -> Chunk:
        """Return the data of the next event. Raises StopAsyncIteration at the end."""
        async for line in self._lines:
            if line == "data: [DONE]":
                self.is_done = True
            elif line.startswith("id: "):
                self.last_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                found: Chunk = json.loads(line.removeprefix("data: "))
                return found
        raise StopAsyncIteration

    async def until(self, kind: str) -> list[Chunk]:
        """Return the events up to the next one of this type."""
        found = [await self.next()]
        while found[-1]["type"] != kind:
            found.append(await self.next())
        return found

    async def rest(self) -> list[Chunk]:
        """Return the events up to the end."""
        found = []
        try:
            while True:
                found.append(await self.next())
        except StopAsyncIteration:
            return found


async def cut(opened: AbstractAsyncContextManager[Stream], chance: random.Random) -> list[Chunk]:
    """Read a stream up to a random event, then break the connection; return its events."""
    found: list[Chunk] = []
    async with opened as stream:
        for _ in range(chance.randint(1, 30)):
            try:
                found.append(await stream.next())
            except StopAsyncIteration:
                break
    return found


class Front:
    """A page of one person."""

    def __init__(self, address: str, person: Person | None, chat: str = "talk") -> None:
        self.chat = chat
        cookies = {"csrftoken": CSRF_TOKEN}
        if person is not None:
            cookies[settings.SESSION_COOKIE_NAME] = person.cookie
        self.http = httpx.AsyncClient(
            base_url=f"{address}/api/ui/",
            cookies=cookies,
            headers={"X-CSRFToken": CSRF_TOKEN},
            timeout=DEADLINE,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    @asynccontextmanager
    async def post(self, path: str, body: object) -> AsyncIterator[Stream]:
        async with self.http.stream("POST", path, json=body) as response:
            yield Stream(response)

    def send(self, text: str, message_id: str = "c1", **more: object) -> Any:
        """POST a message as `useChat` does."""
        message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
        body = {"id": self.chat, "messages": [message], "trigger": "submit-message", **more}
        return self.post("chat", body)

    @asynccontextmanager
    async def resume(self, **query: str) -> AsyncIterator[Stream]:
        path = f"chat/{self.chat}/stream"
        async with self.http.stream("GET", path, params=query) as response:
            yield Stream(response)

    @asynccontextmanager
    async def events(self, *, last_event_id: str = "", **query: str) -> AsyncIterator[Stream]:
        headers = {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        path = f"events/{self.chat}"
        async with self.http.stream("GET", path, params=query, headers=headers) as response:
            yield Stream(response)

    async def history(self, **query: int) -> list[Chunk]:
        response = await self.http.get(f"chat/{self.chat}/messages", params=query)
        assert response.status_code == 200, response.text
        found: list[Chunk] = response.json()
        return found

    async def stop(self, **body: object) -> Any:
        return (await self.http.post(f"chat/{self.chat}/stop", json=body)).json()


def text_of(chunks: list[Chunk]) -> str:
    """Return the text that a page shows after these chunks."""
    text = ""
    for chunk in chunks:
        match chunk["type"]:
            case "text-delta":
                text += chunk["delta"]
            case "reset-step":
                text = ""
    return text
