"""Run plans on their own servers and databases: all of SCHEDULE, or those that `--plan` names.

The same `--seed` makes the same choices.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.programs.torture.standbys import find_programs, standby_pair
from tests.programs.torture.verdict import Verdict, summary

ROOT = Path(__file__).resolve().parents[3]
DATABASES = {
    "sqlite": "",
    "postgresql": os.environ.get(
        "TORTURE_POSTGRESQL", "postgres://postgres@127.0.0.1:5432/chatmemory"
    ),
    "mariadb": os.environ.get("TORTURE_MARIADB", "mysql://root@127.0.0.1:3306/chatmemory"),
}
STANDBYS = "standbys"
"""The database of a stage that has a PostgreSQL primary and a standby of its own."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A plan, how often it repeats its fault, and on which server, database and layer."""

    plan: str
    rounds: int
    program: str = "uvicorn"
    database: str = "postgresql"
    layer: str = "pubsub"
    """The layer of channels-redis, `pubsub` or `core`; `none` runs without Redis."""

    def __str__(self) -> str:
        return f"{self.plan} ({self.rounds}): {self.program}, {self.database}, layer {self.layer}"


SCHEDULE = (
    Stage("kill", 20),
    Stage("kill", 5, program="daphne"),
    Stage("kill", 5, database="sqlite", layer="none"),
    Stage("kill", 5, program="daphne", database="sqlite", layer="none"),
    Stage("pause", 10),
    Stage("unfenced", 1),
    Stage("rolling", 10),
    Stage("commits", 50),
    Stage("redis", 10),
    Stage("redis", 10, layer="core"),
    Stage("loss", 10),
    Stage("readers", 8),
    Stage("readers", 8, program="daphne"),
    Stage("streams", 4),
    Stage("storm", 3),
    Stage("isolation", 1_000_000),
    Stage("isolation", 1_000_000, layer="core"),
    Stage("stuck", 3),
    Stage("stuck", 3, database="mariadb"),
    Stage("greedy", 30),
    Stage("restore", 20),
    Stage("zombie", 2),
    Stage("zombie", 2, database="mariadb"),
    Stage("zombie", 2, database="sqlite", layer="none"),
    Stage("slow", 1),
    Stage("slow", 1, program="daphne", database="mariadb"),
    Stage("locks", 1),
    Stage("locks", 1, database="mariadb"),
    Stage("failover", 20, database=STANDBYS),
    Stage("upgrade", 5),
    Stage("upgrade", 5, database="mariadb"),
    Stage("shard", 5),
    Stage("shard", 5, layer="core"),
    Stage("sentinel", 5),
    Stage("sentinel", 5, layer="core"),
)


def main() -> int:
    """Run the chosen stages.

    Exit status: 0 if all are good, 4 if only time limits were exceeded, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.programs.torture", description=__doc__)
    names = sorted({stage.plan for stage in SCHEDULE})
    parser.add_argument("--plan", action="append", choices=names, help="one or more; else all")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--rounds", type=int, help="how often each plan repeats its fault")
    parser.add_argument("--program", choices=["uvicorn", "daphne"], help="only on this server")
    parser.add_argument("--database", choices=[*DATABASES, STANDBYS], help="only on this database")
    parser.add_argument("--layer", choices=["pubsub", "core", "none"], help="only on this layer")
    options = parser.parse_args()
    chosen = [
        replace(stage, rounds=options.rounds or stage.rounds)
        for stage in SCHEDULE
        if stage.plan in (options.plan or names)
        and options.program in (None, stage.program)
        and options.database in (None, stage.database)
        and options.layer in (None, stage.layer)
    ]
    write_line(f"Seed {options.seed}. Python {platform.python_version()}, {os.cpu_count()} cores.")
    lines, status = summary({stage: run(stage, options.seed) for stage in chosen})
    for line in lines:
        write_line(line)
    return status


def run(stage: Stage, seed: int) -> Verdict:
    """Run a stage in its own process, with its own settings."""
    write_line(f"\n== {stage}")
    if stage.database != STANDBYS:
        return run_on(stage, seed, {"DATABASE_URL": DATABASES[stage.database]})
    if find_programs() is None:
        write_line("   skipped: the programs of the PostgreSQL server are not installed")
        return Verdict.SKIPPED
    with (
        tempfile.TemporaryDirectory(prefix="chatmemory-standbys-") as folder,
        standby_pair(Path(folder)) as database,
    ):
        return run_on(stage, seed, database)


def run_on(stage: Stage, seed: int, database: Mapping[str, str]) -> Verdict:
    """Run a stage; `database` are the environment variables that select it."""
    place = [stage.program, stage.layer]
    command = [sys.executable, "-m", "tests.programs.torture.stage", stage.plan, str(seed)]
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "project.settings",
        **database,
        "REDIS_URL": "",
        "LAYER": stage.layer,
    }
    done = subprocess.run(  # noqa: S603  # our own module
        [*command, str(stage.rounds), *place], cwd=ROOT, env=env, check=False
    )
    known = done.returncode in {verdict.value for verdict in Verdict}
    return Verdict(done.returncode) if known else Verdict.BROKEN  # a signal ended it


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
