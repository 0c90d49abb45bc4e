"""Which blocks the indexer writes, and when."""

from __future__ import annotations

import pytest

from chatmemory.models import Message
from chatmemory.search import search_messages
from chatmemory.search.indexing import due_sessions, index_session
from chatmemory.search.integrity import find_wrong_blocks
from chatmemory.search.models import SearchBlock
from chatmemory.services import append_messages, clear_session, restore_session
from chatmemory.services.integrity.sessions import check_integrity
from tests.factories import BY, TALK, make_messages, make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def ranges():
    return list(SearchBlock.objects.order_by("low").values_list("low", "high"))


def found(query, **more):
    hits = search_messages(by=BY, scope=TALK["scope"], query=query, **more).hits
    return sorted(hit.seq for hit in hits)


def test_messages_behind_a_cleared_history_get_the_block_of_their_number():
    session = make_session()
    append_messages(**TALK, messages=make_messages("old", "older"))
    assert index_session(session.pk).blocks == 1
    entry = clear_session(**TALK, reason="")
    append_messages(**TALK, messages=make_messages("new", "newer"))
    assert index_session(session.pk).is_complete
    assert ranges() == [(3, 4)]
    restore_session(entry_pk=entry.pk, by=BY, scope=TALK["scope"], reason="")
    assert found("old new") == [1, 3]
    assert due_sessions([session.pk]) == [session.pk]
    assert index_session(session.pk).is_complete
    assert ranges() == [(1, 4)]
    assert not due_sessions([session.pk])
    assert not list(find_wrong_blocks())


def test_a_message_that_is_readable_again_is_found():
    session = make_session()
    append_messages(**TALK, messages=make_messages("kettle", "green"))
    Message.stored.filter(seq=1).update(quarantined=True)
    index_session(session.pk)
    assert found("kettle") == []
    (repaired,) = check_integrity(repair_by=BY)
    assert repaired.code == "readable"
    assert found("kettle") == [1]
