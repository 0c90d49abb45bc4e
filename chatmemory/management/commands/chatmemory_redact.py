"""The command that redacts one message, or a text wherever it is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import BadInput, ChatMemoryError, MemoryUnavailable
from chatmemory.management.acting import add_actor_arguments, command_actor
from chatmemory.management.counting import counted
from chatmemory.management.exits import UsageError
from chatmemory.management.inputs import read_text
from chatmemory.management.reporting import ReportingCommand
from chatmemory.management.selecting import add_session_arguments, select_sessions
from chatmemory.models import AuditEntry, SessionQuerySet
from chatmemory.services import FoundText
from chatmemory.services.jobs.actions import UNCHANGED
from chatmemory.services.jobs.create import Order
from chatmemory.services.jobs.perform import DONE
from chatmemory.services.redaction.find_text import REDACTED, locate

UNCOUNTED = 100
"""The texts that `--yes` confirms without a number."""


@dataclass(slots=True)
class Totals:
    """What happened to the found texts, or would happen."""

    outcomes: Counter[str] = field(default_factory=Counter)
    replying: int = 0
    """Number of sessions in which a turn runs, whose reply may repeat the text."""
    last_session: int = 0

    def add(self, found: FoundText, outcome: str) -> None:
        self.outcomes[outcome] += 1
        # The finds of a session follow one another.
        self.replying += found.is_replying and found.session_pk != self.last_session
        self.last_session = found.session_pk

    @property
    def number(self) -> int:
        return self.outcomes.total()

    def problems(self) -> list[str]:
        """Return why the text is or may be stored still."""
        problems = []
        if left := self.number - self.outcomes[DONE] - self.outcomes[UNCHANGED]:
            problems.append(f"{counted(left, 'text')} cannot be redacted; the outcomes state why.")
        if self.replying:
            sessions = counted(self.replying, "conversation")
            problems.append(f"A turn runs in {sessions}: run this again when it has ended.")
        return problems


class Command(ReportingCommand):
    """Redacts text by text, each in its own transaction; can be stopped and run again."""

    help = (
        "Permanently delete the content of one message (--seq) or turn (--turn), or of all that "
        "contain a text (--find-file). Prints where the text is, never the text. The exit status "
        "is 1 if it is still stored in these conversations. If interrupted, run it again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_session_arguments(parser, many=True, everyone=True)
        add_actor_arguments(parser)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--seq", type=int, help="the number of the message")
        what.add_argument(
            "--turn", metavar="CLIENT_ID", help="the turn whose text no message contains"
        )
        what.add_argument(
            "--find-file",
            metavar="FILE",
            help="a file with the text to find, - for standard input: not an argument, since other "
            "users and the history of the shell see those",
        )
        parser.add_argument(
            "--yes",
            type=int,
            nargs="?",
            const=UNCOUNTED,
            metavar="NUMBER",
            help="with --find-file: redact what is found, up to this number (default: "
            f"{UNCOUNTED}); without it, only print where the text is",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be redacted"
        )

    def handle(self, *, by: str, reason: str, **options: Any) -> None:
        order = Order(by=command_actor("chatmemory_redact", by=by, reason=reason), reason=reason)
        _check_options(options)
        sessions = select_sessions(options)
        try:
            if options["find_file"] is None:
                self._redact_one(sessions, order, options)
                return
            prompt = "Text to find (not shown): "
            text = read_text(options["find_file"], "--find-file", prompt=prompt)
            self._redact_text(sessions, text, order, options)
        except BadInput as error:
            raise UsageError(str(error)) from error
        except MemoryUnavailable as error:
            raise CommandError(f"{error} Run this again.") from error

    def _redact_one(
        self, sessions: SessionQuerySet, order: Order, options: Mapping[str, Any]
    ) -> None:
        session = sessions.get()
        found = locate(session_pk=session.pk, seq=options["seq"], turn=options["turn"])
        if found is None:
            name = f"message {options['seq']}" if options["turn"] is None else "such turn"
            raise CommandError(f"Conversation {session.pk} has no {name}.")
        if found.state == REDACTED:
            self._show_find(found, UNCHANGED, None, dry_run=options["dry_run"])
        elif self._act(found, order, dry_run=options["dry_run"]) not in (DONE, UNCHANGED):
            raise CommandError("It was not redacted.")

    def _redact_text(
        self, sessions: SessionQuerySet, text: str, order: Order, options: Mapping[str, Any]
    ) -> None:
        if text.strip() and text.lower() in f"{order.reason}\n{order.by.id}".lower():
            raise UsageError("--reason and --by must not contain the text: the audit keeps them.")
        limit = options["yes"]
        is_only_shown = options["dry_run"] or limit is None
        if not is_only_shown:
            self._check_number(sessions, text, limit)
        totals = Totals()
        for found in services.find_text(sessions=sessions, text=text, progress=self.progress):
            totals.add(found, self._act(found, order, dry_run=is_only_shown))
        self._show_totals(totals, dry_run=is_only_shown)
        problems = totals.problems()
        if totals.outcomes[DONE] and is_only_shown and not options["dry_run"]:
            number = totals.outcomes[DONE]
            problems.append(f"Nothing was changed. To redact, run this with --yes {number}.")
        if problems:
            raise CommandError(" ".join(problems))

    def _check_number(self, sessions: SessionQuerySet, text: str, limit: int) -> None:
        """Refuse to redact more texts than were confirmed. Raises CommandError."""
        # A search of its own, so that the memory does not depend on the number of texts.
        found = services.find_text(sessions=sessions, text=text, progress=self.progress)
        number = sum(not each.obstacle for each in found)
        if number > limit:
            raise CommandError(
                f"{counted(number, 'text')} found; --yes confirms {limit:,}. Nothing was changed. "
                "List them with --dry-run."
            )

    def _act(self, found: FoundText, order: Order, *, dry_run: bool) -> str:
        """Redact a text if possible, print the outcome and return it."""
        outcome, entry = found.obstacle or DONE, None
        if not found.obstacle and not dry_run:
            outcome, entry = _redact_find(found, order)
        self._show_find(found, outcome, entry, dry_run=dry_run)
        return outcome

    def _show_find(
        self, found: FoundText, outcome: str, entry: AuditEntry | None, *, dry_run: bool
    ) -> None:
        result = "would be redacted" if dry_run and outcome == DONE else outcome
        self.report(
            f"{_find_name(found)}: {result}{f', audit entry {entry.pk}' if entry else ''}",
            session=found.session_pk,
            scope=found.scope,
            key=found.session_key,
            field=found.field,
            state=found.state,
            seq=found.seq,
            role=found.role,
            turn=found.turn,
            note=found.note,
            outcome=outcome,
            entry=entry and entry.pk,
            dry_run=dry_run,
        )

    def _show_totals(self, totals: Totals, *, dry_run: bool) -> None:
        outcomes = dict(sorted(totals.outcomes.items()))
        parts = [f"{count:,} {code}" for code, count in outcomes.items() if code != DONE]
        if done := outcomes.pop(DONE, 0):
            parts.insert(0, f"{done:,} {'to redact' if dry_run else 'redacted'}")
        self.report(
            ": ".join(filter(None, [f"{counted(totals.number, 'text')} found", ", ".join(parts)])),
            done=done,
            skipped=outcomes,
            replying=totals.replying,
            dry_run=dry_run,
        )


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError if the options do not fit together."""
    if options["find_file"] is not None:
        if options["yes"] is not None and options["yes"] < 1:
            raise UsageError("--yes must be 1 or more.")
    elif options["yes"] is not None:
        raise UsageError("--yes belongs to --find-file.")
    elif options["all"] or len(options["session"] or ()) > 1:
        raise UsageError("--seq and --turn need one conversation.")


def _redact_find(found: FoundText, order: Order) -> tuple[str, AuditEntry | None]:
    """Redact a message or turn; return the outcome and the audit entry."""
    address: dict[str, Any] = {
        "session_key": found.session_key,
        "scope": found.scope,
        "session_pk": found.session_pk,
        "by": order.by,
        "reason": order.reason,
    }
    try:
        if found.field == "message":
            entry = services.redact_message(seq=found.seq or 0, **address)
        else:
            entry = services.redact_turn(turn=found.turn or "", **address)
    except ChatMemoryError as error:  # such as a hold since the search
        return error.code, None
    return (UNCHANGED if entry is None else DONE), entry


def _find_name(found: FoundText) -> str:
    match found.field:
        case "message":
            place = f"message {found.seq}, {found.role}"
        case "turn" | "feedback":
            place = f"{found.field} {found.turn}"
        case "note":
            place = f"note {found.note}"
        case other:
            place = other
    state = "" if found.state == "shown" else f", {found.state}"
    return f"conversation {found.session_pk} ({found.scope}, {found.session_key}), {place}{state}"
