"""The scorer, compared with a plain one, and what its scores depend on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory.search import scoring
from chatmemory.search.analysis import Analyzer, Query
from chatmemory.search.blocks import Block, BlockRow, pack
from chatmemory.search.scoring import Part, Scored, Why, is_relevant, matching, score

ANALYZER = Analyzer("english")
START = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A row of a test."""

    text: str
    session: int = 1
    seq: int = 1
    role: str = "user"
    name: str | None = None
    minute: int = 0
    """Since START."""
    is_hidden: bool = False


def rows_of(*texts: str, **fields: object) -> list[Said]:
    """Return rows of one session."""
    return [Said(text=text, seq=n, **fields) for n, text in enumerate(texts, 1)]  # type: ignore[arg-type]  # fields of Said


def parts_of(rows: Sequence[Said], sizes: Sequence[int] = (128,)) -> list[Part]:
    """Return the rows in blocks of these sizes, again and again."""
    parts: list[Part] = []
    at = 0
    while at < len(rows):
        size = sizes[len(parts) % len(sizes)]
        group = [row for row in rows[at : at + size] if row.session == rows[at].session]
        at += len(group)
        packed = pack(
            [
                BlockRow(
                    place=row.seq - group[0].seq,
                    role=row.role,
                    name=row.name,
                    created_at=START + timedelta(minutes=row.minute),
                    terms=ANALYZER.terms(row.text),
                )
                for row in group
            ]
        )
        hidden = frozenset(n for n, row in enumerate(group) if row.is_hidden)
        block = Block(packed.postings, packed.words)
        parts.append(Part(group[0].session, group[0].seq, block, hidden))
    return parts


def seqs(found: Sequence[Scored]) -> list[int]:
    return [scored.seq for scored in found]


def explained(found: Sequence[Scored]) -> list[tuple[Scored, Why]]:
    return [(row, row.why) for row in found]


def search(rows: Sequence[Said], query: str, *, is_by_role: bool = True) -> list[Scored]:
    return score(parts_of(rows), ANALYZER.parse(query), is_by_role=is_by_role)


def plain(rows: Sequence[Said], query: Query, *, is_by_role: bool) -> dict[tuple[int, int], float]:
    """Score by the formulas, row by row."""
    rows = [row for row in rows if not row.is_hidden]
    texts = [ANALYZER.terms(row.text) for row in rows]
    weights = [1 if row.role == "user" or not is_by_role else 0.2 for row in rows]
    users = sum(row.role == "user" for row in rows)
    mean = sum(map(len, texts)) / len(rows) or 1.0 if rows else 1.0
    named = {row.name for row in rows if row.name and row.name.lower() in query.words}
    name = named.pop() if len(named) == 1 else None
    terms = list(query.terms)
    if name and terms != [ANALYZER.terms(name)[0]]:
        terms = [term for term in terms if term != ANALYZER.terms(name)[0]]

    def idf(term: str) -> float:
        found = sum(term in text for text in texts)
        if is_by_role and users:
            of_users = sum(
                term in text for text, row in zip(texts, rows, strict=True) if row.role == "user"
            )
            found = (found + of_users * len(rows) / users) / 2  # type: ignore[assignment]  # a mean
        return math.log(1 + max(0, len(rows) - found + 0.5) / (found + 0.5))

    def own(n: int) -> float:
        return sum(
            idf(term) * 2.2 * frequency
            / (frequency + 1.2 * (0.25 + 0.75 * len(texts[n]) / mean))
            for term in terms
            if (frequency := texts[n].count(term))
        )  # fmt: skip

    def are_near(a: int, b: int) -> bool:
        """Whether no session ends and no gap is between two rows."""
        return a >= 0 and b < len(rows) and all(
            rows[n].session == rows[n + 1].session and rows[n + 1].minute - rows[n].minute < 120
            for n in range(a, b)
        )  # fmt: skip

    totals = {}
    for n, row in enumerate(rows):
        near = [m for m in range(n - 2, n + 3) if are_near(min(m, n), max(m, n))]
        window = 0.0
        for term in terms:
            frequency = sum(texts[m].count(term) * weights[m] for m in near)
            window += idf(term) * 2.2 * frequency / (frequency + 1.2)
        before = sum(
            0.25 * 0.8 ** (d - 1) * own(n - d) * weights[n - d]
            for d in range(1, 7)
            if are_near(n - d, n)
        )
        following = own(n + 1) if are_near(n, n + 1) else 0.0
        total = own(n) * weights[n] + 0.5 * window + before + 0.3 * following
        reach = [m for m in range(n - 6, n + 3) if are_near(min(m, n), max(m, n))]
        if not any(term in texts[m] for m in reach for term in terms):
            continue
        total *= weights[n]
        if (START + timedelta(minutes=row.minute)).month in query.months:
            total += 4
        totals[row.session, row.seq] = total + 2 * (row.name is not None and row.name == name)
    return totals


