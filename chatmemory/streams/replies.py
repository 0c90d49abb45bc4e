"""What all formats show of a reply."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from chatmemory import codec
from chatmemory.codec.json import BODY_READER, check_depth
from chatmemory.errors import BadInput
from chatmemory.services import LiveTurn
from chatmemory.streams.reads import TurnRows

Data = dict[str, object]
"""A JSON object."""

MAX_STEP_CHARS = 4_000_000
"""A stream has the arguments of tool calls and the reasoning whole, up to this length."""
MAX_DEPTH = 100
"""The deepest nesting of arguments and results that are sent as JSON."""


def value_of(text: str) -> object:
    """Return what a text contains as JSON; else, or if no response can contain it, the text."""
    try:
        check_depth(text, MAX_DEPTH)
        value: object = BODY_READER.decode(text)
        codec.dump_json(value).encode()  # fails for the escape of a lone surrogate
    except (ValueError, BadInput):
        return text
    return value


def metadata_of(turn: str, found: TurnRows, seq: int | None) -> Data:
    """Return the metadata of a reply; `seq` is that of its last row."""
    return {
        "turn": turn,
        "userSeq": found.user_seq,
        "seq": seq,
        "status": found.status,
        "model": found.model,
        "usage": json.loads(found.usage) if found.usage else None,
        "error": found.error,
    }


def queue_data(turn: str, turns: Sequence[LiveTurn]) -> Data:
    """Return the place of a waiting turn behind the others; without them it runs."""
    names = [each.turn for each in turns]
    return {
        "place": names.index(turn) if turn in names else 0,
        "turns": [{"turn": each.turn, "text": each.text} for each in turns],
    }


class StreamedText:
    """The length and the hash of a text that was sent."""

    def __init__(self) -> None:
        self.chars = 0
        self._hash = hashlib.blake2b()

    def add(self, text: str) -> None:
        self.chars += len(text)
        self._hash.update(text.encode())

    def begins(self, text: str) -> bool:
        """Whether a text begins with what was sent."""
        begin = text[: self.chars].encode()
        is_long_enough = len(text) >= self.chars
        return is_long_enough and hashlib.blake2b(begin).digest() == self._hash.digest()
