"""A turn as its stream shows it: rows, streamed text and progress, up to its end.

The order of the steps in `follow` is what makes a stream exact:

1. The end of the released text is noted, then rows are read and shown, then the text up to that
   end. The rows of a step are committed before the text of the next one begins, so a step's text is
   never shown before the rows that precede it.
2. Text is counted in characters of a step, not in pieces: a mirror of another process packs pieces
   differently, and is replaced after a hole.
3. The turn is read before its rows, so the rows of an ended turn are complete.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from chatmemory.errors import MemoryUnavailable
from chatmemory.live.hub import hub
from chatmemory.live.texts import LiveText, SessionRef
from chatmemory.models import StoredMessage
from chatmemory.responders import Progress
from chatmemory.services import LiveTurn
from chatmemory.streams.reads import TurnRows, read_turn_rows
from chatmemory.streams.watching import Stream, StreamClosed, Watch

RETRY_SECONDS = 1.0
"""The pause before a failed read is repeated."""
PIECE_CHARS = 32 * 1024
"""Longest piece of text."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The turn waits behind these turns, of which the last one is the turn itself."""

    turns: tuple[LiveTurn, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """New characters of the streamed text of a step."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """All of the turn was shown."""

    turn: TurnRows


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing has happened for some time."""


Event = Queued | Piece | Progress | StoredMessage | Ended | Silence


class StepPosition:
    """A position in the text of one step of a turn: characters, which no new mirror changes."""

    def __init__(self) -> None:
        self._step = -1
        self._chars = 0
        self._text: LiveText | None = None
        self._piece = self._char = 0

    def is_new(self, text: LiveText) -> bool:
        """Whether nothing of this step was shown."""
        return text.step > self._step

    def advance(self, text: LiveText, end: int) -> Iterator[Piece | Progress]:
        """Yield what follows in a text, up to the piece `end`."""
        if text.step < self._step:
            return
        if text.step > self._step:
            self._step, self._chars = text.step, 0
        if text is not self._text:
            self._text, self._piece, self._char = text, 0, 0
            yield from self._pass(end)
        while self._piece < end:
            piece = text.pieces[self._piece]
            if isinstance(piece, Progress):
                self._piece += 1
                yield piece
            elif joined := self._join(text, end):
                yield Piece(text.step, joined)

    def _pass(self, end: int) -> Iterator[Progress]:
        """Pass the characters that were shown in another mirror, and yield the last progress."""
        assert self._text is not None  # noqa: S101  # the caller has set it
        last, left = None, self._chars
        for piece in islice(self._text.pieces, end):
            if isinstance(piece, Progress):
                last = piece
            elif len(piece) > left:
                self._char = left
                break
            else:
                left -= len(piece)
            self._piece += 1
        if last is not None:
            yield last

    def _join(self, text: LiveText, end: int) -> str:
        """Advance by the text up to the next progress, at most PIECE_CHARS, and return it."""
        parts: list[str] = []
        left = PIECE_CHARS
        while left and self._piece < end:
            piece = text.pieces[self._piece]
            if isinstance(piece, Progress):
                break
            part = piece[self._char : self._char + left]
            parts.append(part)
            left -= len(part)
            self._char += len(part)
            if self._char == len(piece):
                self._piece, self._char = self._piece + 1, 0
        joined = "".join(parts)
        self._chars += len(joined)
        return joined


async def follow(
    watch: Watch, stream: Stream, ref: SessionRef, turn: str
) -> AsyncGenerator[Event, None]:
    """Yield what happens in a turn, from its first row to its end; holds no connection.

    Raises StreamClosed if the login ends, the server restarts, or the turn is hidden.
    """
    position = StepPosition()
    after = read_news = 0
    last_step = -1
    """Of the rows that were shown: its text, which may still be known, is in them."""
    queue: tuple[LiveTurn, ...] = ()
    is_running = False
    while True:
        stream.check()
        text = hub.text_of(ref)
        text = text if text is not None and text.turn == turn else None
        end = text.published if text is not None else 0
        news = watch.news
        if text is not None and end and position.is_new(text):
            news = max(news, watch.reads.number_of_text(turn, text.step))
        if news > read_news:
            read = partial(read_turn_rows, ref, turn, after)
            found = await _read(watch, stream, (turn, after), news, read)
            if found is None:
                yield Silence()
                continue
            read_news = news if found.is_complete else 0
            for row in found.rows:
                after = row.seq
                last_step = last_step if row.step is None else row.step
                yield row
            if found.has_ended:
                yield Ended(found)
                return
            if (queued := tuple(found.queue)) != queue:
                queue = queued
                yield Queued(queue)
            is_running = found.user_seq is not None
        if text is not None and end and is_running and text.step > last_step:
            for each in position.advance(text, end):
                yield each
        if read_news and not await stream.wait():
            yield Silence()


async def _read(
    watch: Watch,
    stream: Stream,
    key: tuple[str, int],
    news: int,
    read: Callable[[], TurnRows | None],
) -> TurnRows | None:
    """Return the rows of a turn; None while the database is unavailable."""
    try:
        found = await watch.reads.read(key, news, read)
    except MemoryUnavailable:
        await stream.pause(RETRY_SECONDS)
        return None
    if found is None:
        raise StreamClosed("hidden")
    return found