WORDS = ["red", "blue", "kite", "tree", "river", "Ann", "Bob", "march"]
SAID = st.builds(
    Said,
    text=st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join),
    session=st.integers(1, 2),
    role=st.sampled_from(["user", "assistant", "tool"]),
    name=st.sampled_from([None, "Ann", "Bob"]),
    minute=st.integers(0, 100_000).map(lambda n: n if n < 10_000 else n % 7),
    is_hidden=st.integers(0, 5).map(lambda n: n == 0),
)


@st.composite
def corpora(draw: st.DrawFn) -> list[Said]:
    """Rows of up to two sessions, with seqs and mostly increasing times."""
    rows = sorted(draw(st.lists(SAID, max_size=25)), key=lambda row: row.session)
    minute = 0
    said = []
    for seq, row in enumerate(rows, 1):
        minute = max(0, minute + row.minute % 200 - 20)
        said.append(
            Said(
                text=row.text, session=row.session, seq=seq, role=row.role, name=row.name,
                minute=minute, is_hidden=row.is_hidden,
            )
        )  # fmt: skip
    return said


QUERIES = st.lists(st.sampled_from([*WORDS, "in march"]), min_size=1, max_size=4).map(" ".join)


@pytest.mark.slow
@given(corpora(), QUERIES, st.booleans())
def test_scores_are_those_of_the_formulas(rows, text, is_by_role):
    query = ANALYZER.parse(text)
    found = score(parts_of(rows), query, is_by_role=is_by_role)
    expected = plain(rows, query, is_by_role=is_by_role)
    assert {(row.session, row.seq): row.score for row in found} == pytest.approx(expected)
    assert [row.score for row in found] == sorted((row.score for row in found), reverse=True)
    for row in found:
        why = row.why
        is_user = next(said.role == "user" for said in rows if said.seq == row.seq)
        weight = 1 if is_user or not is_by_role else 0.2
        parts = (why.own + why.window + why.before + why.next) * weight + why.month + why.name
        assert parts == pytest.approx(row.score)


@pytest.mark.slow
@given(
    corpora(),
    QUERIES,
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sampled_from(["words", "prefix", "phrase"]),
    st.booleans(),
)
def test_results_do_not_depend_on_the_blocks(rows, text, sizes, mode, is_by_role):
    query = ANALYZER.parse(text, mode)
    regrouped = parts_of(rows, sizes)
    assert explained(score(regrouped, query, is_by_role=is_by_role)) == explained(
        score(parts_of(rows), query, is_by_role=is_by_role)
    )
    assert matching(regrouped, query) == matching(parts_of(rows), query)


@pytest.mark.slow
@given(corpora(), QUERIES, st.booleans())
def test_hidden_rows_count_nowhere(rows, text, is_by_role):
    query = ANALYZER.parse(text)
    visible = [row for row in rows if not row.is_hidden]
    assert explained(score(parts_of(rows), query, is_by_role=is_by_role)) == explained(
        score(parts_of(visible), query, is_by_role=is_by_role)
    )
    assert matching(parts_of(rows), query) == matching(parts_of(visible), query)


@pytest.mark.slow
@given(corpora(), QUERIES, st.integers(0, 30))
def test_a_limit_returns_the_best(rows, text, limit):
    query = ANALYZER.parse(text)
    every = score(parts_of(rows), query, is_by_role=True)
    best = score(parts_of(rows), query, is_by_role=True, limit=limit)
    assert explained(best) == explained(every[:limit])


