"""Rows that this process committed reach its own sockets without a read, and exactly.

See Note [Rows from memory].
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings

from chatmemory import services
from chatmemory.codec import new_client_id
from chatmemory.database import after_commit
from chatmemory.database.inserts import MAX_SHOWN_ROWS
from chatmemory.database.reads import read_page_at
from chatmemory.database.watched import watched
from chatmemory.errors import MemoryUnavailable
from chatmemory.live import feed as feed_module
from chatmemory.live.credit import Credit, CreditLimits
from chatmemory.live.feed import MAX_CHANGES, Feed
from chatmemory.models import Change, Message, Page, Session
from chatmemory.services.turns.progress import add_rows, finish_turn, start_turn
from tests.factories import TALK, make_messages, make_session
from tests.servers import Frame, Person, Tab, connected, live_process, sign_in

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

live = live_process
NOT_ON_POSTGRESQL = "on other databases all rows are read"


@pytest.fixture
def talk() -> Iterator[Session]:
    """A session with two messages that a socket shows."""
    session = make_session()
    services.append_messages(**TALK, messages=make_messages("one", "two"))
    watched.add(session.pk, session.scope, session.key)
    yield session
    watched.remove(session.pk, session.scope, session.key)


@pytest.fixture
def changes() -> Iterator[list[Change | None]]:
    """The announced changes."""
    if connection.vendor != "postgresql":
        pytest.skip(NOT_ON_POSTGRESQL)
    seen: list[Change | None] = []

    def listen(change: Change | None, **_: object) -> None:
        seen.append(change)

    after_commit.changes.connect(listen)
    yield seen
    after_commit.changes.disconnect(listen)


def read(after: int | None = None) -> Page:
    page = read_page_at("server", "talk", after=after, limit=100)
    assert page is not None
    return replace(page, row_digest="")


def append(*texts: str) -> None:
    services.append_messages(**TALK, messages=make_messages(*texts))


def admit(client_id: str = "c1") -> services.Admitted:
    return services.admit_turn(**TALK, client_id=client_id, content="hi", owner="me")


CALL = {"id": "call1", "name": "weather", "args": {}}
BLOCKS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b\0"}]


def a_whole_turn() -> Iterator[None]:
    """Execute each write that a run makes, one at a time."""
    claim = admit(new_client_id()).claim
    assert claim is not None
    yield
    start_turn(claim=claim)
    yield
    calls = {"role": "assistant", "content": "", "tool_calls": [CALL], "name": "bot"}
    add_rows(claim=claim, messages=[calls], step=0)
    yield
    add_rows(
        claim=claim,
        messages=[{"role": "tool", "content": "rain", "tool_call_id": "call1"}],
        step=None,
    )
    yield
    finish_turn(
        claim=claim,
        status="interrupted",
        error="model_timeout",
        message={"role": "assistant", "content": BLOCKS, "usage": {"input_tokens": 3}},
        model="m1",
        step=1,
    )
    yield


def test_the_page_of_each_write_is_the_one_that_a_reader_finds(talk, changes):
    for turn in (a_whole_turn, a_whole_turn):
        before = read()
        count = 0
        for _ in turn():
            [change] = changes
            assert change is not None
            after = read(after=before.head.last_seq)
            assert change.page_after(before.head) == after
            assert not change.is_in(before.head)
            assert change.is_in(after.head)
            before, count = read(), count + 1
            changes.clear()
        assert count == 5
    append("three", "four", "five")
    [change] = changes
    assert change is not None
    assert change.page_after(before.head) == read(after=before.head.last_seq)


@pytest.mark.parametrize(
    "other",
    [
        {"epoch": 1},
        {"pk": 0},
        {"scope": "user:1"},
        {"key": "other"},
        {"revision": 5},
        {"last_seq": 1},
        {"last_seq": 3},
    ],
)
def test_a_change_follows_only_the_head_before_it(talk, changes, other):
    before = read().head
    append("three")
    [change] = changes
    assert change is not None
    assert change.page_after(before) is not None
    assert change.page_after(replace(before, **other)) is None
    after = replace(read().head, **{n: v for n, v in other.items() if n in ("epoch", "pk", "key")})
    assert change.is_in(after) == (after == read().head)


def test_a_head_with_a_lower_revision_does_not_contain_a_change(talk, changes):
    """An older database was restored."""
    before = read().head
    admit()
    [change] = changes
    assert change is not None
    assert change.is_in(read().head)
    assert not change.is_in(replace(read().head, revision=before.revision))


@pytest.mark.parametrize("other", [{"epoch": 1}, {"pk": 0}, {"running": None}, {"running": "c0"}])
def test_the_start_of_a_turn_follows_only_its_admission(talk, changes, other):
    claim = admit().claim
    assert claim is not None
    before = read().head
    changes.clear()
    start_turn(claim=claim)
    [change] = changes
    assert change is not None
    assert change.page_after(before) == read(after=before.last_seq)
    assert change.page_after(replace(before, **other)) is None
    assert not change.is_in(replace(read().head, **other))


def test_a_row_of_a_turn_whose_start_is_unknown_is_read(talk, changes):
    claim = admit().claim
    assert claim is not None
    before = read().head
    start_turn(claim=claim)
    changes.clear()
    add_rows(claim=claim, messages=[{"role": "assistant", "content": "So"}], step=0)
    [change] = changes
    assert change is not None
    assert change.page_after(before) is None


def test_what_is_not_a_transaction_of_its_own_is_read(talk, changes):
    with transaction.atomic():
        append("three")
    assert changes == [None]


def test_a_large_batch_is_read(talk, changes):
    append(*map(str, range(MAX_SHOWN_ROWS + 1)))
    assert changes == [None]


def test_a_replaced_message_is_read(talk, changes):
    admitted = services.admit_turn(
        **TALK, client_id="c1", content="hi", owner="me", replaces=1, expect_seq=1
    )
    assert admitted.claim is not None
    assert changes == [None]


def test_a_session_without_sockets_returns_no_rows(talk, changes):
    watched.remove(talk.pk, talk.scope, talk.key)
    claim = admit().claim
    assert claim is not None
    start_turn(claim=claim)
    finish_turn(claim=claim, status="complete", message=make_messages("", "ho")[1])
    append("three")
    admitted, started, finished, appended = changes
    assert admitted is finished is appended is None
    assert started is not None  # its time costs nothing
    watched.add(talk.pk, talk.scope, talk.key)


def test_a_session_is_watched_until_its_last_socket_leaves():
    for _ in range(2):
        watched.add(7, "server", "a")
    watched.remove(7, "server", "a")
    assert watched.has({"id": 7})
    assert watched.has({"scope": "server", "key": "a"})
    assert not watched.has({"scope": "user:1", "key": "a"})
    watched.remove(7, "server", "a")
    assert not watched.has({"id": 7})
    assert not watched.has({"scope": "server", "key": "a"})
    assert not watched._sockets


# The feed


def frames(feed: Feed, credit: Credit | None = None) -> list[Frame]:
    """Return the frames that the feed sends now."""

    async def take() -> list[Frame]:
        sent = feed.frames(credit or Credit(CreditLimits()))
        return [json.loads(frame) async for frame in sent]

    with override_settings(CHATMEMORY={"DB_THREADS": 0}):
        return async_to_sync(take)()


@pytest.fixture
def feed(talk, page_reads) -> Feed:
    feed = Feed(talk, None)
    frames(feed)
    page_reads.clear()
    return feed


def texts(sent: list[Frame]) -> list[str]:
    return [frame["text"] for frame in sent if frame["type"] == "message"]


def deliver(feed: Feed, changes: list[Change | None]) -> list[Frame]:
    for change in changes:
        feed.receive(change)
    changes.clear()
    return frames(feed)


def test_a_turn_is_shown_without_a_read(feed, changes, page_reads, talk):
    for _ in a_whole_turn():
        sent = deliver(feed, changes)
        assert sent
        last = [frame for frame in sent if frame["type"] == "session"]
    fresh = frames(Feed(talk, None))
    assert page_reads == [None]  # that of the new feed
    assert last[-1] == next(frame for frame in fresh if frame["type"] == "session")
    assert sent[-1] == fresh[-1]  # the cursor


def test_changes_that_arrive_late_or_repeatedly_are_sent_once(feed, changes, page_reads):
    append("three")
    append("four")
    first, second = changes
    assert texts(deliver(feed, [second, first])) == ["three", "four"]
    assert page_reads == [2]
    assert deliver(feed, [first, second, first]) == []
    assert page_reads == [2]


def test_a_change_that_follows_a_read_is_not_read_again(feed, changes, page_reads):
    append("three")
    append("four")
    third = changes.copy()
    append("five")
    changes.clear()
    feed.receive(None)
    assert texts(deliver(feed, third)) == ["three", "four", "five"]
    assert page_reads == [2]


@pytest.mark.parametrize("action", ["redact", "trim", "clear", "other process"])
def test_what_happened_between_commit_and_delivery_is_read(feed, changes, page_reads, action):
    append("three")
    late = changes * 2
    match action:
        case "redact":
            services.redact_message(**TALK, seq=3, reason="test")
        case "trim":
            services.trim_session(**TALK, keep_last=0, reason="test")
        case "clear":
            services.clear_session(**TALK, reason="test")
        case _:
            append("four")
    changes.clear()
    feed.receive(None)  # the notification of the other write
    sent = deliver(feed, late)
    shown = {"redact": [""], "other process": ["three", "four"]}.get(action, [])
    assert texts(sent) == shown
    assert sent[0]["type"] == ("reset" if action == "clear" else sent[0]["type"])
    append("next")
    assert texts(deliver(feed, changes)) == ["next"]
    # After the clear also the newest rows, and once more for each change of the old epoch.
    assert len(page_reads) == (4 if action == "clear" else 1)


def test_a_redaction_after_the_delivery_is_sent_after_the_row(feed, changes, page_reads):
    append("three")
    late = changes.copy()
    services.redact_message(**TALK, seq=3, reason="test")
    changes.clear()
    assert texts(deliver(feed, late)) == ["three"]
    feed.receive(None)
    assert texts(frames(feed)) == [""]


def test_another_row_before_one_from_memory_is_noticed_by_the_next_read(feed, changes, page_reads):
    """A failover loses the row that the feed has sent, and another process stores another one."""
    Message.stored.filter(seq=2).delete()
    Session.objects.update(last_seq=1)
    append("another")
    changes.clear()
    append("three")
    assert texts(deliver(feed, changes)) == ["three"]
    assert page_reads == []
    feed.receive(None)
    reset, *sent = frames(feed)
    assert (reset["type"], reset["reason"]) == ("reset", "diverged")
    assert texts(sent) == ["one", "another", "three"]
    feed.receive(None)
    assert frames(feed) == []


@pytest.mark.regression
def test_a_reset_is_not_followed_by_one_for_rows_before_it(feed, changes):
    for text in ("three", "four"):
        append(text)
        assert texts(deliver(feed, changes)) == [text]
    Message.stored.filter(seq__gt=2).delete()
    Session.objects.update(last_seq=2)
    feed.receive(None)
    reset = frames(feed)[0]
    assert (reset["type"], reset["reason"], reset["lost"]) == ("reset", "ahead", 2)
    feed.receive(None)
    assert frames(feed) == []


def test_after_many_changes_the_next_one_is_read(feed, changes, page_reads, monkeypatch):
    monkeypatch.setattr(feed_module, "MAX_UNCHECKED", 3)
    shown = []
    for number in range(8):
        append(str(number))
        shown += texts(deliver(feed, changes))
    assert shown == [str(number) for number in range(8)]
    assert page_reads == [5, 9]


def test_a_change_after_a_failed_read_omits_no_row(feed, changes, page_reads, monkeypatch):
    append("three")
    services.redact_message(**TALK, seq=1, reason="test")
    changes.clear()

    async def fail(*_: object, **__: object) -> None:
        raise MemoryUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(feed_module, "_achanged", fail)
        feed.receive(None)
        with pytest.raises(MemoryUnavailable):
            frames(feed)
    append("four")
    assert texts(deliver(feed, changes)) == ["", "three", "four"]


def test_a_slow_socket_keeps_no_rows(feed, changes, page_reads):
    append("three")
    credit = Credit(CreditLimits(credit_bytes=0))
    for change in changes:
        feed.receive(change)
    assert frames(feed, credit) == []
    assert not feed.has_changes
    assert texts(frames(feed)) == ["three"]
    assert page_reads == [2]


def test_credit_that_ends_between_two_rows_loses_none(feed, changes, page_reads):
    append("three", "four", "five")
    credit = Credit(CreditLimits(credit_bytes=1))
    for change in changes:
        feed.receive(change)

    async def take_one() -> list[Frame]:
        sent = []
        async for frame in feed.frames(credit):
            sent.append(json.loads(frame))
            credit.spend(1)
        return sent

    with override_settings(CHATMEMORY={"DB_THREADS": 0}):
        assert texts(async_to_sync(take_one)()) == ["three"]
    assert texts(frames(feed)) == ["four", "five"]


def test_a_socket_keeps_a_bounded_number_of_changes(feed, changes, page_reads):
    for number in range(MAX_CHANGES + 1):
        append(str(number))
    for change in changes:
        feed.receive(change)
    assert not feed.has_changes
    assert texts(frames(feed)) == [str(number) for number in range(MAX_CHANGES + 1)]
    assert page_reads == [2]


async def test_an_open_socket_watches_its_session(ann):
    session = await Session.objects.aget()
    address = {"scope": session.scope, "key": session.key}
    async with connected(Tab(ann), Tab(ann)):
        assert watched.has(address)
        assert watched.has({"id": session.pk})
    assert not watched.has(address)
    assert not watched.has({"id": session.pk})


@pytest.fixture
def ann(live) -> Person:
    person = sign_in()
    make_session(owner=person.user)
    return person
