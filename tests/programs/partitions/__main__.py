"""Measure the calls of a turn on tables of rows with and without partitions, on PostgreSQL.

Usage: `python -m tests.programs.partitions [--rows N] [--rounds N] [--json FILE]`. It creates two
databases on the server of DATABASE_URL, as `make bench` does, and drops them. A statement that
touches more than one partition is an error, except the one that counts the turns of a person.
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

from tests.programs.speed import report  # noqa: E402
from tests.programs.speed.cases import BenchError, Scale  # noqa: E402
from tests.programs.speed.databases import OWN_PREFIX  # noqa: E402
from tests.programs.speed.run import run  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures. Exit with a message if a process fails, or a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.partitions")
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages in each database")
    parser.add_argument("--rounds", type=int, default=40, help="slices of each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    try:
        figures = run(
            {"partitions": "tests.programs.partitions.unit"},
            live=connection,
            database=f"{OWN_PREFIX}_partitions",
            folder=Path.cwd(),
            rounds=options.rounds,
            scale=Scale(large_rows=options.rows),
            seed=1,
            report=lambda _: None,
        )
    except BenchError as error:
        sys.exit(str(error))
    sys.stdout.write(report.text(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if faults := report.faults_of(figures):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
