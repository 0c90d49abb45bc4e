"""Recovers from a restore of the database."""

from __future__ import annotations

from collections.abc import Iterator

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
        if problems := list(_problems(done)):
            raise CommandError(" ".join(problems))


def _problems(done: services.RecoveredSessions) -> Iterator[str]:
    erasures = done.erasures
    if done.failed:
        yield f"Locked, and not recovered: {counted(done.failed, 'session')}. Run this again."
    if erasures.unreadable:
        yield f"Unreadable: {counted(erasures.unreadable, 'line')} of the erasure list."
    if erasures.unknown_key:
        listed = counted(erasures.unknown_key, "erasure")
        yield (
            f"Not repeated: {listed} recorded under a key that is not given. "
            "Add it to AUDIT_KEY_FALLBACKS, and run this again."
        )
    if erasures.held:
        noun = "session" if len(erasures.held) == 1 else "sessions"
        yield f"On hold, and kept: {noun} {', '.join(map(str, erasures.held))} of erased persons."
