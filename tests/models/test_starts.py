"""The beginning of a session, which names it where it has no title."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.models import Session, starts_of
from chatmemory.services import (
    SERVER,
    admit_turn,
    append_messages,
    list_removed,
    purge_session,
    trim_session,
)
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, TALK, make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def ask(text, **replacement):
    """Run a turn of two rows."""
    turn = {**TALK, "client_id": text[:9], "content": text, "owner": "me", **replacement}
    claim = admit_turn(**turn).claim
    reply = {"role": "assistant", "content": "done"}
    assert finish_turn(claim=claim, status="complete", message=reply)


def edit(seq, text):
    ask(text, replaces=seq, expect_seq=Session.objects.get().last_seq - 1)


def start():
    return starts_of([Session.objects.get().pk]).get(Session.objects.get().pk)


def test_it_is_the_oldest_user_message_that_no_edit_supersedes():
    make_session()
    ask("one")
    ask("three")
    assert start() == "one"
    edit(3, "five")
    assert start() == "one"
    edit(1, "seven")
    assert start() == "seven"
    edit(7, "nine")
    assert start() == "nine"


def test_a_trim_moves_it_to_the_next_user_message():
    make_session()
    ask("one")
    ask("three")
    trim_session(session_key="talk", before_seq=3, scope=SERVER, by=BY, reason="a test")
    assert start() == "three"


def test_a_deleted_session_keeps_it():
    make_session()
    ask("one")
    edit(1, "three")
    purge_session(session_key="talk", scope=SERVER, by=BY, reason="a test")
    assert [removed.text for removed in list_removed(by=BY, scope=SERVER)] == ["three"]


def test_it_is_cut_and_missing_without_a_user_message():
    session = make_session()
    append_messages(
        session_key="talk", messages=[{"role": "assistant", "content": "hi"}], scope=SERVER, by=BY
    )
    assert starts_of([session.pk]) == {}
    ask("x" * 300)
    assert start() == "x" * 200


def test_all_are_read_in_one_statement_and_none_in_no_statement():
    pks = [make_session(f"talk{number}").pk for number in range(3)]
    with CaptureQueriesContext(connection) as captured:
        starts_of(pks)
        starts_of([])
    assert len(captured) == 1
