"""The command that measures the speed on this machine."""

from __future__ import annotations

import json as json_format
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.management import CommandError, CommandParser
from django.db import connections, router

import chatmemory
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.models import Message

CHECKOUT = Path(chatmemory.__file__).resolve().parent.parent
MIN_ROUNDS = 5
"""Rounds from which a minimum and a maximum mean something."""


class Command(InterruptibleCommand):
    """Never uses the live database: it creates one of its own on the same server, and drops it."""

    help = (
        "Measure appends, turns, reads and sockets against hand-written statements, and check that "
        "no message is lost, duplicated or interleaved. Creates its own database on the server of "
        "this project, and drops it. The exit status is 1 after a wrong result."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012  # as Django declares it

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--units", metavar="A,B", help="default: all units")
        parser.add_argument(
            "--rounds", type=int, default=20, help="slices of each case; default: %(default)s"
        )
        parser.add_argument(
            "--users", type=int, default=100, help="of the unit users; default: %(default)s"
        )
        parser.add_argument(
            "--redis",
            metavar="URL",
            default="",
            help="also measure users on two servers that share this Redis; needs the extra `redis`",
        )
        parser.add_argument(
            "--full", action="store_true", help="growth to 5 million messages; needs 5 GB"
        )
        parser.add_argument("--seed", type=int, default=1, help="of the order of the slices")
        parser.add_argument(
            "--database",
            metavar="NAME",
            default="chatmemory_bench",
            help="the database to create; a former one of this name is dropped. The name must "
            "begin with chatmemory_bench, the default",
        )
        parser.add_argument(
            "--folder",
            type=Path,
            default=Path(),
            help="where SQLite files and logs are stored meanwhile; default: the current folder",
        )
        parser.add_argument(
            "--compare",
            action="store_true",
            help="also measure other stores, in the environments of `make peers`; only in a "
            "checkout",
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
        parser.add_argument(
            "--write", action="store_true", help="write docs/performance.md; only in a checkout"
        )
        parser.add_argument(
            "--also",
            type=Path,
            action="append",
            default=[],
            metavar="FILE",
            help="with --write: another run's JSON, for the same page; can be repeated",
        )

    def handle(
        self,
        *,
        units: str | None,
        rounds: int,
        users: int,
        redis: str,
        full: bool,
        seed: int,
        database: str,
        folder: Path,
        compare: bool,
        json: Path | None,
        write: bool,
        also: list[Path],
        **_: object,
    ) -> None:
        if rounds < 1 or users < 1:
            raise CommandError("--rounds and --users must be 1 or more.")
        if redis and not find_spec("channels_redis"):
            raise CommandError(
                "--redis needs channels_redis: pip install 'django-chatmemory[redis]'"
            )
        page = CHECKOUT / "docs" / "performance.md"
        if (write or compare) and not (CHECKOUT / "tests" / "peers").is_dir():
            raise CommandError("--write and --compare need a checkout of the repository.")
        others = [_read_run(path) for path in also]
        bench, report, cases = self._modules()
        try:
            figures = bench.run(
                bench.modules_of(units.split(",") if units else bench.UNITS, compare=compare),
                live=connections[router.db_for_write(Message)],
                database=database,
                folder=folder.resolve(),
                rounds=rounds,
                scale=cases.Scale(
                    users=users, redis=redis, **({"large_rows": 5_000_000} if full else {})
                ),
                seed=seed,
                report=self._write_progress,
            )
        except cases.BenchError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(report.text(figures))
        if rounds < MIN_ROUNDS:
            self.stderr.write(f"Fewer than {MIN_ROUNDS} rounds check the results, not the speed.")
        if json is not None:
            json.write_text(json_format.dumps(figures, indent=1) + "\n")
        if faults := report.faults_of(figures):
            raise CommandError("Wrong results:\n" + "\n".join(faults))
        if write:
            page.write_text(report.page([figures, *others]))

    def _modules(self) -> tuple[Any, Any, Any]:
        """Import the benchmark by name: it is above the commands, and needs the extra `bench`."""
        try:
            names = ("run", "report", "cases")
            run, report, cases = (import_module(f"chatmemory.bench.{name}") for name in names)
            import_module("websockets")
            import_module("uvicorn")
        except ImportError as error:
            hint = "pip install 'django-chatmemory[bench]'"
            raise CommandError(f"{error.name} is not installed: {hint}") from error
        return run, report, cases

    def _write_progress(self, unit: str) -> None:
        self.stderr.write(f"{unit} …")
        self.stderr.flush()


def _read_run(file: Path) -> Any:
    """Read the figures of another run. Raises CommandError."""
    try:
        return json_format.loads(file.read_text())
    except OSError as error:
        raise CommandError(f"{file} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"{file} can't be read: {error}.") from error
