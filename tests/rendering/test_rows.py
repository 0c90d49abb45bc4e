"""The HTML of stored messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from django.test import override_settings

from chatmemory import services
from chatmemory.rendering import budget, rows
from chatmemory.rendering import markdown as module
from chatmemory.rendering.budget import Share
from chatmemory.rendering.rows import RowRenderer, html_of, is_markdown
from chatmemory.rendering.text import MAX_MARKDOWN_CHARS
from tests.factories import make_messages, make_user
from tests.test_examples import run_example


@dataclass(frozen=True)
class Head:
    pk: int = 1
    scope: str = "user:1"


@dataclass(frozen=True)
class Row:
    text: str
    role: str = "assistant"
    seq: int = 1


@pytest.fixture(autouse=True)
def _empty_cache():
    module._cache.clear()
    yield
    module._cache.clear()


@pytest.mark.parametrize(
    ("row", "html"),
    [
        (Row("**a**[^1]\n\n[^1]: b"), '<a href="#m1-fn1" id="m1-fnref1-1"'),
        (Row("$x^2$"), '<math alttext="x^2">'),
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


def test_the_html_of_another_text_is_never_shown():
    html_of(Head(), Row("**secret**"))
    assert "secret" not in html_of(Head(), Row("**redacted**"))


def test_the_ids_of_footnotes_are_those_of_the_row():
    row = Row("a[^1]\n\n[^1]: b")
    assert 'id="m1-fn1"' in html_of(Head(), row)
    assert 'id="m2-fn1"' in html_of(Head(), replace(row, seq=2))


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


def test_the_texts_of_a_person_have_one_time_and_sessions_of_the_server_their_own(monkeypatch):
    monkeypatch.setattr(budget, "PERSON_SECONDS", 0.1)
    monkeypatch.setattr(budget, "_spent_by", budget._Spent())
    heads = [Head(pk, scope) for scope in ("user:1", "server") for pk in (1, 2)]
    shares = [Share(RowRenderer(head).person) for head in heads]
    for spent in (shares[0], shares[2]):
        spent.add(0.1)
    assert [share.is_spent() for share in shares] == [True, True, True, False]
    html = [html_of(head, Row(f"*{number}*")) for number, head in enumerate(heads)]
    assert ["<em>" in one for one in html] == [False, False, False, True]


def test_only_replies_with_markup_are_markdown():
    assert is_markdown(Row("*a*"))
    assert not is_markdown(Row("a"))
    assert not is_markdown(Row("*a*", role="user"))
    assert not is_markdown(Row("*a*" * MAX_MARKDOWN_CHARS))


def test_the_examples_of_the_page_render_a_text_and_a_page_of_rows(db):
    page, user = "docs/howto/rendering.md", make_user()
    names = run_example(page, 'prefix="answer-"', text="It is **here**.")
    assert names["html"] == "<p>It is <strong>here</strong>.</p>\n"
    talk = {"session_key": "talk", "by": services.Actor.user(user)}
    services.append_messages(**talk, messages=make_messages("<b>Hi</b>", "**Yo**"), create=True)
    given = {"services": services, "key": "talk", "actor": talk["by"]}
    shown = run_example(page, "RowRenderer(page.head)", **given)["shown"]
    assert shown[1] == "<p><strong>Yo</strong></p>\n"
