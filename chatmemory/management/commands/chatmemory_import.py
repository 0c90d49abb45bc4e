"""The command that imports sessions from JSON lines, or from files that other apps read."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from django.core.management import CommandError, CommandParser
from django.db import reset_queries

from chatmemory import codec, formats
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.formats import Lines, Outcome, Target
from chatmemory.management.acting import add_actor_arguments, command_actor
from chatmemory.management.counting import counted
from chatmemory.management.owners import scope_of
from chatmemory.management.reporting import ReportingCommand

MAX_ERRORS = 10
"""Errors of one kind that are printed. If no session was valid before, the import then stops."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """The outcomes of the lines that were read."""

    messages: int = 0
    new: int = 0
    existing: int = 0
    skipped: int = 0
    derived: int = 0
    bad: int = 0
    more: dict[str, int] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """Number of valid sessions."""
        return self.new + self.existing + self.skipped

    def add(self, outcome: Outcome) -> None:
        """Count one line."""
        self.messages += outcome.messages
        self.bad += outcome.error is not None
        self.skipped += outcome.is_skipped
        self.derived += outcome.derived
        for name, number in outcome.more.items():
            self.more[name] = self.more.get(name, 0) + number
        if outcome.error is None and not outcome.is_skipped:
            self.new += outcome.is_new
            self.existing += not outcome.is_new

    def __str__(self) -> str:
        skipped = f"; {self.skipped:,} skipped" if self.skipped else ""
        derived = f"; {self.derived:,} rows of other apps ignored" if self.derived else ""
        more = "".join(f"; {name}: {number:,}" for name, number in self.more.items())
        return (
            f"{counted(self.new + self.existing, 'conversation')}, "
            f"{counted(self.messages, 'message')}; "
            f"{self.new:,} new, {self.existing:,} already stored{skipped}{derived}{more}"
        )


class Command(ReportingCommand):
    """Stores each session completely or not at all; does not change sessions that exist."""

    help = (
        "Import conversations from JSON lines: the output of chatmemory_export (jsonl, openai, "
        'langchain), or {"id": "7", "turns": [{"role": "user", "text": "Hi"}]} with the roles user '
        "(or human), assistant (or ai) and system. After a failure, run it again: conversations "
        "that are already stored are not stored again. docs/howto/transfer.md lists more formats."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("file", help="the file, or - for standard input")
        destination = parser.add_mutually_exclusive_group(required=True)
        destination.add_argument("--owner", help="username of the conversations' owner")
        destination.add_argument(
            "--scope", help="scope of the conversations, such as server or user:7"
        )
        destination.add_argument(
            "--own-scopes",
            action="store_true",
            help="use the scope that the file gives for each one; only for the format jsonl",
        )
        parser.add_argument(
            "--prefix",
            help="store under PREFIX:key; by default the format jsonl has no prefix, and other "
            "formats use the file name without its suffix, or the name of the product",
        )
        parser.add_argument(
            "--format",
            choices=["lines", *sorted(formats.READERS)],
            help="the format of the file; by default it is recognized",
        )
        add_actor_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="validate everything, store nothing"
        )

    def handle(
        self,
        *,
        file: str,
        owner: str | None = None,
        scope: str | None = None,
        prefix: str | None,
        format: str | None = None,
        by: str,
        reason: str,
        dry_run: bool,
        **options: object,
    ) -> None:
        target = Target(
            by=command_actor("chatmemory_import", by=by, reason=reason),
            scope=scope_of(owner, scope),
            prefix=prefix,
            dialogue_prefix=_stem(file),
            reason=reason,
            dry_run=dry_run,
        )
        with _open_file(file) as stream:
            size = _stream_size(stream)
            reader = formats.READERS.get(format or "") or next(
                (one for one in formats.READERS.values() if not format and one.recognizes(stream)),
                None,
            )
            if reader is None:
                noun, lines = "line", _without_query_log(Lines(stream))
                outcomes = formats.import_lines(lines, target=target)
            else:
                noun, outcomes = "conversation", reader.read(stream, format, target)
            self.store(outcomes, target, noun, position=stream.tell if size else None, size=size)

    def store(
        self,
        outcomes: Iterator[Outcome],
        target: Target,
        noun: str,
        *,
        position: Callable[[], int] | None = None,
        size: int | None = None,
    ) -> None:
        """Run an import to its end, and report it. Raises CommandError."""
        counts = Counts()
        errors: Counter[str] = Counter()
        try:
            if target.prefix is not None:
                codec.check_key(target.prefix, field="--prefix")
            for outcome in outcomes:
                reset_queries()  # with DEBUG, Django keeps the last 9,000 statements
                counts.add(outcome)
                if outcome.error is not None:
                    self.bar.clear()
                    self._report_error(outcome, outcome.error, errors)
                    if errors[outcome.error.code] == MAX_ERRORS and not counts.read:
                        break
                self.bar.show(position() if position else outcome.line, size, str(counts))
        except BadInput as error:
            raise CommandError(str(error)) from error
        except ChatMemoryError as error:
            raise CommandError(f"{error} Run this again to continue.") from error
        self.report(
            f"{counts} (nothing was stored)" if target.dry_run else str(counts),
            **asdict(counts),
            errors=errors,
            dry_run=target.dry_run,
        )
        if counts.bad >= MAX_ERRORS and not counts.read:
            raise CommandError(
                f"Stopped: no {noun} was valid. docs/howto/transfer.md describes the formats."
            )
        if counts.bad:
            raise CommandError(f"{counted(counts.bad, f'invalid {noun}')} skipped.")

    def _report_error(self, outcome: Outcome, error: ChatMemoryError, errors: Counter[str]) -> None:
        """Print an error, unless MAX_ERRORS of its code were printed."""
        errors[error.code] += 1
        if errors[error.code] <= MAX_ERRORS:
            self.stderr.write(f"{outcome.place or f'Line {outcome.line}'}: {error}")
        if errors[error.code] == MAX_ERRORS:
            self.stderr.write(f"Further errors of this kind ({error.code}) are not printed.")


def _stream_size(stream: BinaryIO) -> int | None:
    """Return the number of bytes; None for a pipe."""
    if not stream.seekable():
        return None
    size = stream.seek(0, 2)
    stream.seek(0)
    return size


def _without_query_log(lines: Lines) -> Iterator[tuple[int, bytes]]:
    for line in lines:
        reset_queries()  # with DEBUG, Django keeps the text of the last 9,000 statements
        yield line


def _stem(file: str) -> str:
    """Return the file name without its suffix, with "-" for characters that a key can't contain."""
    stem = "import" if file == "-" else Path(file).stem
    return re.sub(r"[^A-Za-z0-9_.:@-]+", "-", stem)


def _open_file(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise CommandError(f"The file can't be read: {error.strerror}.") from error
