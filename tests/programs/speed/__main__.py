"""Measure appends, turns, reads and sockets against hand-written statements.

Usage: `make bench ARGS="--units append,turn"`, or `python -m tests.programs.speed` with these
options. It never uses the live database: it creates one of its own on the server of DATABASE_URL,
and drops it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()  # before anything below imports a model

from django.db import connection  # noqa: E402  # after the setup

from chatmemory.management.interruptible import INTERRUPTED  # noqa: E402
from tests.programs.speed import report  # noqa: E402
from tests.programs.speed.cases import BenchError, Scale  # noqa: E402
from tests.programs.speed.databases import OWN_PREFIX  # noqa: E402
from tests.programs.speed.run import modules_of, run  # noqa: E402
from tests.programs.speed.units import UNITS  # noqa: E402

PAGE = Path(__file__).resolve().parents[3] / "docs/reasons/performance.md"
MIN_ROUNDS = 5
"""Rounds from which a minimum and a maximum mean something."""
FULL_ROWS = 5_000_000
"""Messages in the large database of `growth` with `--full`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run units and print their figures.

    Exits with a message if an option is wrong, a process fails, or a result is wrong.
    """
    options = _parser().parse_args(arguments)
    if options.rounds < 1 or options.users < 1:
        sys.exit("--rounds and --users must be 1 or more.")
    others = [_read_run(file) for file in options.also]
    scale = Scale(
        users=options.users,
        redis=options.redis,
        large_rows=FULL_ROWS if options.full else Scale.large_rows,
    )
    try:
        figures = run(
            modules_of(options.units.split(","), compare=options.compare),
            live=connection,
            database=options.database,
            folder=options.folder.resolve(),
            rounds=options.rounds,
            scale=scale,
            seed=options.seed,
            report=_write_progress,
        )
    except BenchError as error:
        sys.exit(str(error))
    sys.stdout.write(report.text(figures))
    if options.rounds < MIN_ROUNDS:
        sys.stderr.write(f"Fewer than {MIN_ROUNDS} rounds check the results, not the speed.\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if faults := report.faults_of(figures):
        sys.exit("Wrong results:\n" + "\n".join(faults))
    if options.write:
        PAGE.write_text(report.page([figures, *others]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.speed",
        description=(
            "Measure appends, turns, reads and sockets against hand-written statements, and check "
            "that no message is lost, duplicated or interleaved. Creates its own database on the "
            "server of DATABASE_URL, and drops it. The exit status is 1 after a wrong result."
        ),
    )
    add = parser.add_argument
    add("--units", metavar="A,B", default=",".join(UNITS), help="default: all units")
    add("--rounds", type=int, default=20, help="slices of each case; default: %(default)s")
    add("--users", type=int, default=100, help="of the unit users; default: %(default)s")
    add(
        "--redis",
        metavar="URL",
        default="",
        help="also measure users on two servers that share this Redis",
    )
    add("--full", action="store_true", help="growth to 5 million messages; needs 5 GB")
    add("--seed", type=int, default=1, help="of the order of the slices")
    add(
        "--database",
        metavar="NAME",
        default=OWN_PREFIX,
        help="the database to create; a former one of this name is dropped. The name must begin "
        f"with {OWN_PREFIX}, the default",
    )
    add(
        "--folder",
        type=Path,
        default=Path(),
        help="where SQLite files and logs are stored meanwhile; default: the current folder",
    )
    add(
        "--compare",
        action="store_true",
        help="also measure other stores, in the environments of `make peers`",
    )
    add("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    add("--write", action="store_true", help="write docs/reasons/performance.md")
    add(
        "--also",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="with --write: another run's JSON, for the same page; can be repeated",
    )
    return parser


def _write_progress(unit: str) -> None:
    sys.stderr.write(f"{unit} …\n")
    sys.stderr.flush()


def _read_run(file: Path) -> report.Run:
    """Return the figures of another run; exit with a message if they cannot be read."""
    try:
        figures: report.Run = json.loads(file.read_text())
    except OSError as error:
        sys.exit(f"{file} can't be read: {error.strerror}.")
    except ValueError as error:
        sys.exit(f"{file} can't be read: {error}.")
    return figures


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")
        sys.exit(INTERRUPTED)
