"""Encode plain messages as columns, and decode them.

All parts of the app exchange *plain messages*: dicts that JSON can represent, with `role` and
`content` (a string or a list of blocks), and any of `kind` (`function` or `chat`, where the role
does not determine LangChain's class), `id`, `name`, `tool_calls`, `invalid_tool_calls`, `usage`,
`tool_call_id`, `artifact`, `tool_status`, `additional_kwargs`, `response_metadata`, `asks` (see
`Question`). Unknown keys are kept. `encode` may add `repaired`, `cut`, `cut_calls` and
`unknown_blocks`.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter, setitem
from typing import Any

from django.utils.module_loading import import_string

from chatmemory.codec.calls import CALLS, calls_of
from chatmemory.codec.checks import UNSTORABLE, path_of, quoted, storable
from chatmemory.codec.cleaning import MAX_DEPTH, Cleaner, text_blocks, text_of
from chatmemory.codec.json import BODY_READER, check_depth, dump_json
from chatmemory.conf import settings
from chatmemory.errors import BadInput
from chatmemory.logs import log_once

logger = logging.getLogger(__name__)

ROLES = ("system", "user", "assistant", "tool")

MAX_CALLS = 1_000
"""Maximum tool calls of one message, valid and invalid: ending a turn may add a row for each."""

BATCH_BEGIN = '{"messages":'
"""How the text of `encode_batch` begins. No message with a role begins so."""

_MEDIA_TYPES = frozenset(
    {"image", "image_url", "input_image", "image_generation_call", "computer_screenshot"}
    | {"audio", "input_audio", "video", "video_url", "media"}
    | {"file", "input_file", "document", "text-plain"}
)
"""Types of content blocks whose data providers count by size or duration, not as text."""

_MAX_TOKENS = 2**31 - 1  # the column's maximum
_MAX_MODEL_CHARS = 100  # the width of the column

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The columns of a message, except its seq and time."""

    role: str
    text: str
    """For display and search."""
    body: str | None
    """The whole message as compact JSON; None if it is only a role and plain text."""
    tokens: int
    status: str = "complete"
    error: str = ""
    model: str = ""
    client_id: str | None = None
    step: int | None = None


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
    """Convert a plain message to columns that every database can store.

    The only function that repairs text for databases. NUL and lone surrogates are rejected in a
    user's message; elsewhere they become U+FFFD, and `repaired` lists the paths. Blocks of unknown
    type are kept and listed in `unknown_blocks`.

    `lenient`, for the output of a run, repairs what is otherwise rejected: text above
    MAX_REPLY_CHARS (of a user, also above MAX_MESSAGE_CHARS) is truncated (`cut` is the full
    length), calls above MAX_CALLS are dropped (`cut_calls` is the full count), the largest parts of
    a message above MAX_MESSAGE_BYTES are removed, a value that JSON cannot represent becomes text,
    NaN and infinities become null (all in `repaired`). `field` is a prefix of the paths in errors.
    Raises BadInput.
    """
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        at = path_of(field, "role")
        shown = quoted(role) if isinstance(role, str) else type(role).__name__
        raise BadInput(f"{at} is {shown}, but must be one of {', '.join(ROLES)}.", field=at)
    role = str.__str__(role)  # an enum's member has another text on MariaDB
    if _is_only_text(message):
        clean = dict(message)
    else:
        cleaner = Cleaner(forbidden=UNSTORABLE, repairs=role != "user", lenient=lenient, root=field)
        clean = cleaner.message(message)
        _limit_calls(clean, lenient, field)
    # A person may send MAX_MESSAGE_CHARS, also where it is the higher limit.
    if role != "user" or len(text_of(clean["content"])) > settings.MAX_MESSAGE_CHARS:
        _limit_text(clean, settings.MAX_REPLY_CHARS, lenient, field)
    # With other keys, or these in another order, the body must keep them.
    is_plain = isinstance(clean["content"], str) and list(clean) == ["role", "content"]
    body = None if is_plain else _limited_body(clean, lenient, field)
    return Row(
        role=role,
        text=text_of(clean["content"]),
        body=body,
        tokens=count_tokens(clean),
        status=status,
        error=storable(error),
        model=storable(model)[:_MAX_MODEL_CHARS],
        client_id=client_id,
        step=step,
    )


def decode(role: str, text: str, body: str | None) -> dict[str, object]:
    """Convert a row's columns to the plain message, marked `quarantined` if undecodable."""
    if body is None and role in ROLES:
        return {"role": role, "content": text}
    try:
        return _parse_body(role, body)
    except (BadInput, ValueError) as error:
        kind = error.code if isinstance(error, BadInput) else "bad_json"
        log_once(logger, logging.WARNING, _UNDECODABLE, kind)
        return {"role": role, "content": text, "quarantined": True}


