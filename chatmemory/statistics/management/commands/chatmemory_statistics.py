"""The command that adds what is new to the daily figures."""

from __future__ import annotations

from dataclasses import asdict

from django.core.management import CommandError, CommandParser

from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.exits import UsageError
from chatmemory.management.reporting import ReportingCommand
from chatmemory.statistics.roll_up import CHUNK, roll_up_statistics


class Command(ReportingCommand):
    """Counts in chunks, which block no writer; can be stopped at any time and run again."""

    help = (
        "Add the turns, messages, conversations and feedback since the last run to the figures "
        "that the admin shows. chatmemory_vacuum does so first; run this more often, such as once "
        "an hour, for newer figures. The last five minutes are left to the next run."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--chunk", type=int, default=CHUNK, help="rows per transaction (%(default)s)"
        )

    def handle(self, *, chunk: int, **options: object) -> None:
        if chunk < 1:
            raise UsageError("--chunk must be 1 or more.")
        try:
            added = roll_up_statistics(chunk=chunk, progress=self.progress)
        except MemoryUnavailable as error:
            raise CommandError(f"{error} Run this again to continue.") from error
        self.report(
            f"{counted(added.turns, 'turn')}, {counted(added.messages, 'message')}, "
            f"{counted(added.sessions, 'conversation')}, {added.feedback:,} with feedback, "
            f"up to {added.until.isoformat(timespec='seconds')}",
            **asdict(added),
        )
