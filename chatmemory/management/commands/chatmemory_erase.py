"""Deletes everything of a person."""

from __future__ import annotations

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import ChatMemoryError
from chatmemory.management.acting import actor, add_actor_arguments
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.owners import scope_of


class Command(InterruptibleCommand):
    """Run it again if it was interrupted; the receipt then counts everything."""

    help = (
        "Delete all sessions of a person for good, with titles, messages and turns, and what "
        "could still be restored. What is on hold stays. Prints the receipt."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--owner", help="username of the sessions' owner")
        whose.add_argument("--scope", help="scope of a deleted user or a visitor, such as user:7")
        add_actor_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be deleted"
        )

    def handle(
        self,
        *,
        owner: str | None,
        scope: str | None,
        by: str,
        reason: str,
        dry_run: bool,
        **options: object,
    ) -> None:
        person = actor("chatmemory_erase", by, reason)
        scope = scope_of(owner, scope)
        try:
            is_known = bool(services.find_erasures(by=person, scope=scope).erasures)
            if dry_run:
                erased = services.preview_erasure(by=person, scope=scope)
            else:
                erased = services.erase_person(by=person, reason=reason, scope=scope)
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{counted(erased.sessions, 'session')}, {counted(erased.messages, 'message')}, "
            f"{counted(erased.turns, 'turn')}"
        )
        if erased.entry is None:
            self.stdout.write("Nothing was deleted.")
        else:
            self.stdout.write(f"The receipt is audit entry {erased.entry.pk}.")
        if erased.held:
            pks = ", ".join(map(str, erased.held))
            noun = "session" if len(erased.held) == 1 else "sessions"
            raise CommandError(f"On hold, and kept: {noun} {pks}.")
        if not erased.sessions and not is_known:
            raise CommandError(f"Nothing is stored under {scope}, and no erasure of it is known.")
