"""The command that removes sessions and messages by age."""

from __future__ import annotations

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand


class Command(InterruptibleCommand):
    """Removes session by session, each in its own transaction; can be stopped at any time."""

    help = (
        "Purge expired sessions and sessions of deleted users, and apply RETENTION. Everything "
        "removed can be restored for UNDO_DAYS; then chatmemory_vacuum deletes it. Run this once "
        "a day."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be removed"
        )

    def handle(self, *, dry_run: bool, **options: object) -> None:
        try:
            expired = services.expire_sessions(dry_run=dry_run)
        except (ValueError, MemoryUnavailable) as error:
            raise CommandError(str(error)) from error
        for reason, count in expired.removed.items():
            numbers = f"{counted(count.sessions, 'session')}, {counted(count.messages, 'message')}"
            self.stdout.write(f"{reason}: {numbers}")
        if not expired.removed:
            self.stdout.write("Nothing is due.")
        elif dry_run:
            self.stdout.write("Nothing was removed.")
        if expired.left:
            raise CommandError(
                f"{counted(expired.left, 'session')} locked and skipped. Run this again."
            )
