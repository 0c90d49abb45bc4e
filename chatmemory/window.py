"""The window: what of a session's history the model is given."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chatmemory.conf import settings
from chatmemory.models import Message, Session

CHUNK = 200
"""Rows read at a time, from the newest back."""

LONGEST_TURN = 1_000
"""Rows after which the beginning of a turn is looked for no more, once the limits are passed."""

_HIDDEN = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Characters that turn the direction of text or that no person sees: instructions hide there."""


def read_window(session: Session) -> list[dict[str, object]]:
    """The newest plain messages within `WINDOW_TOKENS` and `WINDOW_MESSAGES`, in order of seq.

    Begins where a user's message does, so no tool call is torn from its result; a last turn that
    alone is over the limits is given whole. The session's instructions come first, outside the
    limits. Empty replies and results of unknown tool calls are left out.
    """
    rows: list[tuple[str, dict[str, object]]] = []
    complete = 0
    for role, plain in _within_limits(session):
        rows.append((role, plain))
        if role == Message.Role.USER:
            complete = len(rows)
    messages = _with_known_calls([plain for _, plain in reversed(rows[:complete] or rows)])
    if session.instructions:
        messages.insert(0, {"role": "system", "content": session.instructions})
    return messages


def _within_limits(session: Session) -> Iterator[tuple[str, dict[str, object]]]:
    """Messages and their roles from the newest back, at least to a user's message."""
    max_tokens, max_messages = settings.WINDOW_TOKENS, settings.WINDOW_MESSAGES
    tokens = 0
    has_user = False
    for count, row in enumerate(_newest_first(session), 1):
        tokens += row.tokens
        is_over = (max_tokens is not None and tokens > max_tokens) or (
            max_messages is not None and count > max_messages
        )
        if is_over and (has_user or count > LONGEST_TURN):
            return
        has_user = has_user or row.role == Message.Role.USER
        plain = row.plain()
        if not _is_empty(plain):
            yield row.role, _shown(plain)


def _newest_first(session: Session) -> Iterator[Message]:
    before = None
    while True:
        rows = Message.objects.filter(session=session).order_by("-seq")
        if before is not None:
            rows = rows.filter(seq__lt=before)
        chunk = list(rows[:CHUNK])
        yield from chunk
        if len(chunk) < CHUNK:
            return
        before = chunk[-1].seq


def _with_known_calls(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """The messages without tool results whose call isn't among them: no provider takes those."""
    called: set[object] = set()
    kept = []
    for plain in messages:
        calls = plain.get("tool_calls")
        if isinstance(calls, list):
            called.update(call.get("id") for call in calls if isinstance(call, dict))
        if plain["role"] != "tool" or plain.get("kind") or plain.get("tool_call_id") in called:
            kept.append(plain)
    return kept


def _is_empty(plain: dict[str, object]) -> bool:
    return plain["role"] == "assistant" and not plain["content"] and not plain.get("tool_calls")


def _shown(plain: dict[str, object]) -> dict[str, object]:
    """The message without characters in which a person's or a tool's text hides instructions."""
    content = plain["content"]
    if plain["role"] not in ("user", "tool"):
        return plain
    return {**plain, "content": _without_hidden(content)}


def _without_hidden(content: object) -> object:
    match content:
        case str():
            return _HIDDEN.sub("", content)
        case list():
            return [_without_hidden(block) for block in content]
        case dict():
            return {name: _without_hidden(value) for name, value in content.items()}
        case _:
            return content
