"""A search finds no message of another person, and depends on none; odd queries do no harm.

`SEARCH_QUERIES=20000 pytest -m long tests/search/test_search_isolation.py` tries more queries.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from chatmemory.errors import BadInput
from chatmemory.search import SearchPage, asearch_messages, search_messages
from chatmemory.search.indexing import index_all
from chatmemory.services import SERVER, Actor, append_messages
from tests.factories import BY, make_messages, make_user, make_visitor

pytestmark = [pytest.mark.django_db, pytest.mark.database]

QUERIES = int(os.environ.get("SEARCH_QUERIES", "200"))

WORDS = ("kettle", "invoice", "refund", "green", "order", "broken", "in", "may", "ann", "4711")


@pytest.fixture(autouse=True)
def _settings(settings):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "ALLOW_ANONYMOUS": True,
        "SEARCHES_PER_MINUTE": None,
    }


@pytest.fixture
def people() -> list[Actor]:
    actors = [Actor.user(make_user()), Actor.user(make_user())]
    return actors + [make_visitor().actor for _ in range(2)]


def fill(by: Actor, chosen: random.Random, key: str = "talk", rows: int = 8) -> None:
    texts = [" ".join([*chosen.choices(WORDS, k=4), by.id]) for _ in range(rows)]
    append_messages(session_key=key, by=by, messages=make_messages(*texts), create=True)


def way(chosen: random.Random) -> dict[str, Any]:
    return {
        "query": " ".join(chosen.choices(WORDS, k=chosen.randint(1, 4))),
        "mode": chosen.choice(("words", "prefix", "phrase")),
        "order": chosen.choice(("rank", "newest")),
    }


def check_isolation(people: list[Actor], queries: int) -> None:
    chosen = random.Random(3)  # noqa: S311  # no secret
    for by in people:
        fill(by, chosen)
        fill(by, chosen, key="second")
    fill_server()
    index_all()
    for by in people:
        fill(by, chosen)  # without a block
    for _ in range(queries):
        by = chosen.choice(people)
        page = search_messages(by=by, **way(chosen))
        assert {hit.scope for hit in page.hits} <= {by.owner}
        assert all(hit.text.endswith(by.id) for hit in page.hits)


def fill_server() -> None:
    texts = make_messages("kettle invoice", "refund")
    append_messages(session_key="talk", by=BY, scope=SERVER, messages=texts, create=True)


@pytest.mark.slow
def test_a_search_finds_no_message_of_another_person(people):
    check_isolation(people, 20)


@pytest.mark.long
def test_many_searches_find_no_message_of_another_person(people):
    check_isolation(people, QUERIES)


def test_the_messages_of_others_change_no_score(people):
    chosen = random.Random(4)  # noqa: S311  # no secret
    ann, bob, *_ = people
    fill(ann, chosen)
    before = search_messages(by=ann, query="kettle order")
    assert before.hits
    fill(bob, chosen, rows=20)
    assert search_messages(by=ann, query="kettle order") == before
    index_all()
    assert search_messages(by=ann, query="kettle order") == before


async def test_the_async_version_finds_the_same(people):
    chosen = random.Random(5)  # noqa: S311  # no secret
    ann, bob, *_ = people
    for by in (ann, bob):
        await sync_to_async(fill)(by, chosen)
    page = await asearch_messages(by=ann, query="kettle order")
    assert page.hits
    assert {hit.scope for hit in page.hits} == {ann.owner}


PIECES = (
    '"', "'", "o'brien", "a:b", "a &", "+", "-x", "foo(", "NEAR(", "*", "%", "_", "\\", "\0",
    "\ud800", "\udfff", "\u202e", "\u200b", "\u0301", "\U0010ffff",
    "😀", "👨\u200d👩\u200d👧", "(?:",
    "[a-z]+", ".*", "$", "'; DROP TABLE x; --", "<b>", "&amp;", "{{", "}}", "ﬁ", "İ", "ß", "注文",
    "ｶﾞ", "é", "AND", "OR", "NOT", "%s", "%(a)s", " ", "\n", "\t", "kettle", "May 2024", "9" * 30,
    "x" * 100,
)  # fmt: skip


def check_odd_queries(count: int) -> None:
    chosen = random.Random(6)  # noqa: S311  # no secret
    texts = make_messages(*(piece for piece in PIECES if codable(piece)), "kettle")
    append_messages(session_key="talk", by=BY, scope=SERVER, messages=texts, create=True)
    index_all()
    append_messages(session_key="talk", by=BY, scope=SERVER, messages=texts, create=True)
    for _ in range(count):
        pieces = chosen.choices(PIECES, k=chosen.randint(1, 8))
        if chosen.random() < 0.2:
            pieces.append(chr(chosen.randrange(sys.maxunicode + 1)))
        query = chosen.choice(("", " ")).join(pieces)[: chosen.choice((20, 500, 501))]
        try:
            page = search_messages(by=BY, scope=SERVER, **{**way(chosen), "query": query})
        except BadInput:
            continue
        assert isinstance(page, SearchPage)
        for hit in page.hits:
            assert all(0 <= low < high <= len(hit.snippet) for low, high in hit.ranges)


def codable(text: str) -> bool:
    return "\0" not in text and text.encode(errors="replace").decode() == text


@pytest.mark.slow
def test_an_odd_query_is_refused_or_answered():
    check_odd_queries(50)


@pytest.mark.long
def test_each_odd_query_is_refused_or_answered():
    check_odd_queries(QUERIES)


@pytest.mark.parametrize(
    "cursor",
    ["", "1.1.1\n", "0.0.0", "7fffffffffffffff.7fffffffffffffff.0", "1.1.186a0", "g.1.1", "-1.1.1"],
    ids=["empty", "newline", "zeros", "largest", "skipping", "no-hex", "negative"],
)
def test_a_forged_cursor_reaches_no_other_message(people, cursor):
    chosen = random.Random(7)  # noqa: S311  # no secret
    ann, bob, *_ = people
    for by in (bob, ann, bob):
        fill(by, chosen, key=f"talk{chosen.random()}")
    try:
        page = search_messages(by=ann, query="kettle order", cursor=cursor)
    except BadInput:
        return
    assert {hit.scope for hit in page.hits} <= {ann.owner}
