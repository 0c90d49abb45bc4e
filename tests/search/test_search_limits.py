"""A search keeps to its time, whatever the messages are, and others wait for none of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from chatmemory.errors import BadInput, RateLimited
from chatmemory.models import Message
from chatmemory.search import SearchPage, reading, search_messages, searching
from chatmemory.search.indexing import index_all
from chatmemory.search.searching import check_filters
from chatmemory.services import SERVER, append_messages
from tests.factories import BY, TALK, make_messages

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def append(rows: int) -> None:
    messages = make_messages(*(f"kettle {n}" for n in range(1, rows + 1)))
    append_messages(**TALK, messages=messages, create=True)


def search(**more: Any) -> SearchPage:
    return search_messages(**{"by": BY, "scope": SERVER, "query": "kettle", **more})


def pages(**more: Any) -> list[list[int]]:
    """Return the seqs of each page."""
    found, cursor = [], None
    while not found or cursor is not None:
        page = search(cursor=cursor, **more)
        found.append([hit.seq for hit in page.hits])
        cursor = page.cursor
    return found


@pytest.mark.parametrize("is_indexed", [False, True], ids=["without-blocks", "with-blocks"])
def test_a_search_without_time_continues_with_its_cursor(monkeypatch, is_indexed):
    append(8)
    if is_indexed:
        index_all()
    ticks = count()  # each look at the clock takes a second
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    for module in (reading, searching):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(searching, "MAX_SECONDS", 3.0)
    monkeypatch.setattr(searching, "MIN_READ_SECONDS", 2.0)
    found = pages(order="newest")
    assert [seq for page in found for seq in page] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert max(map(len, found)) <= 4


def test_superseded_ranges_hide_their_messages_alone():
    chosen = random.Random(1)  # noqa: S311  # no secret
    for _ in range(50):
        starts = [chosen.randrange(60) for _ in range(chosen.randrange(8))]
        ranges = [(low, low + chosen.randrange(6)) for low in starts]
        span = reading._Span(1, 5, 50, True, 60, reading._merged(ranges))
        for seq in range(70):
            is_hidden = any(low <= seq <= high for low, high in ranges)
            assert span.has(seq) == (5 <= seq <= 50 and not is_hidden)


def test_searches_of_the_server_in_other_scopes_do_not_wait(monkeypatch):
    append(1)
    monkeypatch.setattr(searching, "MAX_SECONDS", 0.01)
    with searching._turn_of("another-scope:None"):
        assert search().hits
    with searching._turn_of(f"{SERVER}:None"), pytest.raises(RateLimited):
        search()


@pytest.mark.parametrize("field", ["before", "after"])
def test_a_time_that_no_database_has_is_refused(field):
    west, east = timezone(timedelta(hours=-5)), timezone(timedelta(hours=5))
    for moment in (datetime.max.replace(tzinfo=west), datetime.min.replace(tzinfo=east)):
        with pytest.raises(BadInput) as refusal:
            check_filters(**{"role": None, "before": None, "after": None, field: moment})
        assert refusal.value.field == field


def test_messages_of_any_year_are_found():
    append(3)
    for seq, year in enumerate((1900, 2026, 9998), 1):
        Message.stored.filter(seq=seq).update(created_at=datetime(year, 7, 1, tzinfo=UTC))
    newest = [hit.seq for hit in search(order="newest").hits]
    assert newest == [3, 2, 1]
    assert search(query="kettle in july 9998").hits[0].seq == 3
    index_all()
    assert [hit.seq for hit in search(order="newest").hits] == newest
    later = search(after=datetime(2026, 7, 1, tzinfo=UTC)).hits
    assert sorted(hit.seq for hit in later) == [2, 3]
