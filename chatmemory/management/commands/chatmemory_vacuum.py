"""The command that deletes what can no longer be restored, and seals the audit."""

from __future__ import annotations

import math
from dataclasses import asdict

from django.core.management import CommandError, CommandParser

from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.exits import UsageError
from chatmemory.management.reporting import ReportingCommand
from chatmemory.management.sealing import verify_and_seal
from chatmemory.services.removal.vacuum import CHUNK, vacuum


class Command(ReportingCommand):
    """Deletes in chunks, which do not block appends; can be stopped at any time and run again."""

    help = (
        "Permanently delete what was trimmed, cleared or purged more than UNDO_DAYS ago, and the "
        "remains of interrupted erasures; then verify the audit and seal its new entries if there "
        "are no findings. Conversations on hold are kept. Run this once a day."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--chunk", type=int, default=CHUNK, help="messages per transaction (%(default)s)"
        )
        parser.add_argument(
            "--pause", type=float, default=0.01, help="seconds after each chunk (%(default)s)"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be deleted"
        )

    def handle(self, *, chunk: int, pause: float, dry_run: bool, **options: object) -> None:
        if chunk < 1 or not 0 <= pause < math.inf:
            raise UsageError("--chunk must be 1 or more, --pause 0 or more.")
        try:
            deleted = vacuum(
                chunk=chunk, pause_seconds=pause, dry_run=dry_run, progress=self.progress
            )
            numbers = (
                f"{counted(deleted.messages, 'message')}, {counted(deleted.turns, 'turn')}, "
                f"{counted(deleted.sessions, 'conversation')}"
            )
            if deleted.emptied:
                numbers += f", the content of {counted(deleted.emptied, 'withdrawn message')}"
            self.report(
                f"{numbers} (nothing was deleted)" if dry_run else numbers,
                **asdict(deleted),
                dry_run=dry_run,
            )
            problem = "" if dry_run else verify_and_seal(self)
        except MemoryUnavailable as error:
            raise CommandError(f"{error} Run this again to continue.") from error
        if deleted.left:
            skipped = f"{counted(deleted.left, 'conversation')} locked and skipped. Run this again."
            problem = f"{problem} {skipped}".strip()
        if problem:
            raise CommandError(problem)
