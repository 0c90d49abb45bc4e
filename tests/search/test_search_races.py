"""A removal while a session is indexed: no removed word stays in a block."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable
from datetime import datetime
from threading import Event
from typing import Any

import pytest
from django.db import connection

from chatmemory.models import Message, Session, database_now
from chatmemory.search import indexing, search_messages
from chatmemory.search.blocks import pack
from chatmemory.search.indexing import index_session
from chatmemory.search.integrity import find_wrong_blocks
from chatmemory.search.models import SearchBlock
from chatmemory.services import (
    Actor,
    admit_turn,
    adopt_visitor,
    append_messages,
    clear_session,
    erase_person,
    purge_session,
    redact_message,
    restore_session,
    set_feedback,
    trim_session,
)
from chatmemory.services.derived.writing import Seen, seen_of, store
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.transfers.imports import begin_import, discard_import, import_rows
from chatmemory.services.turns.progress import finish_turn
from chatmemory.testing.derived import check_derived_rows
from tests.factories import BY, TALK, make_messages, make_user, make_visitor
from tests.locking import thread

pytestmark = [pytest.mark.django_db, pytest.mark.database]

ROUNDS = int(os.environ.get("SEARCH_RACES", "6"))

WORD = "zq1x"
"""No stem changes it."""


@pytest.fixture(autouse=True)
def _settings(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0, "ALLOW_ANONYMOUS": True}


def talk(address: dict[str, Any] = TALK) -> Session:
    """Store a session whose first message has the word."""
    claim = admit_turn(**address, client_id="t", content=f"a {WORD}", owner="me", create=True).claim
    assert claim is not None
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "yes"})
    append_messages(**address, messages=make_messages("green", "kettle"))
    session: Session = Session.objects.get(key=address["session_key"], removed_at=None)
    return session


def edit() -> None:
    last = Message.objects.filter(role="user").in_order().last()
    assert last is not None
    claim = admit_turn(
        **TALK, client_id="e", content="no", owner="me", replaces=1, expect_seq=last.seq
    ).claim
    assert claim is not None
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "no"})


def hidden_for_good(hide: Callable[..., Any], **more: Any) -> None:
    hide(**TALK, **more, reason="")
    vacuum()


REMOVALS: dict[str, Callable[[], Any]] = {
    "redact": lambda: redact_message(**TALK, seq=1, reason=""),
    "erase": lambda: erase_person(by=BY, scope=TALK["scope"], reason=""),
    "trim": lambda: hidden_for_good(trim_session, before_seq=3),
    "clear": lambda: hidden_for_good(clear_session),
    "purge": lambda: hidden_for_good(purge_session),
}
"""What deletes the word from the database."""

HIDINGS: dict[str, Callable[[], Any]] = {
    "trim": lambda: trim_session(**TALK, before_seq=3, reason=""),
    "clear": lambda: clear_session(**TALK, reason=""),
    "purge": lambda: purge_session(**TALK, reason=""),
    "edit": edit,
}
"""What hides it."""


def has_word() -> bool:
    """Return whether a block has the word."""
    found = SearchBlock.objects.values_list("words", flat=True)
    return any(WORD.encode() in zlib.decompress(bytes(words)) for words in found)


def found(**more: Any) -> list[int]:
    given = {"by": BY, "scope": TALK["scope"], **more}
    return [hit.seq for hit in search_messages(query=WORD, **given).hits]


def before_write(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> None:
    """Call this once, after the indexer has read the messages of a block."""
    calls = [call]

    def pack_later(rows: Any) -> Any:
        packed = pack(rows)
        if calls:
            calls.pop()()
        return packed

    monkeypatch.setattr(indexing, "pack", pack_later)


@pytest.mark.parametrize("name", REMOVALS)
def test_no_word_that_is_removed_while_a_session_is_indexed_is_in_a_block(monkeypatch, name):
    session = talk()
    before_write(monkeypatch, REMOVALS[name])
    index_session(session.pk)
    assert not has_word()
    assert found() == []
    assert not list(find_wrong_blocks())


def test_without_the_guard_the_word_would_be_in_a_block(monkeypatch):
    def store_anyway(seen: Seen, *args: Any, **options: Any) -> bool:
        now = Session.objects.get(pk=seen.session_pk)
        return bool(store(seen_of(now), *args, **options))

    session = talk()
    before_write(monkeypatch, REMOVALS["redact"])
    monkeypatch.setattr(indexing, "store", store_anyway)
    index_session(session.pk)
    assert has_word()


@pytest.mark.parametrize("name", HIDINGS)
def test_a_message_that_is_hidden_while_its_session_is_indexed_is_not_found(monkeypatch, name):
    session = talk()
    before_write(monkeypatch, HIDINGS[name])
    index_session(session.pk)
    assert found() == []


def test_messages_that_a_restore_shows_while_a_session_is_indexed_are_found(monkeypatch):
    session = talk()
    entry = trim_session(**TALK, before_seq=3, reason="")
    before_write(
        monkeypatch,
        lambda: restore_session(entry_pk=entry.pk, by=BY, scope=TALK["scope"], reason=""),
    )
    index_session(session.pk)
    assert found() == [1]


def test_sessions_that_are_adopted_while_they_are_indexed_are_found(monkeypatch):
    guest, user = make_visitor().actor, Actor.user(make_user())
    address = {"session_key": "talk", "by": guest}
    append_messages(**address, messages=make_messages(f"a {WORD}", "yes"), create=True)
    before_write(monkeypatch, lambda: adopt_visitor(by=user, visitor=guest))
    index_session(Session.objects.get().pk)
    assert SearchBlock.objects.count() == 1
    assert found(by=user, scope=None) == [1]


def test_an_import_that_is_discarded_while_it_is_indexed_leaves_no_block(monkeypatch):
    now = database_now(connection)
    columns = {"created_at": now, "last_seq": 1, "first_seq": 1, "stored_from": 1}
    importing = begin_import(
        session_key="new", session=columns, digest="x", by=BY, scope=TALK["scope"]
    )
    import_rows(found=importing, turns=[], rows=[imported_row(now)])
    before_write(monkeypatch, lambda: discard_import(found=importing))
    index_session(importing.session_pk)
    assert not SearchBlock.objects.exists()


def imported_row(created_at: datetime) -> dict[str, Any]:
    return {
        "seq": 1,
        "role": "user",
        "text": f"a {WORD}",
        "body": None,
        "tokens": 1,
        "client_id": None,
        "turn": None,
        "redacted": False,
        "feedback": None,
        "created_at": created_at,
        "status": "complete",
        "error": "",
        "model": "",
    }


def test_a_thumb_deletes_and_rebuilds_nothing():
    session = talk()
    index_session(session.pk)
    (block,) = SearchBlock.objects.values_list("pk", flat=True)
    set_feedback(**TALK, turn="t", value=1)
    assert index_session(session.pk).blocks == 0
    assert SearchBlock.objects.get().pk == block


def test_a_thumb_while_a_session_is_indexed_is_no_obstacle(monkeypatch):
    session = talk()
    before_write(monkeypatch, lambda: set_feedback(**TALK, turn="t", value=1))
    assert index_session(session.pk).is_complete
    assert SearchBlock.objects.count() == 1


@pytest.mark.long
def test_no_word_outlives_its_message_in_a_block():
    def make(low: int, high: int | None, text: str) -> SearchBlock:
        # Each row has a number of its own: the check stores rows that overlap.
        number = SearchBlock.objects.count() + 1
        values = {"number": number, "analyzer": "1:english", "postings": b""}
        return SearchBlock(low=low, high=high, words=text.encode(), **values)

    check_derived_rows(SearchBlock, make)


def race(name: str, chosen: random.Random) -> None:
    """Index a session in another thread while its word is removed."""
    session = talk()
    begun = Event()
    with pytest.MonkeyPatch.context() as patch, thread() as call:
        before_write(patch, begun.set)
        indexed = call(index_session, session.pk)
        if chosen.random() < 0.8:
            assert begun.wait(30)
        REMOVALS[name]()
        indexed.result()
    assert not has_word()
    assert found() == []
    assert not list(find_wrong_blocks())
    erase_person(by=BY, scope=TALK["scope"], reason="")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_an_indexer_in_another_thread_leaves_no_removed_word():
    for name in REMOVALS:
        race(name, random.Random(1))  # noqa: S311  # no secret


@pytest.mark.long
@pytest.mark.parametrize("name", REMOVALS)
@pytest.mark.django_db(transaction=True)
def test_an_indexer_in_another_thread_never_leaves_a_removed_word(name):
    chosen = random.Random(2)  # noqa: S311  # no secret
    for _ in range(ROUNDS):
        race(name, chosen)
