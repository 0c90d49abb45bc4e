"""Run one stage: `python -m tests.programs.torture.stage PLAN SEED ROUNDS PROGRAM LAYER`."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import django

django.setup()

from django.conf import settings  # noqa: E402  # after django.setup()
from django.db import connection  # noqa: E402

from tests.programs.recall.servers import temporary_database  # noqa: E402
from tests.programs.torture.plans import PLANS  # noqa: E402
from tests.programs.torture.verdict import Absent, Outcome, Verdict  # noqa: E402
from tests.programs.torture.world import Redis, World, forget_connections  # noqa: E402


def main(name: str, seed: str, rounds: str, program: str, layer: str) -> Verdict:
    """Run the plan, print its outcome, and return its verdict."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="chatmemory-torture-") as place,
        temporary_database(Path(place), prefix="chatmemory_torture") as url,
    ):
        folder = Path(place) / name
        folder.mkdir()
        redis = Redis(folder) if layer != "none" else None
        own = {"DATABASE_URL": url, "SECRET_KEY": settings.SECRET_KEY, "DEBUG": "0", "LAYER": layer}
        world = World(
            {**os.environ, **own},
            folder,
            seed=int(seed),
            program=program,
            redis=redis,
        )
        try:
            try:
                outcome = asyncio.run(PLANS[name](world, int(rounds)))
            finally:
                world.close()
                end_connections()
        except Absent as reason:
            sys.stdout.write(f"   skipped: {reason}\n")
            return Verdict.SKIPPED
        except BaseException:
            sys.stdout.write(f"   did not finish; the logs are in {keep(folder)}\n")
            raise
        outcome = Outcome(outcome.violations, [*outcome.figures, world.given_up()])
        for line in [*outcome.figures, *outcome.violations[:20]]:
            sys.stdout.write(f"   {line}\n")
        logs = "" if outcome.verdict is Verdict.GOOD else f"; the logs are in {keep(folder)}"
        sys.stdout.write(f"   {outcome}; {time.monotonic() - began:.0f} s{logs}\n")
    return outcome.verdict


def end_connections() -> None:
    """End all other connections. Those of killed servers would keep the database from a drop."""
    if connection.vendor == "postgresql":
        forget_connections()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


def keep(folder: Path) -> Path:
    """Copy a folder to var/torture; return the copy's path."""
    kept = settings.BASE_DIR / "var" / "torture" / f"{folder.name}-{time.time():.0f}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(folder, kept))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
