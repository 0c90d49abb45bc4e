"""Statements on messages and turns name their session, so a table can be partitioned by it."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.models import DatabaseNow, Message, Session, Turn
from chatmemory.services import (
    admit_turn,
    append_messages,
    clear_session,
    get_session,
    list_turns,
    purge_session,
    read_history,
    read_page,
    redact_message,
    redact_turn,
    restore_session,
    set_feedback,
    stop_turn,
    trim_session,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.progress import (
    add_rows,
    finish_turn,
    renew_leases,
    save_partial,
    start_turn,
)
from chatmemory.services.turns.recovery import recover_overdue_turn, requeue_unstarted_turns
from chatmemory.window import read_window
from tests.factories import BY, TALK, make_messages, make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database]

ON_ROWS = re.compile(r'(?:FROM|UPDATE|JOIN|INTO)\s+["`]?chatmemory_(?:message|turn)\b')
OF_A_PROCESS = re.compile(r'^SELECT .* WHERE .*lease_owner["`]? = ')
"""Which turns a process has claimed is asked once, at its drain."""

REPLY = {"role": "assistant", "content": "yes"}


def run(client_id, **more):
    claim = admit_turn(**TALK, client_id=client_id, content="hi", owner="me", **more).claim
    assert start_turn(claim=claim)
    assert save_partial(claim=claim, text="y", step=0)
    renew_leases(claims=[claim])
    read_window(Session.objects.get(pk=claim.session_pk))
    assert add_rows(claim=claim, messages=[REPLY], step=0)
    assert finish_turn(claim=claim, status="complete", message=REPLY, step=1)


def claim_waiting(client_id):
    admit_turn(**TALK, client_id=client_id, content="hi")
    return claim_next(session_pk=get_session(**TALK).pk, owner="me")


def the_life_of_a_session():
    append_messages(**TALK, messages=make_messages("a", "b"))
    run("one")
    run("two", replaces=3, expect_seq=3)
    set_feedback(**TALK, turn="two", value=1)
    set_feedback(**TALK, turn="two", value=None)
    claim_waiting("fails")
    requeue_unstarted_turns(owner="me")
    claim = claim_next(session_pk=get_session(**TALK).pk, owner="me")
    assert start_turn(claim=claim)
    append_messages(**TALK, messages=make_messages("later"), if_busy="defer")
    admit_turn(**TALK, client_id="cancelled", content="hi")
    assert stop_turn(**TALK, turn="cancelled") == "cancelled"
    Turn.objects.filter(session=claim.session_pk, client_id="fails").update(
        lease_until=DatabaseNow()
    )
    assert recover_overdue_turn(claim.session_pk)
    list_turns(**TALK)
    read_page(**TALK)
    read_history(**TALK)
    redact_message(**TALK, seq=1, reason="")
    redact_turn(**TALK, turn="cancelled", reason="")
    trim_session(**TALK, keep_last=4, reason="")
    entry = clear_session(**TALK, reason="")
    restore_session(entry_pk=entry.pk, by=BY, scope=TALK["scope"], reason="")
    Message.stored.filter(session=claim.session_pk, seq=1).update(quarantined=True)
    list(check_integrity(session_pk=claim.session_pk, repair_by=BY))
    purge_session(**TALK, reason="")


def test_each_statement_on_rows_names_their_session():
    make_session()
    with CaptureQueriesContext(connection) as queries:
        the_life_of_a_session()
    on_rows = [sql for sql in statements(queries) if ON_ROWS.search(sql)]
    assert len(on_rows) > 50
    wrong = [sql for sql in on_rows if not names_session(sql) and not OF_A_PROCESS.search(sql)]
    assert wrong == []


def statements(queries):
    """Return the statements, without the limit for locks that MariaDB gets with each."""
    return [re.sub(r"^SET STATEMENT .*? FOR ", "", query["sql"]) for query in queries]


def names_session(sql):
    """Whether the condition of a statement, or its values, name the session."""
    if sql.startswith("INSERT"):
        return "session_id" in sql
    return "session_id" in sql.partition("WHERE")[2] or "session_id" in sql.partition(" ON ")[2]


def test_a_vacuum_names_the_session_of_what_it_deletes(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    make_session()
    the_life_of_a_session()
    with CaptureQueriesContext(connection) as queries:
        assert vacuum().sessions == 1
    is_deletion = re.compile(r'DELETE FROM ["`]?chatmemory_(message|turn)\b')
    deletions = [sql for sql in statements(queries) if is_deletion.match(sql)]
    assert deletions
    assert [sql for sql in deletions if not names_session(sql)] == []
