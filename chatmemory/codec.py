"""Messages and the text that stands for them: strict JSON in, columns of a row, and back.

The *plain message* is the form between all parts of the app: a dict that JSON can say, with
`role` and `content` (a text or a list of blocks), and any of `kind` (`function` or `chat`, where
the role doesn't tell LangChain's class), `id`, `name`, `tool_calls`, `invalid_tool_calls`,
`usage`, `tool_call_id`, `artifact`, `tool_status`, `additional_kwargs`, `response_metadata`,
`asks` (see `Asks`).
Unknown keys are kept. `encode` may add `repaired`, `cut`, `cut_calls` and `unknown_blocks`.
"""

from __future__ import annotations

import json
import logging
import math
import re
import reprlib
import unicodedata
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NoReturn

from django.utils.module_loading import import_string

from chatmemory.conf import settings
from chatmemory.errors import BadInput, NotFound

logger = logging.getLogger(__name__)

NOT_IN_KEYS = "[^A-Za-z0-9_.:@-]"
"""What no key has that an address can hold, as databases look for it."""

ROLES = ("system", "user", "assistant", "tool")

CALLS = ("tool_calls", "invalid_tool_calls")
"""Where a message's tool calls stand; LangChain sends a provider both."""

HIDDEN = "\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f"
"""Ranges of characters that turn the direction of text, or that no person sees."""

UNKNOWN_OUTCOME = "The outcome is unknown: the run ended before the tool answered."

MAX_INPUT_DEPTH = 32
"""How deep JSON from people may be nested."""

MAX_DEPTH = 64
"""How deep a stored message may be nested."""

MAX_CALLS = 1_000
"""Tool calls of one message, valid and invalid together: each may need a row when a turn ends."""

MAX_SAFE_INTEGER = 2**53
"""The largest integer that browsers don't round."""

_MAX_TOKENS = 2**31 - 1  # what the column holds
_MAX_INTEGER_BITS = 14_000  # Python refuses to read or write integers of over 4,300 digits
_MAX_INTEGER_DIGITS = 4_300
_MAX_SHOWN = 80  # characters of somebody's input in a message of ours
_MAX_REPAIRED = 50
_MAX_MODEL = 100  # the width of the column
_MAX_WRITTEN = 1_000  # characters of a value that is written as text, being none of JSON's

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_BLANKS = "\u115f\u1160\u2800\u3164\uffa0"  # letters by category that show nothing
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_FILE_URL = re.compile(r"[\0-\x20]*file:", re.IGNORECASE)
_IMAGE_URL = re.compile(r"https?://|data:image/", re.IGNORECASE)
_CLIENT_ID = re.compile(r"[A-Za-z0-9\-_.:]{1,64}")
_KEY = re.compile(r"[A-Za-z0-9\-_.:@]{1,200}")

