"""Replies to messages that are not in English: the tables in `demo_languages.toml`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ENGLISH = frozenset(TABLES["english"].split())
REPLIES: dict[str, str] = {code: table["reply"] for code, table in TABLES["languages"].items()}


def find_language(text: str) -> str | None:
    """Return the code of the language of a text; None if it is English or unknown."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    scores = {code: _score(code, text, words) for code in REPLIES}
    best = max(scores, key=lambda code: scores[code])
    return best if scores[best] > sum(word in ENGLISH for word in words) else None


def _score(code: str, text: str, words: list[str]) -> int:
    """Count the words of a language, or the characters of its script."""
    table = TABLES["languages"][code]
    if "script" in table:
        return len(re.findall(table["script"], text))
    known = table["words"].split()
    return sum(word in known for word in words)
