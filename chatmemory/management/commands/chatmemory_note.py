"""The command that adds, lists and deletes the notes of operators about a session."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser, no_translations

from chatmemory import services
from chatmemory.database.retries import durably
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.management.acting import add_actor_arguments, command_actor
from chatmemory.management.counting import counted
from chatmemory.management.exits import UsageError
from chatmemory.management.inputs import read_text
from chatmemory.management.reporting import ReportingCommand
from chatmemory.management.selecting import MAX_PK, add_session_arguments, select_session
from chatmemory.models import AuditEntry, Session, SessionNote
from chatmemory.services import Actor
from chatmemory.services.audit.entries import check_unerased
from chatmemory.services.jobs.actions import UNCHANGED
from chatmemory.services.jobs.perform import DONE
from chatmemory.services.notes import check_note, is_new_note

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "add": ("text_file", "by", "reason", "dry_run"),
    "list": (),
    "delete": ("note", "by", "reason", "dry_run"),
}
"""The options of each action, besides those that select the session; all are required except
`--dry-run`."""


class Command(ReportingCommand):
    """A repeated `add` of the newest note, and a repeated `delete`, change nothing."""

    is_long = False
    help = (
        "Add, list or delete notes of operators about a conversation, which users and models never "
        "see. The audit keeps who added or deleted a note and why, not its text."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("action", choices=OPTIONS)
        add_session_arguments(parser)
        add_actor_arguments(parser, required=False)
        parser.add_argument(
            "--text-file", metavar="FILE", help="for add: a file, - for standard input"
        )
        parser.add_argument("--note", type=int, metavar="PK", help="for delete")
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be changed"
        )

    @no_translations
    def handle(self, *, action: str, **options: Any) -> None:
        _check_options(action, options)
        if action == "list":
            self._list_notes(select_session(options))
            return
        by = command_actor("chatmemory_note", by=options["by"], reason=options["reason"])
        try:
            if action == "add":
                self._add_note(by, options)
            else:
                self._delete_note(by, options)
        except BadInput as error:
            raise (CommandError if error.code == "too_many" else UsageError)(str(error)) from error
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error

    def _list_notes(self, session: Session) -> None:
        stored = session.notes.order_by("pk")
        notes: list[SessionNote] = durably(partial(list, stored), is_repeatable=True)
        for note in notes:
            self.report(_note_text(note), **_note_fields(note))
        self.report(
            f"{counted(len(notes), 'note')} of conversation {session.pk}",
            session=session.pk,
            notes=len(notes),
        )

    def _add_note(self, by: Actor, options: Mapping[str, Any]) -> None:
        text = read_text(options["text_file"], "--text-file")
        check_note(text)
        session = select_session(options)
        if options["dry_run"]:
            durably(partial(check_unerased, session), is_repeatable=True)
            is_new = durably(partial(is_new_note, session, text, by), is_repeatable=True)
            self._report_note("add", session, DONE if is_new else UNCHANGED, None, dry_run=True)
            return
        entry = services.add_note(text=text, **_note_address(session, by, options))
        self._report_note("add", session, UNCHANGED if entry is None else DONE, entry)

    def _delete_note(self, by: Actor, options: Mapping[str, Any]) -> None:
        session = select_session(options)
        note_pk = options["note"]
        if options["dry_run"]:
            durably(partial(check_unerased, session), is_repeatable=True)
            found = session.notes.filter(pk=note_pk)
            is_stored = durably(found.exists, is_repeatable=True)
            self._report_note(
                "delete", session, DONE if is_stored else UNCHANGED, None, dry_run=True
            )
            return
        entry = services.delete_note(note_pk=note_pk, **_note_address(session, by, options))
        self._report_note("delete", session, UNCHANGED if entry is None else DONE, entry)

    def _report_note(
        self,
        action: str,
        session: Session,
        outcome: str,
        entry: AuditEntry | None,
        *,
        dry_run: bool = False,
    ) -> None:
        done = f"would {action} a note" if dry_run else f"{action}: {DONE}"
        result = done if outcome == DONE else outcome
        self.report(
            f"conversation {session.pk}: {result}{f', audit entry {entry.pk}' if entry else ''}",
            session=session.pk,
            action=action,
            outcome=outcome,
            entry=entry and entry.pk,
            dry_run=dry_run,
        )


def _check_options(action: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError if an option is missing, or belongs to another action."""
    known = {name for names in OPTIONS.values() for name in names}
    given = {name for name in known if options[name] not in (None, False)}
    own = set(OPTIONS[action])
    if wrong := sorted(given - own):
        raise UsageError(f"{_option_name(wrong[0])} does not belong to {action}.")
    if missing := sorted(own - given - {"dry_run"}):
        raise UsageError(f"{action} needs {_option_name(missing[0])}.")
    if options["note"] is not None and not 0 < options["note"] <= MAX_PK:
        raise UsageError("--note must be the primary key of a note.")


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _note_address(session: Session, by: Actor, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "session_key": session.key,
        "scope": session.removed_scope or session.scope,
        "session_pk": session.pk,
        "by": by,
        "reason": options["reason"],
    }


def _note_text(note: SessionNote) -> str:
    at = note.created_at.isoformat(timespec="seconds")
    return f"note {note.pk}, {at}, {note.actor_label}:\n{note.text}"


def _note_fields(note: SessionNote) -> dict[str, object]:
    return {
        "note": note.pk,
        "created_at": note.created_at,
        "by": note.actor_label,
        "text": note.text,
    }
