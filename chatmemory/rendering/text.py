"""Plain text: marks for invisible characters, escaping, and the first words."""

from __future__ import annotations

import re

from django.utils.html import escape

from chatmemory import codec

MAX_MARKDOWN_CHARS = 30_000
"""Longer texts are shown without rendering: a hostile one would occupy a process for seconds."""

_HIDDEN = re.compile(f"([{codec.HIDDEN}])\\1*")
_MARKUP = re.compile(r"[*_`#<>|~\[\]\\&\n$@]|://|www\.|^\s*(?:[-+=]|\d+[.)])")


def visible(text: str) -> str:
    """Replace invisible and direction-changing characters by marks such as ⟦U+202E⟧."""
    return _HIDDEN.sub(_visible_mark, text)


def escaped(text: str) -> str:
    """Return the text as one paragraph of HTML that keeps its lines."""
    lines = visible(escape(text.rstrip("\n"))).replace("\n", "<br>\n")
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


def _visible_mark(found: re.Match[str]) -> str:
    times = f" \u00d7{len(found[0])}" if len(found[0]) > 1 else ""
    return f"⟦U+{ord(found[1]):04X}{times}⟧"