_IMAGE_BLOCKS = frozenset({"image", "image_url"})
_TEXT_BLOCKS = frozenset(
    {"text", "reasoning", "thinking", "redacted_thinking"}
    | {"tool_call", "invalid_tool_call", "tool_use"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message as its columns, without number and time."""

    role: str
    text: str
    """For people and search."""
    body: str | None
    """The whole message as compact JSON; None when it is just a role and a plain text."""
    tokens: int
    status: str = "complete"
    error: str = ""
    model: str = ""
    client_id: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """What a graph asked the user at the end of a turn, in the body of its last row as `asks`."""

    thread: str
    """The graph's thread; it goes on there."""
    questions: tuple[tuple[str, object], ...]
    """The id and value of each interrupt; the first is what the row's text asks."""

    @classmethod
    def of(cls, message: Mapping[str, object]) -> Asks | None:
        """What a plain message asks; None if it asks nothing that could be answered."""
        match message.get("asks"):
            case {"thread": str(thread), "interrupts": [{"id": str(), "value": _}, *_] as found}:
                asked = [one for one in found if isinstance(one, dict)]
                questions = tuple((str(one.get("id")), one.get("value")) for one in asked)
                return cls(thread=thread, questions=questions)
            case _:
                return None

    def plain(self) -> dict[str, object]:
        """As it stands in the message."""
        interrupts = [{"id": name, "value": value} for name, value in self.questions]
        return {"thread": self.thread, "interrupts": interrupts}

    def public(self) -> dict[str, object]:
        """What the user is shown of it: the thread is the server's."""
        return {"value": self.questions[0][1]}


def parse_json(data: str | bytes, *, is_ours: bool = False) -> object:
    """Read JSON that somebody sent, in linear time; stricter than the standard asks.

    Bytes are UTF-8. Strings are not looked into: see `check_text` and `check_value`. In what the
    app itself wrote, integers may be larger than browsers can read.
    Raises BadInput (bad_json, bad_number, too_deep).
    """
    if isinstance(data, bytes):
        try:
            data = data.decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"Not UTF-8 at byte {error.start}.", code="bad_json") from error
    _check_depth(data, MAX_INPUT_DEPTH)
    try:
        return (_OWN_READER if is_ours else _INPUT_READER).decode(data)
    except json.JSONDecodeError as error:
        message = f"Not JSON: {error.msg} (character {error.pos})."
        raise BadInput(message, code="bad_json") from error


def dump_json(value: object) -> str:
    """Write a value as compact JSON, in the order of its keys; NaN and infinities raise."""
    return _WRITER.encode(value)


def encode(
    message: Mapping[str, object],
    *,
    lenient: bool = False,
    field: str = "",
    status: str = "complete",
    error: str = "",
    model: str = "",
    client_id: str | None = None,
    step: int | None = None,
) -> Row:
    """Turn a plain message into its columns: the one place where text is made fit for databases.

    NUL and lone surrogates are refused in a user's message; elsewhere they become U+FFFD, and
    `repaired` names where. Blocks of unknown type stay and are named in `unknown_blocks`.
    Text of other roles than user above MAX_REPLY_CHARS is refused, or with `lenient` (what comes
    out of a run) cut, and `cut` is its full length; in the same way calls above MAX_CALLS, and
    `cut_calls` is how many there were. What JSON can't say is refused, or with
    `lenient` written as text, NaN and infinities as null, and named in `repaired`. `field` goes
    before the paths.
    Raises BadInput.
    """
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        at = _path(field, "role")
        said = _shown(role) if isinstance(role, str) else type(role).__name__
        raise BadInput(f"{at} is {said}, none of {', '.join(ROLES)}.", field=at)
    walk = _Walk(refused=_UNSTORABLE, repairs=role != "user", lenient=lenient, root=field)
    clean = walk.message(message)
    if role != "user":
        _bound(clean, settings.MAX_REPLY_CHARS, lenient, field)
    _bound_calls(clean, lenient, field)
    text = text_of(clean["content"])
    plain = isinstance(clean["content"], str) and list(clean) == ["role", "content"]
    return Row(
        role=role,
        text=text,
        body=None if plain else dump_json(clean),
        tokens=count_tokens(clean),
        status=status,
        error=storable(error),
        model=storable(model)[:_MAX_MODEL],
        client_id=client_id,
        step=step,
    )


def decode(role: str, text: str, body: str | None) -> dict[str, object]:
    """Turn a row's columns back into the plain message; what can't be read is `quarantined`."""
    if body is None and role in ROLES:
        return {"role": role, "content": text}
    try:
        return _read(role, body)
    except (BadInput, ValueError) as error:
        _warn_once(error.code if isinstance(error, BadInput) else "bad_json")
        return {"role": role, "content": text, "quarantined": True}


def redacted(role: str, text: str, body: str | None) -> Row:
    """A row's columns without what was said: only the frame of tool calls and results stays."""
    if role not in ROLES:
        return Row(role=role, text="", body=None, tokens=0)
    plain = decode(role, text, body)
    frame: dict[str, object] = {"role": role, "content": ""}
    frame |= {name: plain[name] for name in ("kind", "tool_call_id") if name in plain}
    if calls := calls_of(plain):
        frame["tool_calls"] = [
            {"id": call.get("id"), "name": call.get("name"), "args": {}} for call in calls
        ]
    return encode(frame, lenient=True)


def unknown_outcome(call_id: str) -> dict[str, object]:
    """The plain message that stands for the result of a tool call that has none."""
    return {
        "role": "tool",
        "content": UNKNOWN_OUTCOME,
        "tool_call_id": call_id,
        "tool_status": "error",
    }


def calls_of(message: Mapping[str, object], key: str = "tool_calls") -> list[Mapping[str, object]]:
    """The tool calls of a plain message, in order; what stands there and is none is left out."""
    calls = message.get(key)
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def call_ids(message: Mapping[str, object], *keys: str) -> list[str]:
    """The ids of a plain message's tool calls that a result can name, each once; in order.

    Of those under these keys, or of all.
    """
    calls = chain.from_iterable(calls_of(message, key) for key in keys or CALLS)
    found = (call.get("id") for call in calls)
    return list(dict.fromkeys(name for name in found if isinstance(name, str) and name))


def answered_call(message: Mapping[str, object]) -> str | None:
    """The id of the tool call of which a plain message is the result, if it is one."""
    call_id = message.get("tool_call_id")
    is_result = message.get("role") == "tool" and not message.get("kind")
    return call_id if is_result and isinstance(call_id, str) else None


def text_of(content: object) -> str:
    """Join the plain text of a content: the text itself, or that of its text blocks."""
    match content:
        case str():
            return content
        case list():
            return "".join(text for _, text in _text_blocks(content))
        case _:
            return ""


def storable(text: str) -> str:
    """The text with U+FFFD for what no database holds, NUL and lone surrogates."""
    return _UNSTORABLE.sub("\ufffd", text)


def label(text: str, max_chars: int) -> str:
    """A short text of one line, for people; what shows nothing or turns it is left out."""
    return "".join(filter(str.isprintable, text[: 8 * max_chars]))[:max_chars]


def count_tokens(message: Mapping[str, object]) -> int:
    """Count what a message costs the model, by TOKEN_COUNTER; tool calls and blocks included.

    Where the counter fails, or returns what is no count, the approximate one stands in, and that
    is logged once: no message is lost for its count.
    """
    content = message.get("content")
    given = text_of(content)
    if isinstance(content, list):
        texts = {index for index, _ in _text_blocks(content)}
        if others := [block for index, block in enumerate(content) if index not in texts]:
            given += dump_json(others)
    if calls := message.get("tool_calls"):
        given += dump_json(calls)
    counter = settings.TOKEN_COUNTER
    if counter != "approximate":
        try:
            count = int(import_string(counter)(given))
        except Exception as error:  # the host's code may raise anything
            _complain_once(str(counter), f"failed with {type(error).__name__}")
        else:
            if 0 <= count <= _MAX_TOKENS:
                return count
            _complain_once(str(counter), "returned what is no count")
    return math.ceil(len(given) / 4) + 3


def check_text(text: object, *, field: str = "text", max_chars: int | None = None) -> str:
    """Return a text from people as it is, or refuse it; at most MAX_MESSAGE_CHARS by default.

    Raises BadInput (bad_field, too_large, bad_text, empty).
    """
    limit = settings.MAX_MESSAGE_CHARS if max_chars is None else max_chars
    if not isinstance(text, str):
        raise BadInput(f"{field} must be a text.", field=field)
    if len(text) > limit:
        message = f"{field} has {len(text)} characters; the limit is {limit}."
        raise BadInput(message, code="too_large", field=field, limit=limit)
    if found := _CONTROL.search(text):
        raise _bad_text(found, field)
    if all(map(_is_invisible, text)):
        raise BadInput(f"{field} is empty.", code="empty", field=field)
    return text


def cleaned(value: object) -> object:
    """A copy of a value of the developer's code that JSON can say and every database hold."""
    return _Walk(refused=_UNSTORABLE, repairs=True, lenient=True, root="").value(value)


def check_value(value: object, field: str) -> None:
    """Refuse a JSON value that has control characters or lone surrogates in a text or key.

    TAB, LF and CR are allowed. Raises BadInput (bad_text; bad_field for what JSON can't say).
    """
    _Walk(refused=_CONTROL, repairs=False, lenient=False, root=field).value(value)


def check_storable(text: str, field: str) -> str:
    """Return a text as it is if every database can hold it, or refuse it with BadInput."""
    if found := _UNSTORABLE.search(text):
        raise _bad_text(found, field)
    return text


def check_client_id(value: object, *, field: str = "client_id") -> str:
    """Return a client_id as it is, or refuse it with BadInput."""
    if not isinstance(value, str) or not _CLIENT_ID.fullmatch(value):
        raise BadInput(f"{field} must be 1 to 64 characters of A-Z a-z 0-9 - _ . :", field=field)
    return value


def check_key(value: object, *, field: str = "key") -> str:
    """Return a session's key from outside as it is, or refuse it with BadInput."""
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise BadInput(f"{field} must be 1 to 200 characters of A-Z a-z 0-9 - _ . : @", field=field)
    return value


def unknown_field(name: str) -> BadInput:
    """The error for a field that there is not; it names it, escaped and cut."""
    field = _shown(name)
    return BadInput(f"There is no field {field}.", code="unknown_field", field=field)


def key_of_address(text: str) -> str:
    """Return the key in an address as it is; what can't be one is NotFound, as if it were free."""
    if not _KEY.fullmatch(text):
        raise NotFound
    return text


def is_new_key(key: str) -> bool:
    """Whether nobody can have had this key by chance: a version-4 UUID as text."""
    try:
        parsed = uuid.UUID(key)
    except ValueError:
        return False
    return parsed.version == 4 and str(parsed) == key.lower()


class _Walk:
    """One pass over a JSON value that copies it, refusing or repairing what it meets."""

    def __init__(
        self, *, refused: re.Pattern[str], repairs: bool, lenient: bool, root: str
    ) -> None:
        self.refused = refused
        self.repairs = repairs
        self.lenient = lenient
        self.root = root
        self.path: list[str | int] = []
        self.above: list[object] = []
        self.repaired: list[str] = []

    def message(self, message: Mapping[str, object]) -> dict[str, object]:
        """Copy a message, its content in shape, with the marks of what was found."""
        clean = self.mapping(message)
        content = clean.get("content")
        if isinstance(content, list):
            clean["content"] = [self.block(block, index) for index, block in enumerate(content)]
            if unknown := list(dict.fromkeys(filter(None, map(_unknown_type, content)))):
                clean["unknown_blocks"] = unknown
        elif not isinstance(content, str):
            self.wrong("must be a text or a list of blocks", "content")
            clean["content"] = "" if content is None else _written(content)
        if clean.get("tool_calls") and not self.lenient:
            self.check_calls(clean["tool_calls"])
        if self.repaired:
            before = clean.get("repaired")
            before = before if isinstance(before, list) else []
            clean["repaired"] = [*before, *self.repaired]
        return clean

    def check_calls(self, calls: object) -> None:
        """Refuse calls that nobody could answer, such as those in the form of one provider."""
        for index, call in enumerate(calls if isinstance(calls, list) else [calls]):
            match call:
                case {"name": str(), "args": dict()}:
                    pass
                case _:
                    at = _path(self.root, "tool_calls", index)
                    message = f"{at} must be an object with a name and args, themselves an object."
                    raise BadInput(message, field=at)

    def block(self, block: object, index: int) -> object:
        """Return a block of the content; a text stands in for one that may not be."""
        if not isinstance(block, str | dict):
            self.wrong("must be a text or an object", "content", index)
            return _written(block)
        if any(map(_FILE_URL.match, _urls(block))):
            self.wrong("has a file: URL, which nobody may read", "content", index)
            return {"type": "text", "text": "[a block with a file: URL was left out]"}
        return block

    def value(self, value: object) -> object:
        match value:
            case str():
                return self.text(str.__str__(value))  # of a subclass, only the text
            case None | bool():
                return value
            case int() if value.bit_length() <= _MAX_INTEGER_BITS:
                return value
            case float() if math.isfinite(value):
                return value
            case dict() | list() | tuple():
                return self.container(value)
            case int() | float():
                self.wrong("is no number of JSON", code="bad_number")
                return None
            case _:
                self.wrong(f"is of type {type(value).__name__}, which JSON can't say")
                return self.text(_written(value))

    def container(self, value: dict[Any, object] | Sequence[object]) -> object:
        if any(value is other for other in self.above):
            self.wrong("contains itself")
            return None
        if len(self.above) == MAX_DEPTH:
            self.wrong(f"is nested deeper than {MAX_DEPTH}")
            return self.text(_written(value))
        if isinstance(value, dict):
            return self.mapping(value)
        clean = []
        self.above.append(value)
        for index, item in enumerate(value):
            self.path.append(index)
            clean.append(self.value(item))
            self.path.pop()
        self.above.pop()
        return clean

    def mapping(self, value: Mapping[Any, object]) -> dict[str, object]:
        clean: dict[str, object] = {}
        twins: dict[str, int] = {}
        self.above.append(value)
        for key, item in value.items():
            self.path.append(key if isinstance(key, str) else _written(key))
            name = repaired = self.key(key)
            while name in clean:  # keys that a repair made one
                twins[repaired] = twins.get(repaired, 0) + 1
                name = f"{repaired}_{twins[repaired]}"
            clean[name] = self.value(item)
            self.path.pop()
        self.above.pop()
        return clean

    def key(self, key: object) -> str:
        if isinstance(key, str):
            return self.text(str.__str__(key))
        self.wrong("has a key that is no text")
        return self.text(_written(key))

    def text(self, text: str) -> str:
        found = self.refused.search(text)
        if found is None:
            return text
        if not self.repairs:
            raise _bad_text(found, _path(self.root, *self.path))
        self.note()
        return self.refused.sub("\ufffd", text)

    def wrong(self, why: str, *below: str | int, code: str = "bad_field") -> None:
        """Refuse what stands here, or note that it is repaired."""
        if not self.lenient:
            at = _path(self.root, *self.path, *below)
            raise BadInput(f"{at} {why}.", code=code, field=at)
        self.note(*below)

    def note(self, *below: str | int) -> None:
        if len(self.repaired) < _MAX_REPAIRED:
            self.repaired.append(_path(*self.path, *below))


def _path(*parts: str | int) -> str:
    """Say where something stands: `messages[3].additional_kwargs.a`."""
    shown = (
        f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in parts if part != ""
    )
    return "".join(shown).removeprefix(".")[:_MAX_SHOWN]


def _read(role: str, body: str | None) -> dict[str, object]:
    """Read a row's body, or raise BadInput or ValueError."""
    if role not in ROLES or body is None:
        raise BadInput(code="bad_field")
    _check_depth(body, MAX_DEPTH)
    message: object = _BODY_READER.decode(body)
    if not isinstance(message, dict) or message.get("role") != role:
        raise BadInput(code="bad_shape")
    match message.get("content"):
        case str():
            pass
        case list(blocks) if all(isinstance(block, str | dict) for block in blocks):
            pass
        case _:
            raise BadInput(code="bad_shape")
    if _SURROGATE_ESCAPE.search(body):
        _Walk(refused=_UNSTORABLE, repairs=False, lenient=False, root="").value(message)
    return message


@cache
def _complain_once(counter: str, what: str) -> None:
    logger.error("TOKEN_COUNTER %s %s; tokens are counted approximately.", counter, what)


@cache
def _warn_once(kind: str) -> None:
    logger.warning("A stored message can't be read (%s); it is given as quarantined.", kind)


def _check_depth(text: str, limit: int) -> None:
    if text.count("[") + text.count("{") <= limit:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
        elif match[0] in "]}":
            depth -= 1
        if depth > limit:
            raise BadInput(f"Nested deeper than {limit}.", code="too_deep", limit=limit)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise BadInput(f"The key {_shown(twice)} stands twice in one object.", code="bad_json")
    return result


def _safe_integer(digits: str) -> int:
    if len(digits) > len(str(-MAX_SAFE_INTEGER)) or abs(int(digits)) > MAX_SAFE_INTEGER:
        _refuse_number(digits)
    return int(digits)


def _readable_integer(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        _refuse_number(digits)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _refuse_number(digits)
    return number


def _refuse_number(digits: str) -> NoReturn:
    raise BadInput(f"{_shown(digits)} is not a number that can be kept.", code="bad_number")


_INPUT_READER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_safe_integer,
    parse_float=_finite,
    parse_constant=_refuse_number,
)
_OWN_READER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_readable_integer,
    parse_float=_finite,
    parse_constant=_refuse_number,
)
_BODY_READER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_number)
_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _text_blocks(content: Iterable[object]) -> Iterator[tuple[int, str]]:
    """Yield the texts in a content of blocks, each with its place."""
    for index, block in enumerate(content):
        match block:
            case str() as text:
                yield index, text
            case {"type": "text", "text": str() as text}:
                yield index, text


