"""The position of a socket in the text of a run."""

from __future__ import annotations

from dataclasses import asdict

from chatmemory import protocol
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
