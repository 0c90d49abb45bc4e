"""The command that writes sessions to a file or to standard output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from django.core.management import CommandError, CommandParser

from chatmemory import formats, services
from chatmemory.errors import ChatMemoryError
from chatmemory.management.acting import add_actor_arguments, command_actor
from chatmemory.management.counting import counted
from chatmemory.management.exits import UsageError
from chatmemory.management.owners import scope_of
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services import Export
from chatmemory.services.transfers.exports import begin_export_of_all, preview_export


class Command(ReportingCommand):
    """Commits an audit entry with the actor and reason before the first byte is written."""

    help = (
        "Export one conversation (--owner or --scope, with --key), all conversations of a person "
        "(--owner or --scope), or everything (--all). Only the format jsonl can be imported "
        "without loss."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        selection = parser.add_mutually_exclusive_group(required=True)
        selection.add_argument("--owner", help="username of the conversations' owner")
        selection.add_argument(
            "--scope", help="scope of the conversations, such as server or user:7"
        )
        selection.add_argument("--all", action="store_true", help="all conversations of all people")
        parser.add_argument("--key", help="only the conversation with this key that is not purged")
        parser.add_argument(
            "--format", choices=formats.FORMATS, default="jsonl", help="default: jsonl"
        )
        parser.add_argument(
            "--output", help="a new file, readable only by you; default: standard output"
        )
        add_actor_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="only print how much would be exported"
        )

    def handle(
        self,
        *,
        format: str,
        by: str,
        reason: str,
        owner: str | None = None,
        scope: str | None = None,
        key: str | None = None,
        output: str | None = None,
        dry_run: bool = False,
        **options: object,
    ) -> None:
        person = command_actor("chatmemory_export", by=by, reason=reason)
        scope = scope_of(owner, scope)
        if self.as_json and output is None and not dry_run:
            raise UsageError("--json needs --output, since standard output has the export.")
        if scope is None and key is not None:
            raise UsageError("--key needs --owner or --scope.")
        if output is not None and Path(output).exists():
            raise CommandError(f"{output} already exists. Choose another file.")
        try:
            if dry_run:
                export = preview_export(format=format, by=person, scope=scope, session_key=key)
            elif scope is None:
                export = begin_export_of_all(format=format, by=person, reason=reason)
            else:
                export = services.begin_export(
                    format=format, by=person, reason=reason, scope=scope, session_key=key
                )
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error
        if not export.session_count:
            raise CommandError(f"Nothing is stored{f' under {scope}' if scope else ''}.")
        if dry_run:
            counts = f"{_counts(export)} (nothing was exported)"
            self.report(counts, **_export_fields(export), output=output, dry_run=True)
            return
        # Not on a terminal that shows the export itself.
        progress = None if output is None and self.stdout.isatty() else self.progress
        text = formats.write_export(export, progress=progress)
        try:
            if output is None:
                for piece in text:
                    self.stdout.write(piece, ending="")
            else:
                _write_file(text, Path(output))
                self.report(_counts(export), **_export_fields(export), output=output, dry_run=False)
        except ChatMemoryError as error:
            raise CommandError(f"{error} The output is incomplete.") from error


def _write_file(text: Iterator[str], path: Path) -> None:
    """Write a new file of mode 0600, which has its name only when it is complete."""
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
    messages = counted(export.message_count, "message")
    return f"{counted(export.session_count, 'conversation')}, {messages}"


def _export_fields(export: Export) -> dict[str, object]:
    return {
        "format": export.format,
        "sessions": export.session_count,
        "messages": export.message_count,
    }