def redacted(role: str, text: str, body: str | None) -> Row:
    """Return a row's columns without content; ids and names of tool calls and results stay."""
    if role not in ROLES:
        return Row(role=role, text="", body=None, tokens=0)
    plain = decode(role, text, body)
    kept: dict[str, object] = {"role": role, "content": ""}
    kept |= {name: plain[name] for name in ("kind", "tool_call_id") if name in plain}
    if calls := calls_of(plain):
        kept["tool_calls"] = [
            {"id": call.get("id"), "name": call.get("name"), "args": {}} for call in calls
        ]
    return encode(kept, lenient=True)


def count_tokens(message: Mapping[str, object]) -> int:
    """Count a message's tokens, with its tool calls and blocks, by TOKEN_COUNTER.

    Each image, audio and file block counts MEDIA_TOKENS, whatever its size. If the counter fails or
    returns an invalid count, the approximate counter is used and an error is logged once, so that
    no message is lost.
    """
    content = message.get("content")
    counted = text_of(content)
    media_tokens = 0
    if isinstance(content, list):
        texts = {index for index, _ in text_blocks(content)}
        others = [block for index, block in enumerate(content) if index not in texts]
        media: list[object] = []
        if others := [block for block in _without_media(others, media) if block is not None]:
            counted += dump_json(others)
        media_tokens = len(media) * settings.MEDIA_TOKENS
    if calls := message.get("tool_calls"):
        counted += dump_json(calls)
    return min(_count_text(counted) + media_tokens, _MAX_TOKENS)


def _count_text(text: str) -> int:
    counter = settings.TOKEN_COUNTER
    if counter != "approximate":
        try:
            count = int(import_string(counter)(text))
        except Exception as error:  # the host's code may raise anything
            what = f"failed with {type(error).__name__}"
            log_once(logger, logging.ERROR, _COUNTER_FAILED, str(counter), what)
        else:
            if 0 <= count <= _MAX_TOKENS:
                return count
            what = "returned an invalid count"
            log_once(logger, logging.ERROR, _COUNTER_FAILED, str(counter), what)
    return math.ceil(len(text) / 4) + 3


def _without_media(value: list[object], found: list[object]) -> list[object]:
    """Copy blocks with None in place of each image, audio and file, and add those to `found`."""

    def copy(part: object) -> object:
        match part:
            case {"type": "document", "source": {"type": "text" | "content"}} | {
                "type": "text-plain" | "file",
                "text": str(),
            }:
                pass  # the provider reads their text
            case {"type": str(kind)} if kind in _MEDIA_TYPES:
                found.append(part)
                return None
            case {"base64": str()}:
                found.append(part)
                return None
            case str() if part.startswith("data:"):
                found.append(part)
                return None
            case _:
                pass
        match part:
            case dict():
                return {key: copy(item) for key, item in part.items()}
            case list():
                return [copy(item) for item in part]
            case _:
                return part

    return [copy(part) for part in value]


def encode_batch(rows: Sequence[Row], author: str | None = None) -> str:
    """Convert rows and their author to one JSON text.

    `decode` reads it as an empty message of a user.
    """
    messages = [decode(row.role, row.text, row.body) for row in rows]
    by = {} if author is None else {"author": author}
    return dump_json({"messages": messages, **by, "role": "user", "content": ""})


def batch_author(text: str) -> str | None:
    """Return the author of an `encode_batch`; None if it has none, or is another text."""
    if not text.startswith(BATCH_BEGIN):
        return None
    try:
        author = _parse_body("user", text, MAX_DEPTH + 2).get("author")
    except (BadInput, ValueError):  # an import may contain any text
        return None
    return author if isinstance(author, str) else None


def decode_batch(text: str) -> list[dict[str, object]]:
    """Return the plain messages of an `encode_batch`; none if it is another text."""
    if not text.startswith(BATCH_BEGIN):
        return []
    try:
        messages: Any = _parse_body("user", text, MAX_DEPTH + 2)["messages"]
        return [_parse_body(each["role"], dump_json(each)) for each in messages]
    except (BadInput, ValueError, TypeError, KeyError):  # an import may contain any text
        return []


def _parse_body(role: str, body: str | None, max_depth: int = MAX_DEPTH) -> dict[str, object]:
    """Parse a row's body. Raises BadInput, ValueError."""
    if role not in ROLES or body is None:
        raise BadInput(code="bad_field")
    check_depth(body, max_depth)
    message: object = BODY_READER.decode(body)
    if not isinstance(message, dict) or message.get("role") != role:
        raise BadInput(code="bad_shape")
    match message.get("content"):
        case str():
            pass
        case list(blocks) if all(isinstance(block, str | dict) for block in blocks):
            pass
        case _:
            raise BadInput(code="bad_shape")
    # The parser makes lone surrogates of such escapes, and no transport can send those.
    if _SURROGATE_ESCAPE.search(body):
        Cleaner(forbidden=UNSTORABLE, repairs=False, lenient=False, root="").value(message)
    return message


