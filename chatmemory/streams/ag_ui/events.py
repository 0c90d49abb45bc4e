"""Turns as events of AG-UI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from chatmemory import codec
from chatmemory.models import StoredMessage
from chatmemory.responders import Progress
from chatmemory.services import LiveTurn
from chatmemory.streams.ag_ui.messages import CallIds, reasoning_id, row_id
from chatmemory.streams.ag_ui.usage import token_usage
from chatmemory.streams.reads import TurnRows
from chatmemory.streams.replies import (
    MAX_STEP_CHARS,
    Data,
    StreamedText,
    metadata_of,
    queue_data,
)
from chatmemory.streams.sending import turn_reply_id
from chatmemory.streams.turns import Ended, Event, Piece, Queued

FAILED_CALL: Data = {"tanstack": {"state": "output-error"}}
"""The metadata of a failed call's result, for which the events have no field."""


class TurnEvents:
    """Translates the events of one turn. Each assistant row is a message."""

    def __init__(self, turn: str, thread: str, run: str, *, is_versioned: bool = False) -> None:
        """`is_versioned` is whether the client has named its version, as those from 1.0 on do."""
        self._turn = turn
        self._run: Data = {"threadId": thread, "runId": run}
        self._is_versioned = is_versioned
        self._calls = CallIds()
        self._seq: int | None = None
        self._count = 0
        """The messages of the reply that have begun."""
        self._is_step_open = False
        self._streamed: StreamedText | None = None
        """The open text, which was sent before its row."""
        self._is_queued = False
        self.is_wrong = False
        """Whether a text was sent that is not stored. No event takes it back: only a snapshot of
        all messages, before the run ends, replaces it."""

    def start(self) -> Data:
        return {"type": "RUN_STARTED", **self._run}

    def of(self, event: Event) -> Iterator[Data]:
        """Yield the events of an event of the turn; after those of `Ended`, `finish` follows."""
        match event:
            case Queued(turns):
                yield self._queue(turns)
            case Piece():
                yield from self._text(event)
            case Progress():
                yield _custom("progress", asdict(event))
            case StoredMessage():
                yield from self._row(event)
            case Ended(found):
                yield from self._end(found)

    def finish(self, found: TurnRows) -> Data:
        """Return the last event of the run."""
        tokens = token_usage(found.model, codec.parse_usage(found.usage))
        usage: Data = {"usage": [tokens]} if tokens else {}
        if found.status == "failed":
            message = f"The reply failed ({found.error})."
            return {"type": "RUN_ERROR", "message": message, "code": found.error, **usage}
        finished: Data = {"type": "RUN_FINISHED", **self._run, **usage}
        if found.status == "complete" or not self._is_versioned:
            return finished  # clients before 1.0 refuse the other outcome
        return {**finished, "outcome": {"type": "cancelled"}}

    @property
    def _id(self) -> str:
        """The id of the message that has begun last."""
        return turn_reply_id(self._turn, self._count - 1)

    @property
    def _step(self) -> Data:
        return {"stepName": f"step {self._count}"}

    def _queue(self, turns: Sequence[LiveTurn] = ()) -> Data:
        self._is_queued = bool(turns)
        return _custom("queue", queue_data(self._turn, turns))

    def _begin_step(self) -> Iterator[Data]:
        if self._is_queued:
            yield self._queue()
        yield from self._end_step()
        self._count += 1
        self._is_step_open = True
        yield {"type": "STEP_STARTED", **self._step}

    def _end_step(self) -> Iterator[Data]:
        if self._is_step_open:
            self._is_step_open = False
            yield {"type": "STEP_FINISHED", **self._step}

    def _text(self, piece: Piece) -> Iterator[Data]:
        if self._streamed is None:
            yield from self._begin_step()
            self._streamed = StreamedText()
            yield self._text_start()
        self._streamed.add(piece.text)
        yield self._text_content(piece.text)

    def _row(self, row: StoredMessage) -> Iterator[Data]:
        self._seq = row.seq
        if row.role == "tool":
            yield from self._result(row)
        if row.role != "assistant":
            return  # a run may store rows of other roles, which are no part of a reply
        streamed, self._streamed = self._streamed, None
        if streamed is None:
            yield from self._begin_step()
            yield from self._reasoning(row)
            if row.text:
                yield self._text_start()
                yield self._text_content(row.text)
                yield self._text_end()
        else:
            if not streamed.begins(row.text):
                self.is_wrong = True
            elif rest := row.text[streamed.chars :]:
                yield self._text_content(rest)
            yield self._text_end()
            yield from self._reasoning(row)
        yield from self._rest(row)

    def _reasoning(self, row: StoredMessage) -> Iterator[Data]:
        reasoning = row.steps(max_chars=MAX_STEP_CHARS).reasoning
        if reasoning is not None and reasoning.text:
            named: Data = {"messageId": reasoning_id(row.seq)}
            yield {"type": "REASONING_START", **named}
            yield {"type": "REASONING_MESSAGE_START", **named, "role": "reasoning"}
            yield {"type": "REASONING_MESSAGE_CONTENT", **named, "delta": reasoning.text}
            yield {"type": "REASONING_MESSAGE_END", **named}
            yield {"type": "REASONING_END", **named}

    def _rest(self, row: StoredMessage) -> Iterator[Data]:
        """Yield what follows the text of an assistant's row: its tool calls and its question."""
        for call_id, call in self._calls.begin(row):
            named: Data = {"toolCallId": call_id}
            start: Data = {"toolCallName": call.name, "parentMessageId": self._id}
            yield {"type": "TOOL_CALL_START", **named, **start}
            if call.args:
                yield {"type": "TOOL_CALL_ARGS", **named, "delta": call.args}
            yield {"type": "TOOL_CALL_END", **named}
        if (question := codec.Question.of(row.plain())) is not None:
            yield _custom("asks", question.public())

    def _result(self, row: StoredMessage) -> Iterator[Data]:
        found = self._calls.answered(row)
        if found is None:
            return  # unreadable, or the answer to no call
        call_id, has_failed = found
        yield {
            "type": "TOOL_CALL_RESULT",
            "messageId": row_id(row.seq),
            "toolCallId": call_id,
            "content": row.text,
            "role": "tool",
            **({"metadata": FAILED_CALL} if has_failed else {}),
        }

    def _end(self, found: TurnRows) -> Iterator[Data]:
        if self._is_queued:
            yield self._queue()
        if self._streamed is not None:  # of a text that has no row
            self._streamed, self.is_wrong = None, True
            yield self._text_end()
        yield from self._end_step()
        yield _custom("turn", metadata_of(self._turn, found, self._seq))

    def _text_start(self) -> Data:
        return {"type": "TEXT_MESSAGE_START", "messageId": self._id, "role": "assistant"}

    def _text_content(self, text: str) -> Data:
        return {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._id, "delta": text}

    def _text_end(self) -> Data:
        return {"type": "TEXT_MESSAGE_END", "messageId": self._id}


def _custom(name: str, value: Data) -> Data:
    return {"type": "CUSTOM", "name": name, "value": value}
