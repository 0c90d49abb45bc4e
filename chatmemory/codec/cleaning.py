"""Copy JSON values so that every database can store them; reject or repair the rest."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from chatmemory.codec.checks import CONTROL, UNSTORABLE, bad_text, path_of, quoted
from chatmemory.errors import BadInput

MAX_DEPTH = 64
"""Maximum nesting depth of a stored message."""

_MAX_INTEGER_BITS = 14_000  # Python neither parses nor formats more than 4,300 digits
_MAX_REPAIRED = 50  # paths in `repaired`
_MAX_TEXT_CHARS = 1_000  # characters of a value that JSON cannot represent, stored as text

_FILE_URL = re.compile(r"[\0-\x20]*file:", re.IGNORECASE)
_IMAGE_URL = re.compile(r"https?://|data:image/", re.IGNORECASE)

_IMAGE_BLOCKS = frozenset({"image", "image_url"})
REASONING_TYPES = frozenset({"reasoning", "thinking", "redacted_thinking", "reasoning_content"})
"""Types of content blocks that contain a model's reasoning."""

_TEXT_BLOCKS = REASONING_TYPES | {"text", "tool_call", "invalid_tool_call", "tool_use"}


def text_of(content: object) -> str:
    """Return the plain text of a content: the string itself, or its joined text blocks."""
    match content:
        case str():
            return content
        case list():
            return "".join(text for _, text in text_blocks(content))
        case _:
            return ""


def cleaned(value: object) -> object:
    """Copy a value from developers' code; repair what JSON or a database cannot store."""
    return Cleaner(forbidden=UNSTORABLE, repairs=True, lenient=True, root="").value(value)


def check_value(value: object, field: str) -> None:
    """Reject control characters and lone surrogates in the strings and keys of a JSON value.

    TAB, LF and CR are allowed. Raises BadInput (bad_text; bad_field for a value that JSON cannot
    represent).
    """
    if type(value) is str and CONTROL.search(value) is None:
        return  # without a cleaner, since each call of a service checks a key
    Cleaner(forbidden=CONTROL, repairs=False, lenient=False, root=field).value(value)


