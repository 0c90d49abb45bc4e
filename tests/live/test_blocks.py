"""The blocks of a streamed text: rendered once, in a thread, equal to the stored HTML."""

from __future__ import annotations

import threading

import pytest
from django.utils import translation
from hypothesis import example, given
from hypothesis import strategies as st

from chatmemory.live import blocks as module
from chatmemory.live.blocks import LiveBlocks, language_of
from chatmemory.live.texts import LiveText
from chatmemory.rendering import budget, scrolling
from chatmemory.rendering import markdown as rendering
from chatmemory.rendering.markdown import MarkdownStream, markdown
from chatmemory.rendering.text import MAX_MARKDOWN_CHARS
from chatmemory.responders import Progress
from tests.rendering.test_stream import FRAGMENTS

EVENT = Progress("tool", "weather", "started")
REPLY = """# A plan

Some *words* with 😀 and a table:

| a | b |
|---|--:|
| c | 1 |

- one
- two

```python
def f():

    return 1
```

The end"""


def grow(text, *pieces):
    text.pieces += pieces
    text.publish()


def html_of(blocks):
    return "".join(block.html for block in blocks.blocks)


def stored_html(text):
    """Return the HTML of a stored text, not from the cache, where a streamed text puts its own."""
    rendering._cache.clear()
    return markdown(text)


def in_pieces(text, length):
    return [text[start : start + length] for start in range(0, len(text), length)]


def rendered(*pieces, language="en", person=None):
    """Return the text and blocks after each piece was rendered on its own."""
    text = LiveText("c1", 0)
    blocks = LiveBlocks(text, language, lambda: None, person)
    for piece in pieces:
        grow(text, piece)
        blocks._render()
    return text, blocks


def test_each_block_is_rendered_when_it_ends_and_is_the_start_of_the_stored_html():
    _, blocks = rendered(*in_pieces(REPLY, 7))
    starts = [REPLY[block.end :].lstrip("\n")[:6] for block in blocks.blocks]
    ends = ["Some *", "| a | ", "| c | ", "- one\n", "- one\n", "```pyt", "The en"]
    assert starts == ends
    shown = html_of(blocks)
    assert shown.endswith("</pre>\n")
    assert markdown(REPLY).startswith(shown)
    assert blocks.complete(REPLY)
    assert html_of(blocks) == stored_html(REPLY)


@given(st.lists(FRAGMENTS, max_size=12), st.integers(1, 9), st.integers(0, 40))
@example([REPLY], 3, 20)
@example(["\r\n\r", "\n# a\r", "\0"], 1, 0)
def test_complete_blocks_are_the_stored_html(fragments, length, unsent):
    """Whatever the pieces are, and how many were rendered before the message was stored."""
    text = "\n".join(fragments)
    pieces = in_pieces(text, length)
    _, blocks = rendered(*pieces[: max(0, len(pieces) - unsent)])
    if blocks.complete(text):
        assert html_of(blocks) == stored_html(text)
        assert [block.end for block in blocks.blocks] == sorted(
            block.end for block in blocks.blocks
        )
    else:
        assert blocks._stream.has_notes or not module.has_markup(text)


@pytest.mark.parametrize(
    "stored",
    ["*a* c", "*a*", "", "*a*\n\nb[^1]\n\n[^1]: c", "*a*\n\n[b]\n\n[b]: /c", "x" * 40_000],
    ids=["other", "shorter", "empty", "footnote", "definition", "long"],
)
def test_the_blocks_of_another_text_or_with_notes_are_not_complete(stored):
    _, blocks = rendered("*a*\n\n")
    shown = html_of(blocks)
    assert not blocks.complete(stored)
    assert not blocks.complete("*a*\n\n")
    assert html_of(blocks).startswith(shown)


def test_progress_events_are_no_text():
    _, blocks = rendered("# a", EVENT, "b\n", EVENT)
    assert html_of(blocks) == "<h1>ab</h1>\n"


def test_a_text_above_the_limit_has_no_further_blocks():
    text, blocks = rendered("# a\n", "b" * MAX_MARKDOWN_CHARS, "\n\n# c\n")
    assert html_of(blocks) == "<h1>a</h1>\n"
    assert not blocks.complete(text.text)


def test_a_block_above_the_limit_of_a_frame_is_the_last(monkeypatch):
    monkeypatch.setattr(module, "MAX_HTML_CHARS", 20)
    text, blocks = rendered("# a\n", "# bbbbbbbbbbbbbbbbb\n", "# c\n")
    assert html_of(blocks) == "<h1>a</h1>\n"
    assert not blocks.complete(text.text)


