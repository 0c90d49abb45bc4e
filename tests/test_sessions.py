"""Sessions: opened, found by whom they belong to alone, read a page at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.errors import BadInput, HistoryCleared, NotFound
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    append_messages,
    check_integrity,
    clear_session,
    get_session,
    open_session,
    purge_session,
    read_history,
    read_page,
    scope_for,
    sessions_of,
    stop_turn,
    trim_session,
    user_scope,
)
from tests.factories import BY, TALK, make_session, make_user, said
from tests.locking import at_once

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_OFF = datetime(2099, 1, 1, tzinfo=UTC)


# For whom


def test_a_person_reaches_their_own_scope_and_may_name_no_other():
    user = make_user()
    assert scope_for(Actor.user(user), None) == user_scope(user) == f"user:{user.pk}"
    with pytest.raises(TypeError):
        scope_for(Actor.user(user), SERVER)


@pytest.mark.parametrize("scope", [None, ""])
def test_server_code_and_operators_name_the_scope(scope):
    for actor in (BY, Actor.operator(make_user())):
        with pytest.raises(TypeError):
            scope_for(actor, scope)


def test_of_a_visitor_only_a_hash_is_kept():
    visitor = Actor.visitor("a secret")
    assert "secret" not in f"{visitor.id} {visitor.label} {scope_for(visitor, None)}"
    assert scope_for(visitor, None) != scope_for(Actor.visitor("another"), None)


@pytest.mark.parametrize("key", ["talk", "unknown"])
@pytest.mark.parametrize(
    "call",
    [
        get_session,
        read_page,
        read_history,
        partial(append_messages, messages=said("a")),
        partial(admit_turn, client_id="one", content="a"),
        partial(stop_turn, turn="one"),
        partial(trim_session, keep_last=0, reason=""),
        partial(clear_session, reason=""),
        partial(purge_session, reason=""),
    ],
)
def test_anothers_session_is_not_found_like_an_unknown_one(call, key):
    make_session("talk", owner=make_user())
    with pytest.raises(NotFound) as caught:
        call(session_key=key, by=Actor.user(make_user()))
    assert type(caught.value) is NotFound


@pytest.mark.parametrize("key", ["", "a" * 201, "a\0", "\ud800"])
@pytest.mark.parametrize("call", [get_session, read_page, read_history, clear_session])
def test_a_key_that_no_database_holds_is_refused_alike_on_all(call, key):
    more = {"reason": ""} if call is clear_session else {}
    with pytest.raises(BadInput):
        call(session_key=key, by=BY, scope=SERVER, **more)


def test_two_users_open_one_key_as_two_sessions():
    ann, bob = make_user(), make_user()
    one = open_session(session_key="talk", by=Actor.user(ann))
    two = open_session(session_key="talk", by=Actor.user(bob))
    assert one.pk != two.pk
    assert (one.owner, two.owner) == (ann, bob)
    assert list(sessions_of(Actor.user(ann))) == [one]


@pytest.mark.parametrize("scope", ["user:\ud800", "server\0"], ids=ascii)
def test_a_scope_that_no_database_holds_is_refused(scope):
    with pytest.raises(BadInput):
        scope_for(BY, scope)
    with pytest.raises(BadInput):
        next(check_integrity(scope=scope))


@pytest.mark.parametrize("scope", ["removed:7", "importing:user:7"])
def test_nobody_opens_a_session_where_purged_and_half_imported_ones_lie(scope):
    with pytest.raises(BadInput):
        open_session(session_key="talk", by=BY, scope=scope)
    with pytest.raises(BadInput):
        append_messages(**TALK | {"scope": scope}, messages=said("hi"), create=True)
    assert not Session.objects.exists()


def test_an_operator_reaches_the_scope_that_is_named():
    ann = make_user()
    session = make_session(owner=ann)
    operator = Actor.operator(make_user())
    assert get_session(session_key="talk", by=operator, scope=user_scope(ann)) == session
    with pytest.raises(NotFound):
        get_session(session_key="talk", by=operator, scope=SERVER)


# Opened


def test_a_session_is_made_once_and_keeps_what_it_had():
    first = open_session(**TALK, title="One", instructions="Be kind.", metadata={"b": 1, "a": [2]})
    again = open_session(**TALK, title="Two", metadata={"c": 3})
    assert again == first
    assert (again.title, again.instructions) == ("One", "Be kind.")
    assert again.metadata == {"b": 1, "a": [2]}


def test_a_new_session_is_empty_and_belongs_to_nobody():
    session = open_session(**TALK)
    assert (session.first_seq, session.last_seq, session.message_count) == (1, 0, 0)
    assert (session.owner, session.running, session.waiting) == (None, None, 0)


def test_an_epoch_begins_at_random():
    assert len({open_session(**{**TALK, "session_key": key}).epoch for key in "abcd"}) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_key": ""},
        {"session_key": "a" * 201},
        {"session_key": "a\0"},
        {"title": "a" * 201},
        {"title": "\ud800"},
        {"instructions": "a\0"},
        {"metadata": {"a": "\0"}},
        {"metadata": {"a": {1, 2}}},
    ],
)
def test_what_no_database_holds_is_refused(wrong):
    with pytest.raises(BadInput):
        open_session(**{**TALK, **wrong})
    assert not Session.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_many_who_open_at_once_one_makes_it():
    opened = at_once(*[lambda: open_session(**TALK).pk] * 6)
    assert set(opened) == {Session.objects.get().pk}


# Expired


def test_an_expired_session_is_hidden():
    make_session(expires_at=LONG_AGO)
    with pytest.raises(NotFound):
        get_session(**TALK)
    with pytest.raises(NotFound):
        append_messages(**TALK, messages=said("a"))
    assert not sessions_of(BY, SERVER).exists()
    assert not AuditEntry.objects.exists()


def test_one_that_expires_later_is_there():
    session = make_session(expires_at=FAR_OFF)
    append_messages(**TALK, messages=said("a"))
    assert get_session(**TALK) == session


def test_opening_purges_an_expired_session_and_makes_a_new_one():
    old = make_session(expires_at=LONG_AGO, last_seq=2)
    new = open_session(**TALK)
    old.refresh_from_db()
    assert new.pk != old.pk
    assert (old.scope, old.removed_scope) == (f"removed:{old.pk}", SERVER)
    assert old.removed_at is not None
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.session_pk) == ("purge", "expired", old.pk)
    assert (entry.from_seq, entry.to_seq, entry.counts) == (1, 2, {"messages": 2})


def test_a_creating_append_purges_an_expired_session():
    old = make_session(expires_at=LONG_AGO)
    new = append_messages(**TALK, messages=said("a"), create=True)
    assert (new.first_seq, new.session_pk != old.pk) == (1, True)
    assert AuditEntry.objects.get().reason == "expired"


def test_an_append_with_an_epoch_makes_nothing_of_an_expired_session():
    old = make_session(expires_at=LONG_AGO)
    with pytest.raises(HistoryCleared):
        append_messages(**TALK, messages=said("a"), create=True, epoch=old.epoch)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("live", [{"running": "one"}, {"waiting": 1}, {"held_at": LONG_AGO}])
def test_a_session_that_is_held_or_has_a_live_turn_does_not_expire(live):
    session = make_session(expires_at=LONG_AGO, **live)
    assert open_session(**TALK) == get_session(**TALK) == session
    assert not AuditEntry.objects.exists()


def test_a_turn_that_waits_or_runs_past_the_end_goes_on():
    make_session()
    admit_turn(**TALK, client_id="one", content="hi")
    Session.objects.update(expires_at=LONG_AGO)
    assert admit_turn(**TALK, client_id="one", content="hi").is_duplicate
    assert stop_turn(**TALK, turn="one") == "cancelled"
    with pytest.raises(NotFound):
        stop_turn(**TALK, turn="one")


@pytest.mark.django_db(transaction=True)
def test_of_many_who_meet_an_expired_session_one_purges_it():
    make_session(expires_at=LONG_AGO)
    opened = at_once(*[lambda: open_session(**TALK).pk] * 6)
    assert len(set(opened)) == 1
    assert AuditEntry.objects.count() == 1


# Read


def seqs(**where) -> list[int]:
    return [row.seq for row in read_page(**TALK, **where).rows]


def test_pages_are_cut_by_number():
    make_session()
    append_messages(**TALK, messages=said(*"abcdefghij"))
    trim_session(**TALK, keep_last=8, reason="")
    assert seqs(limit=3) == [8, 9, 10]
    assert seqs(before=8, limit=3) == [5, 6, 7]
    assert seqs(before=4, limit=3) == [3]
    assert seqs(after=0, limit=3) == [3, 4, 5]
    assert seqs(after=8) == [9, 10]
    assert seqs(after=10) == seqs(before=3) == []


def test_a_page_of_an_empty_session_still_has_its_head():
    session = make_session(title="Empty")
    page = read_page(**TALK)
    assert page.rows == []
    assert (page.head.pk, page.head.title, page.head.epoch) == (session.pk, "Empty", session.epoch)


@pytest.mark.parametrize("limit", [0, -1, 1_001])
def test_a_page_has_one_to_a_thousand_messages(limit):
    with pytest.raises(BadInput):
        read_page(**TALK, limit=limit)


@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("number", [10**30, -(10**30)])
def test_a_number_that_no_database_holds_is_refused(side, number):
    make_session()
    with pytest.raises(BadInput):
        read_page(**TALK, **{side: number})
    assert read_page(**TALK, **{side: 2**62}).rows == []


def test_order_is_by_number_whatever_the_clock_says():
    make_session()
    append_messages(**TALK, messages=said("a", "b", "c"))
    Message.stored.filter(seq=3).update(created_at=LONG_AGO)
    Message.stored.filter(seq=1).update(created_at=FAR_OFF)
    assert [row.seq for row in read_history(**TALK).rows] == [1, 2, 3]
    assert [row.seq for row in read_page(**TALK, limit=2).rows] == [2, 3]


@pytest.mark.parametrize("read", [read_page, read_history])
def test_head_and_rows_are_one_statement(read):
    make_session()
    append_messages(**TALK, messages=said("a", "b"))
    with CaptureQueriesContext(connection) as queries:
        assert len(read(**TALK).rows) == 2
    assert len(queries) == 1


def test_the_head_shows_the_running_turn():
    make_session()
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    page = read_page(**TALK)
    assert (page.head.running, page.head.turn_status, page.head.waiting) == ("run", "running", 0)
    [row] = page.rows
    assert (row.turn, row.turn_client_id, row.client_id) == (1, "run", "run")
