"""LibreChat's export of one conversation as JSON.

The shape is as in the public code of danny-avila/LibreChat: `useExportConversation.ts` and
`useBuildMessageTree.ts` write it, `api/server/utils/import/importers.js` reads it, with test data.

With `recursive`, each message has its replies in `children`, in the field `messages` or, in newer
versions, `messagesTree`; otherwise `messages` is a flat list with `parentMessageId`. With
`branches`, all branches are in it, and the current one is not named: as in LibreChat, the last
reply is the current one. Times are ISO texts, and missing in old files. The other exports (text,
Markdown, CSV, a picture) have no id of the conversation, or can't be parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chatmemory.errors import BadInput
from chatmemory.imports.conversations import (
    Conversation,
    Draft,
    NoMessages,
    branch,
    id_of,
    moment,
    name_of,
    objects,
    text_in,
)
from chatmemory.imports.open_webui import parsed_arguments

NAME = "librechat"

_LOST = {
    "image_file": "images",
    "image_url": "images",
    "think": "reasoning",
    "thinking": "reasoning",
    "reasoning": "reasoning",
    "video_url": "files",
    "input_audio": "audio",
}


def read(given: Mapping[str, Any]) -> Conversation:
    """Convert a conversation. Raises BadInput, NoMessages."""
    field = "messagesTree" if given.get("messagesTree") else "messages"
    messages = _flat(given.get(field), field)
    if not messages:
        raise NoMessages
    by_id = {name: message for name, _, message in messages}
    if len(by_id) < len(messages):
        raise BadInput("Two messages of the conversation have one messageId.", code="bad_shape")
    path = branch({name: parent for name, parent, _ in messages}, messages[-1][0])
    draft = Draft()
    draft.lost["branch_messages"] += len(messages) - len(path)
    options = given.get("options")
    default_model = name_of(options, "model") if isinstance(options, dict) else ""
    for name in path:
        _read_message(draft, name, by_id[name], default_model)
    return Conversation(
        product=NAME,
        id=id_of(given, "conversationId") or path[0],
        title=name_of(given, "title"),
        created_at=moment(by_id[path[0]].get("createdAt")),
        entries=draft.finish(),
        lost=draft.lost,
    )


def _flat(given: object, field: str) -> list[tuple[str, str | None, Mapping[str, Any]]]:
    """Return the id, the parent's id and the message of each message, parents first."""
    found: list[tuple[str, str | None, Mapping[str, Any]]] = []
    waiting: list[tuple[Mapping[str, Any], str | None]] = [
        (message, None) for message in reversed(objects(given, field))
    ]
    previous: str | None = None
    while waiting:
        message, parent = waiting.pop()
        name = name_of(message, "messageId") or f"number-{len(found) + 1}"
        if "parentMessageId" in message:
            named = message["parentMessageId"]
            parent = parent or (named if isinstance(named, str) else None)
        elif parent is None:  # a flat list without parents is one branch
            parent = previous
        found.append((name, parent, message))
        previous = name
        children = objects(message.get("children"), f"{field}.children")
        waiting += [(child, name) for child in reversed(children)]
    return found


def _read_message(draft: Draft, name: str, message: Mapping[str, Any], default_model: str) -> None:
    is_user = message.get("isCreatedByUser")
    if not isinstance(is_user, bool):
        is_user = name_of(message, "sender").casefold() == "user"
    role = "user" if is_user else "assistant"
    model = "" if is_user else name_of(message, "model") or default_model
    draft.begin(name, at=message.get("createdAt"), model=model)
    for listed in ("files", "attachments"):
        for file in objects(message.get(listed), f"messages.{listed}"):
            kind = name_of(file, "type")
            draft.lost["images" if kind.startswith("image") else "files"] += 1
    parts = message.get("content")
    if not isinstance(parts, list):
        draft.add_text(role, text_in(message.get("text"), "messages.text"))
        return
    texts: list[str] = []
    for part in parts:
        match part:
            case None:
                pass
            case {"type": "text" | "error", "text": str(text)}:
                texts.append(text)
            case {"type": "text" | "error", "text": {"value": str(text)}}:
                texts.append(text)
            case {"type": "tool_call", "tool_call": dict(call)}:
                draft.add_text(role, "\n\n".join(texts))
                texts.clear()
                _read_call(draft, call)
            case {"type": str(kind)}:
                draft.lost[_LOST.get(kind, "unknown_blocks")] += 1
            case _:
                draft.lost["unknown_blocks"] += 1
    draft.add_text(role, "\n\n".join(texts))


def _read_call(draft: Draft, call: Mapping[str, Any]) -> None:
    """Add a tool call and its result: of an agent, of a function, or of a built-in tool."""
    function = call.get("function")
    given = function if isinstance(function, dict) else call
    name = name_of(given, "name") or name_of(call, "type") or "tool"
    args = given.get("args") or given.get("arguments") or call.get(name) or {}
    added = draft.call(name, parsed_arguments(args), call.get("id"))
    output = given.get("output")
    if isinstance(output, str):
        draft.result(added, output)
