"""Turns as chunks of the AI SDK's stream, and as the parts that its clients build from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from chatmemory import codec
from chatmemory.models import StoredMessage
from chatmemory.responders import Progress
from chatmemory.services import LiveTurn
from chatmemory.streams.reads import TurnRows
from chatmemory.streams.replies import (
    MAX_STEP_CHARS,
    Data,
    StreamedText,
    metadata_of,
    queue_data,
    value_of,
)
from chatmemory.streams.turns import Ended, Event, Piece, Queued

Chunk = Data

OF_SERVER: Mapping[str, object] = {"dynamic": True, "providerExecuted": True}
"""Marks tools that the server calls, so that a page does not call them itself."""


class ToolIds:
    """The ids of tool calls in one reply, where models may repeat theirs."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def begin(self, call_id: str) -> str:
        """Return the id of a new call."""
        self._count[call_id] = count = self._count.get(call_id, 0) + 1
        return call_id if count == 1 else f"{call_id}#{count}"

    def answered(self, call_id: str) -> str | None:
        """Return the id of the newest call with this id; None without one."""
        count = self._count.get(call_id)
        return None if count is None else call_id if count == 1 else f"{call_id}#{count}"


def row_chunks(row: StoredMessage, ids: ToolIds) -> Iterator[Chunk]:
    """Yield the chunks of a whole row, without those of its step."""
    if row.role == "tool":
        yield from _result(row, ids)
        return
    if (reasoning := row.steps(max_chars=MAX_STEP_CHARS).reasoning) is not None:
        yield from text_chunks("reasoning", f"r{row.seq}", reasoning.text)
    yield from text_chunks("text", f"t{row.seq}", row.text)
    yield from _rest(row, ids)


def text_chunks(kind: str, name: str, text: str) -> Iterator[Chunk]:
    if text:
        yield {"type": f"{kind}-start", "id": name}
        yield {"type": f"{kind}-delta", "id": name, "delta": text}
        yield {"type": f"{kind}-end", "id": name}


def _rest(row: StoredMessage, ids: ToolIds) -> Iterator[Chunk]:
    """Yield what follows the text of an assistant's row: its tool calls and its question."""
    for call in row.steps(max_chars=MAX_STEP_CHARS).calls:
        yield {
            "type": "tool-input-available",
            "toolCallId": ids.begin(call.id),
            "toolName": call.name,
            "input": value_of(call.args),
            **OF_SERVER,
        }
    if (question := codec.Question.of(row.plain())) is not None:
        yield {"type": "data-asks", "id": "asks", "data": question.public()}


def _result(row: StoredMessage, ids: ToolIds) -> Iterator[Chunk]:
    result = row.steps().result
    call_id = None if result is None else ids.answered(result.call)
    if result is None or call_id is None:
        return  # unreadable, or the answer to no call: clients refuse it
    end: Chunk = {"type": "tool-output-available", "toolCallId": call_id, "output": row.text}
    if result.failed:
        end = {"type": "tool-output-error", "toolCallId": call_id, "errorText": row.text}
    yield {**end, **OF_SERVER}


class TurnChunks:
    """Translates the events of one turn."""

    def __init__(self, turn: str, message_id: str) -> None:
        self._turn = turn
        self._message_id = message_id
        self._ids = ToolIds()
        self._seq: int | None = None
        self._is_step_open = False
        self._streamed: StreamedText | None = None
        """The text of the open step that was sent before its row."""
        self._is_queued = False

    def start(self) -> Chunk:
        return {
            "type": "start",
            "messageId": self._message_id,
            "messageMetadata": {"turn": self._turn},
        }

    def error(self, code: str) -> Chunk:
        """Return the chunk that ends the stream with an error."""
        text = codec.dump_json({"code": code, "turn": self._turn})
        return {"type": "error", "errorText": text}

    def of(self, event: Event) -> Iterator[Chunk]:
        """Yield the chunks of an event; the last one ends the stream."""
        match event:
            case Queued(turns):
                yield self._queue(turns)
            case Piece():
                yield from self._text(event)
            case Progress():
                yield {"type": "data-progress", "data": asdict(event), "transient": True}
            case StoredMessage():
                yield from self._row(event)
            case Ended(found):
                yield from self._end(found)

    def _queue(self, turns: Sequence[LiveTurn] = ()) -> Chunk:
        self._is_queued = bool(turns)
        return {"type": "data-queue", "id": "queue", "data": queue_data(self._turn, turns)}

    def _begin_step(self) -> Iterator[Chunk]:
        if self._is_queued:
            yield self._queue()
        if self._is_step_open:
            yield {"type": "finish-step"}
        self._is_step_open = True
        yield {"type": "start-step"}

    def _text(self, piece: Piece) -> Iterator[Chunk]:
        name = f"s{piece.step}"
        if self._streamed is None:
            yield from self._begin_step()
            self._streamed = StreamedText()
            yield {"type": "text-start", "id": name}
        self._streamed.add(piece.text)
        yield {"type": "text-delta", "id": name, "delta": piece.text}
        self._name = name

    def _row(self, row: StoredMessage) -> Iterator[Chunk]:
        """Yield the chunks of a row. It wins: text that it does not continue is taken back."""
        self._seq = row.seq
        if row.role == "tool":
            yield from row_chunks(row, self._ids)
        if row.role != "assistant":
            return  # a run may store rows of other roles, which are no part of a reply
        streamed, self._streamed = self._streamed, None
        if streamed is None:
            yield from self._begin_step()
            yield from row_chunks(row, self._ids)
        elif streamed.begins(row.text) and not row.steps().reasoning:
            if rest := row.text[streamed.chars :]:
                yield {"type": "text-delta", "id": self._name, "delta": rest}
            yield {"type": "text-end", "id": self._name}
            yield from _rest(row, self._ids)
        else:
            yield {"type": "reset-step"}
            yield from row_chunks(row, self._ids)

    def _end(self, found: TurnRows) -> Iterator[Chunk]:
        if self._is_queued:
            yield self._queue()
        if self._is_step_open:
            yield {"type": "finish-step"}
        metadata = metadata_of(self._turn, found, self._seq)
        if found.status == "failed":
            yield {"type": "message-metadata", "messageMetadata": metadata}
            yield self.error(found.error)
        else:
            reason = "stop" if found.status == "complete" else "interrupted"
            yield {"type": "finish", "finishReason": reason, "messageMetadata": metadata}


def parts_of(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return the parts that a client has built from complete chunks."""
    parts: list[Chunk] = []
    tools: dict[object, Chunk] = {}
    for chunk in chunks:
        match chunk:
            case {"type": "start-step"}:
                parts.append({"type": "step-start"})
            case {"type": "text-delta" | "reasoning-delta" as kind, "delta": text}:
                name = str(kind).partition("-")[0]
                parts.append({"type": name, "text": text, "state": "done"})
            case {"type": "tool-input-available", "toolCallId": call_id}:
                tools[call_id] = {
                    "type": "dynamic-tool",
                    "toolName": chunk["toolName"],
                    "toolCallId": call_id,
                    "state": "input-available",
                    "input": chunk["input"],
                    "providerExecuted": True,
                }
                parts.append(tools[call_id])
            case {"type": "tool-output-available", "toolCallId": call_id, "output": output}:
                tools[call_id] |= {"state": "output-available", "output": output}
            case {"type": "tool-output-error", "toolCallId": call_id, "errorText": text}:
                tools[call_id] |= {"state": "output-error", "errorText": text}
            case {"type": "data-asks"}:
                parts.append(chunk)
    return parts
