"""Sessions: open, isolation, expiry, pages, names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.access.actors import scope_for
from chatmemory.errors import BadInput, Forbidden, Held, HistoryCleared, MemoryUnavailable, NotFound
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    append_messages,
    archive_session,
    clear_session,
    get_session,
    hold_session,
    list_sessions,
    open_session,
    purge_session,
    read_history,
    read_page,
    sessions_of,
    stop_turn,
    trim_session,
    update_session,
    user_scope,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.sessions import unexplained_refusal
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_OFF = datetime(2099, 1, 1, tzinfo=UTC)


def test_a_person_reaches_only_their_own_scope():
    user = make_user()
    assert scope_for(Actor.user(user), None) == user_scope(user) == f"user:{user.pk}"
    with pytest.raises(TypeError):
        scope_for(Actor.user(user), SERVER)


@pytest.mark.parametrize("scope", [None, ""])
def test_server_code_and_operators_must_name_the_scope(scope):
    for actor in (BY, Actor.operator(make_user())):
        with pytest.raises(TypeError):
            scope_for(actor, scope)


def test_only_a_hash_of_a_visitors_token_is_stored():
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
        partial(append_messages, messages=make_messages("a")),
        partial(admit_turn, client_id="one", content="a"),
        partial(stop_turn, turn="one"),
        partial(trim_session, keep_last=0, reason=""),
        partial(clear_session, reason=""),
        partial(purge_session, reason=""),
    ],
)
def test_another_users_session_is_not_found_like_an_unknown_one(call, key):
    make_session("talk", owner=make_user())
    with pytest.raises(NotFound) as caught:
        call(session_key=key, by=Actor.user(make_user()))
    assert type(caught.value) is NotFound


@pytest.mark.parametrize("key", ["", "a" * 201, "a\0", "\ud800"])
@pytest.mark.parametrize("call", [get_session, read_page, read_history, clear_session])
def test_a_key_that_a_database_cannot_store_is_refused_on_each(call, key):
    more = {"reason": ""} if call is clear_session else {}
    with pytest.raises(BadInput):
        call(session_key=key, by=BY, scope=SERVER, **more)


def test_two_users_with_the_same_key_have_two_sessions():
    ann, bob = make_user(), make_user()
    one = open_session(session_key="talk", by=Actor.user(ann))
    two = open_session(session_key="talk", by=Actor.user(bob))
    assert one.pk != two.pk
    assert (one.owner, two.owner) == (ann, bob)
    assert list(sessions_of(Actor.user(ann))) == [one]


@pytest.mark.parametrize("scope", ["user:\ud800", "server\0"], ids=ascii)
def test_a_scope_that_a_database_cannot_store_is_refused(scope):
    with pytest.raises(BadInput):
        scope_for(BY, scope)
    with pytest.raises(BadInput):
        next(check_integrity(scope=scope))


@pytest.mark.parametrize("scope", ["removed:7", "importing:user:7"])
def test_no_session_can_be_opened_in_an_internal_scope(scope):
    with pytest.raises(BadInput):
        open_session(session_key="talk", by=BY, scope=scope)
    with pytest.raises(BadInput):
        append_messages(**TALK | {"scope": scope}, messages=make_messages("hi"), create=True)
    assert not Session.objects.exists()


def test_an_operator_reaches_the_named_scope():
    ann = make_user()
    session = make_session(owner=ann)
    operator = Actor.operator(make_user())
    assert get_session(session_key="talk", by=operator, scope=user_scope(ann)) == session
    with pytest.raises(NotFound):
        get_session(session_key="talk", by=operator, scope=SERVER)


def test_a_session_is_created_once_and_keeps_its_values():
    first = open_session(**TALK, title="One", instructions="Be kind.", metadata={"b": 1, "a": [2]})
    again = open_session(**TALK, title="Two", metadata={"c": 3})
    assert again == first
    assert (again.title, again.instructions) == ("One", "Be kind.")
    assert again.metadata == {"b": 1, "a": [2]}


def test_a_new_session_in_the_servers_scope_is_empty_and_has_no_owner():
    session = open_session(**TALK)
    assert (session.first_seq, session.last_seq, session.message_count) == (1, 0, 0)
    assert (session.owner, session.running, session.waiting) == (None, None, 0)


def test_an_epoch_starts_at_a_random_number():
    assert len({open_session(**{**TALK, "session_key": key}).epoch for key in "abcd"}) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_key": ""},
        {"session_key": "a" * 201},
        {"session_key": "a\0"},
        {"title": "a" * 201},
        {"title": "\ud800"},
        {"title": "\u200b "},
        {"instructions": "a\0"},
        {"metadata": {"a": "\0"}},
        {"metadata": {"a": {1, 2}}},
    ],
)
def test_values_that_a_database_cannot_store_are_refused(wrong):
    with pytest.raises(BadInput):
        open_session(**{**TALK, **wrong})
    assert not Session.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_simultaneous_calls_create_one_session():
    opened = concurrently(*[lambda: open_session(**TALK).pk] * 6)
    assert set(opened) == {Session.objects.get().pk}


def test_an_expired_session_is_hidden():
    make_session(expires_at=LONG_AGO)
    with pytest.raises(NotFound):
        get_session(**TALK)
    with pytest.raises(NotFound):
        append_messages(**TALK, messages=make_messages("a"))
    assert not sessions_of(BY, SERVER).exists()
    assert not AuditEntry.objects.exists()


def test_a_session_that_has_not_expired_is_found():
    session = make_session(expires_at=FAR_OFF)
    append_messages(**TALK, messages=make_messages("a"))
    assert get_session(**TALK) == session


def test_opening_purges_an_expired_session_and_creates_a_new_one():
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
    new = append_messages(**TALK, messages=make_messages("a"), create=True)
    assert (new.first_seq, new.session_pk != old.pk) == (1, True)
    assert AuditEntry.objects.get().reason == "expired"


def test_an_append_with_an_epoch_does_not_replace_an_expired_session():
    old = make_session(expires_at=LONG_AGO)
    with pytest.raises(HistoryCleared):
        append_messages(**TALK, messages=make_messages("a"), create=True, epoch=old.epoch)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("live", [{"running": "one"}, {"waiting": 1}, {"held_at": LONG_AGO}])
def test_a_session_on_hold_or_with_an_active_turn_does_not_expire(live):
    session = make_session(expires_at=LONG_AGO, **live)
    assert open_session(**TALK) == get_session(**TALK) == session
    assert not AuditEntry.objects.exists()


def test_a_turn_that_waits_or_runs_when_its_session_ends_continues():
    make_session()
    admit_turn(**TALK, client_id="one", content="hi")
    Session.objects.update(expires_at=LONG_AGO)
    assert admit_turn(**TALK, client_id="one", content="hi").is_duplicate
    assert stop_turn(**TALK, turn="one") == "cancelled"
    with pytest.raises(NotFound):
        stop_turn(**TALK, turn="one")


RECENT = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("columns", "is_found"),
    [
        ({"ttl_seconds": 3600, "last_message_at": LONG_AGO}, False),
        ({"ttl_seconds": 3600, "last_message_at": None, "created_at": LONG_AGO}, False),
        ({"ttl_seconds": 3600, "last_message_at": RECENT}, True),
        ({"ttl_seconds": 2**31 - 1, "last_message_at": LONG_AGO}, True),
        ({"ttl_seconds": 3600, "last_message_at": RECENT, "expires_at": LONG_AGO}, False),
        ({"ttl_seconds": 3600, "last_message_at": LONG_AGO, "expires_at": RECENT}, False),
        ({"ttl_seconds": 3600, "last_message_at": RECENT, "expires_at": RECENT}, True),
        ({"ttl_seconds": 3600, "last_message_at": LONG_AGO, "held_at": LONG_AGO}, True),
        ({"ttl_seconds": 2**31 - 1, "last_message_at": None}, True),
    ],
)
@pytest.mark.parametrize("site_ttl", [None, 60, 2**33])
def test_a_session_ends_at_its_earlier_end(settings, columns, is_found, site_ttl):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SESSION_TTL": site_ttl}
    session = make_session(**columns)
    assert Session.objects.active().exists() == is_found
    if session.held_at is None:
        assert (session.ends_at > datetime.now(UTC)) == is_found
    if is_found:
        append_messages(**TALK, messages=make_messages("a"))
    else:
        with pytest.raises(NotFound):
            append_messages(**TALK, messages=make_messages("a"))


def test_the_end_by_ttl_moves_with_each_message():
    session = open_session(**TALK, ttl_seconds=3600)
    append_messages(**TALK, messages=make_messages("a"))
    session.refresh_from_db()
    assert session.ends_at == session.last_message_at + timedelta(hours=1)


@pytest.mark.parametrize(
    "open_at",
    [open_session, partial(append_messages, messages=make_messages("a"), create=True)],
    ids=["open", "append"],
)
def test_keys_of_foreign_clients_are_reserved(open_at):
    with pytest.raises(BadInput, match=r"^Keys that begin with ui: are reserved") as refused:
        open_at(**{**TALK, "session_key": "ui:1"})
    assert refused.value.field == "session_key"
    assert not Session.objects.exists()


@pytest.mark.parametrize("ttl", [True, 1.5, "60"])
def test_a_ttl_of_another_type_is_refused(ttl):
    with pytest.raises(TypeError, match="ttl_seconds must be an integer"):
        open_session(**TALK, ttl_seconds=ttl)


@pytest.mark.parametrize("ttl", [0, -1, 2**31])
def test_a_ttl_that_cannot_be_stored_is_refused(ttl):
    with pytest.raises(BadInput) as refused:
        open_session(**TALK, ttl_seconds=ttl)
    assert (refused.value.code, refused.value.field) == ("bad_number", "ttl_seconds")


@pytest.mark.django_db(transaction=True)
def test_simultaneous_calls_purge_an_expired_session_once():
    make_session(expires_at=LONG_AGO)
    opened = concurrently(*[lambda: open_session(**TALK).pk] * 6)
    assert len(set(opened)) == 1
    assert AuditEntry.objects.count() == 1


def seqs(**where) -> list[int]:
    return [row.seq for row in read_page(**TALK, **where).rows]


def test_pages_are_selected_by_seq():
    make_session()
    append_messages(**TALK, messages=make_messages(*"abcdefghij"))
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


def test_sessions_are_listed_in_pages_the_last_active_first():
    for key in ("one", "two", "three"):
        make_session(key)
    make_session("other", owner=make_user("ann"))
    append_messages(**{**TALK, "session_key": "one"}, messages=make_messages("a"))
    address = {"by": BY, "scope": SERVER}
    page = list_sessions(**address, limit=2)
    assert [session.key for session in page.sessions] == ["one", "three"]
    rest = list_sessions(**address, limit=2, cursor=page.next)
    assert ([session.key for session in rest.sessions], rest.next) == (["two"], None)


def test_sessions_are_listed_by_state_and_title():
    open_session(**{**TALK, "session_key": "one"}, title="Rain in Oslo")
    open_session(**{**TALK, "session_key": "two"}, title="Sun")
    archive_session(**{**TALK, "session_key": "two"}, reason="test")
    address = {"by": BY, "scope": SERVER}
    for chosen in ({"title": "oslo"}, {"archived": False}):
        assert [found.key for found in list_sessions(**address, **chosen).sessions] == ["one"]


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": 1001}, {"cursor": "soon"}, {"title": "a\x00"}]
)
def test_a_list_of_sessions_with_a_wrong_value_is_refused(wrong):
    with pytest.raises(BadInput):
        list_sessions(by=BY, scope=SERVER, **wrong)


@pytest.mark.parametrize("limit", [0, -1, 1_001])
def test_a_page_has_one_to_a_thousand_messages(limit):
    with pytest.raises(BadInput):
        read_page(**TALK, limit=limit)


@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("number", [10**30, -(10**30)])
def test_a_number_that_a_database_cannot_store_is_refused(side, number):
    make_session()
    with pytest.raises(BadInput):
        read_page(**TALK, **{side: number})
    assert read_page(**TALK, **{side: 2**62}).rows == []


def test_rows_are_ordered_by_seq_and_not_by_time():
    make_session()
    append_messages(**TALK, messages=make_messages("a", "b", "c"))
    Message.stored.filter(seq=3).update(created_at=LONG_AGO)
    Message.stored.filter(seq=1).update(created_at=FAR_OFF)
    assert [row.seq for row in read_history(**TALK).rows] == [1, 2, 3]
    assert [row.seq for row in read_page(**TALK, limit=2).rows] == [2, 3]


@pytest.mark.parametrize("read", [read_page, read_history])
def test_a_page_is_read_in_one_statement(read):
    make_session()
    append_messages(**TALK, messages=make_messages("a", "b"))
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


def test_a_rename_changes_only_title_and_revision():
    before = make_session(owner=make_user("ann"))
    by = Actor.user(before.owner)
    renamed = update_session(session_key="talk", title="A kettle", by=by)
    after = get_session(session_key="talk", by=by)
    assert (after.title, after.revision) == (renamed.title, renamed.revision) == ("A kettle", 1)
    assert (after.epoch, after.last_seq, after.running) == (before.epoch, 0, None)
    assert not AuditEntry.objects.exists()


def test_the_same_title_again_changes_nothing():
    session = make_session(owner=make_user("ann"), title="A kettle")
    by = Actor.user(session.owner)
    assert update_session(session_key="talk", title="A kettle", by=by).revision == 0


def test_an_operators_rename_is_audited_without_the_title():
    session = make_session(owner=make_user("ann"))
    operator = Actor.operator(make_user("olga"))
    update_session(
        session_key="talk", title="A kettle", by=operator, reason="asked", scope=session.scope
    )
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor_id, entry.reason) == ("rename", operator.id, "asked")
    assert (entry.session_pk, entry.counts) == (session.pk, {})


def test_a_session_on_hold_keeps_its_title():
    session = make_session(owner=make_user("ann"), title="A kettle")
    hold_session(session_key="talk", by=BY, reason="court", scope=session.scope)
    with pytest.raises(Held, match="its title cannot be changed"):
        update_session(session_key="talk", title="", by=Actor.user(session.owner))
    session.refresh_from_db()
    assert session.title == "A kettle"


@pytest.mark.parametrize("title", ["x" * 201, "a\0b", "\ud800"], ids=["long", "NUL", "surrogate"])
def test_a_title_that_cannot_be_stored_is_refused(title):
    session = make_session(owner=make_user("ann"))
    with pytest.raises(BadInput) as refused:
        update_session(session_key="talk", title=title, by=Actor.user(session.owner))
    assert refused.value.field == "title"


def test_another_users_session_cannot_be_renamed():
    make_session(owner=make_user("ann"))
    with pytest.raises(NotFound):
        update_session(session_key="talk", title="mine", by=Actor.user(make_user("bob")))


@pytest.mark.regression
def test_a_write_that_others_delay_is_not_reported_as_damage(caplog):
    make_session()
    append_messages(**TALK, messages=make_messages("a"))
    assert str(unexplained_refusal(SERVER, "talk")) == str(MemoryUnavailable())
    assert caplog.records == []


NEW = {"instructions": "Be short.", "metadata": {"team": "tea"}, "ttl_seconds": 60}


def change(by=BY, **fields):
    return update_session(session_key="talk", scope=Session.objects.get().scope, by=by, **fields)


def test_server_code_and_operators_change_instructions_metadata_and_ends():
    make_session(owner=make_user("ann"), metadata={"a": 1})
    end = datetime.now(UTC) + timedelta(days=1)
    change(**NEW, expires_at=end, reason="new contract")
    session = Session.objects.get()
    assert {name: getattr(session, name) for name in NEW} == NEW
    assert (session.expires_at, session.revision) == (end, 1)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason) == ("update", "new contract")
    assert entry.counts == {"instructions": 9, "metadata": 1, "ttl_seconds": 60, "expires_at": 1}
    change(by=Actor.operator(make_user("olga")), instructions="", expires_at=None, ttl_seconds=None)
    session.refresh_from_db()
    assert (session.instructions, session.expires_at, session.ttl_seconds) == ("", None, None)
    assert session.metadata == {"team": "tea"}


@pytest.mark.parametrize(("old", "new"), [(0, False), (1, 1.0), (1, True)])
def test_metadata_that_only_python_finds_equal_is_stored(old, new):
    make_session(owner=make_user("ann"), metadata={"paid": old, "a": [1]})
    assert change(metadata={"a": [1], "paid": old}).revision == 0
    assert change(metadata={"a": [1], "paid": new}).revision == 1
    assert type(Session.objects.get().metadata["paid"]) is type(new)


def test_the_same_values_again_are_no_change():
    make_session(owner=make_user("ann"), **NEW)
    assert change(**NEW, expires_at=None).revision == 0
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("name", NEW)
def test_a_person_changes_only_the_title(name):
    session = make_session(owner=make_user("ann"))
    with pytest.raises(Forbidden):
        update_session(
            session_key="talk", by=Actor.user(session.owner), title="x", **{name: NEW[name]}
        )
    assert Session.objects.get().title == ""


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("metadata", {"a": "x" * 8_192}, BadInput),
        ("metadata", {"a": "\ud800"}, BadInput),
        ("instructions", "a\0b", BadInput),
        ("expires_at", datetime(2020, 1, 1, tzinfo=UTC), BadInput),
        ("expires_at", datetime(2999, 1, 1), BadInput),  # noqa: DTZ001  # the naive case
        ("ttl_seconds", 0, BadInput),
        ("instructions", 5, TypeError),
        ("expires_at", "2999-01-01", TypeError),
    ],
)
def test_a_value_that_cannot_be_stored_changes_nothing(field, value, error):
    make_session(owner=make_user("ann"))
    with pytest.raises(error):
        change(title="new", **{field: value})
    assert Session.objects.get().title == ""


@pytest.mark.parametrize("name", ["instructions", "metadata"])
def test_a_session_on_hold_keeps_its_instructions_and_metadata(name):
    session = make_session(owner=make_user("ann"))
    hold_session(session_key="talk", by=BY, reason="court", scope=session.scope)
    with pytest.raises(Held, match=f"its {name} cannot be changed"):
        change(**{name: NEW[name]})
    assert change(ttl_seconds=60).ttl_seconds == 60
