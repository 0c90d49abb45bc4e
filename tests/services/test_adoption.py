"""Adoption: all sessions of a visitor move to a user, once, whatever happens meanwhile."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event

import pytest
from django.db import connection
from django.db.models import F

from chatmemory import services
from chatmemory.access import rates
from chatmemory.access.visitors import digest_of
from chatmemory.database.after_commit import changes, visitor_ended
from chatmemory.database.locks import lock_visitor, locked_transaction
from chatmemory.errors import Conflict, MemoryUnavailable, NotFound, Unauthenticated
from chatmemory.models import (
    AuditEntry,
    DatabaseNow,
    Job,
    JobItem,
    Message,
    Session,
    Turn,
    Visitor,
)
from chatmemory.services import Actor, adoption
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, make_messages, make_session, make_user, make_visitor
from tests.servers import DEADLINE

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.CHATMEMORY = {"ALLOW_ANONYMOUS": True}


@pytest.fixture
def ann():
    return Actor.user(make_user("ann"))


def guest_with(*keys):
    guest = make_visitor().actor
    fill(guest, *keys)
    return guest


def fill(guest, *keys):
    for key in keys:
        talk = {"session_key": key, "by": guest}
        services.append_messages(**talk, messages=make_messages(f"in {key}", "yes"), create=True)


def keys_of(by):
    return sorted(services.sessions_of(by).values_list("key", flat=True))


def texts_of(by, key):
    return [row.text for row in services.read_history(session_key=key, by=by).rows]


def test_all_sessions_move_with_their_rows(ann):
    guest = guest_with("a", "b")
    revisions = dict(Session.objects.values_list("key", "revision"))
    assert services.adopt_visitor(by=ann, visitor=guest) == {"a": "a", "b": "b"}
    assert (keys_of(ann), keys_of(guest)) == (["a", "b"], [])
    assert texts_of(ann, "a") == ["in a", "yes"]
    for session in Session.objects.all():
        assert session.owner_id == int(ann.id)
        assert session.revision == revisions[session.key] + 1


def test_a_repeated_adoption_returns_the_same_keys(ann):
    guest = guest_with("a", "b")
    make_session("a", owner=None, scope=ann.owner)
    first = services.adopt_visitor(by=ann, visitor=guest)
    services.purge_session(session_key="b", by=ann, reason="")
    assert services.adopt_visitor(by=ann, visitor=guest) == first
    assert AuditEntry.objects.filter(action="adopt", session_pk__isnull=True).count() == 1


def test_another_user_is_refused(ann):
    guest = guest_with("a")
    services.adopt_visitor(by=ann, visitor=guest)
    bob = Actor.user(make_user("bob"))
    with pytest.raises(Conflict):
        services.adopt_visitor(by=bob, visitor=guest)
    assert (keys_of(ann), keys_of(bob)) == (["a"], [])


@pytest.mark.parametrize("columns", [{"days": -1}, None], ids=["ended", "unknown"])
def test_an_ended_or_unknown_visitor_is_not_adopted(ann, columns):
    token = "\ud800" if columns is None else make_visitor(**columns).token
    visitor = Actor.known_visitor(digest_of(token))
    assert services.offer_adoption(by=ann, token=token) is None
    with pytest.raises(NotFound):
        services.adopt_visitor(by=ann, visitor=visitor)


def test_the_offer_is_done_for_the_user_who_took_sessions_over(ann):
    guest, empty = make_visitor(), make_visitor()
    services.open_session(session_key="a", by=guest.actor)
    for visitor in (guest, empty):
        services.adopt_visitor(by=ann, visitor=visitor.actor)
    offer = services.offer_adoption(by=ann, token=guest.token)
    assert (offer.visitor, offer.sessions, offer.is_done) == (guest.actor, [], True)
    assert services.offer_adoption(by=ann, token=empty.token) is None
    bob = Actor.user(make_user("bob"))
    assert services.offer_adoption(by=bob, token=guest.token) is None


@pytest.mark.parametrize("by", [BY, Actor.visitor("x"), Actor("operator", "1", "x")])
def test_only_users_adopt_visitors(by):
    with pytest.raises(TypeError):
        services.adopt_visitor(by=by, visitor=guest_with())
    with pytest.raises(TypeError):
        services.adopt_visitor(by=Actor("user", "1", "ann"), visitor=BY)


def test_a_key_that_the_user_has_becomes_a_new_uuid(ann):
    guest = guest_with("taken", "free")
    services.append_messages(
        session_key="taken", by=ann, messages=make_messages("mine"), create=True
    )
    keys = services.adopt_visitor(by=ann, visitor=guest)
    assert keys["free"] == "free"
    assert uuid.UUID(keys["taken"]).version == 4
    assert texts_of(ann, "taken") == ["mine"]
    assert texts_of(ann, keys["taken"]) == ["in taken", "yes"]


def test_pins_above_the_limit_of_the_user_are_removed(ann, monkeypatch):
    monkeypatch.setattr(rates, "MAX_PINNED", 2)
    guest = guest_with("a", "b")
    fill(ann, "own")
    for key, by in (("a", guest), ("b", guest), ("own", ann)):
        services.update_session(session_key=key, by=by, pinned=True)
    services.adopt_visitor(by=ann, visitor=guest)
    assert len(keys_of(ann)) == 3
    assert services.sessions_of(ann).having(pinned=True).count() == 2


def test_an_expired_session_of_the_user_keeps_its_key(ann):
    """It still occupies the key, although no list shows it."""
    guest = guest_with("taken")
    make_session("taken", scope=ann.owner, expires_at=DatabaseNow() - timedelta(days=1))
    keys = services.adopt_visitor(by=ann, visitor=guest)
    assert keys["taken"] != "taken"


def test_purged_and_held_sessions_move_too(ann):
    guest = guest_with("purged", "held")
    entry = services.purge_session(session_key="purged", by=guest, reason="")
    hold = {"session_key": "held", "by": BY, "scope": guest.owner, "reason": "a case"}
    services.hold_session(**hold)
    assert services.adopt_visitor(by=ann, visitor=guest) == {"held": "held"}
    services.restore_session(entry_pk=entry.pk, by=BY, scope=ann.owner, reason="")
    assert keys_of(ann) == ["held", "purged"]
    assert not Session.objects.of_scopes(guest.owner).exists()
    erased = services.erase_person(by=ann, reason="")
    assert (erased.sessions, [*erased.held.values()]) == (1, ["held"])


def test_a_running_turn_continues_and_waiting_turns_move(ann):
    guest = guest_with("a")
    talk = {"session_key": "a", "by": guest}
    running = services.admit_turn(**talk, client_id="c1", content="one", owner="here")
    services.admit_turn(**talk, client_id="c2", content="two")
    services.adopt_visitor(by=ann, visitor=guest)
    scopes = Turn.objects.order_by("pk").values_list("client_id", "scope")
    assert [*scopes] == [("c1", ann.owner), ("c2", ann.owner)]
    reply = {"role": "assistant", "content": "1"}
    assert finish_turn(claim=running.claim, status="complete", message=reply)
    assert texts_of(ann, "a") == ["in a", "yes", "one", "1"]
    assert [turn.status for turn in services.list_turns(session_key="a", by=ann)] == ["waiting"]


def test_waiting_items_of_jobs_move(ann):
    guest = guest_with("a")
    session = Session.objects.get()
    job = Job.objects.create(action="purge", actor_id="1", status=Job.Status.QUEUED)
    address = {"scope": session.scope, "key": session.key, "epoch": session.epoch}
    JobItem.objects.create(job=job, session_pk=session.pk, **address)
    services.adopt_visitor(by=ann, visitor=guest)
    item = JobItem.objects.get(job=job)
    assert (item.scope, item.key) == (ann.owner, "a")


def test_the_audit_records_each_session_and_the_person_without_content(ann):
    services.adopt_visitor(by=ann, visitor=guest_with("a", "b"))
    entries = AuditEntry.objects.filter(action="adopt").order_by("pk")
    pks = sorted(Session.objects.values_list("pk", flat=True))
    assert [entry.session_pk for entry in entries] == [*pks, None]
    assert {entry.actor_label for entry in entries} == {"ann"}
    assert entries[2].counts == {"sessions": 2}


def test_the_credential_is_refused_after_the_adoption(ann):
    guest = make_visitor()
    services.adopt_visitor(by=ann, visitor=guest.actor)
    with pytest.raises(Unauthenticated):
        services.authenticate_visitor(token=guest.token)
    with pytest.raises(Unauthenticated):
        services.open_session(session_key="late", by=guest.actor)


def test_an_adoption_announces_the_end_of_the_visitor(ann, django_capture_on_commit_callbacks):
    guest, ended = guest_with(), []

    def note(scope, **_):
        ended.append(scope)

    visitor_ended.connect(note)
    with django_capture_on_commit_callbacks(execute=True):
        services.adopt_visitor(by=ann, visitor=guest)
    assert ended == [guest.owner]


def test_more_sessions_than_one_transaction_locks_are_refused(ann, monkeypatch):
    guest = guest_with("a", "b", "c")
    monkeypatch.setattr(adoption, "MAX_VISITOR_SESSIONS", 2)
    with pytest.raises(Conflict):
        services.adopt_visitor(by=ann, visitor=guest)
    assert keys_of(guest) == ["a", "b", "c"]
    assert rates.MAX_VISITOR_SESSIONS == 100


@pytest.mark.parametrize(("minutes", "moved"), [(59, {"a": "a", "b": "b"}), (61, {})])
def test_only_recent_sessions_move_without_a_question(ann, minutes, moved):
    guest = guest_with("a", "b")
    ago = {"last_message_at": F("last_message_at") - timedelta(minutes=minutes)}
    Session.objects.filter(key="a").update(**ago)
    assert services.adopt_visitor(by=ann, visitor=guest, only_recent=True) == moved
    assert keys_of(ann) == [*moved]
    assert services.adopt_visitor(by=ann, visitor=guest) == {"a": "a", "b": "b"}


def test_the_offer_shows_titles_and_first_messages(ann):
    visitor = make_visitor()
    guest = visitor.actor
    fill(guest, "a", "b")
    services.update_session(session_key="b", by=guest, title="A kettle")
    services.trim_session(session_key="b", by=BY, scope=guest.owner, keep_last=2, reason="")
    guest_with("of another")
    offer = services.offer_adoption(by=ann, token=visitor.token)
    assert not offer.is_done
    assert [(each.key, each.title, each.text) for each in offer.sessions] == [
        ("b", "A kettle", "in b"),
        ("a", "", "in a"),
    ]


@pytest.mark.django_db(transaction=True)
def test_eight_concurrent_confirmations_adopt_once():
    ann, guest = Actor.user(make_user("ann")), guest_with("a", "b", "taken")
    services.append_messages(
        session_key="taken", by=ann, messages=make_messages("mine"), create=True
    )
    ready = Barrier(8)

    def confirm(_):
        try:
            ready.wait(DEADLINE)
            return services.adopt_visitor(by=ann, visitor=guest)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(confirm, range(8)))
    assert all(result == results[0] for result in results)
    assert keys_of(ann) == sorted(["a", "b", "taken", results[0]["taken"]])
    assert Message.stored.count() == 7
    assert AuditEntry.objects.filter(action="adopt").count() == 4  # three sessions, one person


@pytest.mark.django_db(transaction=True)
def test_of_two_users_who_confirm_one_gets_all_sessions():
    users = [Actor.user(make_user(name)) for name in ("ann", "bob")]
    guest = guest_with("a", "b")
    ready = Barrier(2)

    def confirm(by):
        try:
            ready.wait(DEADLINE)
            return services.adopt_visitor(by=by, visitor=guest)
        except Conflict:
            return None
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(confirm, users))
    assert sorted(results, key=str) == [None, {"a": "a", "b": "b"}]
    assert sorted(map(keys_of, users)) == [[], ["a", "b"]]


@pytest.mark.django_db(transaction=True)
def test_a_key_that_is_taken_during_the_adoption_is_renamed(monkeypatch):
    ann, guest = Actor.user(make_user("ann")), guest_with("a")
    opened = Event()
    record = adoption.record

    def open_meanwhile(*args):
        """Let the user open a session with the key after the adoption found the key free."""
        if not opened.is_set() and connection.vendor != "sqlite":
            opened.set()
            with ThreadPoolExecutor(1) as thread:
                thread.submit(in_thread, ann).result(DEADLINE)
        return record(*args)

    def in_thread(by):
        try:
            services.open_session(session_key="a", by=by, title="mine")
        finally:
            connection.close()

    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time: no key is taken during a transaction")
    monkeypatch.setattr(adoption, "record", open_meanwhile)
    keys = services.adopt_visitor(by=ann, visitor=guest)
    assert keys["a"] != "a"
    assert services.get_session(session_key="a", by=ann).title == "mine"
    assert AuditEntry.objects.filter(action="adopt").count() == 2


def test_an_adoption_gives_up_after_three_attempts(ann, monkeypatch):
    guest = guest_with("a")
    attempts = []

    def fail(*_):
        attempts.append(1)
        raise adoption._KeyTaken

    monkeypatch.setattr(adoption, "_move_all", fail)
    with pytest.raises(MemoryUnavailable):
        services.adopt_visitor(by=ann, visitor=guest)
    assert len(attempts) == 3
    assert keys_of(guest) == ["a"]


@pytest.mark.django_db(transaction=True)
def test_a_send_that_races_with_the_adoption_opens_no_session():
    ann, guest = Actor.user(make_user("ann")), guest_with("a")
    is_writing = Event()

    def announce_writes(execute, sql, params, many, context):
        if "chatmemory_visitor" in sql or sql.startswith(("INSERT", "BEGIN")):
            is_writing.set()
        return execute(sql, params, many, context)

    def send():
        try:
            with connection.execute_wrapper(announce_writes):
                services.open_session(session_key="late", by=guest)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        with locked_transaction():
            lock_visitor(guest.id)
            sent = thread.submit(send)
            assert is_writing.wait(DEADLINE)
            services.adopt_visitor(by=ann, visitor=guest)
        with pytest.raises(Unauthenticated):
            sent.result(DEADLINE)
    assert keys_of(ann) == ["a"]
    assert Visitor.objects.get().adopted_by == ann.owner


def test_an_open_chat_learns_first_that_its_visitor_ends(ann, django_capture_on_commit_callbacks):
    """Otherwise it would show that an operator has removed the chat."""
    guest = guest_with("talk")
    heard = []

    def note(signal, **_):
        heard.append(signal)

    signals = (visitor_ended, changes)
    for signal in signals:
        signal.connect(note)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            services.adopt_visitor(by=ann, visitor=guest)
    finally:
        for signal in signals:
            signal.disconnect(note)
    assert heard == [*signals]
