"""What the translators of all formats do with the events of a turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from chatmemory.models import StoredMessage
from chatmemory.responders import Progress
from chatmemory.services import LiveTurn
from chatmemory.streams.reads import TurnRows
from chatmemory.streams.replies import Data, StreamedText, queue_data
from chatmemory.streams.turns import Ended, Event, Piece, Queued


class TurnTranslator(ABC):
    """Translates the events of one turn: a step for each assistant row, whose text it sends once.

    The row wins over the text that was streamed before it.
    """

    def __init__(self, turn: str) -> None:
        self._turn = turn
        self._seq: int | None = None
        """Of the last row."""
        self._is_step_open = False
        self._streamed: StreamedText | None = None
        """The text of the open step that was sent before its row."""
        self._is_queued = False

    def of(self, event: Event) -> Iterator[Data]:
        """Yield what clients get for an event."""
        match event:
            case Queued(turns):
                yield self._queue(turns)
            case Piece():
                yield from self._text(event)
            case Progress():
                yield self._progress(asdict(event))
            case StoredMessage():
                yield from self._row(event)
            case Ended(found):
                yield from self._end(found)

    def _queue(self, turns: Sequence[LiveTurn] = ()) -> Data:
        self._is_queued = bool(turns)
        return self._place(queue_data(self._turn, turns))

    def _begin_step(self) -> Iterator[Data]:
        if self._is_queued:
            yield self._queue()
        yield from self._end_step()
        self._is_step_open = True
        yield self._step_start()

    def _end_step(self) -> Iterator[Data]:
        if self._is_step_open:
            self._is_step_open = False
            yield self._step_end()

    def _text(self, piece: Piece) -> Iterator[Data]:
        if self._streamed is None:
            yield from self._begin_step()
            self._streamed = StreamedText()
            yield self._text_start(piece.step)
        self._streamed.add(piece.text)
        yield self._text_delta(piece.text)

    def _row(self, row: StoredMessage) -> Iterator[Data]:
        self._seq = row.seq
        if row.role == "tool":
            yield from self._result(row)
        if row.role != "assistant":
            return  # a run may store rows of other roles, which are no part of a reply
        streamed, self._streamed = self._streamed, None
        if streamed is None:
            yield from self._begin_step()
            yield from self._whole(row)
        else:
            yield from self._continued(row, streamed)

    def _end(self, found: TurnRows) -> Iterator[Data]:
        if self._is_queued:
            yield self._queue()
        if self._streamed is not None:  # of a text that has no row
            self._streamed = None
            yield self._take_back()
        yield from self._end_step()
        yield from self._finish(found)

    @abstractmethod
    def _place(self, data: Data) -> Data:
        """Return the place of the turn in the queue."""

    @abstractmethod
    def _progress(self, data: Data) -> Data: ...

    @abstractmethod
    def _step_start(self) -> Data: ...

    @abstractmethod
    def _step_end(self) -> Data: ...

    @abstractmethod
    def _text_start(self, step: int) -> Data: ...

    @abstractmethod
    def _text_delta(self, text: str) -> Data: ...

    @abstractmethod
    def _result(self, row: StoredMessage) -> Iterator[Data]:
        """Yield the result of a tool."""

    @abstractmethod
    def _whole(self, row: StoredMessage) -> Iterator[Data]:
        """Yield a reply's row of which nothing was streamed."""

    @abstractmethod
    def _continued(self, row: StoredMessage, streamed: StreamedText) -> Iterator[Data]:
        """Yield what was not streamed of a reply's row."""

    @abstractmethod
    def _take_back(self) -> Data:
        """End a text that was streamed and is not stored."""

    @abstractmethod
    def _finish(self, found: TurnRows) -> Iterator[Data]:
        """Yield what follows all rows."""
