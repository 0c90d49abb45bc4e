"""A search of more messages than it ranks answers in parts.

`SEARCH_ROWS=1000000 pytest -s -m long tests/search/test_search_scale.py` prints times and memory.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pytest

from chatmemory.models import Message, Session
from chatmemory.search import reading, search_messages
from chatmemory.search.blocks import BlockRow, pack
from chatmemory.search.models import BLOCK_ROWS, SearchBlock, first_of, number_of
from chatmemory.search.searching import analyzer
from chatmemory.services import SERVER
from tests.factories import BY

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.database,
    pytest.mark.long,
    pytest.mark.skipif("SEARCH_ROWS" not in os.environ, reason="SEARCH_ROWS is not set: minutes"),
]

ROWS = int(os.environ.get("SEARCH_ROWS", "110000"))
SESSION_ROWS = 1_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Texts:
    """Texts of which each block number has the same ones in each session."""

    def __init__(self) -> None:
        chosen = random.Random(9)  # noqa: S311  # no secret
        letters = "etaoinshrdlucmfwygpbvk"
        words = ["".join(chosen.choices(letters, k=chosen.randint(2, 9))) for _ in range(5_000)]
        weights = [1 / (n + 1) for n in range(len(words))]
        self.words = words
        self.texts = [
            " ".join(chosen.choices(words, weights, k=70))[:400] for _ in range(SESSION_ROWS)
        ]
        self.blocks = [
            pack(
                [
                    BlockRow(
                        place=(seq - 1) % BLOCK_ROWS,
                        role=role_of(seq),
                        created_at=BEGIN + timedelta(minutes=seq),
                        terms=analyzer().terms(self.texts[seq - 1]),
                    )
                    for seq in range(first_of(n), min(first_of(n + 1), SESSION_ROWS + 1))
                ]
            )
            for n in range(number_of(SESSION_ROWS) + 1)
        ]


def role_of(seq: int) -> str:
    return "user" if seq % 2 else "assistant"


def fill(texts: Texts, count: int, begin: int = 0) -> None:
    """Store sessions with blocks."""
    for number in range(begin // SESSION_ROWS, (begin + count) // SESSION_ROWS):
        columns = {"last_seq": SESSION_ROWS, "revision": 1, "rows_revision": 1}
        session = Session.objects.create(scope=SERVER, key=f"talk{number}", **columns)
        Message.stored.bulk_create(
            [
                Message(
                    session=session,
                    seq=seq,
                    role=role_of(seq),
                    text=text,
                    tokens=100,
                    created_at=BEGIN + timedelta(minutes=seq),
                )
                for seq, text in enumerate(texts.texts, 1)
            ]
        )
        SearchBlock.objects.bulk_create(
            [
                SearchBlock(
                    session=session,
                    number=n,
                    low=first_of(n),
                    high=min(first_of(n + 1) - 1, SESSION_ROWS),
                    analyzer=analyzer().name,
                    postings=block.postings,
                    words=block.words,
                )
                for n, block in enumerate(texts.blocks)
            ]
        )


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def measured(**arguments: Any) -> str:
    """Return the milliseconds of a search, and those of CPU: a busy machine takes longer."""
    times = []
    for _ in range(7):
        begin, used = time.perf_counter(), time.process_time()
        search_messages(**{"by": BY, "scope": SERVER, **arguments})
        times.append((time.perf_counter() - begin, time.process_time() - used))
    wall, cpu = (median(column) * 1_000 for column in zip(*times, strict=True))
    return f"{wall:.0f} ms, {cpu:.0f} ms of CPU"


def test_a_search_of_a_large_scope_continues_with_its_cursor():
    texts = Texts()
    fill(texts, 50_000)
    for name, way in {
        "a rare word": {"query": texts.words[4_000]},
        "three words": {"query": " ".join(texts.words[200:203])},
        "32 common words": {"query": " ".join(texts.words[:32])[:500]},
        "a prefix": {"query": "t", "mode": "prefix"},
        "one session of 1,000": {"query": texts.words[200], "session_key": "talk7"},
    }.items():
        report(f"50,000 rows, {name}: {measured(**way)}")
    fill(texts, ROWS - 50_000, 50_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    query = " ".join(texts.words[:32])[:500]
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        begin = time.perf_counter()
        page = search_messages(by=BY, scope=SERVER, query=query, cursor=cursor, limit=1)
        took = time.perf_counter() - begin
        assert page.cursor is not None
        # To the next part, behind all ranked messages of this one.
        start, _, _ = page.cursor.rpartition(".")
        cursor = f"{start}.{reading.MAX_ROWS:x}"
        rest = search_messages(by=BY, scope=SERVER, query=query, cursor=cursor)
        assert not rest.hits
        assert page.partial == (rest.cursor is not None)
        cursor, pages = rest.cursor, pages + 1
        report(f"page {pages}: {took:.2f} s")
    report(
        f"memory: {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024} MB more"
    )
    assert pages == -(-ROWS // reading.MAX_ROWS)
