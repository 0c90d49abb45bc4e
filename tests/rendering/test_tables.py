"""Tables that arrive in pieces: each row is rendered once, and is a part of the stored HTML."""

from __future__ import annotations

import random

import pytest

from chatmemory.rendering import budget
from chatmemory.rendering import markdown as module
from chatmemory.rendering.blocks import Kind
from chatmemory.rendering.markdown import MarkdownStream, _Document, markdown
from chatmemory.rendering.parser import Parser
from chatmemory.rendering.tables import is_head
from tests.rendering.hostile import FUZZ_FACTOR
from tests.rendering.pieces import streamed

HEAD = "| a | b |\n|---|--:|\n"


@pytest.fixture(autouse=True)
def _empty_cache():
    module._cache.clear()
    yield
    module._cache.clear()


def parts_of(text):
    """Return what a stream returns for each line, and at the end."""
    stream = MarkdownStream()
    fed = ["".join(stream.feed(line)) for line in text.splitlines(keepends=True)]
    return [*fed, "".join(stream.close())]


def test_the_head_is_a_part_when_its_delimiter_is_complete_and_then_each_row():
    text = f"{HEAD}| c | 1 |\n| *d* | `e\\|f` |\n\ng"
    head, first, second, end = parts_of(text)[1:5]
    assert parts_of(text)[0] == ""
    assert head.startswith('<div class="table-scroll"')
    assert head.endswith('<th class="align-right">b</th>\n</tr>\n</thead>\n')
    assert first == '<tbody>\n<tr>\n<td>c</td>\n<td class="align-right">1</td>\n</tr>\n'
    assert second == (
        '<tr>\n<td><em>d</em></td>\n<td class="align-right"><code>e|f</code></td>\n</tr>\n'
    )
    assert end == "</tbody></table></div>\n"
    assert "".join(parts_of(text)) == markdown(text)


def test_a_table_without_rows_and_one_at_the_end_are_closed():
    assert "".join(parts_of(HEAD)) == markdown(HEAD)
    assert markdown(HEAD).endswith("</thead>\n</table></div>\n")
    text = f"{HEAD}| c | 1 |"
    assert "".join(parts_of(text)) == markdown(text)
    assert markdown(text).endswith("</tr>\n</tbody></table></div>\n")


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("|a|b|\n", "block"),
        ("|a|b|\n|--\n", "block"),
        ("|a|b|\n|-|\n", "block"),
        ("a\n-|-\n", "block"),
        ("a|\n-\n", "block"),
        ("a|\n- \n", "block"),
        ("a|b\n- |-\n", "block block"),
        ("a|b\n-|-\n", "head end"),
        ("a|\n:-\n", "head end"),
        ("|a\\|b|\n|-|\n", "head end"),
        ("c\na|b\n-|-\nd|e\n", "block head row end"),
        ("a|b\n-|-\nd\n\ne\n", "head row end block"),
        ("a|b\n-|-\n# d\n", "head end block"),
        ("a|b\n-|-\n- d\n", "head end block"),
        ("a|b\n-|-\n> d\n", "head end block"),
        ("a|b\n-|-\n---\n", "head end block"),
        ("a|b\n-|-\n```\nd|e\n", "head end block"),
        ("a|b\n-|-\n    d|e\n", "head end block"),
        ("a|b\n-|-\n$$\nd\n$$\n", "head end block"),
        ("a|b\n-|-\n-|-\n", "head row end"),
        ("- a|b\n  -|-\n  d|e\n", "block"),
        ("> a|b\n> -|-\n> d|e\n", "block"),
    ],
)
def test_where_a_table_starts_and_ends(text, kinds):
    blocks = _Document("", (), budget.Share()).split(text)
    assert [block.kind for block in blocks] == [Kind(name) for name in kinds.split()]
    assert "".join(block.source for block in blocks) == text


def test_a_table_in_a_list_or_a_quote_is_rendered_as_a_whole():
    for prefix in ("> ", "- a\n\n  "):
        text = prefix + f"{HEAD}| c | 1 |\n".replace("\n", f"\n{prefix[-2:]}")
        assert markdown(text).count("<tr>") == 2


def test_missing_cells_are_empty_and_further_ones_are_omitted():
    html = markdown(f"{HEAD}| c |\n| d | 1 | e |\n")
    assert '<td>c</td>\n<td class="align-right"></td>\n</tr>' in html
    assert '<td>d</td>\n<td class="align-right">1</td>\n</tr>' in html


@pytest.mark.parametrize("bar", ["|", "\\|", "\\\\|", "`|`", "||", "", " "])
def test_a_row_is_that_of_the_library(bar):
    """The rows that are rendered one by one are those of the table as a whole."""
    head = "|a|b|c|\n|-|:-:|-|\n"
    lines = [f"{bar}d{bar}e{bar}", f" | {bar}f | g{bar} | h ", f"{bar}"]
    text = head + "".join(f"{line}\n" for line in lines if line.strip())
    env = {"budget": budget.Budget(budget.Share()), "definitions": [], "footnotes": {"refs": {}}}
    whole = [token.content for token in Parser().parse_blocks(text, env) if token.type == "inline"]
    document = _Document("", (), budget.Share())
    parsed = [token for block in document.split(text) for token in document.parse(block) or ()]
    assert [token.content for token in parsed if token.type == "inline"] == whole


