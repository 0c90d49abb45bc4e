"""The command that removes sessions and messages by age."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from django.core.management import CommandError, CommandParser

from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services.retention.retention import Expired, expire_sessions


class Command(ReportingCommand):
    """Removes session by session, each in its own transaction; can be stopped at any time."""

    help = (
        "Purge expired conversations and conversations of deleted users, and apply RETENTION. "
        "Everything removed can be restored for UNDO_DAYS; then chatmemory_vacuum deletes it. Run "
        "this once a day."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be removed"
        )

    def handle(self, *, dry_run: bool, **options: object) -> None:
        try:
            expired = expire_sessions(dry_run=dry_run, progress=self.progress)
        except (ValueError, MemoryUnavailable) as error:
            raise CommandError(str(error)) from error
        self.report(
            "\n".join(_sentences(expired, dry_run=dry_run)), **asdict(expired), dry_run=dry_run
        )
        if expired.left:
            raise CommandError(
                f"{counted(expired.left, 'conversation')} locked and skipped. Run this again."
            )


def _sentences(expired: Expired, *, dry_run: bool) -> Iterator[str]:
    for reason, count in expired.removed.items():
        numbers = f"{counted(count.sessions, 'conversation')}, {counted(count.messages, 'message')}"
        yield f"{reason}: {numbers}"
    if not expired.removed:
        yield "Nothing is due."
    elif dry_run:
        yield "Nothing was removed."
