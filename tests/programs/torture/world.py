"""The environment of a plan: a database, servers, a Redis, users and a history."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async as db
from django.contrib.auth.models import User
from django.db import connection

from chatmemory.models import DatabaseNow, Message, Session, Turn
from tests.conftest import missing
from tests.factories import make_session
from tests.programs.torture.checker import (
    GRACE,
    Evidence,
    StoredRow,
    StoredTalk,
    StoredTurn,
    Violation,
    violations,
)
from tests.programs.torture.history import GIVEN_UP, Event, History
from tests.programs.torture.verdict import Figure, Outcome
from tests.servers import Person, Server, free_port, is_listening, sign_in, wait_for

LEASE = 1.0
SETTLED = 60.0
"""Seconds after which a turn that still waits or runs is stuck, on any machine."""


class Redis:
    """A Redis process that can be killed, frozen, and restarted on its port.

    `options` are further ones of its command line.
    """

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self._program = shutil.which("redis-server") or missing("redis-server is not installed")
        self._folder = folder
        self._options = options
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it unless it runs."""
        if self.process is not None:
            return
        options = ["--port", str(self.port), "--save", "", "--dir", str(self._folder)]
        options += self._options
        self.process = subprocess.Popen(  # noqa: S603  # our own command line
            [self._program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(lambda: is_listening(self.port), "redis-server does not start")

    def signal(self, number: int) -> None:
        """Send a signal: SIGSTOP freezes it, SIGCONT resumes it."""
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class World:
    """The servers, users and history of a plan; `close` ends all processes."""

    def __init__(
        self,
        env: Mapping[str, str],
        folder: Path,
        *,
        seed: int,
        program: str = "uvicorn",
        redis: Redis | None = None,
    ) -> None:
        self.folder = folder
        (folder / "kill").mkdir(parents=True, exist_ok=True)
        self.env = {**env, "TORTURE": str(folder), "TORTURE_SEED": str(seed)}
        self.program = program
        self.redis = redis
        self.chance = random.Random(seed)  # noqa: S311  # no secret
        self.history = History(folder / "history.jsonl")
        self.servers: list[Server] = []
        self._names = 0
        self._most_overdue = 0.0

    async def start(self, number: int, **options: Any) -> list[Server]:
        """Start more servers; `options` are settings, or arguments of `Server`."""
        if self.redis is not None:
            self.redis.start()
        given: dict[str, Any] = {
            "env": self.env,
            "program": self.program,
            "redis_url": self.redis.url if self.redis else "",
            "application": "tests.programs.torture.served:application",
            "RESPONDER": "tests.programs.torture.speaker.answer",
            "LEASE": LEASE,
            "CONNECTIONS_PER_USER": 10_000,
        } | options
        env = given.pop("env")
        new = [
            Server(env, self.folder / f"{len(self.servers) + n}.log", **given)
            for n in range(number)
        ]
        self.servers += new
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in new))
        return new

    def forget(self) -> None:
        """Clear the history."""
        self.history.events.clear()
        for file in self.folder.glob("lost.*"):
            file.unlink()

    def close(self) -> None:
        """End all processes, and write the rest of the history."""
        for server in self.servers:
            server.kill()
        if self.redis is not None:
            self.redis.kill()
        self.history.close()

    async def person(self) -> tuple[Person, str]:
        """Create a signed-in user with a session; return the user and the session's unique key."""
        self._names += 1
        key = f"{self.folder.name}-{self._names}"

        def make() -> Person:
            person = sign_in(User.objects.create(username=key))
            make_session(key, owner=person.user)
            return person

        return await db(make)(), key

    def fault(self, name: str) -> None:
        """Record that a fault has happened."""
        self.history.note(Event(kind="fault", text=name))

    def switch(self, name: str, *, on: bool) -> None:
        """Switch a planted fault on or off."""
        if on:
            (self.folder / name).touch()
        else:
            (self.folder / name).unlink(missing_ok=True)

    def stop(self, server: Server) -> None:
        """Pause a server, as a busy machine does."""
        os.kill(server.pid, signal.SIGSTOP)

    def resume(self, server: Server) -> None:
        os.kill(server.pid, signal.SIGCONT)

    @asynccontextmanager
    async def leases_watched(self) -> AsyncIterator[None]:
        """Measure how long turns continue to run after the end of their lease."""
        turns = Turn.objects.overdue().annotate(clock=DatabaseNow())
        times = turns.values_list("clock", "lease_until")

        async def watch() -> None:
            while True:
                for clock, until in await db(lambda: list(times.all()))():
                    overdue = (clock - until).total_seconds() if until else 0.0
                    self._most_overdue = max(self._most_overdue, overdue)
                await asyncio.sleep(0.1)

        watching = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def overdue(self) -> Figure:
        """Return the longest time that `leases_watched` measured."""
        name = "longest s that a turn ran after its lease"
        return Figure(name, self._most_overdue, time_limit=GRACE)

    def given_up(self) -> Figure:
        """Count the messages whose senders stopped waiting."""
        errors = [event for event in self.history.events if event.kind == "error"]
        given_up = sum(event.text == GIVEN_UP for event in errors)
        return Figure("messages that were given up on", given_up, time_limit=0)

    async def settle(self) -> Figure:
        """Wait until all turns have ended; return how long that took.

        It stops waiting after `SETTLED` seconds; `check` then reports the turn.
        """
        began = now()
        live = Turn.objects.filter(status__in=("waiting", "running"))
        while await db(live.exists)() and now() - began < SETTLED:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
        return Figure("s until the last turn had ended", now() - began, time_limit=LEASE + 6)

    async def check(self, *, faults: Mapping[str, int]) -> list[Violation]:
        """Return the violations; `faults` has the required number of each fault."""
        talks = await db(read_talks)()
        return violations(Evidence(self.history.events, talks, faults))


def read_talks() -> dict[str, StoredTalk]:
    """Read all sessions by key."""
    talks = {}
    for session in Session.objects.all():
        rows = Message.stored.filter(session=session, seq__gte=session.stored_from).order_by("seq")
        columns = rows.values_list("seq", "role", "text", "status", "client_id", "turn")
        turns = session.turns.annotate(clock=DatabaseNow())
        talks[session.key] = StoredTalk(
            session.key,
            session.stored_from,
            session.last_seq,
            session.running,
            [StoredRow(*row) for row in columns],
            [
                StoredTurn(name, status, (clock - until).total_seconds() if until else 0.0)
                for name, status, until, clock in turns.values_list(
                    "client_id", "status", "lease_until", "clock"
                )
            ],
        )
    return talks


def forget_connections() -> None:
    """Close the connections of this process and thread; the server may be dead."""
    connection.close()
    if connection.vendor == "postgresql":
        connection.close_pool()  # type: ignore[attr-defined]  # only PostgreSQL has it


def now() -> float:
    """Return the monotonic time, in seconds."""
    return time.monotonic()


__all__ = ["LEASE", "Figure", "Outcome", "Redis", "World", "db", "forget_connections", "now"]