def test_the_rows_of_a_long_table_are_rendered_once(monkeypatch):
    """The work of a table grows with its rows, and not with their square."""
    chars = []
    render = _Document._html_of

    def counted(self, tokens):
        html = render(self, tokens)
        chars.append(len(html))
        return html

    monkeypatch.setattr(_Document, "_html_of", counted)
    text = HEAD + "| word | 1 |\n" * 950
    html = streamed(text, random.Random(1))  # noqa: S311  # not for security
    assert html.count("<tr>") == 951
    assert len(chars) == 951
    assert sum(chars) <= len(html)
    assert max(chars[1:]) < 100


def test_above_the_limit_of_cells_the_table_ends_and_the_rows_are_text(monkeypatch):
    monkeypatch.setattr(budget, "MAX_TABLE_CELLS", 4)
    text = f"{HEAD}| c | 1 |\n| d | *2* |\n| e | 3 |\n\nf"
    html = markdown(text)
    assert html.endswith(
        "</tr>\n</tbody></table></div>\n<p>| d | *2* |</p>\n<p>| e | 3 |</p>\n<p>f</p>\n"
    )
    assert "".join(parts_of(text)) == html


def test_a_head_above_the_limit_of_cells_is_text(monkeypatch):
    monkeypatch.setattr(budget, "MAX_TABLE_CELLS", 1)
    text = f"{HEAD}| c | 1 |\n"
    assert "<t" not in markdown(text)
    assert markdown(text).endswith("<p>| c | 1 |</p>\n")
    assert "".join(parts_of(text)) == markdown(text)


def test_a_row_that_grows_too_much_ends_the_table(monkeypatch):
    monkeypatch.setattr(budget, "FREE_CHARS", 300)
    text = f"{HEAD}| c | 1 |\n" + "|\n" * 9
    html = markdown(text)
    assert html.endswith("</tbody></table></div>\n" + "<p>|</p>\n" * html.count("<p>|</p>"))
    assert html.count("<p>|</p>") > 0
    assert "".join(parts_of(text)) == html


def test_a_row_may_use_a_definition_that_follows_and_a_footnote():
    text = f"{HEAD}| [c] | d[^1] |\n\n[c]: /e\n\n[^1]: f"
    html = markdown(text)
    assert '<td><a href="/e"' in html
    assert 'id="fnref1-1"' in html
    assert "definition" not in html


def test_a_title_that_looks_like_the_end_of_a_table_is_a_title():
    text = f'{HEAD}| [c](/d "</tbody></table></div><b>") | 1 |\n| e | 2 |\n'
    html = markdown(text)
    assert "".join(parts_of(text)) == html
    assert "<td>e</td>" in html
    assert "<b>" not in html.replace('title="</tbody></table></div><b>"', "")


@pytest.mark.parametrize("delimiter", ["-" * 30_000, "|-" * 15_000, ":" * 30_000, "- " * 15_000])
def test_a_long_delimiter_is_read_in_one_pass(delimiter):
    assert is_head("a|b", delimiter) is False


# A reply with everything

LETTERS = "".join(f"| item {n} | ${n}.50 | $x_{n}$ |\n" for n in range(12))
CODE = "".join(f"def f{n}(value):\n    return value * {n}\n\n" for n in range(20))
EVERYTHING = f"""# A report

Prices from $5 to $10, and $e^{{i\\pi}} = -1$:
| name | price | formula |
|:-----|------:|:-------:|
{LETTERS}
- one, \\(a \\le b\\)
- two
  - three

$$
\\sum_{{i=1}}^n \\frac{{a_i}}{{b}}
$$

```python
{CODE}```

| a | b |
|---|---|
| `c\\|d` | e \\| f |
| [g](https://example.org "h") | |
\\[ x^2 \\]
The end."""


def check_cuts(seed, count):
    stored = markdown(EVERYTHING)
    assert (stored.count("<tr>"), stored.count("<math"), stored.count("<table>")) == (16, 16, 2)
    choice = random.Random(seed)  # noqa: S311  # not for security
    for _ in range(count):
        stream = MarkdownStream()
        html = ""
        cuts = sorted(choice.choices(range(len(EVERYTHING)), k=choice.choice((3, 30, 300))))
        for begin, end in zip([0, *cuts], [*cuts, len(EVERYTHING)], strict=True):
            html += "".join(stream.feed(EVERYTHING[begin:end]))
            assert stored.startswith(html)
        assert html + "".join(stream.close()) == stored


@pytest.mark.slow
def test_the_parts_of_a_reply_are_the_stored_html_for_any_cuts():
    check_cuts(1, 10)


@pytest.mark.long
def test_the_parts_of_a_reply_are_the_stored_html_for_more_cuts():
    check_cuts(2, 600 * FUZZ_FACTOR)
