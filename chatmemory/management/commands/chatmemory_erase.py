"""The command that deletes all data of a person."""

from __future__ import annotations

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import ChatMemoryError
from chatmemory.management.acting import add_actor_arguments, command_actor
from chatmemory.management.counting import counted
from chatmemory.management.owners import add_person_arguments, scope_of
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services.erasure.past_erasures import find_erasures


class Command(ReportingCommand):
    """Can be run again after an interruption; the receipt then counts all deletions."""

    help = (
        "Permanently delete all conversations of a person, with their titles, messages and turns, "
        "and everything that could still be restored. Conversations on hold are kept. Prints the "
        "number of the receipt. If interrupted, run it again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_person_arguments(parser)
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
        person = command_actor("chatmemory_erase", by=by, reason=reason)
        scope = scope_of(owner, scope)
        try:
            is_known = bool(find_erasures(by=person, scope=scope).erasures)
            if dry_run:
                erased = services.preview_erasure(by=person, scope=scope)
            else:
                erased = services.erase_person(
                    by=person, reason=reason, scope=scope, progress=self.progress
                )
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error
        derived = f", {counted(erased.derived, 'row')} of other apps" if erased.derived else ""
        receipt = erased.entry and erased.entry.pk
        end = f"The receipt is audit entry {receipt}." if receipt else "Nothing was deleted."
        self.report(
            f"{counted(erased.sessions, 'conversation')}, {counted(erased.messages, 'message')}, "
            f"{counted(erased.turns, 'turn')}{derived}\n{end}",
            scope=scope,
            sessions=erased.sessions,
            messages=erased.messages,
            turns=erased.turns,
            derived=erased.derived,
            held=erased.held,
            receipt=receipt,
            dry_run=dry_run,
        )
        if erased.held:
            pks = ", ".join(map(str, erased.held))
            noun = "conversation" if len(erased.held) == 1 else "conversations"
            raise CommandError(f"Kept because of a hold: {noun} {pks}. Release them and run again.")
        if not erased.sessions and not erased.derived and not is_known:
            raise CommandError(f"Nothing is stored under {scope}, and no erasure is recorded.")
