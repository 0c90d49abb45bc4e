"""The forms that chat models and their tools read: one conversation a line.

They hold what stands: from the floor on, without what a later turn replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chatmemory import codec
from chatmemory.models import Message
from chatmemory.transfer.reading import Reading


def write_langchain(reading: Reading) -> Iterator[str]:
    """A list of dicts, as `messages_to_dict` of LangChain gives them."""
    from chatmemory.langchain.messages import to_dict

    return _line("[", (to_dict(row.plain()) for row in _standing(reading)), "]\n")


def write_openai(reading: Reading) -> Iterator[str]:
    """An object with the messages as OpenAI's chat completions take them."""
    return _line('{"messages":[', _for_openai(reading), "]}\n")


def _line(begin: str, messages: Iterable[object], end: str) -> Iterator[str]:
    """A line piece by piece; none for a session without messages."""
    separator = begin
    for message in messages:
        yield separator + codec.dump_json(message)
        separator = ","
    if separator != begin:
        yield end


def _standing(reading: Reading) -> Iterator[Message]:
    for row, is_replaced in reading.marked_rows(start=reading.session.first_seq):
        if not is_replaced:
            yield row


def _for_openai(reading: Reading) -> Iterator[dict[str, object]]:
    """The messages that a provider takes: instructions first, no empty or unreadable ones."""
    called: set[str] = set()
    has_begun = False
    for row in _standing(reading):
        plain = row.plain()
        if row.redacted or row.quarantined or plain.get("quarantined") is True:
            continue
        message = to_openai(plain)
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
    """A plain message in the shape of OpenAI's chat completions."""
    role = plain["role"]
    content = plain["content"]
    if role != "user" or not isinstance(content, list):
        content = codec.text_of(content)
    else:
        content = [part for block in content if (part := _part(block))]
    message: dict[str, object] = {"role": role, "content": content}
    if isinstance(plain.get("name"), str) and plain["name"]:
        message["name"] = plain["name"]
    if role == "assistant" and (calls := list(_calls(plain))):
        message["content"] = content or None
        message["tool_calls"] = calls
    if role == "tool" and plain.get("kind") == "function":
        message["role"] = "function"
    elif role == "tool":
        message["tool_call_id"] = plain.get("tool_call_id")
    return message


def _calls(plain: Mapping[str, object]) -> Iterator[dict[str, object]]:
    for name in codec.CALLS:
        for call in codec.calls_of(plain, name):
            given = call.get("args")
            arguments = given if isinstance(given, str) else codec.dump_json(given or {})
            function = {"name": call.get("name") or "", "arguments": arguments}
            yield {"id": call.get("id"), "type": "function", "function": function}


def _part(block: object) -> dict[str, object] | None:
    """A part of a user's content; None for a block that only its maker understands."""
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