def _bound(message: dict[str, object], limit: int, lenient: bool, field: str) -> None:
    """Refuse a text of more than `limit` characters, or keep its first ones and mark it."""
    content = message["content"]
    length = len(text_of(content))
    if length <= limit:
        return
    if not lenient:
        text = f"The message has {length:,} characters; the limit is {limit:,}."
        raise BadInput(text, code="too_large", field=_path(field, "content"), limit=limit)
    message["cut"] = length
    if not isinstance(content, list):
        message["content"] = text_of(content)[:limit]
        return
    for index, text in _text_blocks(content):
        kept = text[:limit]
        limit -= len(kept)
        block = content[index]
        content[index] = {**block, "text": kept} if isinstance(block, dict) else kept


def _bound_calls(message: dict[str, object], lenient: bool, field: str) -> None:
    """Refuse more than MAX_CALLS tool calls, or keep the first ones and mark the message."""
    calls = {key: value for key in CALLS if isinstance(value := message.get(key), list)}
    count = sum(map(len, calls.values()))
    if count <= MAX_CALLS:
        return
    if not lenient:
        text = f"The message has {count:,} tool calls; the limit is {MAX_CALLS:,}."
        at = _path(field, next(iter(calls)))
        raise BadInput(text, code="too_many", field=at, limit=MAX_CALLS)
    message["cut_calls"] = count
    left = MAX_CALLS
    for key, value in calls.items():
        message[key] = value[:left]
        left -= len(value[:left])


