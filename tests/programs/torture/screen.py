"""A client that only reads, and shows the rows and the session from its frames."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Self

from tests.servers import Closed, Connection, Frame, Person, Server

NEWEST = 50


class Screen:
    """A socket, and what a client shows by the rules of docs/reference/protocol.md."""

    def __init__(self, server: Server, person: Person, key: str) -> None:
        self.server = server
        self.person = person
        self.key = key
        self.rows: dict[int, Frame] = {}
        self.session: Frame = {}

    async def __aenter__(self) -> Self:
        self._tab = Connection(self.server, self.person, self.key)
        await self._tab.__aenter__()
        await self._tab.send_frame("hello", v=1)
        while (await self._tab.next())["type"] != "synced":
            pass
        for frame in self._tab.frames:
            self.apply(frame)
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with contextlib.suppress(Closed, OSError):
            await self._tab.__aexit__()

    async def _read(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):  # no frames while nothing happens
                self.apply(await self._tab.next())
                self._tab.frames.clear()

    def apply(self, frame: Frame) -> None:
        """Change the rows and the session as a frame requires."""
        match frame["type"]:
            case "reset":
                self.rows.clear()
            case "message":
                self.rows[frame["seq"]] = frame
            case "session":
                self.session = frame
                self.rows = {
                    seq: row for seq, row in self.rows.items() if seq >= frame["first_seq"]
                }

    @property
    def answered(self) -> set[str]:
        """The turns whose reply it shows."""
        return {row["turn"] for row in self.rows.values() if row["role"] == "assistant"}

    @property
    def shows(self) -> tuple[Frame, list[Any]]:
        """The session, and the newest rows."""
        return self.session, [self.rows[seq] for seq in sorted(self.rows)[-NEWEST:]]


async def fresh(screen: Screen) -> tuple[Frame, list[Any]]:
    """Return what a new socket to the same server and session shows."""
    async with Screen(screen.server, screen.person, screen.key) as new:
        return new.shows
