"""HTML as a list of events, to compare it by meaning."""

from __future__ import annotations

import re
from html.parser import HTMLParser

Event = tuple[str, ...]

BLOCKS = {
    *("blockquote", "div", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre"),
    *("section", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
ADDED = {"rel", "target", "tabindex", "role", "aria-label"}
"""Attributes that our links and elements that scroll have in addition."""
SCROLLS = re.compile(r'<div class="table-scroll"[^>]*>\s*(<table>.*?</table>)\s*</div>', re.DOTALL)
"""A table in the element that scrolls it."""


class Events(HTMLParser):
    """Collects tags with sorted attributes, and texts without the space between blocks."""

    def __init__(self, html: str, *, with_breaks: bool) -> None:
        """With `with_breaks`, a line end in a paragraph counts as a line break."""
        super().__init__()
        self._with_breaks = with_breaks
        self._text = ""
        self._pre = 0
        self._hidden = 0
        self._found: list[Event] = []
        self.feed(SCROLLS.sub(r"\1", html))
        self.close()
        self._end_text(is_block=True)

    @property
    def found(self) -> list[Event]:
        return self._found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden or ("class", "link-host") in attrs:
            self._hidden += 1
            return
        self._end_text(is_block=tag in BLOCKS)
        kept = sorted(f"{name}={value}" for name, value in attrs if name not in ADDED)
        self._found.append(("start", tag, *kept))
        self._pre += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._hidden -= 1
            return
        self._end_text(is_block=tag in BLOCKS)
        self._found.append(("end", tag))
        self._pre -= tag == "pre"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._text += data

    def _end_text(self, *, is_block: bool) -> None:
        text, self._text = self._text, ""
        if self._pre:
            if text:
                self._found.append(("text", text))
            return
        last = self._found[-1] if self._found else ("end", "p")
        if last[1] in BLOCKS:
            text = text.lstrip("\n ")
        if last[:2] == ("start", "br"):
            text = text.removeprefix("\n")
        if is_block:
            text = text.rstrip("\n ")
        lines = text.split("\n") if self._with_breaks else [text]
        for number, line in enumerate(lines):
            if number:
                self._found.append(("start", "br"))
            if line:
                self._found.append(("text", line))


def events(html: str, *, with_breaks: bool = False) -> list[Event]:
    """Return what a reader of this HTML gets, without what we add to links, code and tables."""
    return Events(html, with_breaks=with_breaks).found
