"""Converts LangChain messages to plain messages and back without loss."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
    message_to_dict,
    messages_from_dict,
)

from chatmemory import codec
from chatmemory.codec import ROLES, text_of
from chatmemory.errors import BadInput
from chatmemory.logs import log_once
from chatmemory.models import ContentRow

logger = logging.getLogger(__name__)

_CLASSES: dict[tuple[object, object], type[BaseMessage]] = {
    ("user", None): HumanMessage,
    ("assistant", None): AIMessage,
    ("system", None): SystemMessage,
    ("tool", None): ToolMessage,
    ("tool", "function"): FunctionMessage,
    **{(role, "chat"): ChatMessage for role in ROLES},
}
_OF_TEXT = {"user": HumanMessage, "assistant": AIMessage, "system": SystemMessage}
"""The classes of messages that need only a text."""

_ADDRESSES = {cls: address for address, cls in _CLASSES.items()}
_RENAMED = {"usage_metadata": "usage", "status": "tool_status"}
_FIELDS = {
    cls: [
        (name, _RENAMED.get(name, name), info.get_default(call_default_factory=True))
        for name, info in cls.model_fields.items()
        if name not in ("type", "role", "content")
    ]
    for cls in _ADDRESSES
}
"""For each class: its fields, the key of each in a plain message, and its default."""

_KNOWN = {
    cls: {"role", "content", "kind", "unknown_blocks", *(key for _, key, _ in fields)}
    for cls, fields in _FIELDS.items()
}
_KEYS = {"langchain_extra"}.union(*_KNOWN.values())
_CALL_KEYS = {
    "tool_calls": ("name", "args", "id"),
    "invalid_tool_calls": ("name", "args", "id", "error"),
}
"""The keys of a call that the constructor accepts; it drops or refuses all others."""


def to_plain(message: object, *, field: str = "message") -> dict[str, object]:
    """Convert a LangChain message or chunk; fields with default values are omitted.

    `field` names the message in errors. Raises BadInput for other types, and for a role that
    cannot be stored.
    """
    if not isinstance(message, BaseMessage):
        raise BadInput(
            f"{field} must be a LangChain message, not {type(message).__name__}.", field=field
        )
    whole = message_chunk_to_message(message)
    cls = next((cls for cls in _ADDRESSES if isinstance(whole, cls)), BaseMessage)
    role, kind = _ADDRESSES.get(cls, (None, None))
    role = whole.role if isinstance(whole, ChatMessage) else role
    if role not in ROLES:
        name = type(message).__name__
        of_role = f" of role {role[:40]!a}" if isinstance(role, str) else ""
        raise BadInput(f"{field} is a {name}{of_role}, which cannot be stored.", field=field)
    plain = {"role": role, "content": whole.content} | ({"kind": kind} if kind else {})
    for name, key, default in _FIELDS[cls]:
        value = getattr(whole, name)
        if value is not None if default is None else value != default:
            plain[key] = value
    extras = {**_undeclared(whole, cls), **(message.model_extra or {})}
    if clashing := {key: extras.pop(key) for key in tuple(extras) if key in _KEYS}:
        plain["langchain_extra"] = clashing
    return {**plain, **extras}


def to_langchain(plain: Mapping[str, object]) -> BaseMessage:
    """Convert a plain message by LangChain's constructors; no class named in it is loaded.

    A quarantined message, or one that the constructor refuses, becomes a message of its role with
    its text and `additional_kwargs={"quarantined": True}`.
    """
    if plain.get("quarantined") is not True:
        try:
            return _build(plain)
        except (ValueError, TypeError, KeyError, AttributeError):
            text = "A stored message cannot be a LangChain message; it is returned as quarantined."
            log_once(logger, logging.WARNING, text)
    cls = _CLASSES.get((plain.get("role"), None), HumanMessage)
    needed = {"tool_call_id": ""} if cls is ToolMessage else {}
    return cls(
        content=text_of(plain.get("content")), additional_kwargs={"quarantined": True}, **needed
    )


def messages_of_rows(rows: Iterable[ContentRow]) -> list[BaseMessage]:
    """Convert the role, text and body of rows as `codec.decode` and `to_langchain` do."""
    # Most rows have no body. Directly, since the constructor needs nearly all of the time.
    return [
        cls(content=text)
        if body is None and (cls := _OF_TEXT.get(role))
        else to_langchain(codec.decode(role, text, body))
        for role, text, body, _, _, _ in rows
    ]


def to_dict(plain: Mapping[str, object]) -> dict[str, Any]:
    """Convert a plain message to the format of LangChain's `messages_to_dict`."""
    return message_to_dict(to_langchain(plain))


def from_dict(given: object, *, field: str = "message") -> dict[str, object]:
    """Convert from the format of `messages_to_dict`; no class named in it is loaded.

    Raises BadInput.
    """
    try:
        [message] = messages_from_dict([given])  # type: ignore[list-item]  # other types are refused
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{field} is not a LangChain message.", field=field) from error
    return to_plain(message, field=field)


def _build(plain: Mapping[str, Any]) -> BaseMessage:
    cls = _CLASSES[plain["role"], plain.get("kind")]
    fields = {name: plain[key] for name, key, _ in _FIELDS[cls] if key in plain}
    arguments = dict(fields)
    if cls is AIMessage:
        for name, keys in _CALL_KEYS.items():
            # Without a value the constructor would read calls from `additional_kwargs`.
            calls = fields.setdefault(name, [])
            arguments[name] = [{key: call.get(key) for key in keys} for call in calls]
    if cls is ChatMessage:
        arguments["role"] = plain["role"]
    message = cls(content=plain["content"], **arguments)
    # The constructor drops some values, such as unknown keys of a call; restore them.
    for name, value in fields.items():
        if getattr(message, name) != value:
            setattr(message, name, value)
    if message.model_extra is not None and (others := plain.keys() - _KNOWN[cls]):
        extras = {key: value for key, value in plain.items() if key in others}
        clashing = extras.pop("langchain_extra", {})
        message.model_extra.update({**extras, **clashing})
    return message


def _undeclared(message: BaseMessage, cls: type[BaseMessage]) -> dict[str, object]:
    """Return the fields that a subclass added."""
    return {name: value for name, value in vars(message).items() if name not in cls.model_fields}
