"""Reads the user texts and facts of a dialogue file, and makes a question for each fact."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chatmemory.codec import parse_json
from chatmemory.errors import BadInput
from chatmemory.responders import demo

MAX_WORDS = 4
"""Maximum number of a sentence's words in a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A value that a user states."""

    turn: int
    """Index of the user's turn, from 0."""
    text: str
    """The whole turn."""
    value: str
    question: str
    """Asks for the value without containing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """One user's part of a dialogue."""

    texts: Sequence[str]
    facts: Sequence[Fact]

    @property
    def middle(self) -> int:
        """Number of turns before the kill."""
        return len(self.texts) // 2


def read_dialogues(file: Path) -> Iterator[Dialogue]:
    """Yield the dialogues of a JSON Lines file.

    A line is {"turns": [{"role": "human" | "ai", "text": …}], "facts": [{"turn", "slot",
    "value"}]}; a fact's turn is its index in `turns`. Raises OSError, and BadInput with the
    line's number.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield _dialogue(parse_json(line))
                except BadInput as error:
                    raise BadInput(f"Line {number}: {error}", code=error.code) from error


def _dialogue(value: object) -> Dialogue:
    match value:
        case {"turns": [*turns], "facts": [*facts]}:
            texts = [_text_of_user(turn) for turn in turns]
        case _:
            raise BadInput("The line must be an object with turns and facts.")
    user_texts = [text for text in texts if text is not None]
    rarity = Counter(word for text in user_texts for word in demo.keywords(text))
    found = []
    for fact in facts:
        match fact:
            case {"turn": int(place), "slot": str(slot), "value": str(stated)} if (
                0 <= place < len(texts) and (text := texts[place]) is not None and stated in text
            ):
                turn = sum(earlier is not None for earlier in texts[:place])
                question = _question(text, slot, stated, rarity)
                found.append(Fact(turn=turn, text=text, value=stated, question=question))
            case _:
                raise BadInput("A fact's value is not in the user's turn.")
    return Dialogue(texts=user_texts, facts=found)


def _text_of_user(turn: object) -> str | None:
    match turn:
        case {"role": "human" | "user", "text": str(text)}:
            return text
        case _:
            return None


def _question(text: str, slot: str, value: str, rarity: Counter[str]) -> str:
    """Use the rarest words of the sentence with the value; if it has none, the slot's name."""
    sentence = next((part for part in demo.sentences(text) if value in part), text)
    words = demo.keywords(sentence) - demo.keywords(value)
    rarest = sorted(words, key=lambda word: (rarity[word], word))[:MAX_WORDS]
    topic = " ".join(rarest) or re.sub(r"[._]", " ", slot)
    return f"What did I say about {topic}?"
