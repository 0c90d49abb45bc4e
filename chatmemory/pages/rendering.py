"""Other people's text as HTML: Markdown behind an allow-list, and marks for what can't be seen."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from chatmemory import codec

MAX_MARKDOWN_CHARS = 30_000
"""Longer texts are shown as they are: an unlucky one would keep a process busy for seconds."""

MAX_SECONDS = 1.0
"""CPU time for one text. A usual text of 30,000 characters takes 0.03 s, the worst known 1 s."""

MAX_TABLE_CELLS = 2_000
"""Table cells in one text. A row gets all columns of its header, so 1,400 characters could become
60,000 cells."""

MAX_GROWTH = 16
"""Characters of HTML for each character of text."""

FREE_CHARS = 4_096
"""HTML that a text of any length may become: a short one grows more."""

CACHED_CHARS = 4_000_000
"""HTML that one process caches."""

ENTRY_CHARS = 200
"""What a cached text costs besides its HTML."""

CHECK_EVERY = 64
"""Parser steps between two reads of the clock, which are system calls."""

TAGS = {
    *("a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr"),
    *("li", "ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "ol": {"start"}}

_HIDDEN = re.compile(f"([{codec.HIDDEN}])\\1*")


def visible(text: str) -> str:
    """The text with marks in place of characters that deceive the reader."""
    return _HIDDEN.sub(_mark, text)


def markdown(text: str) -> SafeString:
    """The text as HTML that can neither run a script nor fetch anything.

    Images become their description. References are left as they stand, since a definition would
    vanish from the page. A text whose rendering takes too long or grows too much is only escaped;
    so are the rows of a table beyond `MAX_TABLE_CELLS`.
    """
    html = _cache.get(text)
    if html is None:
        html = _rendered(text)
        _cache.put(text, html)
    return mark_safe(html)  # noqa: S308  # cleaned; a mark holds nothing of HTML


def _rendered(text: str) -> str:
    try:
        html = nh3.clean(
            _parser.render(text, {"budget": _Budget(len(text))}),
            tags=TAGS,
            attributes=ATTRIBUTES,
            url_schemes={"http", "https", "mailto"},
            link_rel="nofollow noopener noreferrer",
            set_tag_attribute_values={"a": {"target": "_blank"}},
        )
    except _OverBudget:
        return _escaped(text)
    # Last, for an entity may say what the text doesn't hold.
    html = visible(html)
    return html if len(html) <= max(FREE_CHARS, MAX_GROWTH * len(text)) else _escaped(text)


def _escaped(text: str) -> str:
    lines = visible(escape(text)).replace("\n", "<br>\n")
    return f"<p>{lines}</p>\n"


def has_markup(text: str) -> bool:
    """Whether the text would look otherwise as Markdown; False if it is too long for that."""
    return len(text) <= MAX_MARKDOWN_CHARS and _MARKUP.search(text) is not None


def first_words(text: str, most: int = 60) -> str:
    """The beginning of a text in one line, cut between words."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    return (line[: most + 1].rpartition(" ")[0] or line[:most]) + "…"


def _mark(found: re.Match[str]) -> str:
    times = f" \u00d7{len(found[0])}" if len(found[0]) > 1 else ""
    return f"⟦U+{ord(found[1]):04X}{times}⟧"


def _image(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return f"[image: {escape(tokens[index].content)}]"


class _OverBudget(Exception):
    """The rendering of a text took too long."""


class _Budget:
    """What the rendering of one text may still use."""

    def __init__(self, chars: int) -> None:
        self.cells = min(MAX_TABLE_CELLS, chars)
        self._steps = 0
        self._until = time.thread_time() + MAX_SECONDS

    def count_step(self) -> None:
        """Raise _OverBudget if the time is used up."""
        self._steps += 1
        if self._steps % CHECK_EVERY == 0 and time.thread_time() > self._until:
            raise _OverBudget


def _count_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    state.env["budget"].count_step()
    return False


def _count_inline(state: StateInline, silent: bool) -> bool:
    state.env["budget"].count_step()
    return False


def _bounded_table(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """The library's rule for tables, given no more lines than the budget has cells for."""
    budget: _Budget = state.env["budget"]
    if start_line + 1 >= end_line:
        return False
    header = state.src[state.bMarks[start_line] : state.eMarks[start_line]].strip()
    columns = header.removeprefix("|").removesuffix("|").count("|") + 1  # fewer if some are escaped
    lines = budget.cells // columns + 1  # that of the delimiters has no cells
    if lines < 2 or not table(state, start_line, min(end_line, start_line + lines), silent):
        return False
    if not silent:
        budget.cells -= columns * (state.line - start_line - 1)
    return True


class _Cache:
    """The HTML of the texts that were rendered last, by a digest of the text.

    In this process alone: a shared cache would keep what was redacted or erased.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._html: OrderedDict[bytes, str] = OrderedDict()
        self._chars = 0

    def get(self, text: str) -> str | None:
        key = _digest(text)
        with self._lock:
            html = self._html.get(key)
            if html is not None:
                self._html.move_to_end(key)
            return html

    def put(self, text: str, html: str) -> None:
        """Keep it, and evict what was not used for the longest time."""
        key = _digest(text)
        with self._lock:
            if key in self._html:
                return
            self._html[key] = html
            self._chars += len(html) + ENTRY_CHARS
            while self._chars > CACHED_CHARS:
                self._chars -= len(self._html.popitem(last=False)[1]) + ENTRY_CHARS

    def clear(self) -> None:
        with self._lock:
            self._html.clear()
            self._chars = 0


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


_MARKUP = re.compile(r"[*_`#<>|~\[\]\\&\n]|^\s*(?:[-+=]|\d+[.)])")
_parser = MarkdownIt("commonmark", {"html": False, "breaks": True})
_parser.enable(["table", "strikethrough"]).disable("reference")
_parser.add_render_rule("image", _image)
_parser.block.ruler.before("table", "budget", _count_block)
_parser.block.ruler.at("table", _bounded_table, {"alt": ["paragraph", "reference"]})
_parser.inline.ruler.before("text", "budget", _count_inline)
_cache = _Cache()
