"""The HTML of stored messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from django.test import override_settings

from chatmemory.rendering import markdown as module
from chatmemory.rendering import rows
from chatmemory.rendering.rows import RowRenderer, html_of, is_markdown
from chatmemory.rendering.text import MAX_MARKDOWN_CHARS


@dataclass(frozen=True)
class Head:
    pk: int = 1
    epoch: int = 5


@dataclass(frozen=True)
class Row:
    text: str
    role: str = "assistant"
    seq: int = 1
    revision: int = 0


@pytest.fixture(autouse=True)
def _empty_cache():
    module._cache.clear()
    yield
    module._cache.clear()


@pytest.mark.parametrize(
    ("row", "html"),
    [
        (Row("**a**[^1]\n\n[^1]: b"), '<a href="#m1-fn1" id="m1-fnref1-1"'),
        (Row("plain"), "<p>plain</p>\n"),
        (Row(""), ""),
        (Row("**a**\n<b>", role="user"), "<p>**a**<br>\n&lt;b&gt;</p>\n"),
        (Row("**a**", role="tool"), "<p>**a**</p>\n"),
        (Row("a\u202eb", role="user"), "<p>a⟦U+202E⟧b</p>\n"),
        (Row("*a*" * MAX_MARKDOWN_CHARS), "<p>*a**a*"),
    ],
)
def test_replies_are_rendered_and_other_texts_are_escaped(row, html):
    assert html in html_of(Head(), row)


def test_a_row_is_rendered_once(monkeypatch):
    html = html_of(Head(), Row("**a**"))
    monkeypatch.delattr(module, "_parser")
    assert html_of(Head(), Row("**a**")) == html == "<p><strong>a</strong></p>\n"


@pytest.mark.parametrize(
    ("head", "changed"),
    [
        (Head(), {"revision": 1}),
        (Head(), {"seq": 2}),
        (Head(epoch=6), {}),
        (Head(pk=2), {}),
    ],
)
def test_the_html_of_another_text_is_never_shown(head, changed):
    """A changed row has another revision, a session that replaced another has another epoch."""
    row = Row("**secret**")
    html_of(Head(), row)
    assert "secret" not in html_of(head, replace(row, text="**redacted**", **changed))


def test_the_html_of_a_row_depends_on_the_allowed_origins():
    row = Row("![a](https://images.example/a.png)")
    assert "<img" not in html_of(Head(), row)
    with override_settings(CHATMEMORY={"IMAGE_ORIGINS": ["https://images.example"]}):
        assert "<img" in html_of(Head(), row)
    assert "<img" not in html_of(Head(), row)


def test_a_response_renders_a_limited_number_of_characters(monkeypatch):
    monkeypatch.setattr(rows, "RENDERED_CHARS", 12)
    renderer = RowRenderer(Head())
    texts = ["**one**", "plain text that is long", "**two**", "*a*"]
    found = [renderer.html_of(Row(text, seq=seq)) for seq, text in enumerate(texts, 1)]
    assert [html is None for html in found] == [False, False, True, False]


def test_a_response_renders_its_first_row_even_if_it_is_late(monkeypatch):
    monkeypatch.setattr(rows, "RENDERED_SECONDS", -1.0)
    renderer = RowRenderer(Head())
    found = [renderer.html_of(Row("*a*", seq=seq)) for seq in (1, 2)]
    assert [html is None for html in found] == [False, True]


def test_only_replies_with_markup_are_markdown():
    assert is_markdown(Row("*a*"))
    assert not is_markdown(Row("a"))
    assert not is_markdown(Row("*a*", role="user"))
    assert not is_markdown(Row("*a*" * MAX_MARKDOWN_CHARS))
