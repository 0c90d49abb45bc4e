"""Turns as chunks of the AI SDK's stream, and as the parts that its clients build from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chatmemory import codec
from chatmemory.models import StoredMessage
from chatmemory.streams.reads import TurnRows
from chatmemory.streams.replies import (
    MAX_STEP_CHARS,
    Data,
    StreamedText,
    metadata_of,
    value_of,
)
from chatmemory.streams.translating import TurnTranslator

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


class TurnChunks(TurnTranslator):
    """Translates the events of one turn; the last chunk ends the stream."""

    def __init__(self, turn: str, message_id: str) -> None:
        super().__init__(turn)
        self._message_id = message_id
        self._ids = ToolIds()
        self._name = ""
        """The id of the part of the streamed text."""

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

    def _place(self, data: Data) -> Chunk:
        return {"type": "data-queue", "id": "queue", "data": data}

    def _progress(self, data: Data) -> Chunk:
        return {"type": "data-progress", "data": data, "transient": True}

    def _step_start(self) -> Chunk:
        return {"type": "start-step"}

    def _step_end(self) -> Chunk:
        return {"type": "finish-step"}

    def _text_start(self, step: int) -> Chunk:
        self._name = f"s{step}"
        return {"type": "text-start", "id": self._name}

    def _text_delta(self, text: str) -> Chunk:
        return {"type": "text-delta", "id": self._name, "delta": text}

    def _result(self, row: StoredMessage) -> Iterator[Chunk]:
        return _result(row, self._ids)

    def _whole(self, row: StoredMessage) -> Iterator[Chunk]:
        return row_chunks(row, self._ids)

    def _continued(self, row: StoredMessage, streamed: StreamedText) -> Iterator[Chunk]:
        if streamed.begins(row.text) and not row.steps().reasoning:
            if rest := row.text[streamed.chars :]:
                yield self._text_delta(rest)
            yield {"type": "text-end", "id": self._name}
            yield from _rest(row, self._ids)
        else:
            yield self._take_back()
            yield from row_chunks(row, self._ids)

    def _take_back(self) -> Chunk:
        return {"type": "reset-step"}

    def _finish(self, found: TurnRows) -> Iterator[Chunk]:
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
