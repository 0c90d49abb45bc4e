"""Deletes everything of a person."""

from __future__ import annotations

from django.core.management import BaseCommand, CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import ChatMemoryError
from chatmemory.management.counting import counted
from chatmemory.management.owners import scope_of

_ACTOR = services.Actor.server("chatmemory_erase")


class Command(BaseCommand):
    """At once and for good; run it again if it was stopped."""

    help = (
        "Delete all sessions of a person for good, with titles, messages and turns, and what "
        "could still be restored. What is on hold stays. Prints the receipt."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--owner", help="username of the sessions' owner")
        whose.add_argument("--scope", help="scope of one who is gone, or a visitor: user:7")
        parser.add_argument("--reason", required=True, help="stays in the audit")
        parser.add_argument("--dry-run", action="store_true", help="only say what would go")

    def handle(
        self,
        *,
        owner: str | None,
        scope: str | None,
        reason: str,
        dry_run: bool,
        **options: object,
    ) -> None:
        if not reason.strip():
            raise CommandError("--reason is empty.")
        scope = scope_of(owner, scope)
        try:
            if dry_run:
                erased = services.preview_erasure(by=_ACTOR, scope=scope)
            else:
                erased = services.erase_person(by=_ACTOR, reason=reason, scope=scope)
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
