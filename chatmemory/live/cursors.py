"""The position of a socket in the text of a run, and in its blocks."""

from __future__ import annotations

import math
from dataclasses import asdict

from chatmemory import protocol
from chatmemory.live.blocks import MAX_HTML_CHARS, LiveBlocks
from chatmemory.live.texts import EncodedText, LiveText
from chatmemory.responders import Progress

TEXT_CHARS = 32 * 1024
"""Longest piece of streamed text in one frame."""
MAX_TEXT_FRAMES = 16
"""Frames of a text that are kept between two ticks: a slow socket encodes its own."""


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
        self.chars = 0
        """How many characters of the text were sent."""

    @property
    def text(self) -> LiveText | None:
        """The text that was sent last."""
        return self._text

    def follow(self, text: LiveText) -> None:
        """Start with this text, unless it is the current one."""
        if text is not self._text:
            self._text, self._piece, self._char, self._missed = text, 0, 0, 0
            self.chars = 0
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
            chars = len(str(fields.get("text", "")))
            encoded = EncodedText(frame, self._piece, self._char, chars)
            if len(frames) < MAX_TEXT_FRAMES:
                frames[key] = encoded
        if self._is_fresh:
            self._is_fresh, self._missed = False, self._end
        self._piece, self._char = encoded.piece, encoded.char
        self.chars += encoded.chars
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


class BlockCursor:
    """A position in the blocks of a run's text."""

    def __init__(self) -> None:
        self._text: LiveText | None = None
        self._blocks: LiveBlocks | None = None
        self._index = 0

    def follow(self, text: LiveText, blocks: LiveBlocks) -> None:
        """Start with these blocks, unless they are the current ones."""
        if blocks is not self._blocks:
            self._text, self._blocks, self._index = text, blocks, 0

    def blocks_of(self, turn: str | None, step: int | None) -> LiveBlocks | None:
        """Return the current blocks if they belong to this step of a turn."""
        text = self._text
        return self._blocks if text and (text.turn, text.step) == (turn, step) else None

    def next_frame(self, chars: int) -> str | None:
        """Advance, and return a frame with the next blocks of the first `chars` characters.

        None without further blocks. The frame is encoded once for all sockets at the same position.
        """
        if self._blocks is None:
            return None
        end = self._end_of_frame(chars)
        if end == self._index:
            return None
        key, frames = (self._index, end), self._blocks.frames
        if (frame := frames.get(key)) is None:
            frame = self._encoded(end)
            if len(frames) < MAX_TEXT_FRAMES:
                frames[key] = frame
        self._index = end
        return frame

    def last_frame(self) -> str | None:
        """Return a frame with all blocks that were not sent; None if they are too long for it."""
        blocks = self._blocks.blocks if self._blocks is not None else []
        if self._end_of_frame(math.inf) < len(blocks):
            return None
        return self._encoded(len(blocks), last=True)

    def _end_of_frame(self, chars: float) -> int:
        blocks = self._blocks.blocks if self._blocks is not None else []
        end, left = self._index, MAX_HTML_CHARS
        while end < len(blocks) and blocks[end].end <= chars and len(blocks[end].html) <= left:
            left -= len(blocks[end].html)
            end += 1
        return end

    def _encoded(self, end: int, **fields: bool) -> str:
        assert self._text is not None  # noqa: S101  # `follow` sets both
        assert self._blocks is not None  # noqa: S101
        blocks = self._blocks.blocks
        first = blocks[self._index - 1].end if self._index else 0
        sent = blocks[self._index : end]
        return protocol.dump(
            "block",
            turn=self._text.turn,
            step=self._text.step,
            start=first,
            end=sent[-1].end if sent else first,
            html="".join(block.html for block in sent),
            **fields,
        )
