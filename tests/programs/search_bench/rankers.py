"""Ways to search a dialogue: each returns the indexes of its rows, best first."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from chatmemory.search.analysis import Analyzer
from chatmemory.search.blocks import MAX_ROWS, Block, BlockRow, pack
from chatmemory.search.scoring import MIN_RELEVANCE, Part, score
from chatmemory.search.words import STOP_WORDS
from tests.programs.search_bench.corpora import Dialogue

MAX_RESULTS = 300
"""Rows of a result: more than fit into the budgets."""

Ranker = Callable[[str], Sequence[int]]

_WORD = re.compile(r"\w+")


def parts_of(dialogue: Dialogue, analyzer: Analyzer) -> list[Part]:
    """Return the blocks of a dialogue, whose seqs are the indexes of its rows."""
    parts = []
    for low in range(0, len(dialogue.rows), MAX_ROWS):
        rows = [
            BlockRow(
                place=place,
                role=row.role,
                name=row.name,
                created_at=row.created_at,
                terms=analyzer.terms(row.text),
            )
            for place, row in enumerate(dialogue.rows[low : low + MAX_ROWS])
        ]
        parts.append(Part(0, low, Block(pack(rows).postings)))
    return parts


@contextmanager
def ours(dialogue: Dialogue, *, min_relevance: float = 0.0) -> Iterator[Ranker]:
    """Rank by search blocks; below the threshold, a question has no result."""
    analyzer = Analyzer("english")
    parts = parts_of(dialogue, analyzer)

    def rank(question: str) -> list[int]:
        query = analyzer.parse(question)
        found = score(parts, query, is_by_role=True, limit=MAX_RESULTS, min_relevance=min_relevance)
        return [row.seq for row in found]

    yield rank


@contextmanager
def ours_with_threshold(dialogue: Dialogue) -> Iterator[Ranker]:
    """Rank as ours, above the threshold."""
    with ours(dialogue, min_relevance=MIN_RELEVANCE) as rank:
        yield rank


@contextmanager
def fts5(dialogue: Dialogue) -> Iterator[Ranker]:
    """Rank by SQLite's FTS5 with stems of Porter, for any word of the query but stop words."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE VIRTUAL TABLE said USING fts5(text, tokenize='porter unicode61')"
        )
        connection.executemany(
            "INSERT INTO said (rowid, text) VALUES (?, ?)",
            [(place, row.text) for place, row in enumerate(dialogue.rows, 1)],
        )

        def rank(question: str) -> list[int]:
            words = " OR ".join(f'"{word}"' for word in _words(question))
            if not words:
                return []
            found = connection.execute(
                "SELECT rowid - 1 FROM said WHERE said MATCH ? ORDER BY rank LIMIT ?",
                [words, MAX_RESULTS],
            )
            return [place for (place,) in found]

        yield rank


@contextmanager
def postgres(dialogue: Dialogue) -> Iterator[Ranker]:
    """Rank by PostgreSQL's `ts_rank_cd`, for any word of the query, in a temporary table."""
    import psycopg

    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE said (place int, terms tsvector)")
        connection.cursor().executemany(
            "INSERT INTO said VALUES (%s, to_tsvector('english', %s))",
            [(place, row.text.replace("\0", " ")) for place, row in enumerate(dialogue.rows)],
        )

        def rank(question: str) -> list[int]:
            found = connection.execute(
                "SELECT place FROM said, to_tsquery('english', %(words)s) query"
                " WHERE terms @@ query ORDER BY ts_rank_cd(terms, query) DESC, place DESC"
                " LIMIT %(limit)s",
                {"words": " | ".join(_words(question)), "limit": MAX_RESULTS},
            )
            return [place for (place,) in found]

        yield rank


def _words(question: str) -> list[str]:
    words = _WORD.findall(question.lower())
    return [word for word in words if word not in STOP_WORDS["english"]] or words
