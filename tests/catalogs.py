"""The German catalogs: their entries, and the words that German pages may have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from django.utils.translation import trans_real

import chatmemory

APP = Path(chatmemory.__file__).parent
GERMAN = APP / "locale" / "de" / "LC_MESSAGES"
DOMAINS = ("django", "djangojs")
WORD = re.compile(r"[^\W\d_]{2,}")
PLACEHOLDER = re.compile(r"%\(\w+\)\w|%%|\{\w*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A text with its translations: one, or one for each plural form."""

    text: str
    plural: str = ""
    context: str = ""
    translations: list[str] = field(default_factory=list)
    is_fuzzy: bool = False

    @property
    def key(self) -> str:
        """What the compiled catalog calls the text."""
        return f"{self.context}\x04{self.text}" if self.context else self.text


def parse_catalog(po: str) -> Iterator[Entry]:
    """Yield the entries of a .po file, without its header."""
    for block in po.strip().split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            literal = line
            if line.startswith("msg"):
                name, _, literal = line.partition(" ")
            fields[name] = fields.get(name, "") + ast.literal_eval(literal)
        if fields["msgid"]:
            yield Entry(
                text=fields["msgid"],
                plural=fields.get("msgid_plural", ""),
                context=fields.get("msgctxt", ""),
                translations=[text for name, text in fields.items() if "msgstr" in name],
                is_fuzzy=bool(re.search(r"^#,.*fuzzy", block, re.MULTILINE)),
            )


def read_catalog(domain: str) -> list[Entry]:
    """Return the entries of a German catalog."""
    return [*parse_catalog((GERMAN / f"{domain}.po").read_text(encoding="utf-8"))]


def words_of_catalogs() -> set[str]:
    """Return the words of all German texts of the installed apps."""
    found = trans_real.translation("de")._catalog._catalogs  # type: ignore[attr-defined]  # has one
    return set(WORD.findall("\n".join(text for catalog in found for text in catalog.values())))


def english_texts() -> dict[str, re.Pattern[str]]:
    """Return patterns of our English texts of several words, for pages in German."""
    found = {}
    for entry in read_catalog("django"):
        for text in filter(None, (entry.text, entry.plural)):
            words = WORD.findall(PLACEHOLDER.sub("", text))
            if len(words) > 1 and text not in entry.translations:
                between = PLACEHOLDER.sub("\0", text).strip("\0 ").split("\0")
                pattern = ".{0,200}?".join(map(re.escape, between))
                found[text] = re.compile(rf"\b{pattern}" if between[0][0].isalnum() else pattern)
    return found
