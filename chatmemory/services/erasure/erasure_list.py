"""The erasure list: a record of erasures outside the database, replayed after a restore."""

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
from chatmemory.services.audit.keys import audit_keys, key_hash, key_id
from chatmemory.services.audit.macs import utc_text

VERSION = 1

_ID = re.compile("[0-9a-f]{32}")
_HASH = re.compile("[0-9a-f]{64}")

ALL = "all"
"""The value of `of` in a line if all sessions of the person were erased."""

Identity = tuple[int, str]
"""A session's primary key and time of creation: a restored database assigns the key again."""


class ErasureList(Protocol):
    """The interface of the object that the callable in `ERASURE_LIST` returns."""

    def append(self, line: str) -> None:
        """Store a line durably before returning; raise if that fails."""

    def lines(self) -> Iterable[str]:
        """Return all lines, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedErasure:
    """A line of the list."""

    id: str
    """The id of the erasure. A call that continues an interrupted erasure adds a line."""
    person: str
    """The keyed hash of the person's scope."""
    key_id: str
    """The id of the key of the hash."""
    erased_at: datetime
    """The database's time before the first delete: a user's later sessions were not erased."""
    sessions: frozenset[Identity] | None
    """The erased sessions; None if all sessions of the person were erased."""


class ErasureFile:
    """A list in a file of JSON lines; several processes can append concurrently."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: str) -> None:
        """Write the line in one call, and wait until it is on the disk."""
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # If an interrupted write left an incomplete line, the leading newline ends it.
            data = f"\n{line}\n".encode()
            if os.write(descriptor, data) != len(data):
                raise OSError("the line was written only partially")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            _sync_directory(self.path.parent)

    def lines(self) -> Iterable[str]:
        """Return the lines of the file; none if it does not exist."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8", errors="replace")
        return [line for line in text.split("\n") if line.strip()]


def _sync_directory(directory: Path) -> None:
    """Wait until the name of a new file is on the disk too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def erasure_list() -> ErasureList | None:
    """Return the list that `ERASURE_LIST` names, or None."""
    given = settings.ERASURE_LIST
    if given is None:
        return None
    if Path(given).is_absolute():
        return ErasureFile(Path(given))
    make: Callable[[], ErasureList] = import_string(str(given))
    return make()


def identity(session_pk: int, created_at: datetime) -> Identity:
    """Return the identity of a session, as it is written in a line."""
    return session_pk, utc_text(created_at)


def list_erasure(
    erasure_id: str, person: str, erased_at: datetime, sessions: Iterable[Identity] | None
) -> None:
    """Append an erasure to the list, if there is one; `sessions` is None for all sessions.

    Raises MemoryUnavailable.
    """
    line = {
        "version": VERSION,
        "id": erasure_id,
        "person": key_hash(person),
        "key_id": key_id(audit_keys()[0]),
        "erased_at": erased_at.isoformat(timespec="microseconds"),
        "of": ALL if sessions is None else list(sessions),
    }
    try:
        listed = erasure_list()
        if listed is not None:
            listed.append(json.dumps(line))
    except Exception as error:  # from the host's code or the file system
        raise MemoryUnavailable(
            f"ERASURE_LIST cannot be written ({type(error).__name__}); nothing was erased."
        ) from error


def listed_erasures() -> tuple[list[ListedErasure], int]:
    """Return the erasures on the list, and the number of invalid lines.

    Raises MemoryUnavailable.
    """
    found = []
    unreadable = 0
    try:
        listed = erasure_list()
        lines = [] if listed is None else list(listed.lines())
    except Exception as error:  # from the host's code or the file system
        raise MemoryUnavailable(f"ERASURE_LIST cannot be read ({type(error).__name__}).") from error
    for line in lines:
        if not line.strip():
            continue
        erasure = _parse_erasure(line)
        if erasure is None:
            unreadable += 1
        else:
            found.append(erasure)
    return found, unreadable


def _parse_erasure(line: str) -> ListedErasure | None:
    """Parse a line; None for an invalid line, such as a truncated one."""
    try:
        match codec.parse_json(line):
            case {
                "version": 1,
                "id": str(erasure_id),
                "person": str(person),
                "key_id": str(key),
                "erased_at": str(time),
                "of": str() | list() as of,
            } if _ID.fullmatch(erasure_id) and _HASH.fullmatch(person):
                erased_at = _parse_aware(time)
                sessions = _parse_sessions(of)
            case _:
                return None
    except (BadInput, ValueError, OverflowError):
        return None
    if erased_at is None:
        return None
    return ListedErasure(
        id=erasure_id, person=person, key_id=key, erased_at=erased_at, sessions=sessions
    )


def _parse_sessions(of: str | list[object]) -> frozenset[Identity] | None:
    """Parse the sessions of a line; None means all sessions. Raises ValueError."""
    if of == ALL:
        return None
    found = set()
    for session in of:
        match session:
            case [int(session_pk), str(created_at)]:
                found.add((session_pk, created_at))
            case _:
                raise ValueError('of must be "all" or a list of sessions')
    return frozenset(found)


def _parse_aware(time: str) -> datetime | None:
    """Parse a time and convert it to UTC; None if it has no time zone.

    Raises ValueError, OverflowError.
    """
    parsed = parse_datetime(time)
    return None if parsed is None or parsed.tzinfo is None else parsed.astimezone(UTC)
