"""Open WebUI's export of chats: a list of rows of its table, each with the object `chat`.

The shape is as LibreChat's importer reads it and as in its test data (`openwebui-export.json`).

`chat.history` has all branches and `currentId`; the oldest versions have only the list
`chat.messages`, which is the current branch. Times are in seconds, in old versions in milliseconds.
Newer versions store the steps of a reply in `output`, as in OpenAI's Responses API; in `content`
they are in `<details>` elements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from chatmemory.errors import BadInput
from chatmemory.imports.conversations import (
    Conversation,
    Draft,
    branch,
    id_of,
    moment,
    name_of,
    objects,
    text_in,
)

NAME = "open-webui"

_DETAILS = re.compile(
    r'<details type="(reasoning|tool_calls|code_interpreter)"[^>]*>.*?</details>\n?', re.DOTALL
)


def read(given: Mapping[str, Any]) -> Conversation:
    """Convert a conversation. Raises BadInput, NoMessages."""
    chat = given.get("chat", given)
    if not isinstance(chat, dict):
        raise BadInput("chat must be an object.", code="bad_shape", field="chat")
    history = chat.get("history")
    by_id: dict[str, Any]
    if isinstance(history, dict) and history.get("messages"):
        by_id = _nodes(history["messages"])
        current = history.get("currentId")
        leaf = current if isinstance(current, str) and current in by_id else list(by_id)[-1]
        path = branch({name: one.get("parentId") for name, one in by_id.items()}, leaf)
    else:
        messages = objects(chat.get("messages"), "chat.messages")
        ids = [name_of(one, "id") or f"number-{n}" for n, one in enumerate(messages, 1)]
        by_id = dict(zip(ids, messages, strict=True))
        if len(by_id) < len(messages):
            raise BadInput("Two messages of the conversation have one id.", code="bad_shape")
        path = ids
    draft = Draft()
    draft.lost["branch_messages"] += len(by_id) - len(path)
    for name in path:
        _read_message(draft, name, by_id[name])
    entries = draft.finish()
    return Conversation(
        product=NAME,
        id=id_of(given, "id") or id_of(chat, "id") or path[0],
        title=name_of(given, "title") or name_of(chat, "title"),
        created_at=moment(given.get("created_at")) or moment(chat.get("timestamp")),
        entries=entries,
        lost=draft.lost,
    )


def _nodes(messages: object) -> dict[str, Any]:
    if not isinstance(messages, dict) or not all(isinstance(n, dict) for n in messages.values()):
        field = "chat.history.messages"
        raise BadInput(f"{field} must be an object of objects.", code="bad_shape", field=field)
    return messages


def _read_message(draft: Draft, name: str, message: Mapping[str, Any]) -> None:
    role = message.get("role")
    if role == "system":
        draft.lost["system_messages"] += 1
        return
    if role not in ("user", "assistant"):
        message_text = "The role of a message must be user, assistant or system."
        raise BadInput(message_text, code="bad_shape", field="chat.messages.role")
    model = name_of(message, "model", "selectedModelId") if role == "assistant" else ""
    draft.begin(name, at=message.get("timestamp"), model=model)
    for file in objects(message.get("files"), "chat.messages.files"):
        draft.lost["images" if file.get("type") == "image" else "files"] += 1
    output = objects(message.get("output"), "chat.messages.output")
    if role == "assistant" and any(item.get("type") == "message" for item in output):
        for item in output:
            _read_output(draft, item)
        return
    content = message.get("content")
    if isinstance(content, list):
        draft.add_text(role, _joined(draft, content))
        return
    text = text_in(content, "chat.messages.content")
    draft.add_text(role, _without_details(draft, text) if role == "assistant" else text)


def _without_details(draft: Draft, text: str) -> str:
    """Remove the elements that show reasoning and tool calls, and count them."""
    for found in _DETAILS.finditer(text):
        draft.lost["reasoning" if found[1] == "reasoning" else "tool_results"] += 1
    return _DETAILS.sub("", text)


def _read_output(draft: Draft, item: Mapping[str, Any]) -> None:
    match item:
        case {"type": "message", "content": list(content)}:
            draft.add_text("assistant", _joined(draft, content))
        case {"type": "function_call", "name": str(tool)}:
            draft.call(tool, parsed_arguments(item.get("arguments")), item.get("call_id"))
        case {"type": "function_call_output", "output": list(output)}:
            draft.result(item.get("call_id"), _joined(draft, output))
        case {"type": "function_call_output", "output": str(output)}:
            draft.result(item.get("call_id"), output)
        case {"type": "reasoning"}:
            draft.lost["reasoning"] += 1
        case _:
            draft.lost["unknown_blocks"] += 1


def parsed_arguments(given: object) -> object:
    """Return the arguments of a tool call, which may be JSON in a text."""
    if not isinstance(given, str):
        return given or {}
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return given


def _joined(draft: Draft, content: list[Any]) -> str:
    texts = []
    for part in content:
        match part:
            case {"type": "text" | "output_text" | "input_text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url" | "input_image" | "image"}:
                draft.lost["images"] += 1
            case _:
                draft.lost["unknown_blocks"] += 1
    return "\n\n".join(texts)
