"""Connect, hello, synced, close."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tests.programs.speed.cases import Plan, Unit
from tests.programs.speed.socket_cases import SocketCase
from tests.programs.speed.sockets import OurTalk, Talk


class Connect(SocketCase):
    """A new socket for each call."""

    async def open(self) -> None:
        """Open none before the calls."""

    def call(self) -> None:
        self.loop.run(self._connect())

    async def _connect(self) -> None:
        await self.talks[0].open()
        await self.talks[0].close()

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        return []  # a socket that is not synced fails its call


UNIT = Unit(
    title="Connect, hello, synced, close; CPU of the server. Stock: a consumer without storage.",
    plans=lambda _: [
        Plan(name="stock", make=partial(Connect, talk=Talk)),
        Plan(name="chatmemory", make=partial(Connect, talk=OurTalk), baseline="stock"),
    ],
)
