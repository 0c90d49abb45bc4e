"""Two versions of the app side by side on one database."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from tests.programs.torture.plans.dying import terminate
from tests.programs.torture.talker import close_all, sending, talkers
from tests.programs.torture.verdict import Absent
from tests.programs.torture.world import Figure, Outcome, World, db
from tests.servers import Server

APP = "chatmemory"
RELEASES = settings.BASE_DIR / "tests/upgrades"
LOAD_SECONDS = 1.0
"""Time under load after each step."""


async def upgrade(world: World, rounds: int, *, talking: int = 4) -> Outcome:
    """Replace servers of the newest stored release by those of this code, and back, under load.

    Meanwhile a migration adds a column, fills it and drops it, as three releases would do.
    """
    release = await asyncio.to_thread(_unpacked_release, world.folder)
    servers = await world.start(2, application="project.asgi:application")
    current = [dict(server.env) for server in servers]
    people = await talkers(world, talking)
    killed = 0

    async def replace(server: Server, env: dict[str, str], name: str) -> None:
        nonlocal killed
        killed += not await asyncio.to_thread(terminate, server)
        server.env = env
        await asyncio.to_thread(server.start)
        world.fault(name)
        await asyncio.sleep(LOAD_SECONDS)

    async with sending(world, people, longest=8):
        for _ in range(rounds):
            for server, env in zip(servers, current, strict=True):
                await replace(server, env | release, "older version started")
            steps = await db(_migration)()
            for name in ("added", "filled", "dropped"):
                await db(next)(steps)
                world.fault(f"column {name}")
                await asyncio.sleep(LOAD_SECONDS)
                if name != "dropped":
                    server, env = servers[name == "filled"], current[name == "filled"]
                    await replace(server, env, "newer version started")
    settled = await world.settle()
    await close_all(people)
    starts = 2 * rounds
    steps_done = {f"column {name}": rounds for name in ("added", "filled", "dropped")}
    versions = {"older version started": starts, "newer version started": starts}
    found = await world.check(faults={**versions, **steps_done})
    done = [event.status for event in world.history.events if event.kind == "done"]
    return Outcome(
        found,
        [
            Figure("replaced servers", 2 * starts),
            Figure("servers that did not exit in time", killed, time_limit=0),
            Figure("turns", len(done)),
            Figure("turns interrupted", done.count("interrupted"), at_most=0),
            Figure(
                "longest s that a user waited", max(t.longest_wait for t in people), time_limit=10
            ),
            settled,
        ],
    )


def _version_of(wheel: Path) -> list[int]:
    return [int(number) for number in wheel.parent.name.split(".")]


def _unpacked_release(folder: Path) -> dict[str, str]:
    """Unpack the newest stored wheel; return the variables with which a process imports it."""
    wheels = sorted(RELEASES.glob("*/*.whl"), key=_version_of)
    if not wheels:
        raise Absent("tests/upgrades has no wheel of a release")
    target = folder / "release"
    with zipfile.ZipFile(wheels[-1]) as wheel:
        wheel.extractall(target)  # our own file
    paths = f"{target}:{settings.BASE_DIR}"
    release = {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}  # else the current folder is first
    code = f"import {APP}; print({APP}.__file__)"
    imported = subprocess.check_output([sys.executable, "-c", code], env=release, text=True)  # noqa: S603
    assert imported.startswith(str(target)), f"{imported} is not the release"
    return release


def _migration() -> Iterator[None]:
    """Apply the operations of a migration; each is applied when its item is read."""
    operations: list[Operation] = [
        migrations.AddField("message", "later", models.IntegerField(null=True)),
        migrations.RunPython(_fill, migrations.RunPython.noop),
        migrations.RemoveField("message", "later"),
    ]
    state: ProjectState = MigrationLoader(connection).project_state()
    for operation in operations:
        before = state.clone()
        operation.state_forwards(APP, state)
        with connection.schema_editor() as editor:
            operation.database_forwards(APP, editor, before, state)
        yield


def _fill(apps: object, editor: object) -> None:
    table = connection.ops.quote_name("chatmemory_message")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET later = 1 WHERE later IS NULL")  # noqa: S608  # no input
