"""Sessions with new messages are indexed in the background, and the checks of the settings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.models import Message, Session
from chatmemory.search import indexing, pending
from chatmemory.search.checks import check_search_settings
from chatmemory.search.health import read_lag
from chatmemory.search.indexing import index_all, index_session
from chatmemory.search.integrity import find_wrong_blocks
from chatmemory.search.models import SearchBlock
from chatmemory.search.pending import QUIET_SECONDS, sweep_search
from chatmemory.services import append_messages, redact_message, trim_session
from chatmemory.services.integrity.sessions import check_integrity
from tests.factories import TALK, make_messages, make_session
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def _nothing_pending():
    pending.pending.clear()
    yield
    pending.pending.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the sweep, which a test moves."""
    clock = SimpleNamespace(now=1_000.0)
    for module in (pending, indexing):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def commit(django_capture_on_commit_callbacks: Any) -> Callable[[Callable[[], Any]], None]:
    """Call a function, and then what is to be called after its commit."""

    def commit(call: Callable[[], Any]) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            call()

    return commit


def append(rows: int, key: str = "talk") -> None:
    messages = make_messages(*(["kettle"] * rows))
    append_messages(**{**TALK, "session_key": key}, messages=messages, create=True)


def covered() -> int:
    found = SearchBlock.objects.values_list("low", "high")
    return sum(high - low + 1 for low, high in found)


def test_a_session_is_indexed_after_32_new_messages(clock, commit):
    commit(lambda: append(31))
    sweep_search()
    assert covered() == 0
    commit(lambda: append(1))
    sweep_search()
    assert covered() == 32


def test_a_quiet_session_is_indexed_after_ten_minutes(clock, commit):
    commit(lambda: append(2))
    clock.now += QUIET_SECONDS - 1
    sweep_search()
    assert covered() == 0
    commit(lambda: append(1))
    clock.now += 2
    sweep_search()
    assert covered() == 0
    clock.now += QUIET_SECONDS
    sweep_search()
    assert covered() == 3


def test_a_redacted_or_repaired_session_is_indexed_again(clock, commit):
    append(4)
    index_all()
    commit(lambda: redact_message(**TALK, seq=1, reason=""))
    assert covered() == 0
    sweep_search()
    assert covered() == 4
    Message.stored.filter(seq=2).update(body="{")
    commit(lambda: list(check_integrity(repair_by=TALK["by"])))
    assert covered() == 0
    sweep_search()
    assert covered() == 4


def test_a_session_that_cannot_be_indexed_delays_no_other(clock, commit, monkeypatch):
    for key in ("a", "b"):
        commit(lambda key=key: append(32, key))
    first = Session.objects.get(key="a").pk

    def fail_for_first(session_pk: int, **options: Any) -> Any:
        if session_pk == first:
            raise MemoryUnavailable
        return index_session(session_pk, **options)

    monkeypatch.setattr(pending, "index_session", fail_for_first)
    with pytest.raises(MemoryUnavailable):
        sweep_search()
    sweep_search()
    assert covered() == 32


@pytest.mark.parametrize(
    "error", [BadInput("x", code="too_large"), MemoryUnavailable()], ids=["too-large", "locked"]
)
def test_a_session_that_cannot_be_indexed_does_not_end_the_daily_run(monkeypatch, error):
    for key in ("a", "b"):
        append(2, key)
    first = Session.objects.get(key="a").pk

    def fail_for_first(seen: Any, missing: Any) -> bool:
        if seen.session_pk == first:
            raise error
        return bool(write(seen, missing))

    write = indexing._write
    monkeypatch.setattr(indexing, "_write", fail_for_first)
    done = index_all()
    assert (done.sessions, done.is_complete) == (1, False)
    assert covered() == 2


def test_a_session_with_more_blocks_than_time_is_continued(commit, monkeypatch):
    ticks = count(0, 0.1)
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    for module in (pending, indexing):
        monkeypatch.setattr(module, "time", clock)
    commit(lambda: append(150))
    commit(lambda: append(150))
    commit(lambda: append(150))
    sweeps = 0
    while covered() < 450:
        sweep_search()
        sweeps += 1
        assert sweeps < 10
    assert sweeps > 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_processes_can_index_a_session_at_the_same_time():
    append(200)
    session = Session.objects.get()
    index = [lambda: index_session(session.pk)] * 3
    assert all(done.is_complete for done in concurrently(*index))
    assert covered() == 200
    assert not list(find_wrong_blocks())


def test_a_run_needs_no_statement_for_an_indexed_session():
    index_all()  # stores its record for the first time
    counts = []
    for keys in (("a", "b"), ("c", "d", "e")):
        for key in keys:
            append(2, key)
        index_all()
        with CaptureQueriesContext(connection) as queries:
            assert index_all().blocks == 0
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_an_append_has_no_statement_for_the_index():
    append(40)
    index_all()
    with CaptureQueriesContext(connection) as queries:
        append(2)
    assert not [query for query in queries if "search" in query["sql"]]


def test_hidden_messages_are_not_indexed():
    append(4)
    trim_session(**TALK, before_seq=3, reason="")
    index_all()
    assert list(SearchBlock.objects.values_list("low", "high")) == [(3, 4)]


def test_health_counts_sessions_without_a_complete_index(monkeypatch):
    append(2)
    make_session("empty")
    assert (read_lag().value, read_lag().is_bad) == (1, False)
    monkeypatch.setattr("chatmemory.search.health.MAX_LAGGING", 0)
    assert read_lag().is_bad
    index_all()
    assert (read_lag().value, read_lag().is_bad) == (0, False)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("RECALL_TOKENS", -1, "E024"),
        ("RECALL_TOKENS", True, "E024"),
        ("RECALL_REACH", "world", "E024"),
        ("RECALL_REACH", [], "E024"),
        ("SEARCHES_PER_MINUTE", 0, "E024"),
        ("SEARCHES_PER_MINUTE", ".x", "E024"),
        ("SEARCHES_PER_MINUTE", "no.such", "E024"),
        ("SEARCH_LANGUAGE", 5, "E024"),
        ("SEARCH_LANGUAGE", "klingon", "W046"),
    ],
    ids=["negative", "bool", "reach", "list", "zero", "dot", "missing", "number", "unknown"],
)
def test_a_bad_setting_is_reported(settings, name, value, code):
    settings.CHATMEMORY = {**settings.CHATMEMORY, name: value}
    (found,) = check_search_settings(None)
    assert found.id == f"chatmemory.{code}"
    assert name in found.msg


@pytest.mark.parametrize(
    ("name", "value"),
    [("SEARCHES_PER_MINUTE", None), ("SEARCH_LANGUAGE", ""), ("SEARCH_LANGUAGE", "german")],
    ids=["unlimited", "no-language", "german"],
)
def test_a_good_setting_is_not_reported(settings, name, value):
    settings.CHATMEMORY = {**settings.CHATMEMORY, name: value}
    assert not check_search_settings(None)
