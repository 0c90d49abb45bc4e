"""The erasure list: a record outside the database of who was erased, replayed after a restore."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string

from chatmemory import codec
from chatmemory.conf import settings
from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.services.keys import audit_keys, key_hash, key_id

VERSION = 1

_ID = re.compile("[0-9a-f]{32}")
_HASH = re.compile("[0-9a-f]{64}")


class ErasureList(Protocol):
    """What the callable that `ERASURE_LIST` names returns."""

    def append(self, line: str) -> None:
        """Store a line durably before returning; raise if that fails."""

    def lines(self) -> Iterable[str]:
        """All lines, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedErasure:
    """A line of the list."""

    id: str
    """Of the erasure; the line is repeated when an interrupted erasure is continued."""
    person: str
    """The keyed hash of the person's scope."""
    key_id: str
    """The key of the hash."""
    erased_at: datetime
    """The database's time before the first delete: sessions created later were not erased."""


class ErasureFile:
    """A list in a file of JSON lines to which any number of processes append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: str) -> None:
        """Write the line in one call and wait until the disk has it."""
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # The newline before it separates it from a line that an earlier write left incomplete.
            data = f"\n{line}\n".encode()
            if os.write(descriptor, data) != len(data):
                raise OSError("the line was written in part only")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            _sync_directory(self.path.parent)

    def lines(self) -> Iterable[str]:
        """The lines of the file; none if it does not exist."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8", errors="replace")
        return [line for line in text.split("\n") if line.strip()]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def erasure_list() -> ErasureList | None:
    """The list that the settings name, or None."""
    given = settings.ERASURE_LIST
    if given is None:
        return None
    if Path(given).is_absolute():
        return ErasureFile(Path(given))
    make: Callable[[], ErasureList] = import_string(str(given))
    return make()


def list_erasure(erasure_id: str, person: str, erased_at: datetime) -> None:
    """Append an erasure to the list, if there is one. Raises MemoryUnavailable."""
    line = {
        "version": VERSION,
        "id": erasure_id,
        "person": key_hash(person),
        "key_id": key_id(audit_keys()[0]),
        "erased_at": erased_at.isoformat(timespec="microseconds"),
    }
    try:
        listed = erasure_list()
        if listed is not None:
            listed.append(json.dumps(line))
    except Exception as error:  # of the host's code, or of the file system
        raise MemoryUnavailable(
            f"ERASURE_LIST cannot be written ({type(error).__name__}); nothing was erased."
        ) from error


def listed_erasures() -> tuple[list[ListedErasure], int]:
    """The erasures on the list, and the number of lines that cannot be read.

    Raises MemoryUnavailable.
    """
    found = []
    unreadable = 0
    try:
        listed = erasure_list()
        lines = [] if listed is None else list(listed.lines())
    except Exception as error:  # of the host's code, or of the file system
        raise MemoryUnavailable(f"ERASURE_LIST cannot be read ({type(error).__name__}).") from error
    for line in lines:
        if not line.strip():
            continue
        erasure = _parse(line)
        if erasure is None:
            unreadable += 1
        else:
            found.append(erasure)
    return found, unreadable


def _parse(line: str) -> ListedErasure | None:
    """None for a line of another form, such as one that an interrupted write cut off."""
    try:
        match codec.parse_json(line):
            case {
                "version": 1,
                "id": str(erasure_id),
                "person": str(person),
                "key_id": str(key),
                "erased_at": str(time),
            } if _ID.fullmatch(erasure_id) and _HASH.fullmatch(person):
                erased_at = _aware(time)
            case _:
                return None
    except (BadInput, ValueError, OverflowError):
        return None
    if erased_at is None:
        return None
    return ListedErasure(id=erasure_id, person=person, key_id=key, erased_at=erased_at)


def _aware(time: str) -> datetime | None:
    """A time in UTC; None without a time zone. Raises ValueError, OverflowError."""
    parsed = parse_datetime(time)
    return None if parsed is None or parsed.tzinfo is None else parsed.astimezone(UTC)
