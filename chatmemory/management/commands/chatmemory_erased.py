"""The command that shows whether a person was erased."""

from __future__ import annotations

from datetime import datetime

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import ChatMemoryError
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.owners import add_person_arguments, scope_of
from chatmemory.services import Actor, KnownErasure

UNKNOWN = 2
"""The exit status if erasures cannot be matched because a key is missing."""


class Command(InterruptibleCommand):
    """Prints one line per erasure of the person."""

    help = (
        "Show whether a person was erased, from the audit and ERASURE_LIST, also after a rotation "
        "of AUDIT_KEY. The exit status is 0 if an erasure was completed, 1 if not, and 2 if "
        "erasures were recorded under a key that is not in AUDIT_KEY_FALLBACKS."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_person_arguments(parser)

    def handle(self, *, owner: str | None, scope: str | None, **options: object) -> None:
        scope = scope_of(owner, scope)
        try:
            record = services.find_erasures(by=Actor.server("chatmemory_erased"), scope=scope)
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error
        for erasure in record.erasures:
            self.stdout.write(_sentence(erasure))
        self.stdout.write(f"{counted(record.sessions, 'session')} of {scope} stored now.")
        if any(erasure.completed_at for erasure in record.erasures):
            return
        if record.unknown_key:
            raise CommandError(
                f"Unknown: {counted(record.unknown_key, 'erasure')} recorded under another key. "
                "Add that key to AUDIT_KEY_FALLBACKS and run this again.",
                returncode=UNKNOWN,
            )
        raise CommandError(
            "No erasure was completed." if record.erasures else f"{scope} was not erased."
        )


def _sentence(erasure: KnownErasure) -> str:
    if not erasure.by:
        return (
            f"{_time(erasure.begun_at)}: on the erasure list, without a receipt in this database; "
            "run chatmemory_restored to repeat it"
        )
    if erasure.completed_at is None:
        return f"{_time(erasure.begun_at)}: begun by {erasure.by}, not completed; run it again"
    kept = f", {counted(len(erasure.held), 'session')} on hold kept" if erasure.held else ""
    return (
        f"{_time(erasure.completed_at)}: erased by {erasure.by}: "
        f"{counted(erasure.sessions, 'session')}, {counted(erasure.messages, 'message')}{kept} "
        f"(receipt {erasure.entry_pk}: {erasure.reason})"
    )


def _time(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
