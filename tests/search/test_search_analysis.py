"""Terms of texts and queries, and the ranges that match."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatmemory.search import analysis
from chatmemory.search.analysis import (
    MAX_CHARS,
    MAX_TERM_CHARS,
    MAX_TERMS,
    MAX_TEXT_TERMS,
    Analyzer,
)

ENGLISH = Analyzer("english")
GERMAN = Analyzer("german")


def found(
    query: str, text: str, mode: analysis.Mode = "words", by: Analyzer = ENGLISH
) -> list[str]:
    """Return the parts of the text that match."""
    return [text[start:end] for start, end in by.matches(by.parse(query, mode), text)]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The dogs were running, running!", ["the", "dog", "were", "run", "run"]),
        ("東京都", ["東京", "京都"]),
        ("東京tower", ["東京", "tower"]),
        ("猫 カタカナ", ["猫", "カタ", "タカ", "カナ"]),
        ("ｶﾞｽ", ["ガス"]),
        ("안녕하세요 세계", ["안녕", "녕하", "하세", "세요", "세계"]),
        (unicodedata.normalize("NFD", "안녕 café"), ["안녕", "café"]),
        ("ﬁsh ① ＡＢＣ", ["fish", "1", "abc"]),
        ("a\x00b 😀 👩‍👩‍👧", ["a", "b"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("हिन्दी", ["हिन्दी"]),
        ("pass\u00adword zero\u200bwidth", ["password", "zerowidth"]),
        ("", []),
    ],
    ids=["english", "han", "mixed", "kana", "halfwidth", "korean", "decomposed", "compatible",
         "nul-emoji", "hebrew", "hindi", "invisible", "empty"],
)  # fmt: skip
def test_a_text_has_its_terms_in_order_with_duplicates(text, terms):
    assert ENGLISH.terms(text) == terms


def test_letters_with_and_without_the_turkish_dot_are_equal():
    terms = Analyzer("").terms("İstanbul istanbul ISPARTA ısparta")
    assert terms == ["istan", "istan", "ispar", "ispar"]


def test_only_the_first_characters_of_a_text_are_analyzed():
    text = "a " * (MAX_CHARS // 2) + "needle"
    assert "needl" not in ENGLISH.terms(text)
    assert found("needle", text) == []


def test_a_long_word_has_a_short_term():
    word = "x" * 5_000
    assert ENGLISH.terms(word) == ["x" * MAX_TERM_CHARS]
    assert found(word, f"a {word} b") == [word]


def test_a_language_that_snowball_lacks_has_the_beginnings_of_words():
    assert Analyzer("klingon").terms("runnings run") == ["runni", "run"]
    assert Analyzer("klingon").name == "1:klingon~5"


@pytest.mark.parametrize(
    "marks",
    [
        "\u0301" * 16_000 + "\u0316" * 15_000,
        "\u0301\uff9e" * 15_000,
        "\u0301\u200d" * 8_000 + "\u0316\u200d" * 7_000,
        "\u200d" * 31_000,
    ],
    ids=["unordered", "halfwidth", "apart", "invisible"],
)
def test_a_letter_with_many_marks_takes_no_long_time(marks):
    text = f"e{marks} kettle"
    start = time.process_time()
    assert ENGLISH.terms(text)[-1] == "kettl"
    assert found("kettle", text) == ["kettle"]
    assert time.process_time() - start < 0.5


def test_the_name_states_version_and_language():
    assert ENGLISH.name == "1:english"
    assert len(Analyzer("x" * 200).name) <= 32


def test_without_the_package_words_have_no_stems_and_the_analyzer_another_name(monkeypatch):
    monkeypatch.setattr(analysis, "snowballstemmer", None)
    analysis._stemmer.cache_clear()
    analysis._term_function.cache_clear()
    try:
        assert ENGLISH.terms("running") == ["runni"]
        assert ENGLISH.name == "1:english~5"
    finally:
        analysis._stemmer.cache_clear()
        analysis._term_function.cache_clear()


def test_a_query_drops_stop_words_unless_it_has_no_others():
    assert ENGLISH.parse("What is the sprint?").terms == ("sprint",)
    assert ENGLISH.parse("to be or not to be").terms == ("to", "be", "or", "not")


def test_a_query_has_distinct_terms_up_to_a_limit():
    assert ENGLISH.parse("run running runs").terms == ("run",)
    query = ENGLISH.parse(" ".join(f"word{n}" for n in range(600)))
    assert len(query.terms) == len(query.sources) == MAX_TERMS
    assert len(ENGLISH.parse("漢字仮名交じり文" * 500).terms) <= MAX_TERMS


def test_a_query_without_words_is_false():
    assert not ENGLISH.parse("?! \x00 😀")
    assert ENGLISH.parse("run", "prefix")


@pytest.mark.parametrize(
    ("query", "months", "years"),
    [
        ("What happened in May 2023?", {5}, {2023}),
        ("on 7 may", {5}, set()),
        ("March 8, 2024 or April", {3, 4}, {2024}),
        ("May I march in 2024?", set(), set()),
        ("Sept", {9}, set()),
        ("the year 2023", set(), set()),
    ],
    ids=["in", "number", "two", "other-words", "short", "year-alone"],
)
def test_a_query_names_months(query, months, years):
    parsed = ENGLISH.parse(query)
    assert (parsed.months, parsed.years) == (months, years)


@pytest.mark.parametrize(
    ("query", "text", "parts"),
    [
        ("dog", "Dogs! The dog's dogma.", ["Dogs", "dog"]),
        ("fish", "the ﬁsh, ＦＩＳＨ", ["ﬁsh", "ＦＩＳＨ"]),
        ("istanbul", "in İSTANBUL", ["İSTANBUL"]),
        ("strasse", "Die STRAẞE, Straße", ["STRAẞE", "Straße"]),
        ("café", unicodedata.normalize("NFD", "le café."), [unicodedata.normalize("NFD", "café")]),
        ("京都", "東京都と京都", ["京都", "京都"]),
        ("東京都", "東京都です", ["東京都"]),
        ("ガス", "ｶﾞｽ 代", ["ｶﾞｽ"]),
        ("password", "my pass\u00adword.", ["pass\u00adword"]),
        ("café", "le cafe\u00ad\u0301.", ["cafe\u00ad\u0301"]),
        ("kettle", "Straße, kettle, J\u030can", ["kettle"]),
        ("עולם", "שלום עולם", ["עולם"]),
        ("cat", "dog", []),
    ],
    ids=["stems", "compatible", "turkish", "sharp-s", "combining", "pairs", "run", "halfwidth",
         "invisible", "invisible-in-cluster", "longer-and-shorter", "hebrew", "none"],
)  # fmt: skip
def test_ranges_are_those_of_the_original_text(query, text, parts):
    assert found(query, text, by=Analyzer("english")) == parts


def test_a_german_compound_is_found_by_its_prefix_alone():
    text = "Die Donaudampfschifffahrt beginnt."
    assert found("Donaudampf", text, "prefix", GERMAN) == ["Donaudampfschifffahrt"]
    assert found("Donaudampf", text, "words", GERMAN) == []
    assert found("Schifffahrt", text, "prefix", GERMAN) == []


def test_only_the_last_word_is_a_prefix():
    query = ENGLISH.parse("the red kit", "prefix")
    assert (query.terms, query.prefix) == (("red",), "kit")
    assert found("red kit", "redder kitchen, red kite", "prefix") == ["kitchen", "red", "kite"]
    assert found("running", "run runnings", "prefix") == ["run", "runnings"]


def test_a_single_character_of_a_run_is_a_prefix_and_a_run_is_pairs():
    assert ENGLISH.parse("京", "prefix").prefix == "京"
    assert found("京", "京都 東京", "prefix") == ["京都"]
    assert ENGLISH.parse("東京都", "prefix").terms == ("東京", "京都")


def test_a_phrase_has_its_words_in_order_as_they_are():
    text = "To be,\nor NOT to be. To be or knot."
    assert found("to be or not", text, "phrase") == ["To be,\nor NOT"]
    assert found("runs fast", "running fast, runs  fast", "phrase") == ["runs  fast"]
    assert found("京都", "東京都と京", "phrase") == ["京都"]
    assert found("?", text, "phrase") == []


@pytest.mark.slow
@given(st.text(max_size=60), st.sampled_from(["words", "prefix", "phrase"]))
@example("İı\u0307̈ ﷺ ǰ", "words")
@example("ᄀ\u1161\u11a8ﾞ각", "phrase")
def test_a_text_matches_itself_within_its_bounds(text, mode):
    query = ENGLISH.parse(text, mode)
    ranges = ENGLISH.matches(query, text)
    assert bool(ranges) == bool(query) or len(query.terms) == MAX_TERMS
    places = [place for pair in ranges for place in pair]
    assert places == sorted(places)
    assert all(0 <= start < end <= len(text) for start, end in ranges)


@given(st.text(max_size=40))
def test_terms_do_not_depend_on_the_form_of_normalization(text):
    decomposed = unicodedata.normalize("NFKD", text)
    assert ENGLISH.terms(decomposed) == ENGLISH.terms(unicodedata.normalize("NFKC", decomposed))


@given(st.text(max_size=4_000))
def test_any_text_is_a_query(text):
    query = ENGLISH.parse(text)
    assert len(query.terms) <= MAX_TERMS
    assert all(len(term) <= MAX_TERM_CHARS + 1 for term in query.terms)


@pytest.mark.parametrize("text", ["a ", "é ", "漢字"], ids=["ascii", "latin", "han"])
def test_a_text_has_so_many_terms(text):
    assert len(Analyzer("english").terms(text * (MAX_CHARS // 2))) == MAX_TEXT_TERMS
