"""What is rendered, its cache, and texts above the limits."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.utils import translation

from chatmemory.rendering import budget, cache, highlighting, mathml
from chatmemory.rendering import markdown as module
from chatmemory.rendering.cache import Cache
from chatmemory.rendering.highlighting import CLASSES, LANGUAGES
from chatmemory.rendering.markdown import MarkdownStream, markdown
from chatmemory.rendering.text import MAX_MARKDOWN_CHARS
from tests.rendering.hostile import HOSTILE, WIDE_TABLE
from tests.rendering.test_notes import dead_links

CODE = '<pre tabindex="0" role="group" aria-label="Code"><code'


@pytest.fixture
def empty_cache():
    module._cache.clear()
    yield
    module._cache.clear()


@pytest.fixture
def no_mathml(monkeypatch, empty_cache):
    monkeypatch.setattr(mathml, "IS_INSTALLED", False)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**a** _b_ `c` ~~d~~", "<p><strong>a</strong> <em>b</em> <code>c</code> <del>d</del></p>"),
        ("a\nb", "<p>a<br>\nb</p>"),
        ("2. b", '<ol start="2">\n<li>b</li>\n</ol>'),
        ("a & b < c", "<p>a &amp; b &lt; c</p>"),
        ("<b>a</b>", "<p>&lt;b&gt;a&lt;/b&gt;</p>"),
        ("\u202ea", "<p>⟦U+202E⟧a</p>"),
        ("&#x202e;a", "<p>⟦U+202E⟧a</p>"),
        ("a\0b\ud800", "<p>a\ufffdb\ufffd</p>"),
        ("a\r\nb\rc", "<p>a<br>\nb<br>\nc</p>"),
        ("", ""),
    ],
)
def test_markdown(text, html):
    assert markdown(text).strip() == html


@pytest.mark.parametrize(
    "formula",
    [
        *("$a_1 * b_2 * c$", "$$\\sum_{i} a_i * b_i * c$$", "\\(a_1 * b_2 * c\\)", "\\[a*b*c\\]"),
        *("$\\{x\\}$", "$`x`$", "$[a](b)$", "$x\\$y$", "\\(a\\\\b\\)", "$<x>$", "$a$"),
    ],
)
def test_a_formula_is_not_changed(no_mathml, formula):
    shown = formula.replace("<", "&lt;").replace(">", "&gt;")
    assert f'<span class="math">{shown}</span>' in markdown(f"see {formula}, b")


@pytest.mark.parametrize(
    "formula",
    [
        *("$$a_1$$", "\\[a_1\\]", "$$\na_1 * b * c\n\n- d\n\n    e\n$$", "\\[\na\n\nb_1_\n\\]"),
        *("$$ a\nb $$", "$$x$$.", "\\[x\n\\],"),
    ],
)
def test_a_formula_in_lines_of_its_own_is_a_block(no_mathml, formula):
    attributes = 'tabindex="0" role="group" aria-label="Formula"'
    block = f'<div class="math" {attributes}>{formula}</div>'
    assert markdown(formula) == f"{block}\n"
    assert markdown(f"a\n{formula}\nb") == f"<p>a</p>\n{block}\n<p>b</p>\n"
    assert block.partition("\n")[0] in markdown(f"- a\n{formula}")
    quoted = "> " + formula.replace("\n", "\n> ")
    assert markdown(quoted) == f"<blockquote>\n{block}\n</blockquote>\n"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "$5 and $6",
            "a $ b $ c",
            "US$5, CA$6",
            "$HOME:$PATH",
            "a$b c$",
            "\\$a\\$",
            "$",
            "$$",
            "$$$$",
            "\\(\\)",
        ),
        *("$ a$", "\\(a", "`$a$`", "a\\\\(b\\\\)", "\\[a\\](https://a.example)"),
    ],
)
def test_prices_variables_and_escapes_are_no_formulas(text):
    assert "math" not in markdown(text)


@pytest.mark.parametrize(
    "text",
    ["$$\na\n\n# b", "\\[\na\n\n```\nb\n```", "> $$\n> # b\n> $$", "> $$\n\na\n$$", "- $$\n\na"],
)
def test_a_formula_that_is_not_closed_is_text(text):
    assert "math" not in markdown(text)


def test_a_definition_without_a_link_and_a_repeated_one_are_shown_at_the_end():
    html = markdown("[a]: /b\n[c]: /d 'e'\n[A]: /f\n\n[a]\n\n> [g]: /h\n")
    assert html.partition("</p>\n")[2] == (
        "<blockquote></blockquote>\n"
        '<p class="definition">[c]: /d &#x27;e&#x27;</p>\n'
        '<p class="definition">[A]: /f</p>\n<p class="definition">[g]: /h</p>\n'
    )


def test_a_footnote_does_not_use_a_definition_of_its_name():
    assert '<p class="definition">[1]: /b</p>' in markdown("[1]: /b\n\na[^1]\n\n[^1]: c")


def test_footnotes_are_at_the_end_with_links_in_both_directions():
    html = markdown("a[^x] b[^y] c[^x]\n\n[^y]: d\n[^x]: e[^z]\n[^z]: f\n\n        g", prefix="m1-")
    marks = [
        f'<a href="#m1-fn{number}" id="m1-fnref{ref}"' for number, ref in ((1, "1-1"), (2, "2-1"))
    ]
    assert all(mark in html for mark in marks)
    assert html.count('class="footnote-back"') == 4
    notes = html.partition('<section class="footnotes">')[2]
    assert notes.index('id="m1-fn1"><p>e') < notes.index('id="m1-fn2"><p>d')
    assert notes.index('id="m1-fn3"><p>f') < notes.index("<pre")
    assert "[^" not in html


def test_a_footnote_without_a_mark_and_a_repeated_one_are_shown():
    html = markdown("a[^x]\n\n[^x]: b\n\n[^x]: c\n\n[^y]: d")
    assert html.count("<li id=") == 3
    assert html.count("footnote-back") == 1
    assert all(f"<p>{text}" in html for text in "abcd")


def test_a_mark_without_a_footnote_is_text():
    assert markdown("a[^x]") == "<p>a[^x]</p>\n"


def test_the_footnotes_of_two_texts_have_different_ids():
    text = "a[^1]\n\n[^1]: b"
    assert 'id="m1-fn1"' in markdown(text, prefix="m1-")
    assert 'id="m2-fn1"' in markdown(text, prefix="m2-")


@pytest.mark.parametrize("prefix", ["1", "a b", 'a"', "-"])
def test_a_prefix_that_cannot_begin_an_id_is_an_error(prefix):
    with pytest.raises(ValueError, match="cannot begin an id"):
        markdown("a", prefix=prefix)


def test_code_has_the_class_of_its_language_and_is_highlighted():
    assert markdown("```python x\ndef f(): # a\n```") == (
        f'{CODE} class="language-python"><span class="hl-keyword">def</span> '
        '<span class="hl-name">f</span>(): <span class="hl-comment"># a</span>\n</code></pre>\n'
    )
    assert markdown("```nonsense\na <b\n```") == (
        f'{CODE} class="language-nonsense">a &lt;b\n</code></pre>\n'
    )


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_each_language_keeps_the_code(language):
    code = "\ufeffclass A:\n  <b> 'x' # ü \t \n\n" + '-- "/*\n' * 3
    html = markdown(f"```{language}\n{code}```")
    for name in CLASSES:
        html = html.replace(f'<span class="{name}">', "")
    text = html.replace("</span>", "").replace("&lt;", "<").replace("&gt;", ">")
    assert text == f'{CODE} class="language-{language}">{code}</code></pre>\n'


def test_a_language_that_pygments_does_not_know_is_plain(monkeypatch):
    monkeypatch.setattr(highlighting, "LANGUAGES", {"nonsense"})
    assert markdown("```nonsense\nif\n```").count("<span") == 0


@pytest.mark.slow
def test_the_time_to_load_a_lexer_is_not_counted(monkeypatch, empty_cache):
    load = highlighting.find_lexer_class_by_name

    def slow(name):
        started = time.thread_time()
        while time.thread_time() - started < 0.3:
            pass
        return load(name)

    monkeypatch.setattr(highlighting, "find_lexer_class_by_name", slow)
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.2)
    highlighting._lexer_class.cache_clear()
    assert "hl-keyword" in markdown("```python\n" + "if a:\n  b = 1\n" * 20 + "```")


def test_rendering_in_another_thread_is_equal(empty_cache):
    text = "```python\nif\n```\n\na[^1] $b$\n\n[^1]: c"
    html = markdown(text)
    module._cache.clear()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(markdown, text).result() == html


WHOLE = (
    *("open brackets", "mixed emphasis", "open code", "open tags", "deep quotes in lines"),
    *("lists in a line", "definitions", "narrow tables", "open blocks of formulas"),
)
"""One of each kind of hostile text, which `make test` renders at the full length."""


def hostile_texts():
    for name in HOSTILE:
        yield pytest.param(name, 2_000, id=name)
        cost = pytest.mark.slow if name in WHOLE else pytest.mark.long
        yield pytest.param(name, MAX_MARKDOWN_CHARS, id=f"{name}, whole", marks=cost)


@pytest.mark.parametrize(("name", "chars"), [*hostile_texts()])
def test_a_hostile_text_stays_within_its_budget(name, chars, empty_cache):
    text = HOSTILE[name][:chars]
    html = markdown(text)
    assert len(html) <= 17 * len(text)
    assert html.count("<td") + html.count("<th>") <= budget.MAX_TABLE_CELLS
    assert dead_links(html) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_streamed_in_few_steps(name, monkeypatch):
    """The steps of the parser grow with the text, not with the number of its pieces."""
    monkeypatch.setattr(budget, "MAX_SECONDS", 60.0)
    text = HOSTILE[name][:1_000]
    steps = []
    for size in (7, len(text)):
        stream = MarkdownStream()
        for start in range(0, len(text), size):
            stream.feed(text[start : start + size])
        stream.close()
        steps.append(stream._document._budget.steps)
    assert steps[0] == steps[1]


@pytest.mark.slow
def test_a_table_of_200_by_300_is_cut_at_the_limit_of_cells():
    html = markdown(WIDE_TABLE + "a\n" * 299)
    assert html.count("<td>") + html.count("<th>") <= budget.MAX_TABLE_CELLS
    full = WIDE_TABLE + WIDE_TABLE.rpartition("-\n")[2] * 299
    assert len(full) > 120_000
    assert markdown(full).count("<td>") == budget.MAX_TABLE_CELLS - 200


@pytest.mark.slow
@pytest.mark.regression
def test_rows_of_a_table_above_the_limit_of_cells_are_text():
    html = markdown("|a|b|\n|-|-|\n" + "|1|2|\n" * 2_000)
    cells = html.count("<td>") + html.count("<th>")
    assert budget.MAX_TABLE_CELLS * 0.9 < cells <= budget.MAX_TABLE_CELLS
    assert html.count("|1|2|") == 2_000 - (cells - 2) / 2


@pytest.mark.slow
def test_all_tables_of_a_text_share_the_limit_of_cells():
    html = markdown("|a|b|\n|-|-|\n|1|2|\n\n" * 1_000)
    assert html.count("<td>") + html.count("<th>") <= budget.MAX_TABLE_CELLS


@pytest.mark.regression
@pytest.mark.parametrize("depth", [17, 18, 19, 25])
@pytest.mark.parametrize("part", ["> ", "- "])
def test_no_text_disappears_in_deep_quotes_and_lists(part, depth):
    html = markdown(f"{part * depth}word\n\nnext")
    assert "word" in html
    assert html.endswith("<p>next</p>\n")


@pytest.mark.regression
@pytest.mark.parametrize(
    "text", ["*a* " * 1_000, "---\n" * 1_000, "a[^1]\n\n[^1]: " + "*b* " * 999]
)
def test_a_text_that_takes_too_long_is_only_escaped(text, monkeypatch, empty_cache):
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.0)
    html = markdown(f"<b>\n{text}")
    assert html.startswith("<p>&lt;b&gt;<br>\n")
    assert text.rstrip("\n").replace("\n", "<br>\n") in html or "[^1]: *b*" in html


@pytest.mark.regression
def test_a_text_is_rendered_once(monkeypatch, empty_cache):
    html = markdown("**a**")
    monkeypatch.delattr(module, "_parser")
    assert markdown("**a**") == html
    with pytest.raises(NameError):
        markdown("**b**")


def test_a_text_is_rendered_once_for_each_language_and_prefix_of_its_notes(
    monkeypatch, empty_cache
):
    html = markdown("**a**", prefix="x-")
    noted = markdown("a[^1]\n\n[^1]: b", prefix="x-")
    monkeypatch.delattr(module, "_parser")
    assert markdown("**a**", prefix="y-") == html
    assert markdown("a[^1]\n\n[^1]: b", prefix="x-") == noted
    with pytest.raises(NameError):
        markdown("a[^1]\n\n[^1]: b", prefix="y-")
    with translation.override("de"), pytest.raises(NameError):
        markdown("**a**")


@pytest.mark.parametrize(("language", "limit"), [("java", 10_000), ("console", 4_000)])
def test_code_above_the_limit_of_its_language_is_not_highlighted(language, limit):
    line = "$ if # a\n"
    assert "hl-" in markdown(f"```{language}\n{line * ((limit - 1) // len(line))}```")
    assert "hl-" not in markdown(f"```{language}\n{line * (limit // len(line) + 1)}```")


def test_code_without_colors_when_their_time_is_over_and_the_rest_is_rendered(
    monkeypatch, empty_cache
):
    monkeypatch.setattr(budget, "MAX_CODE_SECONDS", 0.0)
    html = markdown("*a*\n\n```java\nint a;\n```\n\n*b*\n\n```java\nint b;\n```")
    assert "hl-" not in html
    assert html.count("<em>") == html.count("</pre>") == 2


@pytest.mark.slow
def test_all_code_of_a_text_has_one_time(monkeypatch, empty_cache):
    monkeypatch.setattr(highlighting, "_lexer_class", lambda name: Slow)
    html = markdown("```java\na\n```\n\n" * 9)
    assert 0 < html.count("hl-keyword") <= 5


class Slow:
    """A lexer that needs a quarter of the time for code."""

    def __init__(self, **options):
        pass

    def get_tokens(self, code):
        until = time.thread_time() + budget.MAX_CODE_SECONDS / 4
        while time.thread_time() < until:
            pass
        yield "Token.Keyword", code


def test_the_cache_evicts_the_least_recently_used_text(monkeypatch):
    monkeypatch.setattr(cache, "CACHED_CHARS", 3 * (cache.ENTRY_CHARS + 1))
    cached = Cache()
    for text in "abc":
        cached.put(text, "x")
    cached.get("a")
    cached.put("d", "x")
    assert [cached.get(text) for text in "abcd"] == ["x", None, "x", "x"]
