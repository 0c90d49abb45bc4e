"""Texts that arrive in pieces."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory.rendering import markdown as module
from chatmemory.rendering.blocks import Block, BlockSplitter
from chatmemory.rendering.budget import Share
from chatmemory.rendering.markdown import _ENDED_LINE, MarkdownStream, markdown
from tests.rendering.events import events
from tests.test_examples import run_example

FORMULA = "$$\na\n\n# b\n\nc\n$$"
PARTS = (
    *("a", "b *c*", "", "", "", "- a", "* b", "1. c", "2. d", "  e", "   f", "    g", "# h", "---"),
    *(
        "***",
        "===",
        "> i",
        "> - j",
        "```",
        "~~~",
        "- k\n  ```\n  l\n\n  m\n  ```",
        "|a|b|",
        "|-|-|",
    ),
    *("$$x$$", "\\[\n\na\n\n\\]", "$$\na\n\n- b\n\n$$", "- [ ] n", "  - o", "    - p", "10) q"),
    *("-   r", "> ```", "- - -", "<b>", "\tt", "1. u\n\n   v", "   ---", "-\tw"),
)
"""Lines from which random texts are made."""

FRAGMENTS = st.sampled_from(
    [*PARTS, "\n", "\n\n", "\r\n", "\r", "[^a]: b", "[^a]", "[c]: /d 'e", "[c]", "$$", "\\[", "\0"]
)


def streamed(pieces):
    stream = MarkdownStream()
    blocks = [block for piece in pieces for block in stream.feed(piece)]
    return blocks + stream.close()


def texts(seed, count):
    """Return random texts of a few lines."""
    choice = random.Random(seed)  # noqa: S311  # not for security
    return ["\n".join(choice.choices(PARTS, k=choice.randint(1, 9))) for _ in range(count)]


def whole(text):
    """Render a text without splitting it."""
    document = module._Document("", (), Share())
    return "".join([document.html(Block(text), document.parse(Block(text))), *document.end()])


@pytest.mark.slow
def test_blocks_are_split_where_the_parser_ends_them():
    different = [
        text for text in texts(5, 500) if events(whole(text)) != events(module.markdown(text))
    ]
    assert different == []


@pytest.mark.slow
@given(st.lists(FRAGMENTS, max_size=12), st.randoms(use_true_random=False))
def test_a_text_in_any_pieces_becomes_the_same_blocks(fragments, choice):
    text = "\n".join(fragments)
    blocks = streamed([text])
    pieces = []
    while text:
        length = choice.randint(1, 9)
        pieces.append(text[:length])
        text = text[length:]
    assert streamed(pieces) == blocks


@given(st.lists(FRAGMENTS, max_size=12), st.integers(1, 9))
def test_the_closed_characters_and_the_open_text_are_the_text(fragments, length):
    text = "\n".join(fragments)
    stream = MarkdownStream()
    for start in range(0, len(text), length):
        stream.feed(text[start : start + length])
        rest = text[stream.closed_chars : start + length]
        assert module._normal(rest) == stream.open_text
    stream.close()
    assert stream.closed_chars == len(text)


@pytest.mark.slow
def test_a_streamed_text_without_late_definitions_becomes_the_stored_html():
    for text in texts(6, 300):
        assert "".join(streamed(text)) == markdown(text)


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("a\n\n", "a\n\n"),
        ("a\n", ""),
        ("# a\n", "# a\n"),
        ("a\n# b\n", "a\n# b\n"),
        ("a\n---\n", ""),
        ("- a\n\n", ""),
        ("- a\n\n- b\n\nc\n", "- a\n\n- b\n\n"),
        ("- a\n\n  b\n\n", ""),
        ("- a\nb\n\nc\n", "- a\nb\n\n"),
        ("> a\nb\n\n", "> a\nb\n\n"),
        ("```\na\n\n# b\n", ""),
        ("```\na\n\nb\n```\n", "```\na\n\nb\n```\n"),
        ("a\n```\n", "a\n"),
        ("- ```\n  a\n\nb\n", "- ```\n  a\n\n"),
        ("    a\n\n    b\n\nc\n", "    a\n\n    b\n\n"),
        ("|a|\n|-|\n|b|\n\n", "|a|\n|-|\n|b|\n\n"),
        ("<div>\na\n\n", "<div>\na\n\n"),
        ("$$\na\n\nb\n", ""),
        ("$$\na\n\nb\n$$\n", "$$\na\n\nb\n$$\n"),
        ("$$\na\n\nb\n# c\n", "$$\na\n\nb\n# c\n"),
        ("\\[\na\n\n\\]\n", "\\[\na\n\n\\]\n"),
        ("a:\n- b\n", "a:\n"),
        ("a\n2. b\n\n", "a\n2. b\n\n"),
        ("[^a]: b\n\n    c\n\nd\n", "[^a]: b\n\n    c\n\n"),
        ("---\n", "---\n"),
    ],
)
def test_a_block_ends_when_no_further_line_can_continue_it(text, ended):
    splitter = BlockSplitter()
    lines = text.splitlines(keepends=True)
    blocks = [block for line in lines for block in splitter.feed(line)]
    assert "".join(block.source for block in blocks) == ended
    assert splitter.open_text == text.removeprefix(ended)


def test_the_open_text_is_what_no_block_contains():
    stream = MarkdownStream()
    assert stream.feed("# a\n\nb *c") == ["<h1>a</h1>\n"]
    assert stream.open_text == "b *c"
    assert stream.feed("*\r") == []
    assert stream.feed("\nd") == []
    assert stream.open_text == "b *c*\nd"
    assert stream.feed("\n\n") == ["<p>b <em>c</em><br>\nd</p>\n"]
    assert stream.open_text == ""
    assert stream.close() == []


def test_footnotes_and_links_of_later_definitions_are_text():
    text = "a[^1] [b]\n\n[^1]: c\n\n[b]: /d\n\n[b]"
    blocks = streamed(text)
    assert blocks[0] == "<p>a[^1] [b]</p>\n"
    assert blocks[1].startswith('<p><a href="/d"')
    assert blocks[2].startswith('<section class="footnotes">')


def test_a_definition_that_comes_first_is_used():
    text = "[^1]: c\n\n[b]: /d 'e'\n\na[^1] [b]"
    assert "".join(streamed(text)) == markdown(text)


def test_a_repeated_footnote_does_not_change_the_number_of_the_first():
    text = "[^x]: c\n\na[^x]\n\n[^x]: d\n\nb[^x]"
    assert "".join(streamed(text)) == markdown(text)
    assert markdown(text).count("<li id=") == 2


def test_the_blocks_after_the_end_of_the_time_are_only_escaped(monkeypatch):
    stream = MarkdownStream()
    assert stream.feed("*a*\n\n") == ["<p><em>a</em></p>\n"]
    stream._document._budget._seconds = 0.0
    stream.feed("*b* " * 100 + "\n\n")
    assert stream.feed("*c*\n\n") == ["<p>*c*</p>\n"]


@pytest.mark.regression
def test_the_last_line_is_not_searched_for_its_end(monkeypatch):
    """A search from each character of a line without an end took 6 s for 30,000 characters."""
    searched = []

    class Recorded:
        def findall(self, text):
            searched.append(text)
            return _ENDED_LINE.findall(text)

    monkeypatch.setattr(module, "_ENDED_LINE", Recorded())
    stream = MarkdownStream()
    for piece in ("a", "b\nc\r", "\nd", "e\r"):
        stream.feed(piece)
    assert searched == ["", "b\n", "\r\n", ""]


def test_each_line_is_split_once(monkeypatch):
    fed = []
    feed = BlockSplitter.feed

    def counted(self, line):
        fed.append(line)
        return feed(self, line)

    monkeypatch.setattr(BlockSplitter, "feed", counted)
    lines = [f"- item {number}\n" for number in range(500)]
    streamed("".join(lines))
    assert fed == lines


def test_the_example_of_the_page_shows_a_growing_reply():
    shown = []
    names = run_example(
        "docs/howto/rendering.md",
        "stream.feed(piece)",
        MarkdownStream=MarkdownStream,
        pieces=["# One\n\nTw", "o\n\nThr", "ee"],
        show=lambda html, rest: shown.append((html.count("<p>"), rest)),
    )
    assert names["html"] == markdown("# One\n\nTwo\n\nThree")
    assert shown == [(0, "Tw"), (1, "Thr"), (1, "Three")]