def _unknown_type(block: object) -> str | None:
    """Return the type of a block that only its maker understands."""
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if not isinstance(kind, str):
        return "untyped"
    if kind in _TEXT_BLOCKS or (kind in _IMAGE_BLOCKS and all(map(_IMAGE_URL.match, _urls(block)))):
        return None
    return _shown(kind)


def _urls(block: object) -> Iterator[str]:
    """Yield the texts in a block that are there to be fetched: a tool's arguments are not."""
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


def _written(value: object) -> str:
    """Write as a short text what JSON can't say."""
    try:
        match value:
            case bytes() | bytearray():
                text = value[:_MAX_WRITTEN].decode(errors="replace")
            case dict() | list() | tuple():
                text = reprlib.repr(value)  # str() of what is nested too deep would not return
            case _:
                text = str(value)
    except Exception:  # an unknown class may raise anything
        text = ""
    return text[:_MAX_WRITTEN] or f"<{type(value).__name__}>"


def _is_invisible(char: str) -> bool:
    return char.isspace() or char in _BLANKS or unicodedata.category(char) == "Cf"


def _bad_text(found: re.Match[str], field: str) -> BadInput:
    message = f"{field} has U+{ord(found[0]):04X} at {found.start()}, which can't be kept."
    return BadInput(message, code="bad_text", field=field)


def _shown(text: str) -> str:
    """Escape somebody's text for a message of ours, and cut it."""
    return ascii(text[:_MAX_SHOWN])[1:-1][:_MAX_SHOWN]
