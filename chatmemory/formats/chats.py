"""Export formats for chat models and their tools: one session per line.

They contain the visible messages: from the floor on, without superseded rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chatmemory import codec
from chatmemory.formats.reading import Reading
from chatmemory.models import Message


def write_langchain(reading: Reading) -> Iterator[str]:
    """Write a list of dicts in the format of LangChain's `messages_to_dict`."""
    from chatmemory.langchain.messages import to_dict

    return _line_pieces("[", (to_dict(row.plain()) for row in _visible_rows(reading)), "]\n")


def write_openai(reading: Reading) -> Iterator[str]:
    """Write an object whose messages have the format of OpenAI's chat completions."""
    return _line_pieces('{"messages":[', _for_openai(reading), "]}\n")


def _line_pieces(begin: str, messages: Iterable[object], end: str) -> Iterator[str]:
    """Write a line piece by piece, or no line for a session without messages."""
    separator = begin
    for message in messages:
        yield separator + codec.dump_json(message)
        separator = ","
    if separator != begin:
        yield end


def _visible_rows(reading: Reading) -> Iterator[Message]:
    for row, superseded in reading.marked_rows(start=reading.session.first_seq):
        if superseded is None:
            yield row


def _for_openai(reading: Reading) -> Iterator[dict[str, object]]:
    """The messages that a provider accepts: instructions first, no empty or unreadable messages."""
    called: set[str] = set()
    has_begun = False
    for row in _visible_rows(reading):
        plain = row.plain()
        codec.keep_named_calls(plain)
        if row.redacted or row.quarantined or plain.get("quarantined") is True:
            continue
        message = to_openai(plain)
        # A provider rejects a result whose call is missing, or is in another turn.
        if row.role == Message.Role.USER:
            called.clear()
        called.update(codec.call_ids(plain))
        is_result = row.role == Message.Role.TOOL and not plain.get("kind")
        if is_result and codec.answered_call(plain) not in called:
            continue
        if not message["content"] and "tool_calls" not in message:
            continue
        if not has_begun and reading.session.instructions:
            yield {"role": "system", "content": reading.session.instructions}
        has_begun = True
        yield message


def to_openai(plain: Mapping[str, object]) -> dict[str, object]:
    """Convert a plain message to the format of OpenAI's chat completions."""
    role = plain["role"]
    content = plain["content"]
    if role != "user" or not isinstance(content, list):
        content = codec.text_of(content)
    else:
        content = [part for block in content if (part := _part(block))]
    message: dict[str, object] = {"role": role, "content": content}
    if isinstance(plain.get("name"), str) and plain["name"]:
        message["name"] = plain["name"]
    if role == "assistant" and (calls := list(_plain_calls(plain))):
        message["content"] = content or None
        message["tool_calls"] = calls
    if role == "tool" and plain.get("kind") == "function":
        message["role"] = "function"
    elif role == "tool":
        message["tool_call_id"] = plain.get("tool_call_id")
    return message


def _plain_calls(plain: Mapping[str, object]) -> Iterator[dict[str, object]]:
    for name in codec.CALLS:
        for call in codec.calls_of(plain, name):
            given = call.get("args")
            arguments = given if isinstance(given, str) else codec.dump_json(given or {})
            function = {"name": call.get("name") or "", "arguments": arguments}
            yield {"id": call.get("id"), "type": "function", "function": function}


def _part(block: object) -> dict[str, object] | None:
    """Convert a block of a user's content; None if OpenAI's format has no such block."""
    match block:
        case str() as text:
            return {"type": "text", "text": text}
        case {"type": "text", "text": str() as text}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": dict() as image}:
            return {"type": "image_url", "image_url": image}
        case {"type": "image_url", "image_url": str() as url} | {
            "type": "image",
            "url": str() as url,
        }:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image", "base64": str() as data, "mime_type": str() as kind}:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case _:
            return None
