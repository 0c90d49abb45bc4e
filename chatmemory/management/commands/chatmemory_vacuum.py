"""Deletes what can no longer be restored, and seals the audit."""

from __future__ import annotations

import math

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.sealing import verify_and_seal
from chatmemory.services.vacuum import CHUNK


class Command(InterruptibleCommand):
    """In chunks, while appends go on; it can be stopped at any moment and run again."""

    help = (
        "Delete for good what was trimmed, cleared or purged longer ago than UNDO_DAYS, and what "
        "an erasure left behind; then verify the audit, and seal its new entries if nothing is "
        "found. What is on hold stays. Run it once a day."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--chunk", type=int, default=CHUNK, help="messages deleted at once (%(default)s)"
        )
        parser.add_argument(
            "--pause", type=float, default=0.01, help="seconds after each chunk (%(default)s)"
        )
        parser.add_argument("--dry-run", action="store_true", help="only say what would go")

    def handle(self, *, chunk: int, pause: float, dry_run: bool, **options: object) -> None:
        if chunk < 1 or not 0 <= pause < math.inf:
            raise CommandError("--chunk must be 1 or more, --pause 0 or more.")
        try:
            gone = services.vacuum(chunk=chunk, pause_seconds=pause, dry_run=dry_run)
            numbers = (
                f"{counted(gone.messages, 'message')}, {counted(gone.turns, 'turn')}, "
                f"{counted(gone.sessions, 'session')}"
            )
            self.stdout.write(f"{numbers} (nothing was deleted)" if dry_run else numbers)
            trouble = "" if dry_run else verify_and_seal(self.stdout)
        except MemoryUnavailable as error:
            raise CommandError(f"{error} Run it again to go on.") from error
        if gone.left:
            left = f"{counted(gone.left, 'session')} could not be reached; run it again."
            trouble = f"{trouble} {left}".strip()
        if trouble:
            raise CommandError(trouble)
