"""Create the data of the operator's console at scale, and measure the pages of the admin.

Usage: `python -m tests.programs.benchmarks.console create [--sessions N] [--messages N]`, on a
migrated PostgreSQL database, then `python -m tests.programs.benchmarks.console measure [--plans]`,
and `python -m tests.programs.benchmarks.console purge [--sessions N]`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()  # before anything below imports a model

from django.db import connection  # noqa: E402  # after the setup

from tests.programs.benchmarks.console.creation import create  # noqa: E402
from tests.programs.benchmarks.console.measuring import RUNS, print_all  # noqa: E402
from tests.programs.benchmarks.console.purging import purge  # noqa: E402
from tests.programs.benchmarks.console.sizes import MESSAGES, SESSIONS, Size  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    options = _parser().parse_args(arguments)
    if connection.vendor != "postgresql":
        sys.exit("The console is measured on PostgreSQL only. Set DATABASE_URL.")
    if options.command == "create":
        create(Size.of(options.sessions, options.messages), _report)
        return 0
    if options.command == "purge":
        return 0 if purge(options.sessions, _report) else 1
    return bool(print_all(_report, only=options.only, runs=options.runs, with_plans=options.plans))


def _report(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.benchmarks.console")
    commands = parser.add_subparsers(dest="command", required=True)
    creation = commands.add_parser("create", help="add data to the database")
    creation.add_argument("--sessions", type=int, default=SESSIONS)
    creation.add_argument("--messages", type=int, default=MESSAGES)
    measuring = commands.add_parser("measure", help="request each page of the admin")
    measuring.add_argument("--plans", action="store_true", help="explain the slow statements")
    measuring.add_argument("--only", default="", help="only pages whose name contains this")
    measuring.add_argument("--runs", type=int, default=RUNS, help="requests for each page")
    purging = commands.add_parser("purge", help="purge sessions while others write")
    purging.add_argument("--sessions", type=int, default=SESSIONS // 2)
    return parser


if __name__ == "__main__":
    sys.exit(main())
