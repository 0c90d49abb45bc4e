"""Excerpts around matches."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory.search.analysis import Analyzer
from chatmemory.search.snippets import snippet

ANALYZER = Analyzer("english")


def excerpt(text: str, query: str, max_chars: int = 200) -> tuple[str, list[str]]:
    """Return a snippet, and its parts that match."""
    short, ranges = snippet(text, ANALYZER.matches(ANALYZER.parse(query), text), max_chars)
    return short, [short[start:end] for start, end in ranges]


def test_a_short_text_is_whole():
    assert excerpt("A red kite.", "kite") == ("A red kite.", ["kite"])


def test_spaces_become_one_and_ranges_stay():
    assert excerpt("\n  A \n\n red\t\tkite  ", "red kites") == ("A red kite", ["red", "kite"])


def test_a_long_text_is_cut_between_words_around_the_densest_matches():
    text = "kite " + "word " * 200 + "the red kite and a red kite " + "more " * 200
    short, found = excerpt(text, "red kite", 60)
    assert found == ["red", "kite", "red", "kite"]
    assert len(short) <= 60
    assert re.fullmatch(r"…(word )+the red kite and a red kite( more)+…", short)


def test_the_beginning_and_the_end_are_not_cut():
    assert excerpt("red " + "word " * 100, "red", 20)[0] == "red word word word…"
    assert excerpt("word " * 100 + "red", "red", 20)[0] == "…word word word red"


def test_without_matches_the_beginning_is_returned():
    assert snippet("word " * 100, [], 20) == ("word word word…", [])


def test_text_without_spaces_is_cut_inside():
    text = "東京" * 300 + "猫犬" + "京都" * 300
    short, found = excerpt(text, "猫犬", 50)
    assert (len(short), found) == (50, ["猫犬"])


def test_characters_that_change_the_direction_do_not_leak():
    short, found = excerpt("a \u202eevil\u2066 kite\x00\x1b[31m \u200fשלום", "kite")
    assert (short, found) == ("a evil kite[31m שלום", ["kite"])


def test_a_match_longer_than_the_snippet_is_cut():
    short, found = excerpt("a " + "x" * 500 + " b", "x" * 500, 40)
    assert len(short) <= 40
    assert found
    assert set(found[0]) == {"x"}


@pytest.mark.parametrize("max_chars", [0, 1, 2, 3, 10])
def test_a_tiny_snippet_is_no_longer(max_chars):
    short, _ = excerpt("some words and a kite in the middle of it", "kite", max_chars)
    assert len(short) <= max_chars


@pytest.mark.slow
@given(
    st.text(alphabet="ab \n\t\u202e\u0301東é😀.", max_size=400),
    st.lists(st.integers(0, 400), max_size=8),
    st.integers(0, 60),
)
def test_ranges_are_inside_and_in_order(text, places, max_chars):
    bounds = sorted({min(place, len(text)) for place in places})
    ranges = list(zip(bounds[::2], bounds[1::2], strict=False))
    short, kept = snippet(text, ranges, max_chars)
    assert len(short) <= max_chars
    assert "\u202e" not in short
    assert not re.search(r"\s\s|[\n\t]", short)
    flat = [place for pair in kept for place in pair]
    assert flat == sorted(flat)
    assert all(0 <= start < end <= len(short) for start, end in kept)
    if max_chars >= 50 and len(text) < 50:
        wanted = [re.sub(r"\s+|\u202e", "", text[start:end]) for start, end in ranges]
        assert [
            re.sub(r"\s", "", short[start:end]) for start, end in kept if short[start:end].strip()
        ] == [part for part in wanted if part]
