"""Texts that are costly to render."""

from __future__ import annotations

import os
from random import Random

from chatmemory.rendering.text import MAX_MARKDOWN_CHARS

FUZZ_FACTOR = int(os.environ.get("FUZZ_FACTOR", "1"))
"""How many times as many random texts the long tests render."""


def repeated(part: str) -> str:
    """Repeat a text up to the maximum length."""
    return part * (MAX_MARKDOWN_CHARS // len(part))


def numbered(part: str) -> str:
    """Repeat a text with a number for each `#`, up to the maximum length."""
    lines = [part.replace("#", str(number)) for number in range(MAX_MARKDOWN_CHARS // len(part))]
    return "".join(lines)[:MAX_MARKDOWN_CHARS]


WIDE_TABLE = "|".join("a" * 200) + "\n" + "|".join("-" * 200) + "\n" + "|".join("b" * 200) + "\n"

HOSTILE = {
    "open brackets": repeated("["),
    "open images": repeated("!["),
    "open links": repeated("[a]("),
    "nested links": "[" * 10_000 + "a" + "](b)" * 5_000,
    "link destinations": repeated("[a](<b"),
    "link titles": repeated('[a](b "'),
    "open emphasis": repeated("*a "),
    "emphasis in words": repeated("a**b"),
    "mixed emphasis": repeated("*_"),
    "nested emphasis": repeated("*a **a "),
    "deleted": repeated("~~a "),
    "open code": repeated("`a"),
    "code of all lengths": "".join("`" * number + "a" for number in range(240)),
    "angle brackets": repeated("<"),
    "open tags": repeated("<a href='"),
    "comments": repeated("<!--"),
    "entities": repeated("&"),
    "numeric entities": repeated("&#x1F600;"),
    "deep quotes": repeated("> "),
    "deep quotes in lines": repeated(">" * 17 + "a\n\n"),
    "deep lists": "".join(" " * (2 * depth) + "- a\n" for depth in range(170)),
    "lists in a line": repeated("- " * 15 + "a\n"),
    "quotes and lists": repeated("> - " * 8 + "a\n"),
    "lazy lines": "- a\n" + repeated("b\n"),
    "headings": repeated("# a\n"),
    "underlines": repeated("a\n-\n"),
    "breaks": repeated("---\n"),
    "a long line": repeated("word "),
    "a long word": repeated("w"),
    "null characters": repeated("\0"),
    "carriage returns": repeated("\r"),
    "hidden characters": repeated("\u202e\u202d"),
    "tabs": repeated("\t- a\n"),
    "definitions": numbered("[#]: /#\n"),
    "one definition, many times": repeated("[a]: /b\n"),
    "open definitions": repeated("[a\n"),
    "uses of a definition": "[a]: /b\n\n" + repeated("[a]"),
    "definitions with titles": repeated("[a]: /b 'c\n"),
    "footnotes": numbered("[^#]: a\n"),
    "marks of footnotes": numbered("[^#] ") + "\n\n" + numbered("[^#]: a\n"),
    "marks of one footnote": "[^a]: b\n\n" + repeated("[^a]"),
    "footnotes in footnotes": repeated("[^a]: "),
    "open marks": "[^a]: b\n\n" + repeated("[^"),
    "narrow tables": repeated("|a|\n|-|\n\n"),
    "bars": repeated("|a"),
    "short rows": WIDE_TABLE.rpartition("|".join("b" * 200))[0] + repeated("|\n"),
    "tables in a list": repeated("- |a|b|\n  |-|-|\n"),
    "delimiters": repeated("|-|-|\n"),
    "dollars": repeated("$"),
    "open formulas": repeated("$a "),
    "prices": repeated("$1 a$2 "),
    "open blocks of formulas": repeated("$$ a\n"),
    "open brackets of formulas": repeated("\\[a\n"),
    "formulas that a heading ends": repeated("> $$ a\n") + "> # b",
    "formulas that a list ends": "- a\n" + repeated("  $$ a\n") + "b",
    "backslashes": repeated("\\"),
    "escaped parentheses": repeated("\\("),
    "addresses": repeated("http://a.b "),
    "addresses without spaces": repeated("http://"),
    "www": repeated("www."),
    "mail addresses": repeated("a@"),
    "domains": repeated("a.") + "com",
    "long domain": "http://" + repeated("a-"),
    "colons": repeated("a:"),
    "code fences": repeated("```\n"),
    "open strings in code": "```python\n" + '"' * 9_000,
    "open brackets in code": "```javascript\n" + "/(" * 4_500,
    "templates in code": "```php\n" + "<?php " * 1_500,
    "backticks in code": "```bash\n" + "$(`" * 3_000,
    "tasks": repeated("- [ ] a\n"),
}

_FORMULA_PARTS = (
    *(r"\hat", r"\frac", r"\sqrt", r"\left(", r"\right)", r"\not", r"\bm", r"\mathbf{", r"\cfrac"),
    *("{", "}", "[", "]", "_", "^", "'", "&", r"\\", "a", "1", " ", "|", "%", "#", "~", "\n"),
    *(r"\begin{matrix}", r"\end{matrix}", r"\begin{array}{lcr}", r"\end{array}", r"\substack{"),
    *(r"\text{<script>alert(1)</script>}", "<script>", "<img src=x onerror=alert(1)>", "</math>"),
    *(r"\href{javascript:alert(1)}{x}", r"\unicode{x3c}", r"\unicode{202e}", r"\style{color:red}"),
    *(r"\class{cm-row}", r"\color{red}", r"\hspace{-9em}", r"\raise{9em}", r"\rule{9em}{9em}"),
    *(r"\newcommand{\a}{\a\a}", r"\def\b{c}", r"\operatorname{a b}", r"\verb|a|", r"\tag{1}"),
    *(
        "\u202e",
        "\u05d0",
        "\u200b",
        "\x01",
        "&lt;",
        "&#x3c;",
        "&amp;#x3c;",
        "]]>",
        "<!--",
        "<style>",
    ),
    *(r"\xrightarrow[", r"\genfrac", r"\sideset", r"\middle|", r"\limits", r"\over", r"\phantom{"),
)
_DELIMITERS = (("$", "$"), ("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]"), ("$$\n", "\n$$"))


def hostile_formula(choice: Random) -> str:
    """Return a text with a formula of random parts, or of one part many times."""
    parts = choice.choices(_FORMULA_PARTS, k=choice.choice((1, 3, 10, 60)))
    repeat = choice.choice((1, 1, 1, 20, 400))
    begin, end = choice.choice(_DELIMITERS)
    return f"a {begin}{''.join(parts * repeat)[: 2 * 2_000]}{end} b"


def hostile_table(choice: Random) -> str:
    """Return a table, often with wrong lines, and with formulas in its cells."""
    columns = choice.choice((1, 2, 3, 50, 400))
    cells = ("", "a", r"\|", "`a|b`", "$x|y$", "**", "[a](b", "\u202e", "<b>", "&vert;", "$\\frac$")
    bar = choice.choice(("|", "||", " | "))
    delimiter = choice.choice(("-", ":-", "-:", ":-:", "=", "--- "))
    lines = ["|".join(["h"] * columns), "|".join([delimiter] * columns)]
    for _ in range(choice.choice((0, 1, 5, 100))):
        row = choice.choices(cells, k=choice.choice((1, columns, columns + 1)))
        lines.append(choice.choice(("", "", "", "    ", "> ", "- ")) + bar.join(row))
    return "\n".join(lines)
