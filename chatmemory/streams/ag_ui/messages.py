"""A session's history as the messages of AG-UI, and as those of TanStack AI."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from chatmemory.codec.steps import Call
from chatmemory.models import StoredMessage
from chatmemory.services import LiveTurn
from chatmemory.streams.reads import History
from chatmemory.streams.replies import MAX_STEP_CHARS, Data, value_of
from chatmemory.streams.sending import ROW_PREFIX, turn_reply_id, without_run


def row_id(seq: int) -> str:
    """Return a client's id of a message that has no client_id."""
    return f"{ROW_PREFIX}{seq}"


def reasoning_id(seq: int) -> str:
    return f"r.{seq}"


class CallIds:
    """The ids of tool calls. Models repeat theirs, and clients need one for each call of a chat."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}

    def begin(self, row: StoredMessage) -> Iterator[tuple[str, Call]]:
        """Yield the calls of a row with their ids."""
        for number, call in enumerate(row.steps(max_chars=MAX_STEP_CHARS).calls):
            self._newest[call.id] = name = f"c.{row.seq}.{number}"
            yield name, call

    def answered(self, row: StoredMessage) -> tuple[str, bool] | None:
        """Return the id of the newest call that a row answers, and whether it has failed."""
        result = row.steps().result
        name = None if result is None else self._newest.get(result.call)
        return None if result is None or name is None else (name, result.failed)


def messages_of(
    history: History, *, until: int | None = None, without: Collection[str] = ()
) -> list[Data]:
    """Return the messages, the oldest first; the waiting ones last.

    Without the replies of the turns after the user row `until`, and of the turns `without`: other
    streams send these.
    """
    messages: list[Data] = []
    reply: list[StoredMessage] = []
    for row in history.rows:
        if row.role not in ("assistant", "tool"):
            messages += _reply(reply)
            reply = []
            messages.append(_message(row, history))
        elif (until is None or (row.turn or 0) <= until) and row.turn_client_id not in without:
            reply.append(row)
    messages += _reply(reply)
    return [*messages, *map(_waiting, history.waiting)]


def _message(row: StoredMessage, history: History) -> Data:
    """Return the message of a user or of the system; versions have the id of the first one."""
    seq, client_id = history.first_versions.get(row.seq, (row.seq, row.client_id))
    name = without_run(client_id) if client_id else row_id(seq)
    return {"id": name, "role": row.role, "content": row.text}


def _waiting(turn: LiveTurn) -> Data:
    return {"id": without_run(turn.turn), "role": "user", "content": turn.text}


def _reply(rows: Sequence[StoredMessage]) -> Iterator[Data]:
    """Yield the messages of the rows that answer one user's message."""
    calls = CallIds()
    number = 0
    for row in rows:
        if row.role == "assistant":
            turn = row.turn_client_id
            name = row_id(row.seq) if turn is None else turn_reply_id(turn, number)
            yield from _assistant(row, name, calls)
            number += 1
        elif (found := calls.answered(row)) is not None:
            call_id, has_failed = found
            result: Data = {"role": "tool", "toolCallId": call_id, "content": row.text}
            yield {"id": row_id(row.seq), **result, **({"error": row.text} if has_failed else {})}


def _assistant(row: StoredMessage, name: str, calls: CallIds) -> Iterator[Data]:
    reasoning = row.steps(max_chars=MAX_STEP_CHARS).reasoning
    if reasoning is not None and reasoning.text:
        yield {"id": reasoning_id(row.seq), "role": "reasoning", "content": reasoning.text}
    called = [
        {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.args}}
        for call_id, call in calls.begin(row)
    ]
    if row.text or called:  # else no event has begun it
        message: Data = {"id": name, "role": "assistant", "content": row.text}
        yield {**message, **({"toolCalls": called} if called else {})}


def parts_of(messages: Iterable[Data]) -> list[Data]:
    """Return messages of AG-UI as those of TanStack AI, which have parts."""
    found: list[Data] = []
    thinking: list[Data] = []
    calls: dict[object, tuple[Data, list[Data]]] = {}
    """The part of each call, and the parts of its message."""
    for message in messages:
        match message:
            case {"role": "reasoning", "content": text}:
                thinking.append({"type": "thinking", "content": text})
            case {"role": "tool", "toolCallId": call_id}:
                call, parts = calls[call_id]
                parts.append(_add_result(call, message))
            case {"id": name, "role": role, "content": text}:
                parts = thinking
                parts += [{"type": "text", "content": text}] if text else []
                for call in _call_parts(message):
                    calls[call["id"]] = (call, parts)
                    parts.append(call)
                thinking = []
                found.append({"id": name, "role": role, "parts": parts})
    return found


def _call_parts(message: Mapping[str, Any]) -> Iterator[Data]:
    for call in message.get("toolCalls", ()):
        args = call["function"]["arguments"]
        part = {"name": call["function"]["name"], "arguments": args, "input": value_of(args)}
        yield {"type": "tool-call", "id": call["id"], "state": "input-complete", **part}


def _add_result(call: Data, message: Data) -> Data:
    """Add the result to the part of its call, and return its own part."""
    text, state = message["content"], "error" if "error" in message else "complete"
    call |= {"state": state, "output": value_of(str(text))}
    part: Data = {"type": "tool-result", "toolCallId": call["id"], "content": text, "state": state}
    return {**part, **({"error": text} if state == "error" else {})}
