"""Turns as events of AG-UI."""

from __future__ import annotations

from collections.abc import Iterator

from chatmemory import codec
from chatmemory.models import StoredMessage
from chatmemory.streams.ag_ui.messages import CallIds, reasoning_id, row_id
from chatmemory.streams.ag_ui.usage import token_usage
from chatmemory.streams.reads import TurnRows
from chatmemory.streams.replies import MAX_STEP_CHARS, Data, StreamedText, metadata_of
from chatmemory.streams.sending import turn_reply_id
from chatmemory.streams.translating import TurnTranslator

FAILED_CALL: Data = {"tanstack": {"state": "output-error"}}
"""The metadata of a failed call's result, for which the events have no field."""


class TurnEvents(TurnTranslator):
    """Translates the events of one turn, after which `finish` follows. A row is a message."""

    def __init__(self, turn: str, thread: str, run: str, *, is_versioned: bool = False) -> None:
        """`is_versioned` is whether the client has named its version, as those from 1.0 on do."""
        super().__init__(turn)
        self._run: Data = {"threadId": thread, "runId": run}
        self._is_versioned = is_versioned
        self._calls = CallIds()
        self._count = 0
        """The messages of the reply that have begun."""
        self.is_wrong = False
        """Whether a text was sent that is not stored. No event takes it back: only a snapshot of
        all messages, before the run ends, replaces it."""

    def start(self) -> Data:
        return {"type": "RUN_STARTED", **self._run}

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

    def _place(self, data: Data) -> Data:
        return _custom("queue", data)

    def _progress(self, data: Data) -> Data:
        return _custom("progress", data)

    def _step_start(self) -> Data:
        self._count += 1
        return {"type": "STEP_STARTED", **self._step}

    def _step_end(self) -> Data:
        return {"type": "STEP_FINISHED", **self._step}

    def _whole(self, row: StoredMessage) -> Iterator[Data]:
        yield from self._reasoning(row)
        if row.text:
            yield self._text_start()
            yield self._text_delta(row.text)
            yield self._text_end()
        yield from self._rest(row)

    def _continued(self, row: StoredMessage, streamed: StreamedText) -> Iterator[Data]:
        if not streamed.begins(row.text):
            self.is_wrong = True
        elif rest := row.text[streamed.chars :]:
            yield self._text_delta(rest)
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

    def _take_back(self) -> Data:
        self.is_wrong = True
        return self._text_end()

    def _finish(self, found: TurnRows) -> Iterator[Data]:
        yield _custom("turn", metadata_of(self._turn, found, self._seq))

    def _text_start(self, step: int = 0) -> Data:
        return {"type": "TEXT_MESSAGE_START", "messageId": self._id, "role": "assistant"}

    def _text_delta(self, text: str) -> Data:
        return {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._id, "delta": text}

    def _text_end(self) -> Data:
        return {"type": "TEXT_MESSAGE_END", "messageId": self._id}


def _custom(name: str, value: Data) -> Data:
    return {"type": "CUSTOM", "name": name, "value": value}