class Cleaner:
    """Copies a JSON value in one pass, and rejects or repairs what cannot be stored."""

    def __init__(
        self, *, forbidden: re.Pattern[str], repairs: bool, lenient: bool, root: str
    ) -> None:
        self.forbidden = forbidden
        self.repairs = repairs
        self.lenient = lenient
        self.root = root
        self.path: list[str | int] = []
        self.ancestors: list[object] = []
        self.repaired: list[str] = []

    def message(self, message: Mapping[str, object]) -> dict[str, object]:
        """Copy a message with a valid content, marked with `repaired` and `unknown_blocks`."""
        clean = self.mapping(message)
        content = clean.get("content")
        if isinstance(content, list):
            clean["content"] = [self.block(block, index) for index, block in enumerate(content)]
            if unknown := list(dict.fromkeys(filter(None, map(_unknown_type, content)))):
                clean["unknown_blocks"] = unknown
        elif not isinstance(content, str):
            self.reject("must be a string or a list of blocks", "content")
            clean["content"] = "" if content is None else _as_text(content)
        if clean.get("tool_calls") and not self.lenient:
            self.check_calls(clean["tool_calls"])
        if self.repaired:
            earlier = clean.get("repaired")
            clean["repaired"] = [*(earlier if isinstance(earlier, list) else []), *self.repaired]
        return clean

    def check_calls(self, calls: object) -> None:
        """Reject tool calls that are not in LangChain's format, such as a provider's own."""
        for index, call in enumerate(calls if isinstance(calls, list) else [calls]):
            match call:
                case {"name": str(), "args": dict()}:
                    pass
                case _:
                    at = path_of(self.root, "tool_calls", index)
                    message = f"{at} must be an object with name (a string) and args (an object)."
                    raise BadInput(message, field=at)

    def block(self, block: object, index: int) -> object:
        """Return a content block, or the text that replaces a forbidden one."""
        if not isinstance(block, str | dict):
            self.reject("must be a string or an object", "content", index)
            return _as_text(block)
        if any(map(_FILE_URL.match, _urls(block))):
            self.reject("has a file: URL, which is not allowed", "content", index)
            return {"type": "text", "text": "[a block with a file: URL was removed]"}
        return block

    def value(self, value: object) -> object:
        match value:
            case str():
                return self.text(str.__str__(value))  # a subclass may override its methods
            case None | bool():
                return value
            case int() if value.bit_length() <= _MAX_INTEGER_BITS:
                return value
            case float() if math.isfinite(value):
                return value
            case dict() | list() | tuple():
                return self.container(value)
            case int() | float():
                self.reject("is not a number that JSON can represent", code="bad_number")
                return None
            case _:
                self.reject(f"is of type {type(value).__name__}, which JSON cannot represent")
                return self.text(_as_text(value))

    def container(self, value: dict[Any, object] | Sequence[object]) -> object:
        if any(value is other for other in self.ancestors):
            self.reject("contains itself")
            return None
        if len(self.ancestors) == MAX_DEPTH:
            self.reject(f"is nested deeper than {MAX_DEPTH} levels")
            return self.text(_as_text(value))
        if isinstance(value, dict):
            return self.mapping(value)
        clean = []
        self.ancestors.append(value)
        for index, item in enumerate(value):
            self.path.append(index)
            clean.append(self.value(item))
            self.path.pop()
        self.ancestors.pop()
        return clean

    def mapping(self, value: Mapping[Any, object]) -> dict[str, object]:
        clean: dict[str, object] = {}
        collisions: dict[str, int] = {}
        self.ancestors.append(value)
        for key, item in value.items():
            self.path.append(key if isinstance(key, str) else _as_text(key))
            name = repaired = self.key(key)
            while name in clean:  # the repair made two keys equal
                collisions[repaired] = collisions.get(repaired, 0) + 1
                name = f"{repaired}_{collisions[repaired]}"
            clean[name] = self.value(item)
            self.path.pop()
        self.ancestors.pop()
        return clean

    def key(self, key: object) -> str:
        if isinstance(key, str):
            return self.text(str.__str__(key))
        self.reject("has a key that is not a string")
        return self.text(_as_text(key))

    def text(self, text: str) -> str:
        found = self.forbidden.search(text)
        if found is None:
            return text
        if not self.repairs:
            raise bad_text(found, path_of(self.root, *self.path))
        self.note_repair()
        return self.forbidden.sub("\ufffd", text)

    def reject(self, why: str, *below: str | int, code: str = "bad_field") -> None:
        """Raise BadInput for the value at this path, or note its repair where lenient."""
        if not self.lenient:
            at = path_of(self.root, *self.path, *below)
            raise BadInput(f"{at} {why}.", code=code, field=at)
        self.note_repair(*below)

    def note_repair(self, *below: str | int) -> None:
        if len(self.repaired) < _MAX_REPAIRED:
            self.repaired.append(path_of(*self.path, *below))


def text_blocks(content: Iterable[object]) -> Iterator[tuple[int, str]]:
    """Yield the index and text of each text block."""
    for index, block in enumerate(content):
        match block:
            case str() as text:
                yield index, text
            case {"type": "text", "text": str() as text}:
                yield index, text


def _unknown_type(block: object) -> str | None:
    """Return the type of a provider-specific block, None for a standard one."""
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if not isinstance(kind, str):
        return "untyped"
    if kind in _TEXT_BLOCKS or (kind in _IMAGE_BLOCKS and all(map(_IMAGE_URL.match, _urls(block)))):
        return None
    return quoted(kind)


def _urls(block: object) -> Iterator[str]:
    """Yield the URLs in a block that a provider would fetch, so none in a tool's arguments."""
    match block:
        case {"type": str() as kind} if kind in _TEXT_BLOCKS:
            pass
        case dict():
            for key, value in block.items():
                if isinstance(value, str) and key.casefold().endswith(("url", "uri")):
                    yield value
                yield from _urls(value)
        case list():
            for value in block:
                yield from _urls(value)


def _as_text(value: object) -> str:
    """Return a short text for a value that JSON cannot represent."""
    try:
        match value:
            case bytes() | bytearray():
                text = value[:_MAX_TEXT_CHARS].decode(errors="replace")
            case dict() | list() | tuple():
                text = reprlib.repr(value)  # str() of a deeply nested value overflows the stack
            case _:
                text = str(value)
    except Exception:  # a foreign __str__ may raise anything
        text = ""
    return text[:_MAX_TEXT_CHARS] or f"<{type(value).__name__}>"
