"""Marks for invisible characters, and plain texts."""

from __future__ import annotations

import pytest

from chatmemory.rendering.text import MAX_MARKDOWN_CHARS, first_words, has_markup, visible


def test_plain_text_and_long_text_have_no_markup():
    assert has_markup("a **b**")
    assert has_markup("- a")
    assert not has_markup("Just a sentence - with (brackets), and 2.5 numbers!")
    assert not has_markup("*" * (MAX_MARKDOWN_CHARS + 1))


@pytest.mark.parametrize("text", ["see https://a.example", "see www.a.example", "a@b.org", "$a$"])
def test_a_text_with_an_address_or_a_formula_has_markup(text):
    assert has_markup(text)


def test_hidden_characters_are_marked_and_letters_are_not():
    assert visible("a\u202eb\u2066\U000e0041\U000e0041") == "a⟦U+202E⟧b⟦U+2066⟧⟦U+E0041 \u00d72⟧"
    plain = "שלום مرحبا 👩‍👩‍👧 e\u0301 \uffff \ue000 \u200f"
    assert visible(plain) == plain


def test_the_first_words_end_between_words():
    assert first_words("  one\n two ") == "one two"
    assert first_words("word " * 30) == "word " * 11 + "word…"
    assert first_words("x" * 100) == "x" * 60 + "…"
