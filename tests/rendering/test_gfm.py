"""The extensions of GitHub Flavored Markdown.

The cases follow the examples of its specification (version 0.29, by GitHub and John MacFarlane,
CC BY-SA 4.0, https://github.github.com/gfm/), with texts of their own. What differs: alignment is a
class, the box of a task is a character, addresses are links only in http, https and mailto, and a
mail address needs a domain that exists.
"""

from __future__ import annotations

import random

import pytest

from chatmemory.rendering.markdown import markdown
from tests.rendering.events import events
from tests.rendering.pieces import streamed
from tests.rendering.specification import extension_examples

DIFFERENT = {
    "Alignment is a class, since a strict policy ignores styles.": {199},
    "The box of a task is a character, with classes around it.": {279, 280},
    "An address ends before a parenthesis that none opens, also within it.": {625},
    "The end of an address that looks like a character reference belongs to it.": {626},
    "Only addresses in http, https and mailto are links.": {628},
    "A mail address needs a domain that exists.": {629, 630, 631},
    "Raw HTML is text.": {653},
}
"""Examples of GitHub's specification whose HTML differs, by reason."""


def table(head: str, *rows: str) -> str:
    """Return a table of cells that are given as HTML."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f"<table><thead><tr>{head}</tr></thead>{f'<tbody>{body}</tbody>' if body else ''}</table>"
    )


def web(address: str, *, scheme: str = "http://") -> str:
    """Return a link that shows its address."""
    return f'<a href="{scheme}{address}">{address}</a>'


FULL = web("https://secure.example.org/search?q=Rust+(language)", scheme="")

EXAMPLES = {
    "a table": (
        "| a | b |\n| --- | --- |\n| c | d |",
        table("<th>a</th><th>b</th>", "<td>c</td><td>d</td>"),
    ),
    "alignment": (
        "| a | bcd | e |\n:-: | --------: | :-\nf | g | h",
        table(
            '<th class="align-center">a</th><th class="align-right">bcd</th>'
            '<th class="align-left">e</th>',
            '<td class="align-center">f</td><td class="align-right">g</td>'
            '<td class="align-left">h</td>',
        ),
    ),
    "escaped bars": (
        "| a\\|b |\n| --- |\n| c `\\|` d |\n| e **\\|** f |",
        table("<th>a|b</th>", "<td>c <code>|</code> d</td>", "<td>e <strong>|</strong> f</td>"),
    ),
    "a quote ends a table": (
        "| a | b |\n| --- | --- |\n| c | d |\n> e",
        table("<th>a</th><th>b</th>", "<td>c</td><td>d</td>") + "<blockquote><p>e</p></blockquote>",
    ),
    "a blank line ends a table": (
        "| a | b |\n| --- | --- |\n| c | d |\ne\n\nf",
        table("<th>a</th><th>b</th>", "<td>c</td><td>d</td>", "<td>e</td><td></td>") + "<p>f</p>",
    ),
    "the delimiters must match the header": (
        "| a | b |\n| --- |\n| c |",
        "<p>| a | b |<br>| --- |<br>| c |</p>",
    ),
    "rows of other lengths": (
        "| a | b |\n| --- | --- |\n| c |\n| d | e | f |",
        table("<th>a</th><th>b</th>", "<td>c</td><td></td>", "<td>d</td><td>e</td>"),
    ),
    "a table without rows": ("| a | b |\n| --- | --- |", table("<th>a</th><th>b</th>")),
    "tasks": (
        "- [ ] a\n- [x] b",
        '<ul class="contains-task-list">'
        '<li class="task-list-item"><span class="task-checkbox">☐</span> a</li>'
        '<li class="task-list-item"><span class="task-checkbox">☑</span> b</li></ul>',
    ),
    "tasks in tasks": (
        "- [x] a\n  - [ ] b\n- [X] c",
        '<ul class="contains-task-list">'
        '<li class="task-list-item"><span class="task-checkbox">☑</span> a'
        '<ul class="contains-task-list">'
        '<li class="task-list-item"><span class="task-checkbox">☐</span> b</li></ul></li>'
        '<li class="task-list-item"><span class="task-checkbox">☑</span> c</li></ul>',
    ),
    "deleted": ("~~a~~ b, c!", "<p><del>a</del> b, c!</p>"),
    "deleted over paragraphs": ("a ~~b\n\nc~~.", "<p>a ~~b</p><p>c~~.</p>"),
    "www": ("www.example.org", f"<p>{web('www.example.org')}</p>"),
    "a path": ("See www.example.org/a for b.", f"<p>See {web('www.example.org/a')} for b.</p>"),
    "full stops": (
        "See www.example.org.\n\nSee www.example.org/a.b.",
        f"<p>See {web('www.example.org')}.</p><p>See {web('www.example.org/a.b')}.</p>",
    ),
    "parentheses": (
        "www.example.org/?q=a+(b)\n\nwww.example.org/?q=a+(b)))\n\n"
        "(www.example.org/?q=a+(b))\n\n(www.example.org/?q=a+(b)",
        f"<p>{web('www.example.org/?q=a+(b)')}</p><p>{web('www.example.org/?q=a+(b)')}))</p>"
        f"<p>({web('www.example.org/?q=a+(b)')})</p><p>({web('www.example.org/?q=a+(b)')}</p>",
    ),
    "an angle bracket": ("www.example.org/a<b", f"<p>{web('www.example.org/a')}&lt;b</p>"),
    "schemes": (
        "http://example.org\n\n(See https://secure.example.org/search?q=Rust+(language))\n\n"
        "ftp://files.example.org.",
        f"<p>{web('http://example.org', scheme='')}</p><p>(See {FULL})</p>"
        "<p>ftp://files.example.org.</p>",
    ),
    "mail": ("a@example.org", f"<p>{web('a@example.org', scheme='mailto:')}</p>"),
    "plus signs": (
        "a@b+c.org isn't, but a+b@c.org is.",
        f"<p>a@b+c.org isn't, but {web('a+b@c.org', scheme='mailto:')} is.</p>",
    ),
    "dots and dashes": (
        "a.b-c_d@e.org\n\na.b-c_d@e.org.\n\na.b-c_d@e.org-\n\na.b-c_d@e.org_",
        f"<p>{web('a.b-c_d@e.org', scheme='mailto:')}</p>"
        f"<p>{web('a.b-c_d@e.org', scheme='mailto:')}.</p><p>a.b-c_d@e.org-</p>"
        "<p>a.b-c_d@e.org_</p>",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_extension_of_github(name):
    text, html = EXAMPLES[name]
    assert events(markdown(text)) == events(html)
    assert " style=" not in markdown(text)


@pytest.mark.parametrize("text", ["main.py", "example.org", "//example.org", "a.b.c"])
def test_a_text_that_may_be_no_address_is_no_link(text):
    assert markdown(text) == f"<p>{text}</p>\n"


def test_each_example_of_github_becomes_its_html_or_is_listed():
    found = extension_examples()
    assert len(found) == 24
    different = {
        example.number
        for example in found
        if events(markdown(example.text)) != events(example.html, with_breaks=True)
    }
    assert different == set().union(*DIFFERENT.values())


def test_each_example_of_github_in_random_pieces_becomes_the_stored_html():
    pieces = random.Random(7)  # noqa: S311  # not for security
    for example in extension_examples():
        for _ in range(3):
            assert streamed(example.text, pieces) == markdown(example.text)
