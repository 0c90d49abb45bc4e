"""Convert items of the Agents SDK to plain messages and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chatmemory import codec
from chatmemory.errors import BadInput
from chatmemory.models import Message, StoredMessage
from chatmemory.window import REDACTED

ITEM = "x_item"
"""The key of the item in a plain message. All other keys are made from it, for the other readers:
the pages, the window, the search and LangChain."""

NO_SUMMARY = "[no summary]"
"""The text of reasoning without one, as of a model that encrypts it."""

_ROLES = {"user": "user", "system": "system", "developer": "system"}
"""The roles of items; any other is the model's."""

_NO_ARGUMENTS = ("type", "id", "call_id", "name", "status")
_MAX_SHOWN_CHARS = 1_000


def to_plain(item: Any, *, field: str) -> dict[str, object]:
    """Convert an item to a plain message that contains it; `field` names it in errors.

    An item that is only a role and a text is a plain message itself. Raises BadInput.
    """
    match item:
        case {"role": "user" | "assistant" | "system", "content": str(text), **others} if (
            text and not others
        ):
            return {**item}
        case Mapping():
            return {**_readable(item), ITEM: {**item}}
    raise BadInput(f"{field} must be a dict, not {type(item).__name__}.", field=field)


def item_of(row: StoredMessage | Message) -> Any:
    """Return the item of a row; None if it has none.

    A row of another writer is a message, a call or the result of one. Of a redacted row, only ids
    and names are left.
    """
    plain: Mapping[str, Any] = {} if row.quarantined else row.plain()
    item = plain.get(ITEM)  # which may be empty
    text = REDACTED if row.redacted else row.text
    return _item_of_plain(plain, text) if item is None else item


def _item_of_plain(plain: Mapping[str, Any], text: str) -> Any:
    match plain:
        case {"quarantined": True}:
            return None
        case {"role": "tool", "tool_call_id": str(call_id)}:
            return {"type": "function_call_output", "call_id": call_id, "output": text}
        case {"tool_calls": [{"id": str(call_id), "name": str(name), "args": args}], "content": ""}:
            call = {"type": "function_call", "call_id": call_id, "name": name}
            return {**call, "arguments": codec.dump_json(args)}
        case {"role": "user" | "assistant" | "system" as role} if text:
            return (
                plain if len(plain) == 2 and plain["content"] else {"role": role, "content": text}
            )
        case _:
            return None


def _readable(item: Mapping[str, object]) -> dict[str, object]:
    """Return the role, the text and the call of an item."""
    match item:
        case {"role": str(role), "content": content}:
            return {"role": _ROLES.get(role, "assistant"), "content": _text(content)}
        case {"type": "reasoning"}:
            parts = [*_parts(item.get("summary")), *_parts(item.get("content"))]
            text = "\n\n".join(map(_part_text, parts)) or NO_SUMMARY
            # Not in the content, since the window must not contain it.
            extra = {"reasoning_content": text}
            return {"role": "assistant", "content": "", "additional_kwargs": extra}
        case {"type": str(kind), "call_id": str(call_id)} if kind.endswith("_output"):
            text = _text(item.get("output"))
            return {"role": "tool", "content": text, "tool_call_id": call_id}
        case {"type": str(kind), "call_id": str(call_id)} if kind.endswith("_call"):
            call = {"name": str(item.get("name") or kind), "args": _arguments(item), "id": call_id}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case _:
            others = {key: value for key, value in item.items() if key not in _NO_ARGUMENTS}
            text = f"{item.get('type', 'item')} {_shown(others)}"
            return {"role": "assistant", "content": text}


def _arguments(item: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a call as an object, since a plain message has no others."""
    others = {key: value for key, value in item.items() if key not in _NO_ARGUMENTS}
    match others:
        case {"arguments": str(given)}:
            try:
                found = json.loads(given)
            except ValueError:
                found = None
            return found if isinstance(found, dict) else others
        case _:
            return others


def _text(content: object) -> str:
    return content if isinstance(content, str) else "\n".join(map(_part_text, _parts(content)))


def _parts(content: object) -> list[object]:
    return content if isinstance(content, list) else [content] if content else []


def _part_text(part: object) -> str:
    match part:
        case {"text": str(text)} | {"refusal": str(text)}:
            return text
        case {"type": str(kind)}:  # an image or a file, which can be large
            return f"[{kind}]"
        case _:
            return _shown(part)


def _shown(value: object) -> str:
    return codec.dump_json(codec.cleaned(value))[:_MAX_SHOWN_CHARS]
