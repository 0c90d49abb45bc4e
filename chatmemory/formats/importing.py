"""Import sessions from the lines of a file: the `jsonl` format, or dialogues of other programs."""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain, count
from typing import Any, BinaryIO

from chatmemory import codec, services
from chatmemory.access import actors
from chatmemory.errors import BadInput, ChatMemoryError, Conflict
from chatmemory.formats.columns import (
    ADDRESS,
    FEEDBACK,
    MESSAGE,
    NOTE,
    SESSION,
    TURN,
    WITHDRAWN,
)
from chatmemory.formats.dialogues import Dialogue, is_langchain, read_dialogue
from chatmemory.formats.jsonl import VERSION
from chatmemory.models import MAX_NOTES, Turn
from chatmemory.services import Actor
from chatmemory.services.notes import check_note
from chatmemory.services.tags import check_tag
from chatmemory.services.transfers.imports import (
    Import,
    begin_import,
    discard_import,
    finish_import,
    import_rows,
    is_imported,
)

MAX_LINE = 64 * 2**20
"""Maximum line length, in bytes."""

_UTF_16 = "in UTF-16; convert it to UTF-8"
_OTHER_FILES = {
    b"PK\3\4": "a ZIP archive; unpack it, and import the JSON lines in it",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"SQLite format 3": "a database of SQLite; export JSON lines from it",
    b"%PDF": "a PDF document; export JSON lines instead",
    b"<": "HTML or XML; export JSON lines instead",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0["), _UTF_16),
}
"""What a file is that begins with these bytes."""

CHUNK_ROWS = 1_000
CHUNK_CHARS = 4_000_000
"""Limits of one write: the number of rows, and the characters in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for one session of the file."""

    line: int
    """The number of the session's last line, or of the line with the error."""
    messages: int = 0
    is_new: bool = False
    is_skipped: bool = False
    """The session was purged, or not completely imported, in the exported database."""
    derived: int = 0
    """Rows of other apps in the file; they are not imported, since their apps make them again."""
    error: ChatMemoryError | None = None
    place: str = ""
    """Where in the file the session is, for error texts; by default its line."""
    more: Mapping[str, int] = field(default_factory=dict)
    """Further counts for the report, such as of what was not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The scope and keys of the imported sessions, and the actor of the import."""

    by: Actor
    scope: str | None
    """None is the scope in the file; dialogues of other programs require a scope."""
    prefix: str | None = None
    """Prepended to each key, with a colon."""
    dialogue_prefix: str = "import"
    """The prefix for dialogues of other programs, if `prefix` is None."""
    reason: str = ""
    dry_run: bool = False
    """Check all lines and store nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """How an app imports files of other formats."""

    recognizes: Callable[[BinaryIO], bool]
    """Whether a file is of one of its formats. It leaves the stream at the beginning."""
    read: Callable[[BinaryIO, str | None, Target], Iterator[Outcome]]
    """Import a file in the named format, or in the one that is recognized. Raises BadInput."""


READERS: dict[str, FileReader] = {}
"""By the names of their formats, for `--format`. An app adds its own in its `ready()`."""

TYPES = ("session", "turn", "message", "feedback", "withdrawn", "derived", "end")
"""The types of the lines that an export in the format `jsonl` writes."""


class Lines:
    """The lines that are not blank, with their numbers; a too long line is truncated.

    A file that is one JSON value is one line. Iteration raises BadInput for a file of another type.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self._ahead = BytesIO()
        """The beginning of the file, after it was searched for a JSON value of several lines."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for number in count(1):
            line = self._readline(MAX_LINE + 1)
            if not line:
                return
            rest = line if len(line) > MAX_LINE else b""
            while rest and not rest.endswith(b"\n"):
                rest = self._readline(MAX_LINE)
            line = (self._first_line(line) if number == 1 else line).strip()
            if line:
                yield number, line

    def _readline(self, limit: int) -> bytes:
        line = self._ahead.readline(limit)
        if not line.endswith(b"\n") and len(line) < limit:
            line += self.stream.readline(limit - len(line))
        return line

    def _first_line(self, line: bytes) -> bytes:
        """Return the first line, or the whole file if it is one JSON value. Raises BadInput."""
        for begin, what in _OTHER_FILES.items():
            if line.startswith(begin):
                raise BadInput(f"The file is {what}.", code="bad_json")
        line = line.removeprefix(BOM_UTF8)
        if not line.startswith((b"{", b"[")) or _is_json(line):
            return line
        ahead = self.stream.read(max(0, MAX_LINE - len(line)))
        if _is_json(line + ahead):
            return line + ahead
        self._ahead = BytesIO(ahead)
        return line


def import_lines(lines: Iterable[tuple[int, bytes]], *, target: Target) -> Iterator[Outcome]:
    """Store the sessions in numbered lines; yield one outcome per session.

    A session is stored completely or not at all. A rejected session is an outcome with its error,
    and the import continues. The lines in a line that is a list have their numbers in the list.
    Raises MemoryUnavailable and Busy; then repeat the call with all lines: what is stored already
    is not stored again. Raises BadInput, with the code `empty`, if there is no session.
    """
    codec.check_value(target.reason, "reason")
    importer = _Importer(target)
    read = chain.from_iterable(importer.read(number, line) for number, line in lines)
    is_empty = True
    for outcome in chain(read, importer.end()):
        is_empty = False
        yield outcome
    if is_empty:
        raise BadInput("The file has no conversation.", code="empty")


class _Importer:
    """The state of an import between two lines."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.current: _Session | None = None
        self.is_skipping = False
        """Whether the importer skips the rest of a session that was rejected or purged."""
        self.seen: dict[tuple[str, str], str] = {}
        self.number = 0

    def read(self, number: int, line: bytes) -> Iterator[Outcome]:
        self.number = number
        try:
            kind, value = _parse_line(line)
        except BadInput as error:
            yield self._failed(error)
            return
        if kind == "list":
            for entry, one in enumerate(value, 1):
                yield from self.read(entry, codec.dump_json(one).encode())
            return
        if kind in (None, "session"):
            yield from self.end()
        try:
            outcome = self._dialogue(value) if kind is None else self._native(kind, value, line)
        except ChatMemoryError as error:
            if error.retry:
                error.args = (f"Line {number}: {error}",)
                raise
            yield self._failed(error)
        else:
            if outcome is not None:
                yield outcome

    def end(self) -> Iterator[Outcome]:
        """Reject a session whose last line is missing."""
        if self.current is not None:
            message = (
                f"The session of line {self.current.line} is truncated: its end line is missing."
            )
            yield self._failed(BadInput(message, code="bad_shape"))
        self.is_skipping = False

    def _failed(self, error: ChatMemoryError) -> Outcome:
        if self.current is not None:
            self.current.discard()
            self.is_skipping = True
        self.current = None
        return Outcome(line=self.number, error=error)

    def _native(self, kind: str, line: dict[str, object], raw: bytes) -> Outcome | None:
        if kind == "session":
            return self._begin_line(line, raw)
        current = self.current
        if current is None:
            if self.is_skipping:
                self.is_skipping = kind != "end"
                return None
            self.is_skipping = True
            raise BadInput("This line does not follow a session line.", code="bad_shape")
        if kind == "turn":
            current.turn(line)
        elif kind == "message":
            current.message(line)
        elif kind == "feedback":
            current.feedback(line)
        elif kind == "withdrawn":
            current.withdrawn(line)
        elif kind == "derived":
            current.derived += 1
        else:
            is_new = current.end(line)
            self.current = None
            return Outcome(
                line=self.number,
                messages=current.messages,
                is_new=is_new,
                derived=current.derived,
            )
        return None

    def _begin_line(self, line: dict[str, object], raw: bytes) -> Outcome | None:
        self.is_skipping = True  # remains True if an error follows
        tags, notes = _pop_tags(line), _pop_notes(line)
        columns = _session_columns(line)
        is_internal = columns["scope"].startswith(actors.importing_scope(""))
        if is_internal or columns["removed_at"] is not None:
            return Outcome(line=self.number, is_skipped=True)
        scope = columns["scope"] if self.target.scope is None else self.target.scope
        prefix = self.target.prefix
        key = columns["key"] if prefix is None else f"{prefix}:{columns['key']}"
        digest = hashlib.sha256(key.encode() + b"\n" + raw).hexdigest()
        kept = {name: value for name, value in columns.items() if name not in ADDRESS}
        if self.target.dry_run:
            found = None
            is_new = self._is_first(scope, key, digest) and not is_imported(
                session_key=key, created_at=kept["created_at"], by=self.target.by, scope=scope
            )
        else:
            is_new = True
            found = begin_import(
                session_key=key,
                session=kept,
                tags=tags,
                notes=notes,
                digest=digest,
                by=self.target.by,
                scope=scope,
            )
        self.current = _Session(self.target, self.number, kept, found, is_new=is_new)
        self.is_skipping = False
        return None

    def _is_first(self, scope: str, key: str, digest: str) -> bool:
        """Whether this address is new in a dry run. Raises Conflict."""
        before = self.seen.get((scope, key))
        if before not in (None, digest):
            raise Conflict("This id already exists with other messages.")
        self.seen[scope, key] = digest
        return before is None

    def _dialogue(self, value: object) -> Outcome:
        dialogue = read_dialogue(value)
        if self.target.scope is None:
            raise BadInput("scope is required for a dialogue of another program.", field="scope")
        prefix = self.target.prefix or self.target.dialogue_prefix
        key = codec.check_key(f"{prefix}:{dialogue.id}", field="id")
        store = self._would_be_new if self.target.dry_run else self._store_dialogue
        is_new = store(key, self.target.scope, dialogue)
        return Outcome(line=self.number, messages=len(dialogue.messages), is_new=is_new)

    def _would_be_new(self, key: str, scope: str, dialogue: Dialogue) -> bool:
        if not self._is_first(scope, key, dialogue.digest()):
            return False
        ids = [client_id for client_id, _ in dialogue.batches()]
        found = services.sessions_of(self.target.by, scope).filter(key=key)
        return found.filter(messages__client_id__in=ids).count() < len(ids)

    def _store_dialogue(self, key: str, scope: str, dialogue: Dialogue) -> bool:
        """Store a dialogue; return whether any of its messages is new."""
        epoch: int | None = None
        is_new = False
        for client_id, batch in dialogue.batches():
            try:
                appended = services.append_messages(
                    session_key=key,
                    messages=batch,
                    client_id=client_id,
                    by=self.target.by,
                    scope=scope,
                    epoch=epoch,
                    create=epoch is None,
                )
            except Conflict as error:
                raise Conflict("This id already exists with other messages.") from error
            epoch = appended.epoch
            is_new = is_new or not appended.is_duplicate
        return is_new


def _is_json(text: bytes) -> bool:
    try:
        codec.parse_json(text, is_ours=True)
    except BadInput as error:
        return error.code != "bad_json"
    return True


def _parse_line(line: bytes) -> tuple[str | None, Any]:
    """Return the type of a `jsonl` line (None for other formats) and its value.

    The type of a list of lines is `list`. Raises BadInput.
    """
    if len(line) >= MAX_LINE:
        raise BadInput(
            f"The line is longer than {MAX_LINE} bytes.", code="too_large", limit=MAX_LINE
        )
    match codec.parse_json(line, is_ours=True):
        case {"type": str(kind), **rest} if kind in TYPES:
            return kind, rest
        case [_, *_] as entries if not is_langchain(entries):
            return "list", entries
        case _:
            return None, codec.parse_json(line)


def _pop_tags(line: dict[str, object]) -> list[str]:
    """Remove the tags from the line of a session; return them. Raises BadInput."""
    given = line.pop("tags", [])
    tags = [tag for tag in given if isinstance(tag, str)] if isinstance(given, list) else []
    if tags != given or len(set(tags)) < len(tags):
        raise BadInput("tags must be a list of texts without duplicates.", field="tags")
    for tag in tags:
        check_tag(tag)
    return tags


def _pop_notes(line: dict[str, object]) -> list[dict[str, Any]]:
    """Remove the notes from the line of a session; return their columns. Raises BadInput."""
    given = line.pop("notes", [])
    if not isinstance(given, list) or not all(isinstance(note, dict) for note in given):
        raise BadInput("notes must be a list of objects.", field="notes")
    if len(given) > MAX_NOTES:
        message = f"A session can have {MAX_NOTES} notes."
        raise BadInput(message, code="too_many", field="notes", limit=MAX_NOTES)
    notes = [NOTE.read(note) for note in given]
    for note in notes:
        check_note(note["text"])
    return notes


def _session_columns(line: dict[str, object]) -> dict[str, Any]:
    version = line.pop("version", None)
    if type(version) is not int or version != VERSION:
        message = f"This version of the format is not supported; version {VERSION} is."
        raise BadInput(message, code="unsupported_version", field="version")
    columns = SESSION.read(line)
    if not columns["scope"]:
        raise BadInput("scope is empty.", field="scope")
    if not 1 <= columns["stored_from"] <= columns["first_seq"] <= columns["last_seq"] + 1:
        raise BadInput(
            "stored_from must be from 1 to first_seq, and first_seq at most last_seq + 1.",
            field="first_seq",
        )
    return columns


class _Session:
    """A session of the `jsonl` format whose lines are being read."""

    def __init__(
        self,
        target: Target,
        line: int,
        columns: Mapping[str, Any],
        found: Import | None,
        *,
        is_new: bool,
    ) -> None:
        self.target = target
        self.line = line
        self.found = found
        self.is_new = is_new
        self.next = columns["stored_from"]
        self.last = columns["last_seq"]
        self.turns = 0
        self.messages = 0
        self.derived = 0
        self.feedbacks = 0
        self.withdrawals = 0
        self.rated = 0
        """The `user_seq` of the last feedback."""
        self.running: str | None = None
        self._start_chunk()

    def turn(self, line: dict[str, object]) -> None:
        """Read the line of a turn. Raises BadInput."""
        turn = TURN.read(line)
        codec.check_client_id(turn["client_id"])
        user_seq = turn["user_seq"]
        if user_seq is not None and not 1 <= user_seq <= self.last:
            raise BadInput(
                "user_seq must be the seq of a message of the session.", field="user_seq"
            )
        low, high = turn["replaces_from"], turn["replaces_to"]
        is_range = None not in (low, high) and 1 <= low <= high < (user_seq or high + 1)
        if (low, high) != (None, None) and not is_range:
            raise BadInput(
                "replaces_from and replaces_to must be a range below user_seq, or both null.",
                field="replaces_to",
            )
        if turn["status"] in Turn.ACTIVE_STATUSES and user_seq is not None:
            if self.running is not None:
                raise BadInput("Only one turn of a session can be running.", field="status")
            self.running = turn["client_id"]
        self.turns += 1
        self._add_row(self.chunk_turns, turn, len(turn["asked"]) + len(turn["partial"]))

    def message(self, line: dict[str, object]) -> None:
        """Read the line of a message. Raises BadInput."""
        row = MESSAGE.read(line)
        if row["seq"] != self.next or row["seq"] > self.last:
            message = f"seq must be {self.next}, and at most {self.last}; it is {row['seq']}."
            raise BadInput(message, field="seq")
        if row["turn"] is not None and not 1 <= row["turn"] <= row["seq"]:
            raise BadInput("turn must be the seq of this message or an earlier one.", field="turn")
        if row["client_id"] is not None:
            codec.check_client_id(row["client_id"])
        self.next += 1
        self.messages += 1
        self._add_row(self.chunk_rows, row, len(row["text"]) + len(row["body"] or ""))

    def feedback(self, line: dict[str, object]) -> None:
        """Read the line of a feedback. Raises BadInput."""
        given = FEEDBACK.read(line)
        codec.check_client_id(given["turn"], field="turn")
        if not self.rated < given["user_seq"] <= self.last:
            message = "user_seq must be the seq of a message, and higher than in the line before."
            raise BadInput(message, field="user_seq")
        self.rated = given["user_seq"]
        self.feedbacks += 1
        self._add_row(self.chunk_feedback, given, len(given["reason"]))

    def withdrawn(self, line: dict[str, object]) -> None:
        """Read the line of a withdrawn range. Raises BadInput."""
        found = WITHDRAWN.read(line)
        if not 1 <= found["low"] <= found["high"] <= self.last:
            message = "low and high must be seqs of messages of the session, in this order."
            raise BadInput(message, field="high")
        self.withdrawals += 1
        self._add_row(self.chunk_withdrawn, found, 0)

    def end(self, line: dict[str, object]) -> bool:
        """Read the last line and finish the import; return whether the session is new."""
        expected = {"turns": self.turns, "messages": self.messages}
        others = {
            "feedback": self.feedbacks,
            "withdrawn": self.withdrawals,
            "derived": self.derived,
        }
        expected |= {name: count for name, count in others.items() if count}
        if line != expected or self.next <= self.last:
            message = f"Lines are missing: found {self.turns} turns and {self.messages} messages."
            raise BadInput(message, code="bad_shape")
        self._store_chunk()
        if self.found is None:
            return self.is_new
        return finish_import(
            found=self.found,
            turns=self.turns,
            feedback=self.feedbacks,
            withdrawn=self.withdrawals,
            running=self.running,
            by=self.target.by,
            reason=self.target.reason,
        )

    def discard(self) -> None:
        """Delete what was imported of the session."""
        if self.found is not None:
            discard_import(found=self.found)

    def _add_row(self, chunk: list[Any], columns: dict[str, Any], chars: int) -> None:
        chunk.append(columns)
        self.chars += chars
        if len(chunk) == CHUNK_ROWS or self.chars >= CHUNK_CHARS:
            self._store_chunk()

    def _store_chunk(self) -> None:
        chunks = (self.chunk_turns, self.chunk_rows, self.chunk_feedback, self.chunk_withdrawn)
        if self.found is not None and any(chunks):
            import_rows(
                found=self.found,
                turns=self.chunk_turns,
                rows=self.chunk_rows,
                feedback=self.chunk_feedback,
                withdrawn=self.chunk_withdrawn,
            )
        self._start_chunk()

    def _start_chunk(self) -> None:
        self.chunk_turns: list[dict[str, Any]] = []
        self.chunk_rows: list[dict[str, Any]] = []
        self.chunk_feedback: list[dict[str, Any]] = []
        self.chunk_withdrawn: list[dict[str, Any]] = []
        self.chars = 0
