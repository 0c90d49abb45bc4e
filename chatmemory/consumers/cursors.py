"""The positions of a socket: in the rows of its session, and in the text of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from chatmemory import protocol
from chatmemory.access.addresses import MAX_SEQ
from chatmemory.live.texts import EncodedText, LiveText, Place
from chatmemory.models import Head, Page, StoredMessage, mark_of
from chatmemory.protocol import Cursor
from chatmemory.responders import Progress

TEXT_CHARS = 32 * 1024
"""Longest piece of streamed text in one frame."""
MAX_TEXT_FRAMES = 16
"""Frames of a text that are kept between two ticks: a slow socket encodes its own."""


class RowCursor:
    """The rows that were sent: new ones by seq, changed ones by revision and seq."""

    def __init__(self) -> None:
        self.seq = 0
        self._mark: str | tuple[Any, ...] = ""
        self.lowest = 0
        """The lowest row that was sent: changes of lower ones are not."""
        self.first_seq = 1
        """The session's floor."""
        self.seen = (0, 0)
        """Revision and seq up to which changed rows were sent."""
        self.unchecked: dict[int, str] = {}
        """Marks of rows before changes from memory, which the next read checks."""
        self._last_step: tuple[str | None, int] = (None, -1)

    @classmethod
    def resumed(cls, position: Cursor) -> RowCursor:
        """Start at a client's cursor."""
        cursor = cls()
        cursor.seq, cursor._mark = position.seq, position.mark
        cursor.seen = (position.revision, MAX_SEQ)
        return cursor

    @classmethod
    def before(cls, page: Page) -> RowCursor:
        """Start before the rows of a page, which contain all changes up to its head."""
        cursor = cls()
        cursor.seq = page.rows[0].seq - 1 if page.rows else page.head.last_seq
        cursor.lowest = cursor.seq + 1
        cursor.seen = (page.head.revision, MAX_SEQ)
        return cursor

    @property
    def mark(self) -> str:
        """Identifies the row `seq`; empty if it was not sent."""
        if not isinstance(self._mark, str):  # hashed at its use: most rows are not the last one
            self._mark = mark_of(*self._mark)
        return self._mark

    def pass_changed(self, row: StoredMessage) -> None:
        self.seen = (row.revision, row.seq)

    def pass_changes(self, head: Head) -> None:
        """Pass all changes up to a head."""
        # The maximum: a row that changed after the head was read may have been sent already.
        self.seen = max(self.seen, (head.revision, MAX_SEQ))

    def pass_new(self, row: StoredMessage) -> None:
        self.seq, self._mark = row.seq, row.identity
        if row.step is not None:
            self._last_step = (row.turn_client_id, row.step)

    def follow_from_memory(self) -> None:
        """Note the mark of the current row before a change from memory."""
        if self.mark:
            self.unchecked[self.seq] = self.mark

    def skip_to(self, seq: int) -> None:
        if self.seq != seq:
            self.seq, self._mark = seq, ""  # the row was not sent, so its mark is unknown

    def extend_down(self, seq: int) -> None:
        self.lowest = min(self.lowest, seq)

    def has_step(self, turn: str, step: int) -> bool:
        """Whether the row of this step of the newest turn, or of a later step, was sent."""
        last_turn, last_step = self._last_step
        return turn == last_turn and step <= last_step

    def is_at_end(self, head: Head) -> bool:
        return self.seq >= head.last_seq and self.seen >= (head.revision, MAX_SEQ)

    def position(self, place: Place) -> Cursor:
        return Cursor(*place, self.seq, self.seen[0], self.first_seq, self.mark)


class TextCursor:
    """A position in a run's text, in pieces and characters."""

    def __init__(self) -> None:
        self._text: LiveText | None = None
        self._piece = self._char = 0
        self._end = 0
        """How many pieces were published at the start of the current frame."""
        self._missed = 0
        """How many pieces the snapshot had; of their events only the last is sent."""
        self._is_fresh = True
        """Whether nothing of the text was sent."""

    def follow(self, text: LiveText) -> None:
        """Start with this text, unless it is the current one."""
        if text is not self._text:
            self._text, self._piece, self._char, self._missed = text, 0, 0, 0
            self._is_fresh = True

    def next_frame(self) -> str | None:
        """Advance, and return the next frame, which may be empty; None at the end.

        The frame is encoded once for all sockets at the same position.
        """
        text = self._text
        if text is None or self._piece >= text.published:
            return None
        frames, self._end = text.frames, text.published
        # Not the seen part of `_missed`, in which sockets at the same position differ.
        missed = max(self._missed, self._piece)
        key = (self._is_fresh, self._piece, self._char, missed, self._end)
        if (encoded := frames.get(key)) is None:
            kind = "snapshot" if self._is_fresh else "delta"
            fields = self._next_fields(text)
            frame = protocol.dump(kind, turn=text.turn, step=text.step, **fields) if fields else ""
            encoded = EncodedText(frame, self._piece, self._char)
            if len(frames) < MAX_TEXT_FRAMES:
                frames[key] = encoded
        if self._is_fresh:
            self._is_fresh, self._missed = False, self._end
        self._piece, self._char = encoded.piece, encoded.char
        return encoded.frame

    def _next_fields(self, text: LiveText) -> dict[str, object]:
        """Advance, and return the fields of the next frame; empty if there is nothing to send.

        A snapshot has text and may have an event; a delta has one of them.
        """
        if self._is_fresh:
            events = [piece for piece in text.pieces[: self._end] if isinstance(piece, Progress)]
            event = {"event": asdict(events[-1])} if events else {}
            self._missed = self._end
            return {"text": self._next_text(text), **event}
        piece = text.pieces[self._piece]
        if isinstance(piece, Progress) and self._piece >= self._missed:
            self._piece += 1
            return {"event": asdict(piece)}
        characters = self._next_text(text)
        return {"text": characters} if characters else {}

    def _next_text(self, text: LiveText) -> str:
        """Advance by at most `TEXT_CHARS`, up to the next event to send, and return the text."""
        parts: list[str] = []
        left = TEXT_CHARS
        while left and self._piece < self._end:
            piece = text.pieces[self._piece]
            if isinstance(piece, Progress):
                if self._piece >= self._missed:
                    break
                self._piece += 1  # missed: the snapshot had the last of these events
                continue
            part = piece[self._char : self._char + left]
            parts.append(part)
            left -= len(part)
            self._char += len(part)
            if self._char == len(piece):
                self._piece, self._char = self._piece + 1, 0
        return "".join(parts)