def _is_only_text(message: Mapping[str, object]) -> bool:
    """Whether a message has only a role and a text that needs no repair, as most messages have."""
    # Not `isinstance`: subclasses may override methods, and the cleaner copies them.
    if type(message) is not dict or list(message) != ["role", "content"]:
        return False
    role, content = message.values()
    is_text = type(role) is str and type(content) is str
    return is_text and UNSTORABLE.search(str(content)) is None


_UNDECODABLE = "A stored message cannot be decoded (%s); it is returned as quarantined."
_COUNTER_FAILED = "TOKEN_COUNTER %s %s; tokens are counted approximately."


def _limit_text(message: dict[str, object], limit: int, lenient: bool, field: str) -> None:
    """Reject a text above `limit` characters, or truncate it and set `cut`."""
    content = message["content"]
    length = len(text_of(content))
    if length <= limit:
        return
    if not lenient:
        text = f"The message has {length:,} characters; the limit is {limit:,}."
        raise BadInput(text, code="too_large", field=path_of(field, "content"), limit=limit)
    message["cut"] = length
    if not isinstance(content, list):
        message["content"] = text_of(content)[:limit]
        return
    for index, text in text_blocks(content):
        kept = text[:limit]
        limit -= len(kept)
        block = content[index]
        content[index] = {**block, "text": kept} if isinstance(block, dict) else kept


def _limit_calls(message: dict[str, object], lenient: bool, field: str) -> None:
    """Reject more than MAX_CALLS tool calls, or keep the first ones and set `cut_calls`."""
    calls = {key: value for key in CALLS if isinstance(value := message.get(key), list)}
    count = sum(map(len, calls.values()))
    if count <= MAX_CALLS:
        return
    if not lenient:
        text = f"The message has {count:,} tool calls; the limit is {MAX_CALLS:,}."
        at = path_of(field, next(iter(calls)))
        raise BadInput(text, code="too_many", field=at, limit=MAX_CALLS)
    message["cut_calls"] = count
    left = MAX_CALLS
    for key, value in calls.items():
        message[key] = value[:left]
        left -= len(value[:left])


def _limited_body(message: dict[str, object], lenient: bool, field: str) -> str:
    """Return the message as JSON; reject one above MAX_MESSAGE_BYTES, or remove its largest parts.

    Never removes text, whose length has a limit of its own.
    """
    limit = settings.MAX_MESSAGE_BYTES
    body = dump_json(message)
    # A character has at most four bytes, so most messages are not encoded to measure them.
    if len(body) * 4 <= limit or (size := len(body.encode())) <= limit:
        return body
    if not lenient:
        text = f"The message has {size:,} bytes; the limit is {limit:,}."
        raise BadInput(text, code="too_large", field=field, limit=limit)
    repaired: list[str] = []
    for part_size, path, remove in sorted(_losable_parts(message), key=itemgetter(0), reverse=True):
        if size > limit:
            remove()
            size -= part_size
            repaired.append(path)
    earlier = message.get("repaired")
    message["repaired"] = [*(earlier if isinstance(earlier, list) else []), *repaired]
    return dump_json(message)


def _losable_parts(message: dict[str, object]) -> Iterator[tuple[int, str, Callable[[], object]]]:
    """Yield the size and path of each part that a message can lose, and a function to remove it.

    A block becomes a text, and a call keeps its id and name.
    """
    content = message["content"]
    for index, block in enumerate(content if isinstance(content, list) else []):
        if isinstance(block, dict):
            size = _json_size(block)
            removed = f"[a block of {size:,} bytes was removed]"
            _, text = next(text_blocks([block]), (index, removed))
            kept = {"type": "text", "text": text}
            path = path_of("content", index)
            yield size - _json_size(kept), path, partial(setitem, content, index, kept)
    for key in CALLS:
        for index, call in enumerate(calls_of(message, key)):
            args = call.get("args")
            path = path_of(key, index, "args")
            yield (
                _json_size(args),
                path,
                partial(setitem, call, "args", "" if isinstance(args, str) else {}),
            )
    for key, value in message.items():
        if key not in ("role", "content", "kind", *CALLS):
            yield _json_size(value), path_of(key), partial(message.pop, key)


def _json_size(value: object) -> int:
    return len(dump_json(value).encode())
