"""Writes sessions to a file or to the standard output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from django.core.management import CommandError, CommandParser

from chatmemory import services, transfer
from chatmemory.errors import ChatMemoryError
from chatmemory.management.acting import actor, add_actor_arguments
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.owners import scope_of
from chatmemory.services import Export


class Command(InterruptibleCommand):
    """An audit entry says who exports what and why, before the first word is written."""

    help = (
        "Write a session (--owner or --scope, and --key), everything of a person (--owner or "
        "--scope), or everything (--all). Only the form jsonl can be imported without loss."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--owner", help="username of the sessions' owner")
        what.add_argument("--scope", help="scope of the sessions, such as server or user:7")
        what.add_argument("--all", action="store_true", help="all sessions of all people")
        parser.add_argument("--key", help="only the living session under this key")
        parser.add_argument(
            "--form", choices=transfer.FORMS, default="jsonl", help="default: jsonl"
        )
        parser.add_argument(
            "--output", help="a new file, which only you can read; default: the standard output"
        )
        add_actor_arguments(parser)

    def handle(
        self,
        *,
        form: str,
        by: str,
        reason: str,
        owner: str | None = None,
        scope: str | None = None,
        key: str | None = None,
        output: str | None = None,
        **options: object,
    ) -> None:
        person = actor("chatmemory_export", by, reason)
        scope = scope_of(owner, scope)
        if scope is None and key is not None:
            raise CommandError("--key needs --owner or --scope.")
        if output is not None and Path(output).exists():
            raise CommandError(f"{output} is there already.")
        try:
            if scope is None:
                export = services.begin_export_of_all(form=form, by=person, reason=reason)
            else:
                export = services.begin_export(
                    form=form, by=person, reason=reason, scope=scope, session_key=key
                )
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error
        if not export.session_count:
            raise CommandError(f"Nothing is stored{f' under {scope}' if scope else ''}.")
        text = transfer.write_export(export)
        try:
            if output is None:
                for piece in text:
                    self.stdout.write(piece, ending="")
            else:
                _write(text, Path(output))
                self.stdout.write(_counts(export))
        except ChatMemoryError as error:
            raise CommandError(f"{error} What was written is not complete.") from error


def _write(text: Iterator[str], path: Path) -> None:
    """Write a new file of mode 0600; nothing stands under its name before all is written."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.writelines(text)
        part.rename(path)
    except OSError as error:
        raise CommandError(f"{path} can't be written: {error.strerror}.") from error


def _counts(export: Export) -> str:
    return f"{counted(export.session_count, 'session')}, {counted(export.message_count, 'message')}"
