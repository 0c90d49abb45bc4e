"""Other people's text as HTML: Markdown behind an allow-list, and marks for what can't be seen."""

from __future__ import annotations

import re
from collections.abc import Sequence

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from chatmemory import codec

MAX_MARKDOWN_CHARS = 30_000
"""Longer texts are shown as they are: an unlucky one would keep a process busy for seconds."""

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
    vanish from the page.
    """
    html = nh3.clean(
        _parser.render(text),
        tags=TAGS,
        attributes=ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    # Last, for an entity may say what the text doesn't hold.
    return mark_safe(visible(html))  # noqa: S308  # cleaned; a mark holds nothing of HTML


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


_MARKUP = re.compile(r"[*_`#<>|~\[\]\\&\n]|^\s*(?:[-+=]|\d+[.)])")
_parser = MarkdownIt("commonmark", {"html": False, "breaks": True})
_parser.enable(["table", "strikethrough"]).disable("reference")
_parser.add_render_rule("image", _image)
