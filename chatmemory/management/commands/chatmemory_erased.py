"""The command that shows whether a person was erased."""

from __future__ import annotations

from dataclasses import asdict

from django.core.management import CommandError, CommandParser

from chatmemory.errors import ChatMemoryError
from chatmemory.management.counting import counted
from chatmemory.management.erasures import erasure_sentence
from chatmemory.management.exits import UNKNOWN
from chatmemory.management.owners import add_person_arguments, scope_of
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services import Actor
from chatmemory.services.erasure.past_erasures import find_erasures


class Command(ReportingCommand):
    """Prints one line per erasure of the person."""

    is_long = False
    help = (
        "Show whether a person was erased, from the audit and ERASURE_LIST, also after a rotation "
        "of AUDIT_KEY. The exit status is 0 if an erasure was completed, 1 if not, and 3 if "
        "erasures were recorded under a key that is not in AUDIT_KEY_FALLBACKS."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_person_arguments(parser)

    def handle(self, *, owner: str | None, scope: str | None, **options: object) -> None:
        scope = scope_of(owner, scope)
        try:
            record = find_erasures(by=Actor.server("chatmemory_erased"), scope=scope)
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error
        for erasure in record.erasures:
            self.report(erasure_sentence(erasure), **asdict(erasure))
        is_erased = any(erasure.completed_at for erasure in record.erasures)
        self.report(
            f"{counted(record.sessions, 'conversation')} of {scope} stored now.",
            scope=scope,
            sessions=record.sessions,
            unknown_key=record.unknown_key,
            is_erased=is_erased,
        )
        if is_erased:
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
