"""What a client shows that does nothing but read: rows and the session, by frames alone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Self

from tests.servers import Closed, Connection, Frame, Person, Server

NEWEST = 50


class Screen:
    """A socket and what it has shown, by the rules of docs/protocol.md."""

    def __init__(self, server: Server, person: Person, key: str) -> None:
        self.server = server
        self.person = person
        self.key = key
        self.rows: dict[int, Frame] = {}
        self.session: Frame = {}

    async def __aenter__(self) -> Self:
        self._tab = Connection(self.server, self.person, self.key)
        await self._tab.__aenter__()
        await self._tab.say("hello", v=1)
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
            with contextlib.suppress(TimeoutError):  # it is silent as long as nothing happens
                self.apply(await self._tab.next())
                self._tab.frames.clear()

    def apply(self, frame: Frame) -> None:
        """Show what a frame says."""
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
        """The turns of which it shows a reply."""
        return {row["turn"] for row in self.rows.values() if row["role"] == "assistant"}

    @property
    def shows(self) -> tuple[Frame, list[Any]]:
        """The session, and the newest rows."""
        return self.session, [self.rows[seq] for seq in sorted(self.rows)[-NEWEST:]]


async def fresh(screen: Screen) -> tuple[Frame, list[Any]]:
    """What a new socket at the same place is shown."""
    async with Screen(screen.server, screen.person, screen.key) as new:
        return new.shows
