"""Read the conversations of a JSON file one after another, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol

import ijson

from chatmemory.errors import BadInput
from chatmemory.imports.limits import MAX_CONVERSATION, MAX_DEPTH, MAX_STRING

BUFFER = 2**16

_PAIR_BYTES = 12
"""The length of two escapes."""

_EVENT_WEIGHT = 64
"""About the bytes of a reference, a small value or an entry of a dict."""

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_PAIR = rb"\\u[dD][89abAB]..\\u[dD][c-fC-F].."
_FIRST_HALF = rb"\\u[dD][89abAB]..(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])"
_OTHER_ESCAPE = rb"\\[^u]|\\u(?![dD][89abAB])...."
_WHOLE = re.compile(
    b"(?:" + b"|".join((rb"[^\\]++", _PAIR, _FIRST_HALF, _OTHER_ESCAPE)) + b")*+", re.DOTALL
)
"""What needs no more bytes: all but an escape that is cut, or that may be half of a pair."""

_CONVERSATION_DEPTH = 3
"""The depth of a conversation's fields, in a list in an object; elsewhere it is lower."""

LIST_FIELD = "conversations"
"""A list in the top-level object that has the conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One value of the file, or the reason why it can't be read."""

    number: int
    """From 1."""
    value: object = None
    error: BadInput | None = None


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Text:
    """The bytes of a file for ijson, whose strings would otherwise have no limit.

    Replaces the escape of half a surrogate pair by that of NUL, which `check_text` rejects: the
    parser in C would change it to a question mark.
    """

    def __init__(self, stream: _Readable) -> None:
        self._stream = stream
        self._held = b""
        self._string = 0
        """Bytes without the end of a string."""
        self.is_empty = True

    def read(self, size: int = -1) -> bytes:
        if size == 0:  # ijson tests whether this returns bytes
            return b""
        while True:
            data = self._stream.read(size)
            chunk = self._held + data
            self._held = b""
            if not data:
                return _without_halves(chunk)
            if self.is_empty:
                chunk = chunk.removeprefix(b"\xef\xbb\xbf")
                self.is_empty = not chunk.strip()
            found = _open_escape(chunk)
            chunk, self._held = chunk[:found], chunk[found:]
            if chunk:
                self._check_string(chunk)
                return _without_halves(chunk)

    def _check_string(self, chunk: bytes) -> None:
        # Most chunks have a quote that is not escaped; then the longest string ends in it.
        rest = chunk.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in chunk else chunk
        self._string = 0 if b'"' in rest else self._string + len(chunk)
        if self._string > MAX_STRING:
            message = f"The file has a text of more than {MAX_STRING} bytes."
            raise BadInput(message, code="too_large", limit=MAX_STRING)


def _open_escape(chunk: bytes) -> int:
    """Return where the last escape begins if it may continue in the next chunk, or the length."""
    if b"\\" not in chunk[-_PAIR_BYTES:]:
        return len(chunk)
    found = _WHOLE.match(chunk)
    return len(chunk) if found is None else found.end()


def _without_halves(chunk: bytes) -> bytes:
    if _HALF.search(chunk) is None:
        return chunk
    return _ESCAPE.sub(lambda found: rb"\u0000" if found[1] else found[0], chunk)


class _Builder:
    """Builds one value from events; drops a value that is too large, but reads to its end."""

    def __init__(self) -> None:
        self.depth = 0
        self.weight = 0
        self.stack: list[Any] = []
        self.keys: list[str] = []
        self.value: Any = None
        self.error: BadInput | None = None

    def add(self, event: str, value: Any) -> bool:
        """Add an event; return whether the value is complete."""
        match event:
            case "start_map" | "start_array":
                self.depth += 1
                self._weigh(_EVENT_WEIGHT)
                if self.error is None:
                    new: Any = {} if event == "start_map" else []
                    self._put(new)
                    self.stack.append(new)
                    self.keys.append("")
            case "end_map" | "end_array":
                self.depth -= 1
                if self.error is None:
                    self.stack.pop()
                    self.keys.pop()
            case "map_key":
                self._weigh(_weight_of(value))
                if self.error is None:
                    self.keys[-1] = value
                return False
            case _:
                self._weigh(_weight_of(value) if event == "string" else _EVENT_WEIGHT)
                if self.error is None:
                    self._put(value)
        return self.depth == 0

    def _put(self, value: Any) -> None:
        if not self.stack:
            self.value = value
        elif isinstance(self.stack[-1], dict):
            self.stack[-1][self.keys[-1]] = value
        else:
            self.stack[-1].append(value)

    def _weigh(self, weight: int) -> None:
        self.weight += weight
        if self.error is None and self.weight > MAX_CONVERSATION:
            message = f"The conversation is larger than {MAX_CONVERSATION} bytes."
            self._fail(BadInput(message, code="too_large", limit=MAX_CONVERSATION))
        if self.error is None and self.depth > MAX_DEPTH:
            message = f"The JSON is nested deeper than {MAX_DEPTH} levels."
            self._fail(BadInput(message, code="too_deep", limit=MAX_DEPTH))

    def _fail(self, error: BadInput) -> None:
        self.error = error
        self.value = None
        self.stack.clear()
        self.keys.clear()


def _weight_of(text: str) -> int:
    return _EVENT_WEIGHT + len(text) * (1 if text.isascii() else 4)


def read_items(stream: _Readable) -> Iterator[Item]:
    """Yield the conversations of a list, or the one of an object.

    A conversation that is too large is an item with its error. Raises BadInput if the file can't be
    read to its end; the items before are complete.
    """
    text = _Text(stream)
    number = 0
    try:
        for number, builder in enumerate(_values(text), 1):
            yield Item(number=number, value=builder.value, error=builder.error)
    except (ijson.JSONError, ValueError) as error:
        if text.is_empty:
            raise BadInput("The file is empty.", code="empty") from error
        cause = "is truncated" if "premature EOF" in str(error) else "is not valid JSON"
        message = f"The file {cause} after {number} complete conversations."
        raise BadInput(message, code="bad_json") from error


def _values(text: _Text) -> Iterator[_Builder]:
    """Yield a builder for each complete conversation."""
    events = ijson.basic_parse(text, buf_size=BUFFER, use_float=True)
    event, value = next(events)
    if event == "start_array":
        yield from _elements(events)
        for _ in events:
            pass  # raises an error for more data
        return
    whole = _Builder()
    is_complete = whole.add(event, value)
    has_list = False
    key = None
    for event, value in events:
        if whole.depth == 1 and event == "start_array" and key == LIST_FIELD:
            has_list = True
            yield from _elements(events)
            continue
        if whole.depth == 1 and event == "map_key":
            key = value
        is_complete = whole.add(event, value)
    if is_complete and not has_list:
        yield whole


def _elements(events: Iterator[tuple[str, Any]]) -> Iterator[_Builder]:
    """Yield the elements of a list whose first event was read, and read its end."""
    builder = _Builder()
    for event, value in events:
        if event == "end_array" and builder.depth == 0:
            return
        if builder.add(event, value):
            yield builder
            builder = _Builder()


def first_keys(head: bytes) -> Iterator[str]:
    """Yield the keys of the conversations in the beginning of a file."""
    depth = 0
    events = ijson.basic_parse(_Text(BytesIO(head)), buf_size=BUFFER, use_float=True)
    try:
        for event, value in events:
            if event.startswith("start"):
                depth += 1
            elif event.startswith("end"):
                depth -= 1
            elif event == "map_key" and depth <= _CONVERSATION_DEPTH:
                yield value
    except (ijson.JSONError, ValueError, BadInput):
        return  # where the beginning is cut
