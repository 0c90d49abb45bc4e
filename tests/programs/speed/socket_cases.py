"""The base class of cases whose work is done by a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import cycle
from operator import itemgetter

from tests.programs.speed.cases import Case, Setup
from tests.programs.speed.meter import cpu_of
from tests.programs.speed.responder import reply_to
from tests.programs.speed.sockets import Server, Talk, make_users
from tests.programs.speed.texts import USER_CHARS, find_faults

COUNTED_CALLS = 5
"""Calls whose median number of statements is reported."""
STEP_TURNS = 20
"""Turns over which the CPU of the steps is measured."""


class SocketCase(Case):
    """One socket of one user, or several, to servers of its own."""

    def __init__(self, setup: Setup, talk: type[Talk], servers: int = 1) -> None:
        super().__init__(setup)
        self.talk_class = talk
        self.server_count = servers
        self.servers: list[Server] = []
        self.loop = asyncio.Runner()
        self.talks: list[Talk] = []

    def prepare(self) -> None:
        self.servers = [Server() for _ in range(self.server_count)]
        users = make_users([f"{self.setup.key} {n}" for n in range(self.user_count())])
        self.talks = [self.talk_class(*pair) for pair in zip(cycle(self.servers), users)]
        for talk in self.talks:
            talk.prepare()
        self.loop.run(self.open())

    def user_count(self) -> int:
        return 1

    async def open(self) -> None:
        """Open the sockets that all calls use."""
        for talk in self.talks:
            await talk.open()

    def call(self) -> float | None:
        self.loop.run(self.talks[0].turn(self.next_text()))
        return None

    def next_text(self) -> str:
        return f"{len(self.talks[0].sent)} ".ljust(USER_CHARS, "x")

    def server_pids(self) -> Sequence[int]:
        return [server.pid for server in self.servers]

    def backend_pids(self) -> Sequence[int]:
        return self.servers[0].backend_pids()

    def count(self) -> Mapping[str, int]:
        # The load decides in how many pages a socket reads the rows of a turn.
        found = [self._count_call() for _ in range(COUNTED_CALLS)]
        return sorted(found, key=itemgetter("statements"))[COUNTED_CALLS // 2]

    def _count_call(self) -> dict[str, int]:
        self.servers[0].count("on")
        self.call()
        return self.servers[0].count("off")

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        if self.talk_class.route == "stock":
            return []
        faults: list[str] = []
        for talk in self.talks:
            expected = [(text, reply_to(text)) for text in talk.sent]
            faults += find_faults(talk.key, expected)
        return faults

    def close(self) -> None:
        for talk in self.talks:
            self.loop.run(talk.close())
        self.loop.close()
        for server in self.servers:
            server.close()


class TurnSteps(SocketCase):
    """Also measures the CPU of each step of a turn."""

    def steps(self) -> Mapping[str, float]:
        totals: dict[str, float] = {}
        for _ in range(STEP_TURNS):
            self.loop.run(self._observe_turn(totals))
        return {name: total / STEP_TURNS for name, total in totals.items()}

    async def _observe_turn(self, totals: dict[str, float]) -> None:
        last = cpu_of(self.servers[0].pid)

        def observe(step: str) -> None:
            nonlocal last
            now = cpu_of(self.servers[0].pid)
            if now is not None and last is not None:
                totals[step] = totals.get(step, 0.0) + now - last
            last = now

        await self.talks[0].turn(self.next_text(), observe)
