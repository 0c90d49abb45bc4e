"""Footnotes and definitions: where they are shown, and what leads to them."""

from __future__ import annotations

import re

import pytest

from chatmemory.rendering import budget
from chatmemory.rendering.budget import MAX_NESTING
from chatmemory.rendering.markdown import MarkdownStream, markdown

DEEP = "> " * (MAX_NESTING + 1)
"""Above the limit of nesting: a block with it is only escaped."""


def dead_links(html):
    """Return the marks and back links of footnotes whose target is missing."""
    links = re.findall(r'href="#((?:[\w-]*?)fn[^"]*)"', html)
    return [link for link in links if f'id="{link}"' not in html]


def streamed(text):
    stream = MarkdownStream()
    return "".join([*stream.feed(text), *stream.close()])


@pytest.mark.regression
@pytest.mark.parametrize(
    "text",
    [
        f"a[^x]\n\n[^x]: b\n    {DEEP}c",
        f"[^x]: b\n    {DEEP}c\n\na[^x]",
        f"a[^x] b[^y]\n\n[^x]: c\n    {DEEP}d\n\ne\n\n[^y]: f",
    ],
)
def test_a_mark_of_a_footnote_above_the_limits_is_text(text):
    for html in (markdown(text), streamed(text)):
        assert "a[^x]" in html
        assert "[^x]: " in html
        assert html.count("<li") == ("[^y]" in text)
        assert dead_links(html) == []


@pytest.mark.regression
def test_a_repeated_footnote_above_the_limits_does_not_change_the_first():
    text = f"[^x]: a\n\nb[^x]\n\n[^x]: c\n    {DEEP}d\n\ne[^x]"
    for html in (markdown(text), streamed(text)):
        assert html.count("<li") == 1
        assert html.count('href="#fn1"') == html.count("footnote-back") == 2
        assert dead_links(html) == []


@pytest.mark.regression
def test_a_footnote_does_not_lead_back_to_marks_that_are_text():
    marks = "[^x]" * 1_000
    html = markdown(f"a[^x]\n\n{marks}\n\n![b[^x]](/c)\n\n[^x]: d")
    assert marks in html
    assert html.count("footnote-back") == 1
    assert dead_links(html) == []


@pytest.mark.regression
def test_a_mark_leads_to_its_footnote_when_the_time_is_over(monkeypatch):
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.0)
    html = markdown("a[^x]\n\n[^y]: b\n\n[^x]: **c**\n\n" + "*d* " * 99, prefix="m1-")
    assert 'href="#m1-fn1"' in html
    assert dead_links(html) == []
    assert html.endswith(
        '<section class="footnotes">\n<ul>\n<li><p>[^y]: b</p>\n</li>\n'
        '<li id="m1-fn1"><p>[^x]: **c**</p>\n</li>\n</ul>\n</section>\n'
    )


@pytest.mark.regression
def test_a_definition_above_the_limits_defines_nothing_and_is_shown_once():
    html = markdown(f"[a]\n\n> [a]: /b\n>\n{DEEP}c")
    assert "<a " not in html
    assert html.count("[a]: /b") == 1


@pytest.mark.regression
def test_a_definition_whose_links_are_only_text_is_shown():
    links = "[a] " * 2_000
    html = markdown(f"{links}\n\n[a]: /b")
    assert links in html
    assert html.endswith('<p class="definition">[a]: /b</p>\n')


def test_a_streamed_definition_after_its_link_is_shown_at_the_end():
    assert streamed("a [b]\n\n[b]: /c\n\nd") == (
        '<p>a [b]</p>\n<p>d</p>\n<p class="definition">[b]: /c</p>\n'
    )


def test_a_streamed_definition_that_a_link_uses_is_not_shown():
    assert "definition" not in streamed("a [b]\n\n[b]: /c\n\nd [b]")
