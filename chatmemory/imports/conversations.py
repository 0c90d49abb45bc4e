"""What the formats of all products are converted to: one branch of a conversation, in order."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from chatmemory import codec
from chatmemory.errors import BadInput
from chatmemory.imports.limits import MAX_MESSAGES, MAX_OPEN_CALLS

MAX_ID_CHARS = 200

_MILLISECONDS_FROM = 1e11
"""Higher numbers of seconds are after the year 5000, so they have a smaller unit."""

_MAX_NUMBER = 1e20
"""Higher than nanoseconds."""

_FIRST_YEAR = 1970
"""Programs write the year 1 for a missing time, which MariaDB can't store."""

_LAST_YEAR = 5138
"""That of the highest number of seconds. At the end of the year 9999, another time zone or a
retention would overflow."""

_SHORT_ID = re.compile(r"[A-Za-z0-9_.-]{1,56}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A message to store."""

    id: str
    """Its client_id: the id in the product, or a hash of it."""
    message: Mapping[str, object]
    """The plain message."""
    at: datetime | None
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The current branch of a conversation."""

    product: str
    id: str
    title: str
    created_at: datetime | None
    entries: Sequence[Entry]
    lost: Counter[str]
    key: str = ""
    """The key of its session; empty for one that is made of the product and the id."""

    @property
    def origin(self) -> str:
        """The value of `Session.origin`."""
        return f"{self.product}:{self.id}"


class NoMessages(Exception):
    """The conversation has no messages, as one that its person never began."""


class Draft:
    """Collects the messages of a branch, oldest first, so that each tool call has its result."""

    def __init__(self) -> None:
        self.lost: Counter[str] = Counter()
        """What is not kept, by kind; docs/howto/bring-your-chats.md lists the kinds."""
        self._entries: list[Entry] = []
        self._open: dict[str, Entry] = {}
        """Tool calls without a result, by their ids."""
        self._source = ""
        self._parts = count()
        self._at: datetime | None = None
        self._model = ""

    def begin(self, source: str, *, at: object = None, model: object = "") -> None:
        """Begin the messages that are made from one message of the product."""
        self._source = source
        self._parts = count()
        self._at = moment(at)
        self._model = model if isinstance(model, str) else ""

    def add_text(self, role: str, text: str) -> None:
        """Add a text; one without visible characters is left out."""
        if codec.is_blank(text):
            return
        self._close_calls()
        self._add({"role": role, "content": text})

    def call(self, name: str, args: object, call_id: object = None) -> str:
        """Add a tool call, to the text before it if it is of the same message; return its id.

        Raises BadInput.
        """
        if len(self._open) == MAX_OPEN_CALLS:
            message = f"More than {MAX_OPEN_CALLS} tool calls wait for their results."
            raise BadInput(message, code="too_many", limit=MAX_OPEN_CALLS)
        given = call_id if isinstance(call_id, str) and call_id else ""
        if not given or given in self._open:
            given = f"{self._source}:call{next(self._parts)}"
        arguments = args if isinstance(args, dict) else {"input": args}
        call = {"name": name, "args": arguments, "id": given, "type": "tool_call"}
        last = self._entries[-1] if self._entries else None
        if last is not None and last.message["role"] == "assistant" and self._is_of_source(last):
            earlier = last.message.get("tool_calls", [])
            calls = [*earlier, call] if isinstance(earlier, list) else [call]
            self._entries[-1] = replace(last, message={**last.message, "tool_calls": calls})
        else:
            if not self._is_continued():
                self._close_calls()
            self._add({"role": "assistant", "content": "", "tool_calls": [call]})
        self._open[given] = self._entries[-1]
        return given

    def result(self, call_id: object, text: str, *, is_error: bool = False) -> None:
        """Add the result of a call; one without a call is counted as lost."""
        if not isinstance(call_id, str) or call_id not in self._open:
            self.lost["tool_results"] += 1
            return
        del self._open[call_id]
        status = {"tool_status": "error"} if is_error else {}
        self._add({"role": "tool", "content": text, "tool_call_id": call_id, **status})

    def open_call(self) -> str | None:
        """Return the id of the oldest call without a result."""
        return next(iter(self._open), None)

    def finish(self) -> list[Entry]:
        """Return the messages. Raises BadInput, NoMessages."""
        self._close_calls()
        if not self._entries:
            raise NoMessages
        if len(self._entries) > MAX_MESSAGES:
            message = f"The conversation has more than {MAX_MESSAGES} messages."
            raise BadInput(message, code="too_many", limit=MAX_MESSAGES)
        return self._entries

    def _add(self, message: Mapping[str, object]) -> None:
        name = client_id(self._source, next(self._parts))
        self._entries.append(Entry(id=name, message=message, at=self._at, model=self._model))

    def _close_calls(self) -> None:
        """Give each open call the result that its outcome is unknown."""
        for call_id in list(self._open):
            del self._open[call_id]
            self._add(codec.unknown_outcome(call_id))

    def _is_of_source(self, entry: Entry) -> bool:
        return entry.id.partition(":")[0] == client_id(self._source, 0)

    def _is_continued(self) -> bool:
        """Whether the open calls are of this message."""
        return any(self._is_of_source(entry) for entry in self._open.values())


def client_id(source: str, part: int) -> str:
    """Return the client_id of a message: unique, as ids are, and equal in each import."""
    name = source
    if not _SHORT_ID.fullmatch(source):
        name = hashlib.sha256(source.encode(errors="replace")).hexdigest()[:40]
    return f"{name}:{part}" if part else name


def key_part(id_: str) -> str:
    """Return the id of a conversation as the end of a session key."""
    return client_id(id_, 0)


def branch(parents: Mapping[str, object], leaf: str) -> list[str]:
    """Return the ids from the root to `leaf`. A parent that is not in the mapping is the root.

    Raises BadInput.
    """
    path: dict[str, bool] = {}
    node: object = leaf
    while isinstance(node, str) and node in parents:
        if node in path:
            raise BadInput("The messages of the conversation form a circle.", code="bad_shape")
        path[node] = True
        node = parents[node]
    return [*reversed(path)]


def moment(value: object) -> datetime | None:
    """Return a time that is a number of seconds, milliseconds or less, or an ISO text; or None."""
    try:
        match value:
            case bool():
                return None
            case int() | float() if 0 < value < _MAX_NUMBER:
                while value >= _MILLISECONDS_FROM:
                    value /= 1000
                return datetime.fromtimestamp(value, UTC)
            case str():
                found = datetime.fromisoformat(value)
                found = found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
                return found if _FIRST_YEAR <= found.year <= _LAST_YEAR else None
    except (ValueError, OverflowError, OSError):
        pass
    return None


def with_times(entries: Iterable[Entry], created_at: datetime | None) -> list[Entry]:
    """Give each message without a time that of the one before it, or of its conversation."""
    entries = list(entries)
    last = created_at or next((entry.at for entry in entries if entry.at is not None), None)
    timed = []
    for entry in entries:
        last = entry.at or last
        timed.append(replace(entry, at=last))
    return timed


def name_of(given: Mapping[str, object], *fields: str) -> str:
    """Return the first of these fields that is a text which is not empty, else an empty text."""
    for field in fields:
        value = given.get(field)
        if isinstance(value, str) and value:
            return value
    return ""


def id_of(given: Mapping[str, object], *fields: str) -> str:
    """Return the id of a conversation. Raises BadInput."""
    found = name_of(given, *fields)
    if len(found) > MAX_ID_CHARS:
        message = f"{fields[0]} must have at most {MAX_ID_CHARS} characters."
        raise BadInput(message, code="too_large", field=fields[0], limit=MAX_ID_CHARS)
    codec.check_value(found, fields[0])
    return found


def objects(value: object, field: str) -> list[dict[str, Any]]:
    """Return a list of objects; null is an empty one. Raises BadInput."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise BadInput(f"{field} must be a list of objects.", code="bad_shape", field=field)
    return value


def text_in(value: object, field: str) -> str:
    """Return a text; null is an empty one. Raises BadInput."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadInput(f"{field} must be a text.", code="bad_shape", field=field)
    return value
