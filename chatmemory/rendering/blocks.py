"""Split Markdown, line by line, into blocks that are rendered on their own."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from chatmemory.rendering import formulas, tables

CODE_INDENT = 4

_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_FENCE = re.compile(r" {0,3}(?:(`{3,})[^`]*|(~{3,}).*)$")
_QUOTE = re.compile(r" {0,3}>")
_BREAK = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_DASHES = re.compile(r" {0,3}(?:-[ \t]*){3,}$")
_ITEM = re.compile(r" {0,3}(?:([-+*])|(\d{1,9})[.)])(?:[ \t]+|$)")
_NOTE = re.compile(r" {0,3}\[\^[^ \]]+\]:")


class Kind(Enum):
    """What a block is. A table consists of its head, its rows and its end."""

    BLOCK = "block"
    HEAD = "head"
    ROW = "row"
    END = "end"


class Block(NamedTuple):
    """Lines that are rendered on their own."""

    source: str
    kind: Kind = Kind.BLOCK


class BlockSplitter:
    """Splits a text where the lines so far prove that a block has ended.

    A split depends only on the lines before it and on the next one, never on later lines, so that
    stored and streamed texts have the same blocks. It is where CommonMark ends a block at the top
    level. Where only a complete parser could find that end, such as between two lists, several
    blocks stay together; and after an indented fence in the middle of a paragraph of a list, the
    split can differ from CommonMark.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._end: re.Pattern[str] | None = None
        """Matches the last line of the open fence or formula."""
        self._is_formula = False
        self._indent = 0
        """The indentation that continues the open block after a blank line, of a list item's or
        footnote's content, or of code. 0 if a blank line ends the block."""
        self._is_quote = False
        self._is_paragraph = False
        """Whether the open block is only a paragraph, which few items of lists can interrupt."""
        self._after_blank = False
        self._is_table = False

    @property
    def open_text(self) -> str:
        """The lines that no block contains yet."""
        return "".join(self._lines)

    @property
    def open_lines(self) -> int:
        """The number of lines in `open_text`."""
        return len(self._lines)

    def feed(self, line: str) -> list[Block]:
        """Add a line with its line feed; return the blocks that it ends."""
        bare = line.rstrip("\n")
        if self._is_table:
            return self._feed_table(line, bare)
        if self._end is not None:
            if not (self._is_formula and formulas.is_interrupted(bare)):
                self._lines.append(line)
                return self._cut() if self._end.match(bare) else []
            # A formula that was not closed is text.
            self._end = None
        if not bare.strip(" \t"):
            return self._feed_blank(line)
        indent = _indent_of(bare)
        if indent >= self._indent > 0:
            self._lines.append(line)
            self._after_blank = False
            return []
        if self._is_paragraph and tables.is_head(self._lines[-1], bare):
            return self._start_table(line)
        done = self._cut() if self._lines and self._starts_block(bare) else []
        return done + self._append_line(line, bare, indent)

    def close(self) -> list[Block]:
        """Return the last block."""
        if self._is_table:
            return [Block("", Kind.END)]
        return self._cut() if self._lines else []

    def _start_table(self, line: str) -> list[Block]:
        """Return the paragraph before the head, and the head, which ends with this line."""
        header = self._lines.pop()
        before = self._cut() if self._lines else []
        self._is_paragraph, self._is_table = False, True
        return [*before, Block(header + line, Kind.HEAD)]

    def _feed_table(self, line: str, bare: str) -> list[Block]:
        is_blank = not bare.strip(" \t")
        if not (is_blank or _indent_of(bare) >= CODE_INDENT or _ends_table(bare)):
            return [Block(line, Kind.ROW)]
        self._is_table = False
        return [Block(line, Kind.END)] if is_blank else [Block("", Kind.END), *self.feed(line)]

    def _feed_blank(self, line: str) -> list[Block]:
        if not self._lines:
            return []
        self._lines.append(line)
        self._after_blank = True
        return [] if self._indent else self._cut()

    def _starts_block(self, line: str) -> bool:
        """Whether a line outside the open block surely starts the next one."""
        if _HEADING.match(line) or _FENCE.match(line) or _BREAK.match(line):
            return True
        if formulas.is_block(line):
            return True
        if _QUOTE.match(line):
            return self._after_blank or not self._is_quote
        item = None if _DASHES.match(line) else _ITEM.match(line)
        if item is None:
            return self._after_blank and not _NOTE.match(line)
        # Whether an item continues the open list depends on the kinds of both.
        return not self._indent and _can_interrupt(item)

    def _append_line(self, line: str, bare: str, indent: int) -> list[Block]:
        """Add a line outside the open block; return the block if this is its only line."""
        is_first = not self._lines
        self._lines.append(line)
        self._after_blank = False
        was_paragraph, self._is_paragraph = self._is_paragraph, False
        if indent >= CODE_INDENT:
            self._indent = self._indent or CODE_INDENT
        elif _HEADING.match(bare) or _BREAK.match(bare) or formulas.is_block(bare):
            return self._cut()
        elif was_paragraph and _UNDERLINE.match(bare):
            pass  # a heading
        elif _DASHES.match(bare):
            if is_first:
                return self._cut()
            self._indent = CODE_INDENT if self._indent else 0  # it ends a list
        elif fence := _FENCE.match(bare):
            mark = fence[1] or fence[2]
            self._end = re.compile(rf" {{0,3}}{mark[0]}{{{len(mark)},}}[ \t]*$")
            self._is_formula = False
        elif end := formulas.end_of_block(bare):
            self._end, self._is_formula = end, True
        elif (item := _ITEM.match(bare)) and (not was_paragraph or _can_interrupt(item)):
            self._indent = _content_indent(item)
        elif _NOTE.match(bare):
            self._indent = CODE_INDENT
        elif is_first and _QUOTE.match(bare):
            self._is_quote = True
        else:
            self._is_paragraph = is_first or was_paragraph
        return []

    def _cut(self) -> list[Block]:
        block = Block(self.open_text)
        self._lines.clear()
        self._end = None
        self._indent = 0
        self._is_quote = self._is_paragraph = self._after_blank = False
        return [block]


def _ends_table(line: str) -> bool:
    """Whether a line after a row is none, but starts another block."""
    patterns = (_HEADING, _FENCE, _BREAK, _DASHES, _QUOTE, _ITEM)
    if any(pattern.match(line) for pattern in patterns):
        return True
    return formulas.is_block(line) or formulas.end_of_block(line) is not None


def _can_interrupt(item: re.Match[str]) -> bool:
    """Whether a list may start with this item in the line after a paragraph (CommonMark, 5.3)."""
    return item.end() < len(item.string) and item[2] in (None, "1")


def _indent_of(line: str) -> int:
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))


def _content_indent(item: re.Match[str]) -> int:
    """Return the column at which the content of a list item starts (CommonMark, 5.2)."""
    marker = len(item[0].rstrip(" \t"))
    spaces = len(item[0].expandtabs(4)) - marker
    return marker + (spaces if item.end() < len(item.string) and spaces <= CODE_INDENT else 1)
