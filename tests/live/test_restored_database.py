"""An older database is restored under open sockets: no foreign row, and no silent loss."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from asgiref.sync import sync_to_async as db
from django.db import transaction
from django.db.models import F
from django.test import override_settings

from chatmemory import services
from chatmemory.live import feed as feed_module
from chatmemory.live.credit import Credit, CreditLimits
from chatmemory.live.feed import Feed
from chatmemory.live.hub import hub
from chatmemory.live.texts import SessionRef
from chatmemory.models import Message, Session, Turn
from chatmemory.services import catch_up
from tests.factories import make_messages, make_session, make_user
from tests.servers import Frame, Person, Tab, connected, live_process, sign_in

pytestmark = [pytest.mark.database, pytest.mark.regression]
TEXTS = ("one", "two", "three", "four")
HOUR = timedelta(hours=1)
SECRET = "another's secret"


class Dump:
    """A backup of one session with its rows."""

    def __init__(self, session: Session) -> None:
        self.sessions = list(Session.objects.filter(pk=session.pk))
        self.messages = list(Message.stored.filter(session=session))

    def restore(self, pk: int | None = None) -> None:
        """Replace everything in the database by it, with another primary key if one is given."""
        if pk is not None:
            for session in self.sessions:
                session.pk = pk
            for message in self.messages:
                message.session_id = pk
        with transaction.atomic():
            Message.stored.all().delete()
            Turn.objects.all().delete()
            Session.objects.all().delete()
            Session.objects.bulk_create(self.sessions)
            Message.stored.bulk_create(self.messages)


def append(person: Person, *texts: str) -> None:
    services.append_messages(**person.talk, messages=make_messages(*texts))


def foreign_session(pk: int, owner: Person | None = None, **columns: object) -> Session:
    """Create another user's session with this primary key and one message."""
    user = owner.user if owner else make_user()
    session = make_session("foreign", pk=pk, owner=user, **columns)
    by = services.Actor.user(user)
    services.append_messages(session_key="foreign", by=by, messages=make_messages(SECRET))
    return session


def frames(feed: Feed) -> list[Frame]:
    """Return the frames that the feed sends now."""

    async def read() -> list[Frame]:
        return [json.loads(frame) async for frame in feed.frames(Credit(CreditLimits()))]

    feed.is_read_due = True
    with override_settings(CHATMEMORY={"DB_THREADS": 0}):
        return async_to_sync(read)()


def resets(sent: list[Frame]) -> list[tuple[str, int | None]]:
    return [(frame["reason"], frame["lost"]) for frame in sent if frame["type"] == "reset"]


def texts(sent: list[Frame]) -> list[str]:
    return [frame["text"] for frame in sent if frame["type"] == "message"]


@pytest.fixture
def ann(db) -> Person:
    return sign_in()


@pytest.fixture
def talk(ann) -> Session:
    """Ann's session, with four messages."""
    session = make_session(owner=ann.user)
    append(ann, *TEXTS)
    session.refresh_from_db()
    return session


@pytest.fixture
def cursor(talk) -> str:
    """Return the cursor of a client that has all four messages."""
    return str(frames(Feed(talk, None))[-1]["cursor"])


# Rows and text of other sessions


def test_a_feed_shows_no_session_that_has_its_primary_key(talk):
    feed = Feed(talk, None)
    frames(feed)
    Message.stored.all().delete()
    talk.delete()
    foreign_session(feed.ref.session_pk)
    sent = frames(feed)
    assert SECRET not in str(sent)
    assert resets(sent) == [("ahead", 4)]
    assert feed.is_removed


def test_a_feed_follows_its_session_to_another_primary_key(ann, talk):
    feed, dump = Feed(talk, None), Dump(talk)
    frames(feed)
    dump.restore(pk=talk.pk + 1000)
    foreign_session(talk.pk)
    append(ann, "five")
    sent = frames(feed)
    assert (resets(sent), texts(sent)) == ([], ["five"])
    assert feed.ref == SessionRef(talk.pk + 1000, talk.epoch)


