"""Render untrusted Markdown as HTML by an allow-list, with marks for invisible characters."""

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
"""Longer texts are shown without rendering: a hostile one would occupy a process for seconds."""

MAX_SECONDS = 1.0
"""Maximum CPU time for one text. A usual one of 30,000 characters takes 0.03 s, the worst 1 s."""

MAX_TABLE_CELLS = 2_000
"""Maximum table cells in one text. A row gets all columns of its header, so 1,400 characters could
become 60,000 cells."""

MAX_GROWTH = 16
"""Maximum characters of HTML for each character of text."""

FREE_CHARS = 4_096
"""Characters of HTML that any text may become, since short texts grow more."""

CACHED_CHARS = 4_000_000
"""Maximum characters of HTML that one process caches."""

ENTRY_CHARS = 200
"""Overhead of a cached text, in characters."""

CHECK_EVERY = 64
"""Parser steps between two reads of the clock, each a system call."""

TAGS = {
    *("a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr"),
    *("li", "ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "ol": {"start"}}

_HIDDEN = re.compile(f"([{codec.HIDDEN}])\\1*")


def visible(text: str) -> str:
    """Replace invisible and direction-changing characters by marks such as ⟦U+202E⟧."""
    return _HIDDEN.sub(_mark, text)


def markdown(text: str) -> SafeString:
    """Render HTML that can neither run scripts nor fetch resources.

    Images become their description. Reference links are not supported, since their definitions
    would disappear from the page. A text above MAX_SECONDS or MAX_GROWTH is only escaped, as are
    the rows of a table above MAX_TABLE_CELLS.
    """
    html = _cache.get(text)
    if html is None:
        html = _rendered(text)
        _cache.put(text, html)
    return mark_safe(html)  # noqa: S308  # sanitized; marks contain no HTML


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
    # After the rendering, since an entity may encode a character that the text does not contain.
    html = visible(html)
    return html if len(html) <= max(FREE_CHARS, MAX_GROWTH * len(text)) else _escaped(text)


def _escaped(text: str) -> str:
    lines = visible(escape(text)).replace("\n", "<br>\n")
    return f"<p>{lines}</p>\n"


def has_markup(text: str) -> bool:
    """Whether rendering as Markdown would change the text; False above MAX_MARKDOWN_CHARS."""
    return len(text) <= MAX_MARKDOWN_CHARS and _MARKUP.search(text) is not None


def first_words(text: str, max_chars: int = 60) -> str:
    """Return the beginning of a text in one line, truncated between words."""
    line = " ".join(text.split())
    if len(line) <= max_chars:
        return line
    return (line[: max_chars + 1].rpartition(" ")[0] or line[:max_chars]) + "…"


def _mark(found: re.Match[str]) -> str:
    times = f" \u00d7{len(found[0])}" if len(found[0]) > 1 else ""
    return f"⟦U+{ord(found[1]):04X}{times}⟧"


def _image(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return f"[image: {escape(tokens[index].content)}]"


class _OverBudget(Exception):
    """The rendering of a text exceeded its time."""


class _Budget:
    """The remaining table cells and CPU time of one rendering."""

    def __init__(self, chars: int) -> None:
        self.cells = min(MAX_TABLE_CELLS, chars)
        self._steps = 0
        self._until = time.thread_time() + MAX_SECONDS

    def count_step(self) -> None:
        """Raise _OverBudget after MAX_SECONDS."""
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
    """Apply the library's table rule to at most the lines for which the budget has cells."""
    budget: _Budget = state.env["budget"]
    if start_line + 1 >= end_line:
        return False
    header = state.src[state.bMarks[start_line] : state.eMarks[start_line]].strip()
    # An upper bound: it also counts escaped bars.
    columns = header.removeprefix("|").removesuffix("|").count("|") + 1
    lines = budget.cells // columns + 1  # the delimiter line has no cells
    if lines < 2 or not table(state, start_line, min(end_line, start_line + lines), silent):
        return False
    if not silent:
        budget.cells -= columns * (state.line - start_line - 1)
    return True


class _Cache:
    """Caches the HTML of recently rendered texts by digest.

    Only in memory: a shared cache would keep redacted and erased texts.
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
        """Add the HTML, and evict the least recently used."""
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
