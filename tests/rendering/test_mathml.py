"""Formulas as MathML, and what of a hostile formula reaches the page."""

from __future__ import annotations

import random
import time

import pytest

from chatmemory.rendering import budget, mathml
from chatmemory.rendering import markdown as module
from chatmemory.rendering.budget import Budget, Share
from chatmemory.rendering.markdown import markdown
from tests.rendering.hostile import FUZZ_FACTOR, hostile_formula, hostile_table
from tests.rendering.test_safety import Checked

X2 = '<math alttext="x^2"><msup><mi>x</mi><mn>2</mn></msup></math>'


@pytest.fixture(autouse=True)
def _empty_cache():
    module._cache.clear()
    yield
    module._cache.clear()


def converted(latex):
    return mathml.mathml(latex, Budget(Share()), is_block=False)


@pytest.mark.parametrize("formula", ["$x^2$", "\\(x^2\\)", "\\( x^2 \\)"])
def test_a_formula_in_a_line_is_mathml_with_its_source(formula):
    assert markdown(f"see {formula}") == f'<p>see <span class="math">{X2}</span></p>\n'


@pytest.mark.parametrize("formula", ["$$x^2$$", "\\[x^2\\]", "$$\nx^2\n$$", "\\[\n  x^2 \\]"])
def test_a_formula_in_lines_of_its_own_is_a_block_of_mathml(formula):
    block = X2.replace('x^2"', 'x^2" display="block"')
    assert f'aria-label="Formula">{block}</div>\n' in markdown(formula)
    assert "<mo>.</mo>" in markdown(f"{formula}.")


@pytest.mark.parametrize(
    "text",
    ["$5 and $10", "from $5 to $10.", "US$5, a $ b $", "$1a$2", "$a $", "$A/$B, ${A}/${B}"],
)
def test_prices_and_shell_variables_are_text(text):
    assert markdown(text) == f"<p>{text}</p>\n"


@pytest.mark.parametrize(
    ("latex", "part"),
    [
        (r"\frac{a}{b}", "<mfrac><mi>a</mi><mi>b</mi></mfrac>"),
        (r"\mathbb{R}", "<mi>\N{DOUBLE-STRUCK CAPITAL R}</mi>"),
        (r"\mathrm{d}x", '<mi mathvariant="normal">d</mi><mi>x</mi>'),
        (r"\boxed{x}", '<menclose notation="box"><mi>x</mi></menclose>'),
        (r"\sin x", '<mi>sin</mi><mspace width="0.167em"></mspace><mi>x</mi>'),
        (r"2\log^2 x", '<mn>2</mn><mspace width="0.167em"></mspace><msup><mi>log</mi>'),
        (r"\sin(x)", "<mi>sin</mi><mo"),
        (r"\begin{aligned}a&=b\end{aligned}", '<mtd class="align-right"><mi>a</mi></mtd>'),
        (r"\begin{gathered}a\\b\end{gathered}", "<mtr><mtd><mi>b</mi></mtd></mtr>"),
        (r"\begin{dcases}a\end{dcases}", '<mtd class="align-left"><mi>a</mi></mtd>'),
        (r"a<b", "<mo>&lt;</mo>"),
        (r"\text{if }x", "<mtext>if\N{NO-BREAK SPACE}</mtext>"),
    ],
)
def test_common_formulas(latex, part):
    assert part in markdown(f"$${latex}$$").replace("&nbsp;", "\N{NO-BREAK SPACE}")


def test_the_lines_of_an_alignment_have_no_numbers():
    assert "(1)" not in markdown(r"$$\begin{align}a&=b\\c&=d\end{align}$$")


