"""Highlight code in few classes, if Pygments is installed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from operator import itemgetter

from markdown_it.common.utils import escapeHtml

from chatmemory.rendering.budget import Budget

try:
    from pygments.lexer import Lexer
    from pygments.lexers import find_lexer_class_by_name
    from pygments.util import ClassNotFound
except ImportError:  # the extra `page` is not installed
    find_lexer_class_by_name = None

MAX_CODE_CHARS = 10_000
"""Longer code is not highlighted. `budget.MAX_CODE_SECONDS` can't stop a lexer within a token."""

MAX_BACKTRACKED_CHARS = 4_000
"""The same for the languages of `BACKTRACKING`."""

LANGUAGES = {
    *("awk", "bash", "c", "c#", "c++", "clojure", "cmake", "console", "cpp", "cs", "csharp"),
    *("css", "dart", "diff", "django", "docker", "dockerfile", "elixir", "erlang", "fortran"),
    *("fsharp", "go", "golang", "graphql", "groovy", "haskell", "hcl", "hs", "html", "ini"),
    *("java", "javascript", "jinja", "jl", "js", "json", "jsx", "julia", "kotlin", "latex"),
    *("less", "lua", "make", "makefile", "matlab", "nginx", "objc", "objective-c"),
    *("perl", "php", "pl", "powershell", "proto", "protobuf", "ps1", "py", "pycon", "python"),
    *("python3", "r", "rb", "rs", "ruby", "rust", "sass", "scala", "scss", "sh", "shell"),
    *("sql", "swift", "terraform", "tex", "tf", "toml", "ts", "tsx", "typescript", "vim"),
    *("xml", "yaml", "yml", "zig", "zsh"),
}
"""The languages that are highlighted. Other lexers of Pygments may be slow with hostile code: that
for OCaml takes over a second for 10,000 zeros."""

BACKTRACKING = {"console", "ini", "matlab"}
"""Languages whose lexers need over 0.3 s for one token of 10,000 hostile characters."""

_CLASSES = {
    "Comment": "hl-comment",
    "Generic.Deleted": "hl-deleted",
    "Generic.Heading": "hl-comment",
    "Generic.Inserted": "hl-inserted",
    "Generic.Prompt": "hl-comment",
    "Generic.Subheading": "hl-comment",
    "Keyword": "hl-keyword",
    "Literal.Date": "hl-string",
    "Literal.Number": "hl-number",
    "Literal.String": "hl-string",
    "Name.Attribute": "hl-name",
    "Name.Builtin": "hl-name",
    "Name.Class": "hl-name",
    "Name.Decorator": "hl-name",
    "Name.Function": "hl-name",
    "Name.Tag": "hl-keyword",
    "Operator.Word": "hl-keyword",
}
"""The class of each kind of token of Pygments, and of the kinds below it."""

CLASSES = frozenset(_CLASSES.values())


def highlighted(code: str, language: str, budget: Budget) -> str:
    """Return the code as HTML; only escaped if its language or length is not supported."""
    plain = escapeHtml(code)
    name = language.lower()
    max_chars = MAX_BACKTRACKED_CHARS if name in BACKTRACKING else MAX_CODE_CHARS
    if find_lexer_class_by_name is None or name not in LANGUAGES or len(code) > max_chars:
        return plain
    with budget.uncounted():
        lexer_class = _lexer_class(name)
    if lexer_class is None:
        return plain
    lexer = lexer_class(stripnl=False, ensurenl=False)
    parts: list[str] = []
    chars = 0
    for css_class, texts in groupby(_highlight_tokens(lexer, code, budget), key=itemgetter(0)):
        text = "".join(text for _, text in texts)
        chars += len(text)
        html = escapeHtml(text)
        parts.append(f'<span class="{css_class}">{html}</span>' if css_class else html)
    # Fewer if the time is over; and a lexer may drop characters, such as a byte order mark.
    return "".join(parts) if chars == len(code) else plain


@cache
def _lexer_class(name: str) -> type[Lexer] | None:
    """Load the lexer of a language, once in a process: it takes up to 0.3 s."""
    try:
        found: type[Lexer] = find_lexer_class_by_name(name)
    except ClassNotFound:  # another version of Pygments
        return None
    found()  # compiles its expressions
    return found


def _highlight_tokens(lexer: Lexer, code: str, budget: Budget) -> Iterator[tuple[str, str]]:
    """Yield the class and text of each token, until the time for code is over."""
    started = time.thread_time()
    try:
        for kind, text in lexer.get_tokens(code):
            if time.thread_time() - started > budget.code_seconds:
                return
            yield _class_of(str(kind).removeprefix("Token.")), text
    finally:
        budget.code_seconds -= time.thread_time() - started


@cache
def _class_of(kind: str) -> str:
    while kind and kind not in _CLASSES:
        kind = kind.rpartition(".")[0]
    return _CLASSES.get(kind, "")
