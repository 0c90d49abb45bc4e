"""Takes dialogues from a file of JSON lines into the sessions of a user."""

from __future__ import annotations

import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

from django.contrib.auth import get_user_model
from django.core.management import BaseCommand, CommandError, CommandParser

from chatmemory import codec, services
from chatmemory.errors import BadInput, ChatMemoryError, Conflict, MemoryUnavailable

BATCH = 1_000
"""Messages stored at once; a longer dialogue is stored in several batches."""
MAX_LINE = 64 * 2**20
"""Longest line that is read, in bytes."""
BAR = 30
"""Width of the progress bar, in characters."""

ROLES = {role: role for role in ("user", "assistant", "system")}
ROLES |= {"human": "user", "ai": "assistant"}

Message = dict[str, object]

_ACTOR = services.Actor.server("chatmemory_import")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A line of the file."""

    id: str
    messages: Sequence[Message]

    def batches(self) -> Iterator[tuple[str, Sequence[Message]]]:
        """What is stored at once, each with its client_id."""
        for number, start in enumerate(range(0, len(self.messages), BATCH), 1):
            client_id = self.id if number == 1 else f"{self.id}:{number}"
            yield client_id, self.messages[start : start + BATCH]


@dataclass(slots=True, kw_only=True)
class Counts:
    """What became of the lines so far."""

    messages: int = 0
    new: int = 0
    known: int = 0
    bad: int = 0

    def __str__(self) -> str:
        return (
            f"{self.new + self.known:,} sessions, {self.messages:,} messages; "
            f"{self.new:,} new, {self.known:,} already there"
        )


class Command(BaseCommand):
    """Each dialogue is a session, stored whole or not at all; one that is there is left alone."""

    help = (
        'Take dialogues from JSON lines: {"id": "7", "turns": [{"role": "user", "text": "Hi"}]}. '
        "Roles are user (or human), assistant (or ai) and system. Run it again after a failure: "
        "it goes on where it stopped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="the file; - is the standard input")
        parser.add_argument("--owner", required=True, help="username of the sessions' owner")
        parser.add_argument(
            "--prefix", help="keys are PREFIX:id; the default is the file's name without suffix"
        )
        parser.add_argument("--dry-run", action="store_true", help="store nothing")

    def handle(
        self, *, file: str, owner: str, prefix: str | None, dry_run: bool, **options: object
    ) -> None:
        self.scope = _scope_of(owner)
        self.prefix = _checked_prefix(prefix or ("import" if file == "-" else Path(file).stem))
        self.dry_run = dry_run
        counts = Counts()
        with _open(file) as stream:
            bar = Bar(self, stream)
            for number, line in _lines(stream):
                try:
                    self._take(line, counts)
                except MemoryUnavailable as error:
                    bar.clear()
                    raise CommandError(f"Line {number}: {error} Run it again to go on.") from error
                except ChatMemoryError as error:
                    counts.bad += 1
                    bar.clear()
                    self.stderr.write(f"Line {number}: {error}")
                bar.show(counts)
            bar.clear()
        self.stdout.write(f"{counts} (nothing was stored)" if dry_run else str(counts))
        if counts.bad:
            raise CommandError(f"{counts.bad:,} bad lines were left out.")

    def _take(self, line: bytes, counts: Counts) -> None:
        """Store the dialogue of a line, and count it."""
        dialogue = _dialogue(line)
        key = codec.check_key(f"{self.prefix}:{dialogue.id}", field="id")
        is_new = self._is_new(key, dialogue) if self.dry_run else self._store(key, dialogue)
        counts.messages += len(dialogue.messages)
        counts.new += is_new
        counts.known += not is_new

    def _is_new(self, key: str, dialogue: Dialogue) -> bool:
        ids = [client_id for client_id, _ in dialogue.batches()]
        found = services.sessions_of(_ACTOR, self.scope).filter(key=key)
        return found.filter(messages__client_id__in=ids).count() < len(ids)

    def _store(self, key: str, dialogue: Dialogue) -> bool:
        """Return whether anything of it was new."""
        epoch: int | None = None
        is_new = False
        for client_id, batch in dialogue.batches():
            try:
                appended = services.append_messages(
                    session_key=key,
                    messages=batch,
                    client_id=client_id,
                    by=_ACTOR,
                    scope=self.scope,
                    epoch=epoch,
                    create=epoch is None,
                )
            except Conflict as error:
                raise Conflict("This id is there already, with other messages.") from error
            epoch = appended.epoch
            is_new = is_new or not appended.is_duplicate
        return is_new


class Bar:
    """The progress on a terminal; elsewhere it shows nothing."""

    def __init__(self, command: BaseCommand, stream: BinaryIO) -> None:
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


def _scope_of(owner: str) -> str:
    users = get_user_model()
    try:
        return services.user_scope(users.objects.get_by_natural_key(owner))
    except users.DoesNotExist as error:
        raise CommandError(f"There is no user {owner[:80]!a}.") from error


def _checked_prefix(prefix: str) -> str:
    try:
        return codec.check_key(prefix, field="--prefix")
    except BadInput as error:
        raise CommandError(str(error)) from error


def _open(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise CommandError(f"The file can't be read: {error.strerror}.") from error


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Each line that isn't blank, with its number; of one that is too long, only the beginning."""
    for number in count(1):
        line = stream.readline(MAX_LINE + 1)
        if not line:
            return
        rest = line if len(line) > MAX_LINE else b""
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE)
        line = (line.removeprefix(BOM_UTF8) if number == 1 else line).strip()
        if line:
            yield number, line


def _dialogue(line: bytes) -> Dialogue:
    """Read a line. Raises BadInput."""
    if len(line) >= MAX_LINE:
        raise BadInput(f"Longer than {MAX_LINE} bytes.", code="too_large", limit=MAX_LINE)
    match codec.parse_json(line):
        case {"id": str(id_), "turns": [_, *_] as turns}:
            messages = [_message(turn, f"turns[{place}]") for place, turn in enumerate(turns)]
        case _:
            raise BadInput("Not an object with an id (a text) and turns (a list).")
    dialogue = Dialogue(id=id_, messages=messages)
    for client_id, _ in dialogue.batches():
        codec.check_client_id(client_id, field="id")
    return dialogue


def _message(turn: object, field: str) -> Message:
    match turn:
        case {"role": str(name), "text": str(text)} if name in ROLES:
            role = ROLES[name]
        case _:
            names = ", ".join(ROLES)
            raise BadInput(f"{field} must have a role ({names}) and a text.", field=field)
    if role == "user":
        codec.check_text(text, field=f"{field}.text")
    return {"role": role, "content": text}
