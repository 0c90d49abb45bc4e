"""Render untrusted Markdown as HTML: a stored text as a whole, a growing one block by block."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Sequence

from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language
from markdown_it.token import Token
from markdown_it.utils import EnvType

from chatmemory.conf import settings
from chatmemory.rendering import formulas, tables
from chatmemory.rendering.blocks import Block, BlockSplitter, Kind
from chatmemory.rendering.budget import Budget, OverBudget, Share
from chatmemory.rendering.cache import Cache
from chatmemory.rendering.cleaning import cleaned
from chatmemory.rendering.notes import Notes
from chatmemory.rendering.parser import Parser
from chatmemory.rendering.text import escaped, visible

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_LINE_END = re.compile(r"\r\n?")
_ENDED_LINE = re.compile(r"[^\r\n]*(?:\r\n|[\r\n])")
_NOT_A_CHARACTER = re.compile("[\0\ud800-\udfff]")
_PREFIX = re.compile(r"(?:[A-Za-z][A-Za-z0-9_-]*)?")
_TABLE_END = "</table></div>\n"


def markdown(text: str, *, prefix: str = "", person: Hashable = None) -> SafeString:
    """Render HTML that can neither run scripts nor fetch resources, except images that are allowed.

    `prefix` begins the ids of footnotes, so that those of several texts on one page differ. The
    result is cached by the text. A block above a limit of `budget.py` is only escaped, as is a text
    of a `person` whose time of this minute is spent.
    """
    origins = tuple(settings.IMAGE_ORIGINS)
    entry = _cache_key(text, prefix, origins)
    html = _cache.get(entry)
    if html is None:
        document = _Document(prefix, origins, Share(person))
        html = _rendered(text, document)
        if not document.is_refused:
            _cache.put(entry, html)
    return _safe(html)


class MarkdownStream:
    """Renders a text that arrives in pieces.

    The parts that `feed` and `close` return, joined, are the HTML that `markdown` returns for the
    whole text, with one exception: a link or a mark of a footnote whose definition arrives after
    its block is text. A part is a block, or the head, a row or the end of a table. Each line is
    parsed once.
    """

    def __init__(self, *, prefix: str = "", person: Hashable = None) -> None:
        self._share = Share(person)
        self._document = _Document(prefix, tuple(settings.IMAGE_ORIGINS), self._share)
        self._splitter = BlockSplitter()
        self._line: list[str] = []
        """The parts of the last line, which is not complete."""
        self._open_chars: list[int] = []
        """The length of each complete line that no block contains yet."""
        self.closed_chars = 0
        """How many characters of the text the returned blocks cover, with the lines between."""

    def feed(self, piece: str) -> list[SafeString]:
        """Add a piece of the text; return the parts that it ends."""
        with self._share.counted():
            blocks = self._add_piece(piece)
        return self._rendered(blocks)

    def _add_piece(self, piece: str) -> list[Block]:
        """Add a piece of the text; return the blocks that it ends."""
        if self._line and self._line[-1] == "\r":
            piece = self._line.pop() + piece
        # A carriage return may be the first half of a line end.
        is_half = piece.endswith("\r")
        complete = piece[:-1] if is_half else piece
        blocks: list[Block] = []
        # The pattern would search the last line again from each of its characters.
        end = max(complete.rfind("\n"), complete.rfind("\r")) + 1
        for line in _ENDED_LINE.findall(complete[:end]):
            blocks += self._split_line("".join([*self._line, line]))
            self._line.clear()
        self._line += [part for part in (complete[end:], "\r" if is_half else "") if part]
        return blocks

    @property
    def open_text(self) -> str:
        """The text that no block contains yet."""
        return self._splitter.open_text + _normal("".join(self._line))

    @property
    def has_notes(self) -> bool:
        """Whether the text defines links or footnotes, which blocks before may use."""
        return self._document.has_notes

    def remember(self, text: str, html: str) -> None:
        """Cache the joined blocks as the HTML of the whole text, which has no notes."""
        if not self._document.is_refused:
            _cache.put(_cache_key(text, "", self._document.origins), html)

    def close(self) -> list[SafeString]:
        """Return the remaining parts, which end the text."""
        with self._share.counted():
            line = "".join(self._line)
            self._line.clear()
            blocks = self._split_line(line) if line else []
            blocks += self._splitter.close()
            self._count_closed()
        return self._rendered(blocks) + self._document.end()

    def _split_line(self, line: str) -> list[Block]:
        self._open_chars.append(len(line))
        blocks = self._splitter.feed(_normal(line))
        self._count_closed()
        return blocks

    def _count_closed(self) -> None:
        closed = len(self._open_chars) - self._splitter.open_lines
        self.closed_chars += sum(self._open_chars[:closed])
        del self._open_chars[:closed]

    def _rendered(self, blocks: Sequence[Block]) -> list[SafeString]:
        document = self._document
        parts = [document.html(block, document.parse(block)) for block in blocks]
        return [part for part in parts if part]


class _Document:
    """The state of one text: its budget, definitions and footnotes."""

    def __init__(self, prefix: str, image_origins: tuple[str, ...], share: Share) -> None:
        if not _PREFIX.fullmatch(prefix):
            message = f"{prefix!r} cannot begin an id; use letters, digits, - and _"
            raise ValueError(message)
        self._share = share
        self._budget = Budget(share)
        self._prefix = prefix
        self.origins = image_origins
        self._env: EnvType = {
            "budget": self._budget,
            "prefix": prefix,
            "image_origins": image_origins,
        }
        self._notes = Notes(self._env)
        self._columns: list[str | None] = []
        """The classes of the columns of the table that was parsed last."""
        self._table_end = ""
        """What closes the table whose HTML is open."""

    @property
    def is_refused(self) -> bool:
        """Whether a part is only escaped because the share of the person was spent."""
        return self._budget.is_refused

    @property
    def has_notes(self) -> bool:
        """Whether the text has definitions or footnotes."""
        return self._notes.has_definitions or self._notes.has_footnotes

    def split(self, text: str) -> list[Block]:
        """Return the blocks of a whole text; one if no time is left."""
        if self._share.is_spent():
            return [Block(_normal(text))]
        splitter = BlockSplitter()
        with self._share.counted():
            lines = _LINE.findall(_normal(text))
            return [part for line in lines for part in splitter.feed(line)] + splitter.close()

    def parse(self, block: Block) -> list[Token] | None:
        """Parse the structure of a block; None above the budget."""
        try:
            with self._budget.timed(), self._notes.of_block():
                if block.kind is Kind.ROW:
                    self._budget.count_row(len(self._columns))
                    return tables.row(block.source, self._columns)
                tokens = self._notes.take(_parser.parse_blocks(block.source, self._env))
                if block.kind is Kind.HEAD:
                    self._columns = tables.classes_of(tokens)
                return tokens
        except OverBudget:
            return None
        finally:
            formulas.forget(self._env)

    def html(self, block: Block, tokens: list[Token] | None) -> SafeString:
        """Return the HTML of a block that `parse` has parsed.

        A row above the budget closes the table: this row and the rest of them are text.
        """
        self._budget.add_text(len(block.source))
        if block.kind is Kind.END:
            return self._closed_table()
        if tokens is not None and (self._table_end or block.kind is not Kind.ROW):
            try:
                with self._budget.timed():
                    self._parse_text(tokens)
                    html = self._finished_part(block.kind, self._html_of(tokens))
                    self._notes.record_references(tokens)
                    return html
            except OverBudget:
                pass
        plain = escaped(block.source)
        self._budget.add_escaped(plain)
        return self._closed_table() + _safe(plain)

    def end(self) -> list[SafeString]:
        """Return what follows the last block: definitions without a link, and the footnotes."""
        footnotes = self._footnotes()
        definitions = map(_safe, self._notes.unused_definitions())
        return [*definitions, *footnotes]

    def _footnotes(self) -> list[SafeString]:
        if not self._notes.has_footnotes:
            return []
        try:
            with self._budget.timed():
                html = self._notes.footnotes(self._parse_text, self._html_of, self._prefix)
                return [self._finished(html)]
        except OverBudget:
            return [_safe(self._notes.escaped_footnotes(self._prefix))]

    def _parse_text(self, tokens: list[Token]) -> None:
        _parser.parse_text(tokens, self._env)
        formulas.forget(self._env)

    def _html_of(self, tokens: Sequence[Token]) -> str:
        return str(_parser.renderer.render(tokens, _parser.options, self._env))

    def _finished_part(self, kind: Kind, html: str) -> SafeString:
        """Return the finished HTML of a block or row, or of a head without the end of its table."""
        if kind is Kind.ROW:
            begin, end = "<table><tbody>\n", "</tbody></table>"
            rows = self._finished(f"{begin}{html}{end}").removeprefix(begin).removesuffix(end)
            is_first, self._table_end = self._table_end == _TABLE_END, f"</tbody>{_TABLE_END}"
            return _safe(f"<tbody>\n{rows}" if is_first else rows)
        finished = self._finished(html)
        if kind is Kind.HEAD and finished.endswith(_TABLE_END):
            self._table_end = _TABLE_END
            return _safe(finished.removesuffix(_TABLE_END))
        return finished

    def _closed_table(self) -> SafeString:
        end, self._table_end = self._table_end, ""
        return _safe(end)

    def _finished(self, html: str) -> SafeString:
        # Marks at the end, since an entity may encode a character that the text does not contain.
        html = visible(cleaned(html, self.origins))
        self._budget.add_html(html)
        return _safe(html)


def _rendered(text: str, document: _Document) -> str:
    blocks = document.split(text)
    # The structure of all blocks first: their text may use definitions that follow.
    parsed = [(block, document.parse(block)) for block in blocks]
    return "".join([document.html(*block) for block in parsed] + document.end())


def _cache_key(text: str, prefix: str, image_origins: tuple[str, ...]) -> Hashable:
    """Return the key of a text in the cache."""
    identity = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    # Only footnotes have ids. The process shares the libraries of the extra `page` and the
    # cache.
    return (identity, prefix if "[^" in text else "", image_origins, get_language())


def _normal(text: str) -> str:
    return _NOT_A_CHARACTER.sub("\ufffd", _LINE_END.sub("\n", text))


def _safe(html: str) -> SafeString:
    return mark_safe(html)  # noqa: S308  # sanitized or escaped; marks contain no HTML


_parser = Parser()
_cache = Cache()
