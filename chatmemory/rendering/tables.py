"""Tables row by row: a head of two lines, rows that later lines do not change, and an end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it.rules_block.table import escapedSplit
from markdown_it.token import Token

_DELIMITER = re.compile(
    r" {0,3}(?!-[ \t]|-$)\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$"
)


def is_head(header: str, delimiter: str) -> bool:
    """Whether two lines of a paragraph start a table (GitHub Flavored Markdown, 4.10)."""
    if "|" not in header or not _DELIMITER.match(delimiter):
        return False
    return len(_cells(header)) == len(delimiter.strip(" \t|").split("|"))


def classes_of(head: Sequence[Token]) -> list[str | None]:
    """Return the class of each column of a head, for its alignment."""
    return [str(token.attrGet("class") or "") or None for token in head if token.type == "th_open"]


def row(line: str, classes: Sequence[str | None]) -> list[Token]:
    """Return the tokens of a row; further cells are omitted, and missing ones are empty."""
    texts = _cells(line)
    tokens = [Token("tr_open", "tr", 1, block=True)]
    for index, css_class in enumerate(classes):
        attributes: dict[str, str | int | float] = {"class": css_class} if css_class else {}
        text = texts[index].strip() if index < len(texts) else ""
        tokens += [
            Token("td_open", "td", 1, attrs=attributes, block=True),
            Token("inline", "", 0, content=text, children=[], block=True),
            Token("td_close", "td", -1, block=True),
        ]
    return [*tokens, Token("tr_close", "tr", -1, block=True)]


def _cells(line: str) -> list[str]:
    cells = escapedSplit(line.strip())
    if cells and cells[0] == "":
        cells.pop(0)
    if cells and cells[-1] == "":
        cells.pop()
    return cells
