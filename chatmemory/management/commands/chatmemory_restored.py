"""Recovers from a restore of the database."""

from __future__ import annotations

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import ChatMemoryError
from chatmemory.management.acting import actor, add_actor_arguments
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand


class Command(InterruptibleCommand):
    """To run after a restore, and after a failover to an asynchronous standby."""

    help = (
        "Run this after the database was restored from a backup, or after a failover that may have "
        "lost commits. Gives each session a new epoch, so that clients load it again and nothing "
        "from before the restore can write; ends running turns, cancels waiting ones, and repeats "
        "the erasures of ERASURE_LIST that the backup did not contain. It can be run again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_actor_arguments(parser)
        parser.add_argument(
            "--keep-waiting", action="store_true", help="run the waiting turns instead"
        )

    def handle(self, *, by: str, reason: str, keep_waiting: bool, **options: object) -> None:
        person = actor("chatmemory_restored", by, reason)
        try:
            done = services.recover_restored_database(
                by=person, reason=reason, keep_waiting=keep_waiting
            )
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{counted(done.sessions, 'session')} with a new epoch, "
            f"{counted(done.interrupted, 'turn')} interrupted, {done.cancelled} cancelled, "
            f"{done.kept} kept waiting"
        )
        erasures = done.erasures
        self.stdout.write(
            f"{counted(erasures.erasures, 'erasure')} repeated, {erasures.known} known: "
            f"{counted(erasures.sessions, 'session')}, {counted(erasures.messages, 'message')}"
        )
        problems = [
            (done.failed, "sessions stayed locked: run it again"),
            (erasures.unreadable, "lines of the erasure list are unreadable"),
            (erasures.unknown_key, "erasures were listed under an unknown audit key"),
            (len(erasures.held), "sessions of erased persons are on hold and were kept"),
        ]
        if found := [f"{number} {about}" for number, about in problems if number]:
            raise CommandError("; ".join(found) + ".")