def test_an_error_of_the_renderer_is_logged_and_ends_the_blocks(monkeypatch, caplog):
    def fail(self, piece):
        raise RuntimeError("broken")

    text, blocks = rendered("# a\n")
    monkeypatch.setattr(MarkdownStream, "feed", fail)
    for piece in ("# b\n", "# c\n"):
        grow(text, piece)
        blocks._render()
    (record,) = caplog.records
    assert record.getMessage().startswith("blocks of a streamed text cannot be rendered: ")
    assert not blocks.complete(text.text)


def test_a_streamed_text_is_not_rendered_again_when_it_is_viewed(monkeypatch):
    rendering._cache.clear()
    _, blocks = rendered(*in_pieces(REPLY, 7))
    assert blocks.complete(REPLY)
    monkeypatch.delattr(rendering, "_parser")
    with translation.override("en"):
        assert markdown(REPLY, prefix="m2-") == html_of(blocks)


def test_the_blocks_above_the_time_of_a_person_are_escaped_and_not_kept(monkeypatch):
    rendering._cache.clear()
    monkeypatch.setattr(budget, "PERSON_SECONDS", 0.0)
    _, blocks = rendered("*a*\n\n", person="ann")
    assert blocks.complete("*a*\n\n*b*")
    assert html_of(blocks) == "<p>*a*</p>\n<p>*b*</p>\n"
    with translation.override("en"):
        assert markdown("*a*\n\n*b*") == "<p><em>a</em></p>\n<p><em>b</em></p>\n"


def test_a_plain_text_has_no_blocks_since_the_page_shows_it_as_it_is():
    _, blocks = rendered("a  b")
    assert not blocks.complete("a  b c")
    assert blocks.blocks == []


def test_labels_have_the_language_of_the_reader(monkeypatch):
    monkeypatch.setattr(scrolling, "gettext", lambda label: f"{label} {translation.get_language()}")
    text = "```\na\n```\n\n```\nb"
    with translation.override("de"):
        stored = markdown(text)
    assert stored.count("Code de") == 2
    _, blocks = rendered(text, language="de")
    assert blocks.complete(text)
    assert html_of(blocks) == stored


@pytest.mark.parametrize(
    ("tag", "language"),
    [("de", "de"), ("de-AT", "de"), ("", "en-us"), ("xx", "en-us"), ("e" * 999, "en-us")],
)
def test_an_unknown_language_is_the_default(settings, tag, language):
    settings.LANGUAGE_CODE = "en-us"
    assert language_of(tag) == language


class Threads:
    """The threads of the module; the test runs each call itself."""

    def __init__(self):
        self.calls = []

    def submit(self, call):
        self.calls.append(call)


def test_only_the_end_of_a_line_is_rendered_and_once_for_all_sockets(monkeypatch):
    threads = Threads()
    monkeypatch.setattr(module, "_threads", threads)
    text = LiveText("c1", 0)
    notified = []
    blocks = text.blocks_in("en", lambda: notified.append(len(blocks.blocks)))
    assert text.blocks_in("en", lambda: notified.append("other")) is blocks
    assert text.blocks_in("de", lambda: None) is not blocks
    for piece in ("# a", EVENT, "b"):
        grow(text, piece)
        blocks.update()
    assert threads.calls == []
    grow(text, "\n")
    for _ in range(9):
        blocks.update()
    grow(text, "# b\n")
    blocks.update()
    assert len(threads.calls) == 1
    threads.calls.pop()()
    assert notified == [2]
    grow(text, "c\n")
    blocks.update()
    threads.calls.pop()()
    assert notified == [2]
    assert blocks.complete(text.text)
    grow(text, "d\n\n")
    blocks.update()
    assert threads.calls == []


def test_sockets_of_several_threads_get_each_block_once():
    text = LiveText("c1", 0)
    blocks = LiveBlocks(text, "en", lambda: None)
    pieces = in_pieces(REPLY * 5, 3)
    start = threading.Barrier(4)

    def watch():
        start.wait()
        for _ in range(200):
            blocks.update()

    watchers = [threading.Thread(target=watch) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    start.wait()
    for piece in pieces:
        grow(text, piece)
    for watcher in watchers:
        watcher.join()
    assert blocks.complete(text.text)
    assert html_of(blocks) == stored_html(text.text)
