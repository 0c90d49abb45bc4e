"""Claude's export: `conversations.json` in a ZIP archive.

Anthropic documents the download, and not the format. The shape is as these
public programs read or write it: `docs/providers/claude-ai.md` of Sinity/polylogue,
`docs/formats.md` of TomzxCode/llm-conversations-viewer, and the exporters of the page
(socketteer/Claude-Conversation-Exporter), whose files also have `current_leaf_message_uuid`.

Older files have only `text`, newer ones also `content`, blocks in order. All branches are in
`chat_messages`; without a current leaf, the last message is taken for it. Times are ISO texts.
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

NAME = "claude"

_ROLES = {"human": "user", "user": "user", "assistant": "assistant"}
_REASONING = {"thinking", "redacted_thinking"}
_LOST = {"image": "images", "document": "files", "voice_note": "audio"}
_IGNORED = {"token_budget", "flag"}
"""Blocks without content."""


def read(given: Mapping[str, Any]) -> Conversation:
    """Convert a conversation. Raises BadInput, NoMessages."""
    messages = objects(given.get("chat_messages"), "chat_messages")
    if not messages:
        raise NoMessages
    ids = [name_of(message, "uuid") or f"number-{n}" for n, message in enumerate(messages, 1)]
    by_id = dict(zip(ids, messages, strict=True))
    if len(by_id) < len(messages):
        raise BadInput("Two messages of the conversation have one uuid.", code="bad_shape")
    if any("parent_message_uuid" in message for message in messages):
        leaf = given.get("current_leaf_message_uuid")
        parents = {name: one.get("parent_message_uuid") for name, one in by_id.items()}
        path = branch(parents, leaf if isinstance(leaf, str) and leaf in by_id else ids[-1])
    else:
        path = ids
    draft = Draft()
    draft.lost["branch_messages"] += len(messages) - len(path)
    model = name_of(given, "model")
    for number, name in enumerate(path):
        _read_message(draft, name, by_id[name], f"chat_messages[{number}]", model)
    return Conversation(
        product=NAME,
        id=id_of(given, "uuid", "id") or path[0],
        title=name_of(given, "name", "title"),
        created_at=moment(given.get("created_at")),
        entries=draft.finish(),
        lost=draft.lost,
    )


def _read_message(
    draft: Draft, name: str, message: Mapping[str, Any], field: str, model: str
) -> None:
    sender = message.get("sender")
    if sender == "system":
        draft.lost["system_messages"] += 1
        return
    if not isinstance(sender, str) or sender not in _ROLES:
        at = f"{field}.sender"
        raise BadInput(f"{at} must be human or assistant.", code="bad_shape", field=at)
    role = _ROLES[sender]
    model = (name_of(message, "model") or model) if role == "assistant" else ""
    draft.begin(name, at=message.get("created_at"), model=model)
    draft.lost["files"] += len(objects(message.get("attachments"), f"{field}.attachments"))
    for file in objects(message.get("files"), f"{field}.files"):
        draft.lost["images" if file.get("file_kind") == "image" else "files"] += 1
    blocks = objects(message.get("content"), f"{field}.content")
    if not blocks:
        draft.add_text(role, text_in(message.get("text"), f"{field}.text"))
        return
    texts: list[str] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(text_in(block.get("text"), f"{field}.content.text"))
            continue
        if kind in ("tool_use", "tool_result"):
            draft.add_text(role, "\n\n".join(filter(None, texts)))
            texts.clear()
        _read_block(draft, block, role)
    draft.add_text(role, "\n\n".join(filter(None, texts)))


def _read_block(draft: Draft, block: Mapping[str, Any], role: str) -> None:
    match block:
        case {"type": "tool_use", "name": str(tool)} if role == "assistant":
            draft.call(tool, block.get("input") or {}, block.get("id"))
        case {"type": "tool_result"}:
            # Older files have no ids; the results are then in the order of the calls.
            call_id = block.get("tool_use_id") or draft.open_call()
            is_error = block.get("is_error") is True
            draft.result(call_id, _result_text(draft, block.get("content")), is_error=is_error)
        case {"type": str(kind)} if kind in _REASONING:
            draft.lost["reasoning"] += 1
        case {"type": str(kind)} if kind in _IGNORED:
            pass
        case {"type": str(kind)}:
            draft.lost[_LOST.get(kind, "unknown_blocks")] += 1
        case _:
            draft.lost["unknown_blocks"] += 1


def _result_text(draft: Draft, content: object) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for block in content if isinstance(content, list) else []:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": str(kind)}:
                draft.lost[_LOST.get(kind, "unknown_blocks")] += 1
            case _:
                draft.lost["unknown_blocks"] += 1
    return "\n\n".join(texts)
