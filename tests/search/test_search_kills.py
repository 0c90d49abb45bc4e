"""A process that is killed while it indexes leaves uncovered messages, and never a wrong block."""

from __future__ import annotations

from itertools import count

import pytest
from django.core.management import call_command

from chatmemory.search import search_messages
from chatmemory.search.indexing import due_sessions
from chatmemory.search.integrity import drop_index, find_wrong_blocks
from chatmemory.search.models import SearchBlock
from chatmemory.services import append_messages
from tests.factories import BY, TALK, make_messages, make_session
from tests.killed import killable

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database,
    pytest.mark.long,
]


def test_a_killed_indexer_leaves_an_exact_search(live_database_env):
    session = make_session()
    append_messages(**TALK, messages=make_messages(*(f"kettle {n}" for n in range(140))))
    with killable("tests.search.indexing_process", live_database_env) as kill:
        points = 0
        for number in count(1):
            if not kill(number):
                break
            points += 1
            assert not list(find_wrong_blocks())
            check_search()
            call_command("chatmemory_search")
            assert not due_sessions([session.pk])
            call_command("chatmemory_search", "check")
            check_search()
            drop_index()
    assert points >= 8
    assert SearchBlock.objects.count() == 2


def check_search() -> None:
    hits = search_messages(by=BY, scope=TALK["scope"], query="kettle", order="newest", limit=50)
    assert [hit.seq for hit in hits.hits] == list(range(140, 90, -1))
    for wanted in ("kettle 5", "139"):
        found = search_messages(by=BY, scope=TALK["scope"], query=wanted, order="newest").hits
        assert [hit.text for hit in found] == [f"kettle {wanted.split()[-1]}"]
