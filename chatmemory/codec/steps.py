"""What readers of a session see of the steps of a reply: tool calls, their results, reasoning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain, islice

from chatmemory.codec.calls import CALLS, answered_call, calls_of
from chatmemory.codec.checks import label
from chatmemory.codec.cleaning import REASONING_TYPES
from chatmemory.codec.json import dump_json

MAX_STEP_CHARS = 8_000
"""Maximum length of a message's reasoning, and of the arguments of its tool calls together."""

MAX_SHOWN_CALLS = 100
"""The first tool calls of a message are shown."""

_MAX_LABEL_CHARS = 100  # of ids and names

_REASONING_KEYS = ("reasoning", "thinking", "reasoning_content", "summary", "content", "text")
"""Where blocks of reasoning and their parts contain text: each provider has its own keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call."""

    id: str
    name: str
    args: str
    """The arguments as JSON; those of an invalid call as the model wrote them."""
    cut: bool
    """Whether the arguments are truncated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A message of a tool, besides its text."""

    call: str
    """The id of the call that it answers."""
    name: str
    """The tool; empty if the message has no name."""
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The reasoning that a model gave with its message."""

    text: str
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps in a message."""

    calls: list[Call] = field(default_factory=list)
    result: Result | None = None
    reasoning: Reasoning | None = None

    def public(self) -> dict[str, object]:
        """Return the fields that a frame has, without the empty ones."""
        return {name: value for name, value in asdict(self).items() if value}


def steps_of(message: Mapping[str, object], *, max_chars: int = MAX_STEP_CHARS) -> Steps:
    """Return the steps of a plain message; `max_chars` limits its arguments and its reasoning."""
    if (call_id := answered_call(message)) is not None:
        is_failed = message.get("tool_status") == "error"
        return Steps(
            result=Result(call=_label(call_id), name=_label(message.get("name")), failed=is_failed)
        )
    if message.get("role") != "assistant":
        return Steps()
    reasoning = "\n\n".join(_reasoning_texts(message))
    cut = len(reasoning) > max_chars
    return Steps(
        calls=list(_truncated_calls(message, max_chars)),
        reasoning=Reasoning(text=reasoning[:max_chars], cut=cut) if reasoning else None,
    )


def _truncated_calls(message: Mapping[str, object], max_chars: int) -> Iterator[Call]:
    left = max_chars
    found = chain.from_iterable(calls_of(message, key) for key in CALLS)
    for call in islice(found, MAX_SHOWN_CALLS):
        given = call.get("args")
        args = given if isinstance(given, str) else dump_json(given)
        shown = args[:left]
        left -= len(shown)
        name, call_id = _label(call.get("name")), _label(call.get("id"))
        yield Call(id=call_id, name=name, args=shown, cut=shown != args)


def _reasoning_texts(message: Mapping[str, object]) -> Iterator[str]:
    """Yield the texts of the blocks of reasoning, and of the field that some models use."""
    content, extra = message.get("content"), message.get("additional_kwargs")
    if isinstance(extra, Mapping):
        yield from _reasoning_values([extra.get("reasoning_content"), extra.get("reasoning")])
    for block in content if isinstance(content, list) else []:
        if isinstance(block, Mapping) and block.get("type") in REASONING_TYPES:
            yield from _reasoning_values(block)


def _reasoning_values(value: object) -> Iterator[str]:
    match value:
        case str() if text := value.strip():
            yield text
        case list():
            for part in value:
                yield from _reasoning_values(part)
        case Mapping():
            for key in _REASONING_KEYS:
                yield from _reasoning_values(value.get(key))


def _label(value: object) -> str:
    return label(value, _MAX_LABEL_CHARS) if isinstance(value, str) else ""
