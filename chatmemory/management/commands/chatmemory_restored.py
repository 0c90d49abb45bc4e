"""The command that makes a restored database safe to use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from django.core.management import CommandError, CommandParser

from chatmemory.errors import ChatMemoryError
from chatmemory.management.acting import add_actor_arguments, command_actor
from chatmemory.management.counting import counted
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services.integrity.database_restore import (
    RecoveredSessions,
    recover_restored_database,
)


class Command(ReportingCommand):
    """Run after a restore, and after a failover to an asynchronous standby; can be repeated."""

    help = (
        "Run this after the database was restored from a backup, or after a failover that may have "
        "lost commits. It gives each conversation a new epoch, so that clients reload it and "
        "writers from before the restore are rejected; interrupts running turns; cancels waiting "
        "turns; and repeats the erasures of ERASURE_LIST that the backup does not contain. It can "
        "be run more than once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_actor_arguments(parser)
        parser.add_argument(
            "--keep-waiting",
            action="store_true",
            help="run the waiting turns instead of cancelling them",
        )

    def handle(self, *, by: str, reason: str, keep_waiting: bool, **options: object) -> None:
        person = command_actor("chatmemory_restored", by=by, reason=reason)
        try:
            done = recover_restored_database(
                by=person, reason=reason, keep_waiting=keep_waiting, progress=self.progress
            )
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error
        erasures = done.erasures
        self.report(
            f"{counted(done.sessions, 'conversation')} with a new epoch, "
            f"{counted(done.interrupted, 'turn')} interrupted, {done.cancelled} cancelled, "
            f"{done.kept} kept waiting\n"
            f"{counted(erasures.erasures, 'erasure')} repeated, {erasures.known} already done: "
            f"{counted(erasures.sessions, 'conversation')}, "
            f"{counted(erasures.messages, 'message')}",
            **asdict(done),
        )
        if problems := list(_problems(done)):
            raise CommandError(" ".join(problems))


def _problems(done: RecoveredSessions) -> Iterator[str]:
    erasures = done.erasures
    if done.failed:
        conversations = counted(done.failed, "conversation")
        yield f"Not recovered because of locks: {conversations}. Run this again."
    if erasures.unreadable:
        listed = counted(erasures.unreadable, "line")
        yield f"Unreadable: {listed} of the erasure list. Repair the file and run this again."
    if erasures.unknown_key:
        listed = counted(erasures.unknown_key, "erasure")
        yield (
            f"Not repeated: {listed} recorded under another key. "
            "Add that key to AUDIT_KEY_FALLBACKS and run this again."
        )
    if erasures.held:
        noun = "conversation" if len(erasures.held) == 1 else "conversations"
        pks = ", ".join(map(str, erasures.held))
        yield (
            f"Kept because of a hold: {noun} {pks} of erased persons. "
            "After the release, erase these persons again with chatmemory_erase."
        )
