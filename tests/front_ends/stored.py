"""What a page must show, read from the stored rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from chatmemory.codec import text_of
from chatmemory.models import Message, Session
from chatmemory.models.superseded import superseded


class Shown(NamedTuple):
    """A message of a page: texts, and tools with their arguments and results."""

    role: str
    parts: list[tuple[str, ...]]


def expected(key: str) -> list[Shown]:
    """Return the messages that the rows of a session stand for: one for each user and reply."""
    session = Session.objects.get(key=key)
    ranges = superseded(session.first_seq, session=session)
    rows = Message.objects.filter(session=session).in_order()
    shown: list[Shown] = []
    outputs: dict[str, str] = {}
    for row in rows:
        if any(row.seq in each for each in ranges):
            continue
        message = row.plain()
        if row.role == "tool":
            outputs[str(message["tool_call_id"])] = text_of(message["content"])
        elif row.role == "user" or shown[-1].role == "user":
            shown.append(Shown(row.role, []))
        shown[-1].parts.extend(_parts(message))
    return [Shown(role, [_with_output(part, outputs) for part in parts]) for role, parts in shown]


def _parts(message: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    if message["role"] == "tool":
        return
    if text := text_of(message["content"]):
        yield "text", text
    for call in message.get("tool_calls", []):
        yield "tool", call["name"], json.dumps(call["args"], sort_keys=True), call["id"]


def _with_output(part: tuple[str, ...], outputs: Mapping[str, str]) -> tuple[str, ...]:
    return part if part[0] == "text" else (*part[:3], outputs.get(part[3], ""))


def of_ai_sdk(messages: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """Return what a page of the AI SDK shows."""
    return [
        Shown(message["role"], [*filter(None, map(_part_of_ai_sdk, message["parts"]))])
        for message in messages
    ]


def _part_of_ai_sdk(part: Mapping[str, Any]) -> tuple[str, ...] | None:
    match part:
        case {"type": "text", "text": text}:
            return ("text", text) if text else None
        case {"type": "dynamic-tool", "toolName": name, "input": given}:
            output = part.get("output", part.get("errorText", ""))
            return "tool", name, json.dumps(given, sort_keys=True), output
        case _:
            return None
