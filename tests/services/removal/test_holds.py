"""Hold and archive: forbid removals, or new messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from chatmemory.errors import Archived, BadInput, Forbidden, Held, NotFound
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import (
    Actor,
    admit_turn,
    append_messages,
    archive_session,
    hold_session,
    purge_session,
    read_history,
    release_session,
    unarchive_session,
    user_scope,
)
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.retention.retention import expire_sessions
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.progress import finish_turn
from tests.factories import TALK, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

WHY: dict[str, Any] = {**TALK, "reason": "a dispute"}
ACTIONS = {
    "hold": (hold_session, release_session),
    "archive": (archive_session, unarchive_session),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_a_repeated_call_changes_nothing(name):
    do, undo = ACTIONS[name]
    make_session()
    assert undo(**WHY) is None
    assert do(**WHY).action == name
    seen = Session.objects.get()
    assert do(**WHY) is None
    assert Session.objects.get().revision == seen.revision
    assert undo(**WHY).action != name
    assert Session.objects.get().revision > seen.revision
    assert AuditEntry.objects.count() == 2


@pytest.mark.regression
@pytest.mark.parametrize("by", [Actor.command("close", "olga"), Actor("operator", "7", "olga")])
@pytest.mark.parametrize("is_archived", [False, True])
def test_an_owner_cannot_open_what_an_operator_archived(by, is_archived):
    ann = make_user("ann")
    session = make_session(owner=ann)
    own = {"session_key": "talk", "by": Actor.user(ann), "reason": ""}
    operators = {"session_key": "talk", "by": by, "scope": user_scope(ann), "reason": "abuse"}
    if is_archived:
        archive_session(**own)
    assert archive_session(**operators) is not None
    assert archive_session(**operators) is None
    assert archive_session(**own) is None
    with pytest.raises(Forbidden, match="operator"):
        unarchive_session(**own)
    session.refresh_from_db()
    assert session.archived_at is not None
    assert unarchive_session(**operators) is not None
    assert unarchive_session(**own) is None
    archive_session(**own)
    assert unarchive_session(**own) is not None


def test_an_owner_can_open_what_server_code_archived_or_an_import_stored():
    ann = make_user("ann")
    make_session(owner=ann, archived_at=timezone.now())
    own = {"session_key": "talk", "by": Actor.user(ann), "reason": ""}
    assert unarchive_session(**own) is not None
    archive_session(**{**own, "by": Actor.server("nightly"), "scope": user_scope(ann)})
    assert unarchive_session(**own) is not None


@pytest.mark.parametrize("act", [act for pair in ACTIONS.values() for act in pair])
def test_another_users_session_is_not_found(act):
    session = make_session()
    for changes in ({}, {"session_pk": session.pk} if act in ACTIONS["hold"] else {}):
        with pytest.raises(NotFound):
            act(**{**WHY, "by": Actor.user(make_user()), "scope": None, **changes})


@pytest.mark.parametrize("act", [act for pair in ACTIONS.values() for act in pair])
def test_a_reason_that_cannot_be_stored_is_refused(act):
    make_session()
    with pytest.raises(BadInput):
        act(**{**TALK, "reason": "\0"})


def test_a_released_session_can_be_removed_again():
    make_session()
    hold_session(**WHY)
    with pytest.raises(Held):
        purge_session(**WHY)
    release_session(**WHY)
    assert purge_session(**WHY)


def test_vacuum_keeps_a_purged_session_on_hold():
    session = make_session()
    append_messages(**TALK, messages=make_messages("a", "b"))
    purge_session(**WHY)
    hold_session(**WHY, session_pk=session.pk)
    AuditEntry.objects.update(created_at=timezone.now() - timedelta(days=99))
    Session.objects.update(removed_at=timezone.now() - timedelta(days=99))
    vacuum()
    assert Message.stored.count() == 2
    release_session(**WHY, session_pk=session.pk)
    vacuum()
    assert not Session.objects.exists()


def test_an_expired_session_on_hold_is_found_again():
    session = make_session(expires_at=timezone.now() - timedelta(days=1))
    with pytest.raises(NotFound):
        hold_session(**WHY)
    hold_session(**WHY, session_pk=session.pk)
    assert expire_sessions().removed == {}
    assert read_history(**TALK).rows == []


def test_an_archived_session_accepts_no_message_until_it_is_unarchived():
    make_session()
    archive_session(**WHY)
    with pytest.raises(Archived):
        append_messages(**TALK, messages=make_messages("a"))
    with pytest.raises(Archived):
        admit_turn(**TALK, client_id="run", content="hi")
    unarchive_session(**WHY)
    append_messages(**TALK, messages=make_messages("a"))


def test_archiving_lets_the_running_turn_end_and_cancels_waiting_ones():
    session = make_session()
    claim = admit_turn(**TALK, client_id="run", content="hi", owner="me").claim
    Turn.objects.create(session=session, client_id="next", status="waiting", asked="x", epoch=0)
    Session.objects.update(waiting=1)
    archive_session(**WHY)
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    assert dict(Turn.objects.values_list("client_id", "status")) == {
        "run": "complete",
        "next": "cancelled",
    }
    assert Turn.objects.get(client_id="next").asked == ""
    assert Session.objects.get().waiting == 0
    assert claim_next(session_pk=session.pk, owner="me") is None


def test_archiving_does_not_cancel_a_requeued_turn():
    session = make_session()
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    Turn.objects.update(status="waiting", started_at=None, lease_until=None)
    archive_session(**WHY)
    claim = claim_next(session_pk=session.pk, owner="me")
    assert claim is not None
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    assert len(read_history(**TALK).rows) == 2
