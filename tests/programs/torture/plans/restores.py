"""Restore a dump while clients are connected; primary keys are assigned again."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from io import StringIO
from pathlib import Path

from django.core.management import call_command
from django.db import connection

from chatmemory import services
from chatmemory.errors import ChatMemoryError
from chatmemory.models import Session, installed_models
from chatmemory.services import Actor
from tests.conftest import missing
from tests.programs.torture.checker import Violation, foreign_canaries
from tests.programs.torture.plans.links import differences
from tests.programs.torture.screen import Screen
from tests.programs.torture.talker import Talker
from tests.programs.torture.world import Figure, Outcome, World, db
from tests.servers import DEADLINE, Frame, Person, Server

REASSIGNED = "primary key reassigned"
RESTORED = "database restored"
MAX_ATTEMPTS = 10
"""Attempts of a restore that deadlocks with a server's transaction."""
PAUSE = 0.02
"""Seconds between two messages of the traffic."""
WORDS = 60
"""Length of the reply that streams while the database is restored."""


class Witness(Screen):
    """A screen that keeps all received frames."""

    def __init__(self, server: Server, person: Person, key: str) -> None:
        super().__init__(server, person, key)
        self.sent: list[Frame] = []

    def apply(self, frame: Frame) -> None:
        super().apply(frame)
        self.sent.append(frame)

    @property
    def has_ended(self) -> bool:
        return any(frame["type"] == "bye" for frame in self.sent)

    @property
    def losses(self) -> int:
        """The number of resets that report a loss."""
        return sum(frame["type"] == "reset" and frame["lost"] != 0 for frame in self.sent)

    @property
    def foreign(self) -> list[Frame]:
        return [frame for frame in self.sent if foreign_canaries(json.dumps(frame), self.key)]

    async def send(self, text: str) -> None:
        """Send a message without waiting for the answer."""
        await self._tab.send_frame("send", id=text, client_id=f"{self.key}.sent", text=text)


async def restore(world: World, rounds: int) -> Outcome:
    """Restore a dump while two users are connected, with and without `chatmemory_restored`."""
    if connection.vendor != "postgresql":
        missing("the plan restores only dumps of PostgreSQL")
    if not shutil.which("pg_dump") or not shutil.which("psql"):
        missing("pg_dump and psql are not installed")
    if not world.servers:
        await world.start(2)
    found: list[Violation] = []
    losses = frames = 0
    for number in range(rounds):
        seen = await _restore_one(world, found, is_recovered=number % 2 == 1)
        losses += sum(witness.losses for witness in seen)
        frames += sum(len(witness.sent) for witness in seen)
    counts = world.history.faults()
    figures = [
        Figure("restores", counts[RESTORED], at_least=rounds),
        Figure("primary keys given to another user", counts[REASSIGNED], at_least=rounds),
        Figure("frames", frames),
        Figure("resets that reported a loss", losses, at_least=2 * rounds),
        Figure("foreign frames", sum(one.wrong == "foreign" for one in found), at_most=0),
    ]
    return Outcome(found, figures)


async def _restore_one(
    world: World, found: list[Violation], *, is_recovered: bool
) -> list[Witness]:
    here, there = world.servers[:2]
    people = [await world.person() for _ in range(2)]
    async with _watching(here, *people[0]) as ann, _watching(there, *people[1]) as bob:
        async with _traffic(people):
            await _until(lambda: all(len(one.rows) > 3 for one in (ann, bob)))
            dump = await asyncio.to_thread(_dump, world)
            shown = [max(ann.rows), max(bob.rows)]
            await _until(lambda: max(ann.rows) > shown[0] + 3 and max(bob.rows) > shown[1] + 3)
            async with _watching(here, *await world.person()) as lost:
                await lost.send(f"count {WORDS} canary-{lost.key}")
                await _until(lambda: any(one["type"] == "snapshot" for one in lost.sent))
                lost_pk = await db(_pk_of)(lost.key)
                await asyncio.to_thread(_restore, world, dump)
                world.fault(RESTORED)
                person, key = await world.person()
                if await db(_pk_of)(key) == lost_pk:
                    world.fault(REASSIGNED)
                if is_recovered:
                    await db(call_command)(
                        "chatmemory_restored", by="torture", reason="torture", stdout=StringIO()
                    )
                successor = Talker(world, person, key, lambda: there)
                await successor.ask(f"count {WORDS} canary-{key}")
                await successor.close()
                found += await _unless(lost, lambda: lost.has_ended, "its socket stays open")
            found += await _unless(ann, lambda: ann.losses, "no reset reports its loss")
            found += await _unless(bob, lambda: bob.losses, "no reset reports its loss")
        found += await differences(world, [ann, bob])
        witnesses = [ann, bob, lost]
    for witness in witnesses:
        for frame in witness.foreign:
            about = f"a client was sent {json.dumps(frame)[:120]}"
            found.append(Violation("foreign", witness.key, about))
    return witnesses


@asynccontextmanager
async def _watching(server: Server, person: Person, key: str) -> AsyncIterator[Witness]:
    async with Witness(server, person, key) as witness:
        yield witness


@asynccontextmanager
async def _traffic(people: Sequence[tuple[Person, str]]) -> AsyncIterator[None]:
    """Append messages with their canaries to these sessions, alternately."""

    def append(person: Person, key: str) -> None:
        message = {"role": "user", "content": f"canary-{key}"}
        by = Actor.user(person.user)
        try:
            services.append_messages(session_key=key, by=by, messages=[message])
        except ChatMemoryError:  # the database is being restored
            return

    async def append_all() -> None:
        while True:
            for person, key in people:
                await db(append)(person, key)
            await asyncio.sleep(PAUSE)

    appending = asyncio.ensure_future(append_all())
    try:
        yield
    finally:
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)


def _tables() -> list[str]:
    return sorted(model._meta.db_table for model in installed_models())


def _dump(world: World) -> Path:
    file = world.folder / "dump.sql"
    options = ["--data-only", "--table=chatmemory_*", f"--file={file}"]
    _call("pg_dump", world, *options)
    return file


def _restore(world: World, dump: Path) -> None:
    """Restore the app's tables from the dump in one transaction."""
    tables = ", ".join(_tables())
    empty = f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE; TRUNCATE {tables}"
    options = ["--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1"]
    for attempt in range(MAX_ATTEMPTS):
        try:
            _call("psql", world, *options, f"--command={empty}", f"--file={dump}")
        except subprocess.CalledProcessError as error:
            if b"deadlock" not in error.stderr or attempt == MAX_ATTEMPTS - 1:
                raise
        else:
            return


def _call(program: str, world: World, *options: str) -> None:
    command = [program, f"--dbname={world.env['DATABASE_URL']}", *options]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # our own command line


def _pk_of(key: str) -> int:
    return Session.objects.get(key=key).pk


async def _unless(witness: Witness, condition: Callable[[], object], about: str) -> list[Violation]:
    """Return a violation unless the condition holds in time."""
    with suppress(TimeoutError):
        await _until(condition)
        return []
    return [Violation("lost", witness.key, about)]


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(2 * DEADLINE):
        while not condition():  # noqa: ASYNC110  # the servers do it
            await asyncio.sleep(0.02)
