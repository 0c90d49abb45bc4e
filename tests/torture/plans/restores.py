"""A dump that is restored under connected clients; primary keys are assigned again."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from io import StringIO
from pathlib import Path

from django.apps import apps
from django.core.management import call_command
from django.db import connection

from chatmemory import services
from chatmemory.errors import ChatMemoryError
from chatmemory.models import Session
from chatmemory.services import Actor
from tests.conftest import missing
from tests.servers import DEADLINE, Frame, Person, Server
from tests.torture.checker import Violation, strangers
from tests.torture.plans.links import differences
from tests.torture.screen import Screen
from tests.torture.talker import Talker
from tests.torture.world import Figure, Outcome, World, db

REASSIGNED = "primary key reassigned"
RESTORED = "database restored"
TRIES = 10
"""How often a restore is tried that a server's transaction deadlocks."""
PAUSE = 0.02
"""Seconds between two messages of the traffic."""
WORDS = 60
"""Of the reply that streams while the database is restored."""


class Witness(Screen):
    """A screen that keeps all that it was sent."""

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
        """The resets that report a loss."""
        return sum(frame["type"] == "reset" and frame["lost"] != 0 for frame in self.sent)

    @property
    def foreign(self) -> list[Frame]:
        return [frame for frame in self.sent if strangers(json.dumps(frame), self.key)]

    async def send(self, text: str) -> None:
        """Send a message without waiting for the answer."""
        await self._tab.say("send", id=text, client_id=f"{self.key}.sent", text=text)


async def restore(world: World, rounds: int) -> Outcome:
    """Restore a dump while two people look on, with and without `chatmemory_restored`."""
    if connection.vendor != "postgresql":
        missing("the plan restores dumps of PostgreSQL alone")
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
    async with _looking(here, *people[0]) as ann, _looking(there, *people[1]) as bob:
        async with _traffic(people):
            await _until(lambda: all(len(one.rows) > 3 for one in (ann, bob)))
            dump = await asyncio.to_thread(_dump, world)
            shown = [max(ann.rows), max(bob.rows)]
            await _until(lambda: max(ann.rows) > shown[0] + 3 and max(bob.rows) > shown[1] + 3)
            async with _looking(here, *await world.person()) as gone:
                await gone.send(f"count {WORDS} canary-{gone.key}")
                await _until(lambda: any(one["type"] == "snapshot" for one in gone.sent))
                lost_pk = await db(_pk_of)(gone.key)
                await asyncio.to_thread(_restore, world, dump)
                world.fault(RESTORED)
                person, key = await world.person()
                if await db(_pk_of)(key) == lost_pk:
                    world.fault(REASSIGNED)
                if is_recovered:
                    await db(call_command)(
                        "chatmemory_restored", by="torture", reason="torture", stdout=StringIO()
                    )
                heir = Talker(world, person, key, lambda: there)
                await heir.say(f"count {WORDS} canary-{key}")
                await heir.close()
                found += await _unless(gone, lambda: gone.has_ended, "its socket stays open")
            found += await _unless(ann, lambda: ann.losses, "no reset reports its loss")
            found += await _unless(bob, lambda: bob.losses, "no reset reports its loss")
        found += await differences(world, [ann, bob])
        witnesses = [ann, bob, gone]
    for witness in witnesses:
        for frame in witness.foreign:
            about = f"a client was sent {json.dumps(frame)[:120]}"
            found.append(Violation("foreign", witness.key, about))
    return witnesses


@asynccontextmanager
async def _looking(server: Server, person: Person, key: str) -> AsyncIterator[Witness]:
    async with Witness(server, person, key) as witness:
        yield witness


@asynccontextmanager
async def _traffic(people: Sequence[tuple[Person, str]]) -> AsyncIterator[None]:
    """Append messages with their canaries to these sessions, one after the other."""

    def append(person: Person, key: str) -> None:
        message = {"role": "user", "content": f"canary-{key}"}
        by = Actor.user(person.user)
        try:
            services.append_messages(session_key=key, by=by, messages=[message])
        except ChatMemoryError:  # the database is being restored
            return

    async def go_on() -> None:
        while True:
            for person, key in people:
                await db(append)(person, key)
            await asyncio.sleep(PAUSE)

    going = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)


def _tables() -> list[str]:
    return sorted(model._meta.db_table for model in apps.get_app_config("chatmemory").get_models())


def _dump(world: World) -> Path:
    file = world.folder / "dump.sql"
    options = ["--data-only", "--table=chatmemory_*", f"--file={file}"]
    _call("pg_dump", world, *options)
    return file


def _restore(world: World, dump: Path) -> None:
    """Put the app's tables back as they were at the dump, in one transaction."""
    tables = ", ".join(_tables())
    empty = f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE; TRUNCATE {tables}"
    options = ["--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1"]
    for attempt in range(TRIES):
        try:
            _call("psql", world, *options, f"--command={empty}", f"--file={dump}")
        except subprocess.CalledProcessError as error:
            if b"deadlock" not in error.stderr or attempt == TRIES - 1:
                raise
        else:
            return


def _call(program: str, world: World, *options: str) -> None:
    command = [program, f"--dbname={world.env['DATABASE_URL']}", *options]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # our own command line


def _pk_of(key: str) -> int:
    return Session.objects.get(key=key).pk


async def _unless(witness: Witness, is_so: Callable[[], object], about: str) -> list[Violation]:
    """A violation, unless it is so in time."""
    with suppress(TimeoutError):
        await _until(is_so)
        return []
    return [Violation("lost", witness.key, about)]


async def _until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(2 * DEADLINE):
        while not is_so():  # noqa: ASYNC110  # the servers do it
            await asyncio.sleep(0.02)
