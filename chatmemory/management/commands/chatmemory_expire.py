"""Removes what is due by age."""

from __future__ import annotations

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand


class Command(InterruptibleCommand):
    """Session by session; it can be stopped at any moment and run again."""

    help = (
        "Purge expired sessions and those of deleted users, and apply RETENTION. What goes can be "
        "restored for UNDO_DAYS; chatmemory_vacuum deletes it after that. Run it once a day."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only say what would go")

    def handle(self, *, dry_run: bool, **options: object) -> None:
        try:
            expired = services.expire_sessions(dry_run=dry_run)
        except (ValueError, MemoryUnavailable) as error:
            raise CommandError(str(error)) from error
        for reason, went in expired.went.items():
            numbers = f"{counted(went.sessions, 'session')}, {counted(went.messages, 'message')}"
            self.stdout.write(f"{reason}: {numbers}")
        if not expired.went:
            self.stdout.write("Nothing is due.")
        elif dry_run:
            self.stdout.write("Nothing was removed.")
        if expired.left:
            raise CommandError(
                f"{counted(expired.left, 'session')} could not be reached; run it again."
            )