def test_matching_rows_contain_every_term_and_are_newest_first():
    rows = rows_of("red kite", "red", "a kite, red", "kite", "kites are red")
    parts = parts_of(rows, [2])
    assert matching(parts, ANALYZER.parse("the red kite")) == [(1, 5), (1, 3), (1, 1)]
    assert matching(parts, ANALYZER.parse("red ki", "prefix")) == [(1, 5), (1, 3), (1, 1)]
    assert matching(parts, ANALYZER.parse("green")) == []
    assert matching(parts, ANALYZER.parse("?")) == matching([], ANALYZER.parse("red")) == []


def test_equal_rows_are_newest_first():
    rows = [Said(text="red", session=n, seq=n) for n in range(1, 5)]
    assert seqs(search(rows, "red")) == [4, 3, 2, 1]


def test_what_a_user_wrote_counts_more_unless_roles_are_equal():
    rows = [
        Said(text="red", seq=1, minute=0),
        Said(text="red", seq=2, minute=500, role="assistant"),
    ]
    assert seqs(search(rows, "red", is_by_role=True)) == [1, 2]
    by_role, equal = search(rows, "red"), search(rows, "red", is_by_role=False)
    assert by_role[0].score > by_role[1].score
    assert equal[0].score == equal[1].score


def test_a_question_ranks_by_its_answer_but_not_across_a_gap():
    rows = rows_of("which color?", "red")
    assert seqs(search(rows, "red")) == [2, 1]
    apart = [rows[0], Said(text="red", seq=2, minute=120)]
    assert seqs(search(apart, "red")) == [2]


def test_a_negative_gap_is_none():
    rows = [Said(text="which color?", seq=1, minute=5_000), Said(text="red", seq=2)]
    assert seqs(search(rows, "red")) == [2, 1]


def test_a_month_and_a_name_in_the_query_raise_their_rows():
    rows = [
        Said(text="red", seq=1, name="Ann", minute=0),
        Said(text="red", seq=2, name="Bob", minute=60 * 24 * 40),
        Said(text="red", seq=3, name="Cid", minute=60 * 24 * 80),
    ]
    assert seqs(search(rows, "red in April 2026")) == [2, 3, 1]
    assert seqs(search(rows, "red in April 2025")) == [3, 2, 1]
    assert seqs(search(rows, "Ann's red?")) == [1, 3, 2]
    assert seqs(search(rows, "red of Ann and Bob")) == [3, 2, 1]


def test_a_name_is_searched_if_the_query_has_no_other_terms():
    rows = rows_of("Ann is here", "So is Bob", name="Ann")
    assert [(row.seq, row.why.name) for row in search(rows, "Ann")] == [(1, 2), (2, 2)]


def test_a_prefix_finds_all_its_words_and_inflected_forms():
    rows = [
        Said(text=text, seq=n, minute=n * 500)
        for n, text in enumerate(["kitchen", "kite kitten", "run", "tree"], 1)
    ]
    parts = parts_of(rows)
    assert seqs(score(parts, ANALYZER.parse("kit", "prefix"), is_by_role=True)) == [2, 1]
    assert seqs(score(parts, ANALYZER.parse("runni", "prefix"), is_by_role=True)) == [3]


def test_of_many_matches_the_best_support_their_neighbors(monkeypatch):
    monkeypatch.setattr(scoring, "MAX_SPREAD", 2)
    rows = [Said(text=text, seq=n, minute=n * 500) for n, text in
            enumerate(["red", "red red", "red", "red red red"], 1)]  # fmt: skip
    assert seqs(search(rows, "red")) == [4, 2]
    assert seqs(search([rows[0], rows[2]], "red")) == [3, 1]


def test_a_query_of_which_the_rows_have_little_is_not_relevant():
    rows = rows_of("I have a red kite", *["the river and a tree"] * 20)
    assert is_relevant(parts_of(rows), ANALYZER.parse("red kites"))
    unknown = ANALYZER.parse("the tree of Peru, Chile, Angola, Nepal, Fiji and Malta")
    assert not is_relevant(parts_of(rows), unknown)
    assert score(parts_of(rows), unknown, is_by_role=True)
    assert not is_relevant([], unknown)


def test_no_parts_and_empty_blocks_have_no_results():
    assert search([], "red") == []
    empty = Block(pack([]).postings, pack([]).words)
    query = ANALYZER.parse("re", "prefix")
    assert score([Part(1, 1, empty)], query, is_by_role=True) == []
    hidden = rows_of("red", is_hidden=True)
    assert search(hidden, "red") == []