UNSUPPORTED = {
    "an unknown command": r"\nonsense{x}",
    "an unknown environment": r"\begin{nonsense}a & b\end{nonsense}",
    "a line end outside a table": r"a \\ b",
    "struck out": r"\cancel{x}",
    "invisible": r"\phantom{x}",
    "a comment": "a % b",
    "a macro": r"\newcommand{\a}{b} \a",
    "a definition": r"\def\a{b} \a",
    "an error": r"\frac{a}",
    "unbalanced": r"\left( a",
    "double": "a^b^c",
    "deep": "{" * 51 + "a" + "}" * 51,
    "deeper than Python's limit": r"\sqrt{" * 300 + "a" + "}" * 300,
    "many commands": r"\hat" * 400 + " a",
    "long": "a" * (mathml.MAX_FORMULA_CHARS + 1),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_formula_is_shown_as_source(name):
    latex = UNSUPPORTED[name]
    assert converted(latex) is None
    assert markdown(f"a ${latex}$") == f'<p>a <span class="math">${latex}$</span></p>\n'.replace(
        "&", "&amp;"
    )


def test_the_depth_at_which_source_is_shown_does_not_depend_on_the_caller():
    """At the limit, a formula needs less than half of the stack that Python allows."""

    def below(frames, latex):
        return below(frames - 1, latex) if frames else converted(latex)

    deepest = [
        "{" * 49 + "a" + "}" * 49,
        r"\sqrt{" * 24 + "a" + "}" * 24,
        r"\hat" * 48 + " a",
        r"\left(" * 49 + "a" + r"\right)" * 49,
        r"\begin{matrix}" * 24 + "a" + r"\end{matrix}" * 24,
        r"\mathbf{\bm" * 16 + " a" + "}" * 16,
    ]
    for latex in deepest:
        assert converted(latex) is not None
        assert below(500, latex) == converted(latex)


def test_the_library_must_not_expand_macros():
    """One formula of 200 characters would become a million symbols."""
    doubled = "".join(
        rf"\newcommand{{\{b}}}{{\{a}\{a}}}" for a, b in zip("abcdef", "bcdefg", strict=True)
    )
    assert converted(doubled + r"\g") is None


def test_formulas_above_their_time_are_shown_as_source(monkeypatch):
    monkeypatch.setattr(budget, "MAX_FORMULA_SECONDS", 0.0)
    html = markdown("$x^2$ $x^3$")
    assert html.startswith('<p><span class="math"><math')
    assert html.endswith('<span class="math">$x^3$</span></p>\n')


def test_spaces_in_a_block_are_read_once():
    text = "$$\na" + " " * 29_000 + "a\n$$"
    started = time.thread_time()
    assert " " * 29_000 in markdown(text)
    assert time.thread_time() - started < budget.MAX_SECONDS


def test_a_text_full_of_formulas_is_within_its_growth():
    """The MathML of a short formula has more than 16 characters for each of its own."""
    assert markdown("$x'$ " * 1_000).count("<math") == 1_000


def test_a_link_with_a_formula_shows_its_host():
    html = markdown(r"[$\text{bank.example}$](https://evil.example)")
    assert '</a><span class="link-host"> (evil.example)</span>' in html


HOSTILE = {
    r"\href{javascript:alert(1)}{x}": "javascript",
    r"\style{position:fixed}{x}": "position",
    r"\class{cm-row}{x}": "cm-row",
    r"\color{red}{x}": "red",
    r"\colorbox{black}{x}": "black",
    r"\hspace{-9em}x": "-9em",
    r"\hspace{90em}x": "90em",
    r"\raise{9em}{x}": "9em",
    r"\smash{x}": "0px",
    r"{\Huge x}": "2.49em",
}


@pytest.mark.parametrize("latex", HOSTILE)
def test_a_formula_has_no_address_style_color_or_place(latex):
    html = markdown(f"$${latex}$$")
    Checked(html)
    assert HOSTILE[latex] not in html.partition('display="block">')[2]


def test_scripts_and_hidden_characters_in_a_formula_are_text():
    html = markdown("$\\text{<script>alert(1)</script>}\\unicode{x202e}\u202e$")
    Checked(html)
    assert "\u202e" not in html
    assert html.count("⟦U+202E⟧") == 3  # also in the source
    assert "<mtext>&lt;script&gt;alert(1)&lt;/script&gt;</mtext>" in html


def check_hostile(seed, count):
    choice = random.Random(seed)  # noqa: S311  # not for security
    for _ in range(count):
        text = hostile_formula(choice) if choice.random() < 0.7 else hostile_table(choice)
        started = time.thread_time()
        html = markdown(text)
        # Twice the limit: the time is read after each formula, and every 64 steps.
        assert time.thread_time() - started < 2 * budget.MAX_SECONDS, text
        Checked(html)
        assert len(html) <= max(2 * budget.FREE_CHARS, 2 * budget.MAX_GROWTH * len(text)), text
        assert html.count("<td") + html.count("<th") <= budget.MAX_TABLE_CELLS + html.count(
            "<thead"
        )


@pytest.mark.slow
def test_hostile_formulas_and_tables_are_inert_and_within_the_budget():
    check_hostile(1, 200)


@pytest.mark.long
def test_more_hostile_formulas_and_tables_are_inert_and_within_the_budget():
    check_hostile(2, 1_000 * FUZZ_FACTOR)
