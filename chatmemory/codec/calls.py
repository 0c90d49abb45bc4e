"""Tool calls, their results, and questions to the user in plain messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

CALLS = ("tool_calls", "invalid_tool_calls")
"""The fields that contain tool calls; LangChain sends the calls in both to a provider."""

UNKNOWN_OUTCOME = "The outcome is unknown: the run ended before the tool answered."
"""Replaces a tool's missing result, since providers reject a call without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """A graph's question to the user, stored as `asks` in the turn's last row."""

    thread: str
    """The graph's thread, which the answer resumes."""
    questions: tuple[tuple[str, object], ...]
    """The id and value of each interrupt; the row's text is the first one's question."""

    @classmethod
    def of(cls, message: Mapping[str, object]) -> Asks | None:
        """Parse the question in a plain message; None if there is none that can be answered."""
        match message.get("asks"):
            case {"thread": str(thread), "interrupts": [{"id": str(), "value": _}, *_] as found}:
                asked = [interrupt for interrupt in found if isinstance(interrupt, dict)]
                questions = tuple((str(each.get("id")), each.get("value")) for each in asked)
                return cls(thread=thread, questions=questions)
            case _:
                return None

    def plain(self) -> dict[str, object]:
        """Return the value of `asks` in a plain message."""
        interrupts = [{"id": each, "value": value} for each, value in self.questions]
        return {"thread": self.thread, "interrupts": interrupts}

    def public(self) -> dict[str, object]:
        """Return the part that clients see: the first question, without the thread."""
        return {"value": self.questions[0][1]}


def unknown_outcome(call_id: str) -> dict[str, object]:
    """Build the plain message that replaces a tool call's missing result."""
    return {
        "role": "tool",
        "content": UNKNOWN_OUTCOME,
        "tool_call_id": call_id,
        "tool_status": "error",
    }


def calls_of(message: Mapping[str, object], key: str = "tool_calls") -> list[Mapping[str, object]]:
    """Return a plain message's tool calls in order, without invalid entries."""
    calls = message.get(key)
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def call_ids(message: Mapping[str, object], *keys: str) -> list[str]:
    """Return the distinct ids of a plain message's tool calls in order, without empty ones.

    `keys` limits the fields that are read, by default to all of `CALLS`.
    """
    calls = chain.from_iterable(calls_of(message, key) for key in keys or CALLS)
    ids = (call.get("id") for call in calls)
    return list(dict.fromkeys(each for each in ids if isinstance(each, str) and each))


def answered_call(message: Mapping[str, object]) -> str | None:
    """Return the id of the tool call that a plain message answers; None if it is not a result."""
    call_id = message.get("tool_call_id")
    is_result = message.get("role") == "tool" and not message.get("kind")
    return call_id if is_result and isinstance(call_id, str) else None
