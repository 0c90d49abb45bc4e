"""Limits of a trim: messages, turns, tokens, time and seq; never inside a turn."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, timezone

import hypothesis
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from chatmemory.errors import BadInput, Held
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services import (
    admit_turn,
    append_messages,
    preview_trim,
    read_history,
    restore_session,
    trim_session,
)
from chatmemory.services.jobs.preview import preview_sessions
from chatmemory.services.removal import trim_limits
from chatmemory.services.removal.trim_limits import (
    find_older_rows,
    floor_for_limit,
    floors_for_limit,
)
from tests.factories import TALK, make_messages, make_session
from tests.services.removal import trim_rule

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
EXAMPLES = int(os.environ.get("CHATMEMORY_EXAMPLES", "25"))
LIMITS = ["keep_last", "keep_turns", "keep_tokens", "before", "before_seq"]
TURNS = ["user", "tool", "assistant", "user", "assistant", "user", "tool", "assistant", "assistant"]
"""Create a session with three turns, which start at 1, 4 and 6."""


def make_turns(key: str = "talk") -> Session:
    session = make_session(key)
    messages = [{"role": role, "content": "x" * 4} for role in TURNS]
    append_messages(**{**TALK, "session_key": key}, messages=messages)
    for row in Message.stored.filter(session=session):
        Message.stored.filter(pk=row.pk).update(created_at=NOON + timedelta(hours=row.seq))
    session.refresh_from_db()
    return session


def hour(number: int) -> datetime:
    return NOON + timedelta(hours=number)


CUTS = [
    ({"keep_last": 4}, 6),
    ({"keep_last": 5}, 4),
    ({"keep_last": 9}, 1),
    ({"keep_last": 0}, 10),
    ({"keep_turns": 0}, 10),
    ({"keep_turns": 1}, 6),
    ({"keep_turns": 2}, 4),
    ({"keep_turns": 3}, 1),
    ({"keep_turns": 4}, 1),
    ({"keep_turns": 10**40}, 1),
    ({"keep_tokens": 3}, 10),
    ({"keep_tokens": 4}, 6),
    ({"keep_tokens": 4 * 4}, 6),
    ({"keep_tokens": 4 * 5 - 1}, 6),
    ({"keep_tokens": 4 * 5}, 4),
    ({"keep_tokens": 4 * 9}, 1),
    ({"before": hour(1)}, 1),
    ({"before": hour(4)}, 4),
    ({"before": hour(5)}, 4),
    ({"before": hour(6)}, 6),
    ({"before": hour(10)}, 10),
    ({"before_seq": 0}, 1),
    ({"before_seq": 5}, 4),
    ({"before_seq": 6}, 6),
    ({"before_seq": 10**30}, 10),
]


@pytest.mark.parametrize(("cut", "floor"), CUTS, ids=[str(cut) for cut, _ in CUTS])
def test_the_new_floor_is_the_first_row_of_a_turn(cut, floor):
    session = make_turns()
    assert preview_trim(session, **cut).messages == floor - 1
    trim_session(**TALK, reason="", **cut)
    session.refresh_from_db()
    assert session.first_seq == floor


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_each_trim_and_each_preview_follows_the_rule(name):
    """Compare them with `trim_rule`, for random sessions, at the boundaries of each limit."""

    @hypothesis.settings(max_examples=EXAMPLES)
    @given(st.lists(trim_rule.talks(), min_size=1, max_size=3), st.data())
    def check(talks, data):
        of_any = st.sampled_from(talks)
        value = data.draw(of_any.flatmap(lambda t: st.sampled_from(trim_rule.boundaries(name, t))))
        with transaction.atomic():
            check_rule(talks, {name: value})
            transaction.set_rollback(True)

    check()


def check_rule(talks, limit):
    sessions = [trim_rule.store(talk, f"talk-{n}") for n, talk in enumerate(talks)]
    expected = [talk.floor_after(limit) for talk in talks]
    assert list(floors_for_limit(sessions, limit).values()) == expected
    params = {name: v.isoformat() if name == "before" else v for name, v in limit.items()}
    previews = preview_sessions(action="trim", sessions=sessions, params=params)
    for talk, session, floor in zip(talks, sessions, expected, strict=True):
        hidden = floor - session.first_seq
        assert preview_trim(session, **limit).messages == hidden
        shown = previews[session.pk]
        assert shown.skipped == ("held" if talk.is_held else "" if hidden else "unchanged")
        assert shown.messages == (0 if talk.is_held else hidden)
        trim = {**TALK, "session_key": session.key, "reason": "", **limit}
        if talk.is_held:
            with pytest.raises(Held):
                trim_session(**trim)
            floor = session.first_seq
        else:
            entry = trim_session(**trim)
            assert (entry.counts["messages"] if entry else 0) == hidden
        session.refresh_from_db()
        assert session.first_seq == floor


def test_a_time_hides_the_rows_before_the_first_one_that_is_not_older():
    session = make_turns()
    Message.stored.filter(seq__gte=6).update(created_at=NOON - timedelta(days=9))
    assert preview_trim(session, before=hour(4)).messages == 3


@pytest.mark.parametrize("cut", [cut for cut, floor in CUTS if floor == 10], ids=str)
def test_the_running_turn_is_never_hidden(cut):
    session = make_turns()
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    Message.stored.filter(seq=10).update(created_at=hour(-9))
    trim_session(**TALK, reason="", **cut)
    session.refresh_from_db()
    assert session.first_seq == 10
    assert [row.seq for row in read_history(**TALK).rows] == [10]


def test_a_trim_never_lowers_the_floor():
    session = make_turns()
    trim_session(**TALK, reason="", keep_turns=1)
    for cut, _ in CUTS:
        trim_session(**TALK, reason="", **cut)
        session.refresh_from_db()
        assert session.first_seq in (6, 10)
        Session.objects.update(first_seq=6)


@pytest.mark.parametrize(
    "cut",
    [
        {"keep_last": -1},
        {"keep_turns": -1},
        {"keep_tokens": -1},
        {"before_seq": -1},
        {"before": NOON.replace(tzinfo=None)},
        {"before": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))},
        {"before": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
    ],
    ids=str,
)
def test_an_invalid_limit_is_refused(cut):
    session = make_turns()
    with pytest.raises(BadInput):
        trim_session(**TALK, reason="", **cut)
    with pytest.raises(BadInput):
        preview_trim(session, **cut)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"keep_last": 1, "keep_turns": 1},
        {"keep": 1},
        {"keep_last": "1"},
        {"keep_last": 1.5},
        {"keep_last": True},
        {"keep_last": None},
        {"before": 5},
    ],
    ids=str,
)
def test_wrong_arguments_raise_type_error(cut):
    session = make_turns()
    with pytest.raises(TypeError):
        trim_session(**TALK, reason="", **cut)
    with pytest.raises(TypeError):
        preview_trim(session, **cut)


@pytest.mark.parametrize("cut", [{"keep_last": 3}, {"keep_turns": 1}, {"before_seq": 6}], ids=str)
def test_a_trim_of_a_longer_session_is_no_more_statements(cut):
    session = make_session()
    counts = []
    for _ in range(2):
        append_messages(**TALK, messages=make_messages(*["a"] * 200))
        session.refresh_from_db()
        with CaptureQueriesContext(connection) as queries:
            preview_trim(session, **cut)
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 3


@pytest.mark.regression
def test_a_trim_by_time_reads_no_old_row_under_the_lock():
    make_turns()
    with CaptureQueriesContext(connection) as queries:
        trim_session(**TALK, reason="", before=hour(4))
    by_time = [q["sql"] for q in queries if "created_at" in q["sql"] and ">=" in q["sql"]]
    searches = [sql for sql in by_time if "ORDER BY" in sql]
    [floor] = Session.objects.values_list("first_seq", flat=True)
    assert len(searches) == 2
    assert f"THEN {floor}" in searches[1]  # this row and the later ones are read under the lock
    assert f"THEN {floor}" not in searches[0]


def test_tokens_are_added_in_pages(monkeypatch):
    monkeypatch.setattr(trim_limits, "PAGE_ROWS", 2)
    session = make_turns()
    for cut, floor in CUTS:
        if "keep_tokens" in cut:
            assert floor_for_limit(session, cut) == floor
    for size, keep, statements in ((2, 4, 1), (2, 4 * 5, 2), (2, 10**40, 3), (9, 10**40, 1)):
        monkeypatch.setattr(trim_limits, "PAGE_ROWS", size)
        with CaptureQueriesContext(connection) as queries:
            floor_for_limit(session, {"keep_tokens": keep})
        sums = [query["sql"] for query in queries if "SUM(" in query["sql"]]
        assert len(sums) == statements
        assert f"seq >= {10 - size}" in sums[0]


@pytest.mark.parametrize(
    ("cut", "statements"),
    [
        ({"keep_last": 3}, 1),
        ({"keep_last": 9}, 0),
        ({"keep_turns": 1}, 2),
        ({"keep_turns": 9}, 0),
        ({"keep_tokens": 12}, 2),
        ({"before": hour(7)}, 2),
        ({"before_seq": 7}, 1),
        ({"before_seq": 10}, 0),
    ],
    ids=str,
)
def test_the_floors_of_many_sessions_need_the_statements_of_one(cut, statements):
    for number in range(9):
        make_turns(f"talk-{number}")
    sessions = list(Session.objects.all())
    for some in (sessions, sessions[:1], []):
        with CaptureQueriesContext(connection) as queries:
            floors_for_limit(some, cut)
        assert len(queries) == (statements if some else 0)


def test_the_search_result_is_valid_after_new_rows():
    session = make_turns()
    older = find_older_rows(session, {"before": hour(99)})
    append_messages(**TALK, messages=make_messages("new"))
    session.refresh_from_db()
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert floor_for_limit(session, {"before": tomorrow}, older) == session.last_seq + 1
    assert floor_for_limit(session, {"before": hour(99)}, older) == older.below_seq


def test_the_search_result_is_not_used_after_a_restore():
    session = make_turns()
    entry = trim_session(**TALK, reason="", keep_turns=1)
    session.refresh_from_db()
    older = find_older_rows(session, {"before": hour(99)})
    assert older.known_below(session) == older.below_seq
    restore_session(entry_pk=entry.pk, by=TALK["by"], scope=TALK["scope"], reason="")
    session.refresh_from_db()
    assert older.known_below(session) == 0


def test_the_search_result_is_not_used_for_another_session():
    session = make_turns()
    older = find_older_rows(session, {"before": hour(99)})
    assert older.known_below(make_session("other")) == 0
