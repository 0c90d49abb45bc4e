"""ChatGPT's export: `conversations.json` in a ZIP archive, also split into numbered files.

OpenAI documents the download, and not the format. The shape is as these
public programs read or write it: LibreChat (`api/server/utils/import/importers.js` and its test
data), `docs/chatgpt-data-export-format.md` of mitkury/chatgpt-export-parser, `docs/formats.md` of
TomzxCode/llm-conversations-viewer.

A conversation has a tree of messages (`mapping`). `current_node` is the newest message of the
branch that its person sees. `create_time` is in seconds, and null for hidden messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chatmemory import codec
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

NAME = "chatgpt"

_HIDDEN = {"user_editable_context", "model_editable_context"}
"""Custom instructions and the memory of the bot: content types of hidden messages."""
_REASONING = {"thoughts", "reasoning_recap"}
_TEXT_FIELDS = {
    "code": "text",
    "execution_output": "text",
    "tether_quote": "text",
    "tether_browsing_display": "result",
    "tether_browsing_code": "text",
    "system_error": "text",
    "computer_output": "text",
}
"""The field with the text, by content type."""
_LOST_PARTS = {
    "image_asset_pointer": "images",
    "audio_asset_pointer": "audio",
    "real_time_user_audio_video_asset_pointer": "audio",
    "video_container_asset_pointer": "files",
}
_TO_ALL = (None, "", "all")


def read(given: Mapping[str, Any]) -> Conversation:
    """Convert a conversation. Raises BadInput, NoMessages."""
    mapping = given.get("mapping")
    if not isinstance(mapping, dict) or not all(isinstance(n, dict) for n in mapping.values()):
        raise BadInput("mapping must be an object of objects.", code="bad_shape", field="mapping")
    draft = Draft()
    parents = {name: node.get("parent") for name, node in mapping.items()}
    path = branch(parents, _leaf(mapping, given.get("current_node")))
    on_path = set(path)
    for name, node in mapping.items():
        if name not in on_path and _is_visible(node.get("message")):
            draft.lost["branch_messages"] += 1
    default_model = name_of(given, "default_model_slug")
    for name in path:
        message = mapping[name].get("message")
        if message is not None:
            _read_message(draft, name, message, default_model)
    entries = draft.finish()
    return Conversation(
        product=NAME,
        id=id_of(given, "conversation_id", "id") or path[0],
        title=name_of(given, "title"),
        created_at=moment(given.get("create_time")),
        entries=entries,
        lost=draft.lost,
    )


def _leaf(mapping: Mapping[str, Any], current: object) -> str:
    """Return the id of the newest message of the current branch."""
    if isinstance(current, str) and current in mapping:
        return current
    parents = {name_of(node, "parent") for node in mapping.values()}
    leaves = [name for name in mapping if name not in parents]
    if not leaves:
        raise NoMessages
    return leaves[-1]


def _is_visible(message: object) -> bool:
    match message:
        case {"author": {"role": "system"}}:
            return False
        case {"metadata": {"is_visually_hidden_from_conversation": True}}:
            return False
        case dict():
            return True
        case _:
            return False


def _read_message(draft: Draft, name: str, message: object, default_model: str) -> None:
    field = f"mapping.{codec.label(name, 60)}.message"
    match message:
        case {"author": {"role": str(role)}, "content": dict(content), **others}:
            pass
        case _:
            text = f"{field} must have an author with a role, and a content."
            raise BadInput(text, code="bad_shape", field=field)
    given = others.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    kind = name_of(content, "content_type")
    if role == "system":
        draft.lost["system_messages"] += bool(_text(Draft(), content, field).strip())
        return
    if metadata.get("is_visually_hidden_from_conversation") is True or kind in _HIDDEN:
        draft.lost["hidden_messages"] += 1
        return
    if kind in _REASONING:
        draft.lost["reasoning"] += 1
        return
    model = name_of(metadata, "model_slug") or default_model
    draft.begin(name, at=others.get("create_time"), model=model if role == "assistant" else "")
    _count_files(draft, metadata, field)
    text = _text(draft, content, field)
    recipient = others.get("recipient")
    if role == "assistant" and recipient not in _TO_ALL:
        draft.call(text_in(recipient, f"{field}.recipient"), {"input": text})
    elif role == "tool":
        is_error = kind == "system_error"
        draft.result(draft.open_call(), text, is_error=is_error)
    elif role == "assistant" and kind == "code":
        draft.add_text(role, f"```{_language(content)}\n{text}\n```" if text.strip() else "")
    elif role in ("user", "assistant"):
        draft.add_text(role, text)
    else:
        at = f"{field}.author.role"
        raise BadInput(f"{at} is unknown.", code="bad_shape", field=at)


def _language(content: Mapping[str, Any]) -> str:
    language = name_of(content, "language")
    return language if language.isalnum() and language != "unknown" else ""


def _text(draft: Draft, content: Mapping[str, Any], field: str) -> str:
    """Return the text of a content, and count its other parts."""
    kind = name_of(content, "content_type")
    if kind in _TEXT_FIELDS:
        name = _TEXT_FIELDS[kind]
        return text_in(content.get(name), f"{field}.content.{name}")
    parts = content.get("parts")
    if parts is None:
        draft.lost["unknown_blocks"] += 1
        return ""
    if not isinstance(parts, list):
        at = f"{field}.content.parts"
        raise BadInput(f"{at} must be a list.", code="bad_shape", field=at)
    texts = []
    for part in parts:
        match part:
            case None:
                pass
            case str():
                texts.append(part)
            case {"content_type": "audio_transcription", "text": str(spoken)}:
                texts.append(spoken)
            case {"content_type": str(other)}:
                draft.lost[_LOST_PARTS.get(other, "unknown_blocks")] += 1
            case _:
                draft.lost["unknown_blocks"] += 1
    return "\n".join(texts)


def _count_files(draft: Draft, metadata: Mapping[str, Any], field: str) -> None:
    """Count attachments; the parts of the content count the images."""
    for file in objects(metadata.get("attachments"), f"{field}.metadata.attachments"):
        if not name_of(file, "mime_type", "mimeType").startswith("image/"):
            draft.lost["files"] += 1
