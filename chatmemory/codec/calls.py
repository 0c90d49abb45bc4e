"""Tool calls, their results, and questions to the user in plain messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from chatmemory.codec.cleaning import REASONING_TYPES

CALLS = ("tool_calls", "invalid_tool_calls")
"""The fields that contain tool calls; LangChain sends the calls in both to a provider."""

_CALL_BLOCKS = {
    "tool_use": "id",
    "tool_call": "id",
    "invalid_tool_call": "id",
    "function_call": "call_id",
}
"""Types of content blocks that are a tool call, with the key of its id."""

_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
"""Types of blocks that are a call which the provider answers in the same message."""

UNKNOWN_OUTCOME = "The outcome is unknown: the run ended before the tool answered."
"""Replaces a tool's missing result, since providers reject a call without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A graph's question to the user, stored as `asks` in the turn's last row."""

    thread: str
    """The graph's thread, which the answer resumes."""
    questions: tuple[tuple[str, object], ...]
    """The id and value of each interrupt; the row's text is the first one's question."""

    @classmethod
    def of(cls, message: Mapping[str, object]) -> Question | None:
        """Parse the question in a plain message; None without a question that can be answered."""
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


def keep_named_calls(message: dict[str, object]) -> list[str]:
    """Keep only the tool calls that a result can name, and return their ids in order.

    Removes calls without an id and calls with the id of an earlier one, from `tool_calls`, the
    content and `additional_kwargs`. A valid call in the content alone is added to `tool_calls`.
    """
    ids: list[str] = []
    for key in CALLS:
        if isinstance(message.get(key), list):
            message[key] = list(_named(calls_of(message, key), ids))
    content, extra = message.get("content"), message.get("additional_kwargs")
    if isinstance(content, list):
        if added := list(_named(_calls_in(content), ids)):
            message["tool_calls"] = [*calls_of(message), *added]
        message["content"] = _paired_blocks(content, ids)
    if isinstance(extra, dict) and "tool_calls" in extra:
        raw = [call for call in _named(calls_of(extra), []) if call["id"] in ids]
        others = {key: value for key, value in extra.items() if key != "tool_calls"}
        message["additional_kwargs"] = others | ({"tool_calls": raw} if raw else {})
    return call_ids(message)


def take_results(message: dict[str, object]) -> list[dict[str, object]]:
    """Remove Anthropic's results from a user's message, and return them as messages of tools."""
    content = message["content"]
    if message["role"] != "user" or not isinstance(content, list):
        return []
    results: list[dict[str, object]] = []
    others: list[object] = []
    for block in content:
        match block:
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                result = {"role": "tool", "content": block.get("content") or ""}
                is_error = {"tool_status": "error"} if block.get("is_error") is True else {}
                results.append({**result, "tool_call_id": call_id, **is_error})
            case _:
                others.append(block)
    if results:
        message["content"] = others
    return results


def _named(calls: Iterable[Mapping[str, object]], ids: list[str]) -> Iterator[Mapping[str, object]]:
    """Yield the calls whose id is not in `ids`, and add it."""
    for call in calls:
        call_id = call.get("id")
        if isinstance(call_id, str) and call_id and call_id not in ids:
            ids.append(call_id)
            yield call


def _calls_in(content: Sequence[object]) -> Iterator[Mapping[str, object]]:
    """Yield the valid calls in a content, in the form of `tool_calls`."""
    for block in content:
        match block:
            case {"type": "tool_use", "id": call_id, "name": str(name), "input": dict(args)}:
                yield {"name": name, "args": args, "id": call_id, "type": "tool_call"}
            case {"type": "tool_call", "id": call_id, "name": str(name), "args": dict(args)}:
                yield {"name": name, "args": args, "id": call_id, "type": "tool_call"}


def _paired_blocks(content: Sequence[object], ids: Sequence[str]) -> list[object]:
    """Return the blocks that a provider accepts: each id once, no call or result without the other.

    Reasoning must precede a text or call, so it is removed from the end.
    """
    blocks = [block for block in content if isinstance(block, dict)]
    on_server = [each.get("id") for each in blocks if each.get("type") in _SERVER_CALLS]
    answered = [each.get("tool_use_id") for each in blocks]
    left = list(ids)
    kept: list[object] = []
    for block in content:
        match block:
            case dict() if block.get("type") in _SERVER_CALLS:
                is_paired = block.get("id") in answered
            case {"tool_use_id": call_id}:
                is_paired = call_id in on_server
            case {"type": str(kind), **others} if kind in _CALL_BLOCKS:
                call_id = others.get(_CALL_BLOCKS[kind])
                if is_paired := call_id in left:
                    left.remove(call_id)
            case _:
                is_paired = True
        if is_paired:
            kept.append(block)
    while kept and not ids and _is_reasoning(kept[-1]):
        kept.pop()
    return kept


def _is_reasoning(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") in REASONING_TYPES
