"""The end of visitors: by time, by an erasure, and after a database restore."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from threading import Event

import pytest
from django.core.management import call_command

from chatmemory import services
from chatmemory.errors import BadInput, NotFound, Unauthenticated
from chatmemory.models import AuditEntry, DatabaseNow, Message, Session, Turn, Visitor
from chatmemory.services import Actor
from chatmemory.services.erasure import erasure
from chatmemory.services.retention.retention import expire_sessions
from tests.factories import BY, make_messages, make_session, make_user, make_visitor
from tests.locking import concurrently

RACES = 5
DEADLINE = 20

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.CHATMEMORY = {"ALLOW_ANONYMOUS": True}


def guest_with(*keys):
    guest = make_visitor().actor
    for key in keys:
        talk = {"session_key": key, "by": guest}
        services.append_messages(**talk, messages=make_messages("hi", "hello"), create=True)
    return guest


def end(guest):
    Visitor.objects.filter(digest=guest.id).update(ends_at=DatabaseNow())


def active():
    return sorted(Session.objects.active().values_list("key", flat=True))


def test_sessions_of_ended_visitors_are_purged_with_their_row():
    ended, current = guest_with("a", "b"), guest_with("c")
    make_session("of a user", owner=make_user())
    end(ended)
    preview = expire_sessions(dry_run=True).removed
    assert active() == ["a", "b", "c", "of a user"]
    done = expire_sessions().removed
    assert preview == done
    count = done["visitor ended"]
    assert (count.sessions, count.messages) == (2, 4)
    assert active() == ["c", "of a user"]
    assert [visitor.scope for visitor in Visitor.objects.all()] == [current.owner]
    assert {entry.reason for entry in AuditEntry.objects.filter(action="purge")} == {
        "visitor ended"
    }


def test_a_dry_run_deletes_no_visitor():
    end(guest_with())
    expire_sessions(dry_run=True)
    assert Visitor.objects.count() == 1


def test_held_sessions_and_running_turns_outlast_the_visitor():
    guest = guest_with("held", "running", "waiting", "idle")
    here = {"by": BY, "scope": guest.owner}
    services.hold_session(session_key="held", **here, reason="a case")
    for key, column in (("running", {"running": "c1"}), ("waiting", {"waiting": 1})):
        Session.objects.filter(key=key).update(**column)
    end(guest)
    expire_sessions()
    assert active() == ["held", "running", "waiting"]
    assert Visitor.objects.count() == 1
    Session.objects.update(running=None, waiting=0)
    services.release_session(session_key="held", **here, reason="closed")
    expire_sessions()
    assert active() == []
    assert not Visitor.objects.exists()


def test_the_row_of_an_adopted_visitor_stays_until_the_end_of_the_cookie():
    guest = make_visitor(adopted_at=DatabaseNow(), adopted_by="user:1").actor
    expire_sessions()
    assert Visitor.objects.count() == 1
    end(guest)
    expire_sessions()
    assert not Visitor.objects.exists()


def test_an_operator_erases_a_visitor_by_scope(capsys):
    guest, other = guest_with("a"), guest_with("b")
    named = ("--scope", guest.owner, "--reason=asked", "--by=olga")
    call_command("chatmemory_erase", *named)
    assert active() == ["b"]
    assert [visitor.scope for visitor in Visitor.objects.all()] == [other.owner]
    capsys.readouterr()


def test_no_session_is_opened_after_an_erasure_has_begun(monkeypatch):
    """The visitor ends first: else a racing send would leave a session of no one."""
    guest = guest_with("a")
    delete = erasure._delete_session

    def race(session_pk):
        with pytest.raises(Unauthenticated):
            services.open_session(session_key="late", by=guest)
        delete(session_pk)

    monkeypatch.setattr(erasure, "_delete_session", race)
    services.erase_person(by=guest, reason="")
    assert not Session.objects.exists()


def test_the_erasure_of_a_visitor_includes_what_opens_until_the_visitor_ends(monkeypatch):
    guest = guest_with("a")
    list_erasure = erasure.list_erasure

    def race(*line):
        talk = {"session_key": "late", "by": guest, "create": True}
        services.append_messages(**talk, messages=make_messages("hi"))
        list_erasure(*line)

    monkeypatch.setattr(erasure, "list_erasure", race)
    erased = services.erase_person(by=guest, reason="")
    assert not Message.stored.exists()
    assert not Session.objects.exists()
    assert (erased.sessions, erased.messages) == (2, 3)


def test_server_code_opens_no_session_of_a_visitor_who_was_erased():
    guest = guest_with("a")
    services.erase_person(by=guest, reason="")
    talk = {"session_key": "late", "by": Actor.server("jobs"), "scope": guest.owner, "create": True}
    with pytest.raises(NotFound):
        services.append_messages(**talk, messages=make_messages("hi"))
    assert not Session.objects.exists()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_no_session_outlasts_a_visitor_who_chats_during_the_erasure(postgresql):
    for _ in range(RACES):
        guest = guest_with("a")
        is_chatting = Event()
        opened, erased = concurrently(
            partial(chat_until_the_end, guest, is_chatting),
            partial(erase_meanwhile, guest, is_chatting),
        )
        assert not Session.objects.exists()
        assert erased.sessions == 1 + opened


def chat_until_the_end(guest, is_chatting):
    """Open sessions until the visitor ends, or has the highest number of them; count them."""
    opened = 0
    with suppress(Unauthenticated, BadInput):
        while True:
            services.open_session(session_key=f"late{opened}", by=guest)
            is_chatting.set()
            opened += 1
    return opened


def erase_meanwhile(guest, is_chatting):
    assert is_chatting.wait(DEADLINE)
    return services.erase_person(by=guest, reason="")


def test_the_erasure_of_a_user_forgets_the_visitors_who_became_the_user():
    user = make_user()
    make_session(owner=user)
    make_visitor(adopted_at=DatabaseNow(), adopted_by=f"user:{user.pk}")
    other = make_visitor(adopted_at=DatabaseNow(), adopted_by=f"user:{user.pk}1").actor
    services.erase_person(by=Actor.user(user), reason="")
    assert [visitor.scope for visitor in Visitor.objects.all()] == [other.owner]


def test_a_replayed_erasure_ends_the_visitor_too(settings, tmp_path):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ERASURE_LIST": str(tmp_path / "erasures")}
    guest = guest_with("a")
    restored = Visitor.objects.get(), Session.objects.get()
    services.erase_person(by=guest, reason="")
    restored[1].created_at += timedelta(hours=1)  # it opened after the line was written
    entries = AuditEntry.objects.all()
    entries._raw_delete(entries.db)
    for row in restored:
        row.save(force_insert=True)
    services.replay_erasures(by=BY)
    assert not Session.objects.exists()
    assert not Visitor.objects.exists()
    assert not Turn.objects.exists()