@pytest.mark.parametrize("name", ["scope", "key", "epoch"])
def test_no_read_of_a_feed_finds_rows_of_another_session(ann, talk, name):
    head = Session.objects.at(talk.scope, talk.key).page(after=None, limit=1).head
    columns = {"scope": "user:0", "key": "other", "epoch": talk.epoch + 1}
    Session.objects.update(**{name: columns[name]}, waiting=1, superseded_to=4)
    Message.stored.update(revision=5)
    Turn.objects.create(session=talk, client_id="w", status="waiting", epoch=talk.epoch)
    asked = {"user_seq": 3, "replaces_from": 1, "replaces_to": 2, "status": "complete"}
    Turn.objects.create(session=talk, client_id="r", epoch=talk.epoch, **asked)
    now = Session.objects.get()
    same = Session.objects.at(now.scope, now.key).page(after=None, limit=1).head
    reads = (
        lambda at: catch_up._read_changed(at, 1, 4, (0, 0), 100),
        feed_module._waiting_turns,
        feed_module._superseded,
    )
    for read in reads:
        assert read(same), "the test is in vain"
        assert read(replace(same, **{name: getattr(head, name)})) == []


def test_a_feed_shows_only_text_of_its_own_epoch(ann, talk):
    services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me")
    feed = Feed(Session.objects.get(), None)
    frames(feed)
    try:
        show(SessionRef(talk.pk, talk.epoch + 1), SECRET)
        assert frames(feed) == []
        show(SessionRef(talk.pk, talk.epoch), "own")
        assert texts_of_stream(frames(feed)) == ["own"]
    finally:
        for epoch in (talk.epoch, talk.epoch + 1):
            hub.end_text(SessionRef(talk.pk, epoch), "c1")


def show(ref: SessionRef, piece: str) -> None:
    text = hub.begin_text(ref, "c1", 0)
    text.pieces.append(piece)
    text.publish()


def texts_of_stream(sent: list[Frame]) -> list[str]:
    return [frame["text"] for frame in sent if frame["type"] in ("snapshot", "delta")]


# Lost messages


def test_a_cursor_of_lost_messages_is_reset_with_their_number(ann, talk, cursor):
    Message.stored.filter(seq__gt=1).delete()
    Session.objects.update(last_seq=1)
    sent = frames(Feed(Session.objects.get(), cursor))
    assert (resets(sent), texts(sent)) == ([("ahead", 3)], ["one"])


@pytest.mark.parametrize("later", [0, 1])
def test_after_a_restore_the_number_is_unknown_after_a_new_message(ann, talk, cursor, later):
    Message.stored.filter(seq__gt=1).delete()
    Session.objects.update(last_seq=1)
    for _ in range(later):
        append(ann, "new")
        Message.stored.filter(text="new").update(created_at=F("created_at") + HOUR)
    assert resets(frames(Feed(Session.objects.get(), cursor))) == [("ahead", None if later else 3)]


def test_a_cursor_without_a_time_is_reset_with_an_unknown_number(talk, cursor):
    Message.stored.filter(seq__gt=1).delete()
    Session.objects.update(last_seq=1)
    sent = frames(Feed(Session.objects.get(), cursor.split("~")[0]))
    assert resets(sent) == [("ahead", None)]


def removed_by_purge(ann, talk):
    services.purge_session(**ann.talk, reason="")


def vacuumed_after_purge(ann, talk):
    services.purge_session(**ann.talk, reason="")
    Message.stored.all().delete()
    Session.objects.all().delete()


def erased(ann, talk):
    services.erase_person(by=services.Actor.user(ann.user), reason="")


def expired(ann, talk):
    Session.objects.update(expires_at=talk.created_at - HOUR)


def lost_in_a_restore(ann, talk):
    Message.stored.all().delete()
    Session.objects.all().delete()
    operator = services.Actor.operator(ann.user)
    other = foreign_session(talk.pk)  # the primary key is assigned again
    services.purge_session(session_key="foreign", by=operator, scope=other.scope, reason="")


@pytest.mark.parametrize(
    ("remove", "reset"),
    [
        (removed_by_purge, ("purged", 0)),
        (vacuumed_after_purge, ("purged", 0)),
        (erased, ("purged", 0)),
        (expired, ("purged", 0)),
        (lost_in_a_restore, ("ahead", 3)),
    ],
)
def test_only_a_session_that_was_removed_is_purged(ann, talk, remove, reset):
    Session.objects.update(first_seq=2)
    feed = Feed(Session.objects.get(), None)
    frames(feed)
    remove(ann, Session.objects.get())
    assert resets(frames(feed)) == [reset]
    assert feed.is_removed


