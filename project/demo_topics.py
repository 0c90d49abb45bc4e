"""What the demo's bot knows: the tables in `demo_topics.toml`, and the search in them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ABILITIES: str = TABLES["abilities"]
UNKNOWN: str = TABLES["unknown"].replace("{abilities}", ABILITIES)
WHICH_ORDER: str = TABLES["which_order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic, and the reply to it."""

    name: str
    words: re.Pattern[str]
    reply: str

    def is_in(self, text: str) -> bool:
        """Return whether a text in lower case is about this topic."""
        return self.words.search(text) is not None


def _topic(table: Mapping[str, Any]) -> Topic:
    reply = table["reply"].replace("{abilities}", ABILITIES)
    return Topic(name=table["name"], words=re.compile("|".join(table["words"])), reply=reply)


def _apology(subject: str, words: Iterable[str]) -> Topic:
    reply = TABLES["sorry"].replace("{subject}", subject)
    return _topic({"name": subject, "words": words, "reply": reply})


FIRST, FACTS, SMALL_TALK = (
    [_topic(table) for table in TABLES[group]] for group in ("first", "facts", "small_talk")
)
APOLOGIES = [_apology(*entry) for entry in TABLES["unknown_subjects"].items()]
PERSON, STATUS = (next(t for t in FIRST if t.name == name) for name in ("person", "order"))


def find_topics(text: str) -> list[Topic]:
    """Return the topics of a message: several if all are answered by facts, else one at most."""
    plain = text.lower().replace("\u2019", "'")
    return (
        _found(FIRST, plain)[:1]
        or _found(APOLOGIES, plain)[:1]
        or _found(FACTS, plain)
        or _found(SMALL_TALK, plain)[:1]
    )


def _found(topics: Iterable[Topic], text: str) -> list[Topic]:
    return [topic for topic in topics if topic.is_in(text)]
