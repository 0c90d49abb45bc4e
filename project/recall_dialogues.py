"""What users say in the dialogues of a file, and the questions that ask for it later."""

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
"""How many words of a sentence are named to ask for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that a user tells."""

    turn: int
    """Which of the user's turns, counted from 0."""
    text: str
    """The whole turn."""
    value: str
    question: str
    """Asks for the sentence without naming the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """One user's part of a dialogue."""

    said: Sequence[str]
    facts: Sequence[Fact]

    @property
    def middle(self) -> int:
        """How many turns are said before the kill."""
        return len(self.said) // 2


def read_dialogues(file: Path) -> Iterator[Dialogue]:
    """The dialogues of a file of JSON lines. Raises OSError, and BadInput with the line's number.

    A line is {"turns": [{"role": "human" | "ai", "text": …}], "facts": [{"turn", "slot",
    "value"}]}; a fact's turn is its place in `turns`.
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
            raise BadInput("Not an object with turns and facts.")
    said = [text for text in texts if text is not None]
    rarity = Counter(word for text in said for word in demo.keywords(text))
    found = []
    for fact in facts:
        match fact:
            case {"turn": int(place), "slot": str(slot), "value": str(told)} if (
                0 <= place < len(texts) and (text := texts[place]) is not None and told in text
            ):
                turn = sum(earlier is not None for earlier in texts[:place])
                question = _question(text, slot, told, rarity)
                found.append(Fact(turn=turn, text=text, value=told, question=question))
            case _:
                raise BadInput("It has a fact that the user doesn't tell.")
    return Dialogue(said=said, facts=found)


def _text_of_user(turn: object) -> str | None:
    match turn:
        case {"role": "human" | "user", "text": str(text)}:
            return text
        case _:
            return None


def _question(text: str, slot: str, value: str, rarity: Counter[str]) -> str:
    """Name the rarest words of the sentence that tells the value; if it has none, the slot."""
    sentence = next((part for part in demo.sentences(text) if value in part), text)
    words = demo.keywords(sentence) - demo.keywords(value)
    rarest = sorted(words, key=lambda word: (rarity[word], word))[:MAX_WORDS]
    topic = " ".join(rarest) or re.sub(r"[._]", " ", slot)
    return f"What did I say about {topic}?"
