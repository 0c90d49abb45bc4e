"""Takes sessions from a file of JSON lines."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from django.core.management import CommandError, CommandParser
from django.db import reset_queries

from chatmemory import codec, transfer
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.management.acting import actor, add_actor_arguments
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.owners import scope_of
from chatmemory.transfer import Lines, Outcome, Target

BAR = 30
"""Width of the progress bar, in characters."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What became of the lines so far."""

    messages: int = 0
    new: int = 0
    known: int = 0
    left_out: int = 0
    bad: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        self.messages += outcome.messages
        self.bad += outcome.error is not None
        self.left_out += outcome.is_left_out
        if outcome.error is None and not outcome.is_left_out:
            self.new += outcome.is_new
            self.known += not outcome.is_new

    def __str__(self) -> str:
        left_out = f"; {self.left_out:,} purged left out" if self.left_out else ""
        return (
            f"{counted(self.new + self.known, 'session')}, {counted(self.messages, 'message')}; "
            f"{self.new:,} new, {self.known:,} already there{left_out}"
        )


class Command(InterruptibleCommand):
    """Each session is stored whole or not at all; one that is there is left alone."""

    help = (
        "Take sessions from JSON lines: those of chatmemory_export (jsonl, openai, langchain), or "
        '{"id": "7", "turns": [{"role": "user", "text": "Hi"}]} with the roles user (or human), '
        "assistant (or ai) and system. Run it again after a failure: it goes on where it stopped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="the file; - is the standard input")
        into = parser.add_mutually_exclusive_group(required=True)
        into.add_argument("--owner", help="username of the sessions' owner")
        into.add_argument("--scope", help="scope of the sessions, such as server")
        into.add_argument(
            "--own-scopes",
            action="store_true",
            help="each session goes to the scope that the file names; only for the form jsonl",
        )
        parser.add_argument(
            "--prefix",
            help="keys are PREFIX:key; by default as they are in the form jsonl, in others the "
            "prefix is the file's name without suffix",
        )
        add_actor_arguments(parser)
        parser.add_argument("--dry-run", action="store_true", help="store nothing")

    def handle(
        self,
        *,
        file: str,
        owner: str | None = None,
        scope: str | None = None,
        prefix: str | None,
        by: str,
        reason: str,
        dry_run: bool,
        **options: object,
    ) -> None:
        target = Target(
            by=actor("chatmemory_import", by, reason),
            scope=scope_of(owner, scope),
            prefix=prefix,
            dialogue_prefix=_stem(file),
            reason=reason,
            dry_run=dry_run,
        )
        try:
            if prefix is not None:
                codec.check_key(prefix, field="--prefix")
        except BadInput as error:
            raise CommandError(str(error)) from error
        counts = Counts()
        with _open(file) as stream:
            bar = Bar(self, stream)
            lines = Lines(stream)
            try:
                for outcome in transfer.import_lines(_forgetting(lines), target=target):
                    counts.add(outcome)
                    if outcome.error is not None:
                        bar.clear()
                        self.stderr.write(f"Line {outcome.line}: {outcome.error}")
                    bar.show(counts)
            except ChatMemoryError as error:
                raise CommandError(
                    f"Line {lines.number}: {error} Run it again to go on."
                ) from error
            finally:
                bar.clear()
        self.stdout.write(f"{counts} (nothing was stored)" if dry_run else str(counts))
        if counts.bad:
            raise CommandError(f"{counted(counts.bad, 'bad line')} left out.")


class Bar:
    """The progress on a terminal; elsewhere it shows nothing."""

    def __init__(self, command: InterruptibleCommand, stream: BinaryIO) -> None:
        self.out = command.stderr
        self.stream = stream
        self.size = stream.seek(0, 2) if stream.seekable() else 0
        self.next_at = 0.0
        if stream.seekable():
            stream.seek(0)

    def show(self, counts: Counts) -> None:
        """Draw it anew, ten times in a second at most."""
        if not self.out.isatty() or time.monotonic() < self.next_at:
            return
        self.next_at = time.monotonic() + 0.1
        share = self.stream.tell() / self.size if self.size else 0.0
        done = "#" * round(share * BAR)
        self._write(f"[{done:<{BAR}}] {share:4.0%}  {counts}")

    def clear(self) -> None:
        """Make room for other output."""
        if self.out.isatty():
            self._write("")

    def _write(self, text: str) -> None:
        self.out.write(f"\r\x1b[K{text}", style_func=str, ending="")
        self.out.flush()


def _forgetting(lines: Lines) -> Iterator[tuple[int, bytes]]:
    """The lines; with DEBUG, Django would keep the text of the last 9,000 statements."""
    for line in lines:
        reset_queries()
        yield line


def _stem(file: str) -> str:
    """The file's name without suffix, with "-" for what can't stand in a key."""
    stem = "import" if file == "-" else Path(file).stem
    return re.sub(r"[^A-Za-z0-9_.:@-]+", "-", stem)


def _open(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise CommandError(f"The file can't be read: {error.strerror}.") from error