def test_a_session_that_is_opened_again_after_a_restore_lost_the_messages(ann, talk, cursor):
    Message.stored.all().delete()
    Session.objects.all().delete()
    session = make_session(owner=ann.user, pk=talk.pk + 1000)
    append(ann, "again")
    assert resets(frames(Feed(session, cursor))) == [("ahead", 4)]


def test_a_cursor_of_a_message_that_another_replaced_is_reset(ann, talk, cursor):
    Message.stored.filter(seq__gt=2).delete()
    Session.objects.update(last_seq=2)
    append(ann, "new", "reply", "more")
    sent = frames(Feed(Session.objects.get(), cursor))
    assert resets(sent) == [("diverged", None)]
    assert texts(sent) == ["one", "two", "new", "reply", "more"]


@pytest.mark.parametrize("later", [(), ("new",), ("new", "reply"), ("new", "reply", "more")])
def test_an_open_socket_is_reset_also_after_new_messages(ann, talk, later):
    dump = Dump(talk)
    append(ann, "lost", "lost too")
    feed = Feed(talk, None)
    frames(feed)
    dump.restore()
    if later:
        append(ann, *later)
        Message.stored.filter(text__in=later).update(created_at=F("created_at") + HOUR)
    sent = frames(feed)
    # With new messages, it is unknown how many were lost before them.
    reason = "ahead" if len(later) < 2 else "diverged"
    assert resets(sent) == [(reason, None if later else 2)]
    assert texts(sent) == [*TEXTS, *later]
    kinds = [frame["type"] for frame in sent]
    assert kinds[0] == "reset"
    assert kinds[-2:] == ["session", "synced"], "a client that was reset needs both"


def test_a_cursor_from_before_the_backup_is_resumed_without_a_reset(ann, talk, cursor):
    dump = Dump(talk)
    append(ann, "lost")
    dump.restore()
    append(ann, "new")
    sent = frames(Feed(Session.objects.get(), cursor))
    assert (resets(sent), texts(sent)) == ([], ["new"])


def test_a_redaction_or_a_repair_does_not_make_a_cursor_invalid(ann, talk, cursor):
    services.redact_message(
        session_key="talk", seq=4, by=services.Actor.operator(ann.user), scope=talk.scope, reason=""
    )
    Message.stored.filter(seq=4).update(quarantined=True)
    assert resets(frames(Feed(Session.objects.get(), cursor))) == []


def test_a_trim_or_vacuum_of_the_last_row_does_not_make_a_cursor_invalid(ann, talk, cursor):
    append(ann, "five")
    services.trim_session(**ann.talk, keep_last=1, reason="")
    Message.stored.filter(seq__lt=5).delete()
    Session.objects.update(stored_from=5)
    sent = frames(Feed(Session.objects.get(), cursor))
    assert (resets(sent), texts(sent)) == ([], ["five"])


def test_a_new_session_under_the_same_key_has_lost_nothing(ann, talk, cursor):
    services.purge_session(**ann.talk, reason="")
    session = make_session(owner=ann.user)
    assert resets(frames(Feed(session, cursor))) == [("other", 0)]


# Over a real socket


live = live_process


@pytest.mark.django_db(transaction=True)
async def test_a_socket_gets_notifications_under_the_new_primary_key(live):
    def prepare():
        person = sign_in()
        session = make_session(owner=person.user)
        append(person, *TEXTS)
        return person, Session.objects.get(), Dump(session)

    ann, talk, dump = await db(prepare)()
    async with connected(tab := Tab(ann)):
        await db(dump.restore)(pk=talk.pk + 1000)
        await db(foreign_session)(talk.pk)  # a notification of the old primary key
        await db(append)(ann, "five")
        await tab.until("message", text="five")
        await db(append)(ann, "six")
        await tab.until("message", text="six")
    assert SECRET not in str(tab.frames)
    assert resets(tab.frames) == []


@pytest.mark.django_db(transaction=True)
async def test_a_socket_whose_session_was_lost_is_closed_and_shows_no_other(live):
    def prepare():
        person = sign_in()
        return person, make_session(owner=person.user)

    ann, talk = await db(prepare)()
    pk = talk.pk
    async with connected(tab := Tab(ann)):
        await db(talk.delete)()
        await db(foreign_session)(pk)
        bye, code = await tab.closed()
    assert (bye["reason"], code) == ("not_found", 4404)
    assert SECRET not in str(tab.frames)
