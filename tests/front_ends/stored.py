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


class Transcript:
    """Collects what is shown; the rows of one reply are one message."""

    def __init__(self) -> None:
        self._messages: list[Shown] = []
        self._calls: dict[str, int] = {}
        """The places of the tools without a result in the last message, by their calls' ids."""

    @property
    def shown(self) -> list[Shown]:
        """The messages, without a reply that is empty: a page may show nothing for it."""
        return [each for each in self._messages if each.parts]

    def begin(self, role: str) -> None:
        """Begin a message, unless the last one continues."""
        if role == "user" or not self._messages or self._messages[-1].role == "user":
            self._messages.append(Shown("user" if role == "user" else "assistant", []))
            self._calls.clear()

    def add_text(self, text: str) -> None:
        if text:
            self._messages[-1].parts.append(("text", text))

    def add_call(self, call_id: str, name: str, args: object, output: str = "") -> None:
        parts = self._messages[-1].parts
        self._calls[call_id] = len(parts)
        parts.append(("tool", name, json.dumps(args, sort_keys=True), output))

    def add_result(self, call_id: str, text: str) -> None:
        parts = self._messages[-1].parts
        place = self._calls.pop(call_id)
        parts[place] = (*parts[place][:3], text)


def expected(key: str) -> list[Shown]:
    """Return the messages that the rows of a session stand for: one for each user and reply."""
    session = Session.objects.get(key=key)
    ranges = superseded(session.first_seq, session=session)
    found = Transcript()
    for row in Message.objects.filter(session=session).in_order():
        if any(row.seq in each for each in ranges):
            continue
        message: Mapping[str, Any] = row.plain()
        found.begin(row.role)
        if row.role == "tool":
            found.add_result(message["tool_call_id"], text_of(message["content"]))
            continue
        found.add_text(text_of(message["content"]))
        for call in message.get("tool_calls", []):
            found.add_call(call["id"], call["name"], call["args"])
    return found.shown


def of_ai_sdk(messages: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """Return what a page of the AI SDK shows."""
    found = Transcript()
    for message in messages:
        found.begin(message["role"])
        for part in message["parts"]:
            match part:
                case {"type": "text", "text": text}:
                    found.add_text(text)
                case {"type": "dynamic-tool", "toolCallId": call, "toolName": name, "input": args}:
                    output = part.get("output", part.get("errorText", ""))
                    found.add_call(call, name, args, output)
    return found.shown


def of_assistant_ui(messages: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """Return what a page of assistant-ui shows."""
    found = Transcript()
    for message in messages:
        found.begin(message["role"])
        for part in message["content"]:
            match part:
                case {"type": "text", "text": text}:
                    found.add_text(text)
                case {"type": "tool-call", "toolCallId": call, "toolName": name, "args": args}:
                    found.add_call(call, name, args, part.get("result", ""))
    return found.shown


def of_ag_ui(messages: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """Return what a page of AG-UI shows."""
    found = Transcript()
    for message in messages:
        found.begin(message["role"])
        if message["role"] == "tool":
            found.add_result(message["toolCallId"], message["content"])
            continue
        found.add_text(message.get("content") or "")
        for call in message.get("toolCalls") or []:
            function = call["function"]
            found.add_call(call["id"], function["name"], json.loads(function["arguments"]))
    return found.shown


def of_tanstack(messages: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """Return what a page of TanStack AI shows."""
    found = Transcript()
    for message in messages:
        found.begin(message["role"])
        for part in message["parts"]:
            match part:
                case {"type": "text", "content": text}:
                    found.add_text(text)
                case {"type": "tool-call", "id": call, "name": name, "arguments": args}:
                    found.add_call(call, name, json.loads(args))
                case {"type": "tool-result", "toolCallId": call, "content": output}:
                    found.add_result(call, output)
    return found.shown
