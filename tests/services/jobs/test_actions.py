"""Each action of a job: its effect, its audit entry, its undo, and the sessions it skips."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from chatmemory import services
from chatmemory.admin.audit import filters as audit
from chatmemory.admin.jobs import model_admin as jobs
from chatmemory.admin.jobs.available import ALTERNATIVES
from chatmemory.admin.jobs.forms import FORMS
from chatmemory.admin.jobs.words import EXPORT, TITLES
from chatmemory.errors import BadInput
from chatmemory.models import AuditAction, AuditEntry, JobAction, JobItem, Session, SessionTag, Turn
from chatmemory.services import SERVER
from chatmemory.services.audit.entries import record
from chatmemory.services.jobs import run
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.jobs.preview import SKIPPED
from chatmemory.services.removal.floor import REMOVALS
from chatmemory.services.turns.unstored import LEAVES_TEXT
from tests.factories import BY, make_session
from tests.services.jobs.ordering import act, finish, make_talks, order, outcomes, undo

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PARAMS = {"trim": {"keep_last": 2}, "tag": {"tag": "spam"}, "untag": {"tag": "spam"}}


def states():
    """Return what actions change, without epochs and revisions."""
    columns = ("scope", "key", "first_seq", "last_seq", "removed_at")
    tags = SessionTag.objects.order_by("session").values_list("session", "tag")
    rows = Session.objects.order_by("pk")
    flags = [(row.held_at is not None, row.archived_at is not None) for row in rows]
    return list(rows.values_list(*columns)), flags, list(tags)


@pytest.mark.parametrize("action", [name for name, found in ACTIONS.items() if found.undo])
def test_an_action_is_recorded_for_each_session_and_undone(action):
    make_talks(3)
    first = {"release": "hold", "unarchive": "archive", "untag": "tag"}.get(action)
    if first:
        act(first, **PARAMS.get(first, {}))
    before = states()
    AuditEntry.objects.all().delete()
    job = act(action, **PARAMS.get(action, {}))
    assert (job.status, job.done, job.skipped, job.left) == ("complete", 3, {}, 0)
    assert states() != before
    entries = AuditEntry.objects.order_by("pk")
    assert {(e.action, e.actor_kind, e.actor_label, e.reason) for e in entries} == {
        (action, "command", "olga", "spam")
    }
    items = JobItem.objects.filter(job=job).order_by("session_pk")
    assert [i.entry_pk for i in items] == [e.pk for e in entries]
    undone = finish(undo(job))
    assert (undone.status, undone.done, undone.undo_of) == ("complete", 3, job)
    assert states() == before


@pytest.mark.parametrize(("action", "messages"), [("trim", 6), ("clear", 12), ("purge", 12)])
def test_the_messages_are_counted(action, messages):
    make_talks(3)
    job = act(action, **PARAMS.get(action, {}))
    assert job.counts == {"messages": messages}
    assert finish(undo(job)).counts == {"messages": messages}


@pytest.mark.parametrize(
    "limit",
    [
        {"keep_last": 2},
        {"keep_turns": 1},
        {"keep_tokens": 8},
        {"before_seq": 3},
        {"before": "2026-01-01T00:00:00+00:00"},
    ],
)
def test_a_trim_takes_each_limit(limit):
    [talk] = make_talks(1)
    talk.messages(manager="stored").filter(seq__lte=2).update(created_at=LONG_AGO)
    assert act("trim", **limit).counts == {"messages": 2}
    assert Session.objects.get().first_seq == 3


@pytest.mark.parametrize(
    ("action", "params", "error"),
    [
        ("trim", {"keep_last": -1}, BadInput),
        ("trim", {"before": "yesterday"}, BadInput),
        ("trim", {"before": "2026-01-01T00:00:00"}, BadInput),
        ("trim", {}, TypeError),
        ("tag", {"tag": ""}, BadInput),
        ("tag", {"tag": "x" * 101}, BadInput),
    ],
)
def test_wrong_arguments_are_refused(action, params, error):
    make_talks(1)
    with pytest.raises(error):
        order(action, **params)


@pytest.mark.parametrize(
    ("action", "columns", "code"),
    [
        ("trim", {"held_at": LONG_AGO}, "held"),
        ("clear", {"held_at": LONG_AGO}, "held"),
        ("purge", {"held_at": LONG_AGO}, "held"),
        ("clear", {"expires_at": LONG_AGO}, "not_found"),
        ("archive", {"expires_at": LONG_AGO}, "not_found"),
        ("archive", {"archived_at": LONG_AGO}, "unchanged"),
        ("unarchive", {}, "unchanged"),
        ("hold", {"held_at": LONG_AGO}, "unchanged"),
        ("release", {}, "unchanged"),
        ("untag", {}, "unchanged"),
        ("restore", {}, "unchanged"),
        ("stop", {}, "unchanged"),
        ("end", {}, "unchanged"),
    ],
)
def test_a_session_that_cannot_be_changed_is_skipped_with_a_code(action, columns, code):
    make_talks(1)
    Session.objects.update(**columns)
    job = act(action, **PARAMS.get(action, {}))
    assert (job.status, job.done, job.skipped) == ("complete", 0, {code: 1})
    assert not AuditEntry.objects.exists()


def test_a_trim_to_more_messages_than_there_are_changes_nothing():
    make_talks(1)
    assert act("trim", keep_last=9).skipped == {"unchanged": 1}


@pytest.mark.parametrize(
    "change", [{"key": "other"}, {"scope": "user:9"}, {"epoch": 1}], ids=["key", "scope", "epoch"]
)
def test_a_session_with_another_address_or_epoch_is_skipped(change):
    first, second = make_talks(2)
    job = order("purge")
    Session.objects.filter(pk=first.pk).update(**change)
    assert finish(job).skipped == {"changed": 1}
    assert outcomes(job) == ["changed", "done"]
    assert Session.objects.get(pk=first.pk).removed_at is None
    assert Session.objects.get(pk=second.pk).removed_at is not None


def test_a_session_that_was_cleared_since_is_skipped():
    make_talks(1)
    job = order("purge")
    services.clear_session(session_key="talk-0", scope=SERVER, by=BY, reason="")
    assert finish(job).skipped == {"changed": 1}


def test_a_deleted_session_is_skipped():
    [talk] = make_talks(1, messages=0)
    job = order("purge")
    talk.delete()
    assert finish(job).skipped == {"not_found": 1}


def test_an_item_has_no_address_after_its_outcome():
    make_talks(2)
    Session.objects.filter(key="talk-1").update(held_at=LONG_AGO)
    job = order("purge")
    assert set(job.items.values_list("scope", "key")) == {(SERVER, "talk-0"), (SERVER, "talk-1")}
    finish(job)
    assert set(job.items.values_list("scope", "key", "outcome")) == {
        ("", "", "done"),
        ("", "", "held"),
    }


def test_a_restore_undoes_the_last_removal_of_each_session():
    make_talks(2)
    act("trim", keep_last=2)
    act("purge", Session.objects.filter(key="talk-0"))
    job = act("restore")
    assert job.done == 2
    floors = Session.objects.order_by("pk").values_list("removed_at", "first_seq")
    assert list(floors) == [(None, 3), (None, 1)]


def test_a_restore_purges_an_expired_session_at_its_address():
    make_talks(1)
    act("purge")
    make_session("talk-0", expires_at=LONG_AGO)
    purged = Session.objects.filter(removed_at__isnull=False)
    assert act("restore", purged).done == 1
    restored = Session.objects.get(removed_at__isnull=True)
    assert (restored.key, restored.message_count) == ("talk-0", 4)


def test_a_restore_purges_that_session_in_a_transaction_of_its_own(monkeypatch):
    """A transaction removes from one session only."""
    make_talks(1)
    act("purge")
    expired = make_session("talk-0", expires_at=LONG_AGO)

    def die(*args):
        raise SystemExit

    monkeypatch.setattr(run, "_mark_done", die)
    with pytest.raises(SystemExit):
        act("restore", Session.objects.exclude(pk=expired.pk))
    assert not Session.objects.filter(removed_at__isnull=True).exists()


def test_a_restore_that_is_skipped_purges_no_session_at_its_address():
    make_talks(1)
    purge = act("purge")
    job = undo(purge)
    Session.objects.update(epoch=9)
    expired = make_session("talk-0", expires_at=LONG_AGO)
    assert finish(job).skipped == {"changed": 1}
    expired.refresh_from_db()
    assert expired.removed_at is None


def test_a_restore_whose_key_is_used_is_skipped():
    make_talks(1)
    job = act("purge")
    make_session("talk-0")
    assert finish(undo(job)).skipped == {"conflict": 1}


def test_an_undo_restores_no_later_removal():
    make_talks(2)
    job = act("trim", keep_last=2)
    services.clear_session(session_key="talk-0", scope=SERVER, by=BY, reason="")
    undone = finish(undo(job))
    assert (undone.done, undone.skipped) == (1, {"removed_since": 1})
    floors = Session.objects.order_by("pk").values_list("first_seq", flat=True)
    assert list(floors) == [5, 1]


def test_an_undo_does_not_remove_a_tag_that_was_added_again():
    make_talks(2)
    job = act("tag", tag="a")
    first = Session.objects.filter(key="talk-0")
    act("untag", first, tag="a")
    act("tag", first, tag="a")
    act("tag", tag="b")  # another tag does not matter
    undone = finish(undo(job))
    assert (undone.done, undone.skipped) == (1, {"changed_since": 1})
    assert list(SessionTag.objects.filter(tag="a").values_list("session__key", flat=True)) == [
        "talk-0"
    ]


def test_an_undo_leaves_what_the_job_did_not_change():
    held, _ = make_talks(2)
    Session.objects.filter(pk=held.pk).update(held_at=LONG_AGO)
    job = act("hold")
    assert (job.done, job.skipped) == (1, {"unchanged": 1})
    assert finish(undo(job)).total == 1
    assert Session.objects.filter(held_at__isnull=False).get() == held


def running_turn():
    """Store a session whose turn runs, and return the turn."""
    make_session()
    services.admit_turn(
        session_key="talk", client_id="c1", content="and?", by=BY, scope=SERVER, owner="runner"
    )
    turn = Turn.objects.get()
    Turn.objects.update(started_at=timezone.now(), partial="so f")
    return turn


def test_a_stop_requests_the_end_of_the_running_turn():
    turn = running_turn()
    assert act("stop").done == 1
    turn.refresh_from_db()
    assert (turn.status, turn.stop_requested_at is not None) == ("running", True)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor_label, entry.counts) == ("stop", "olga", {"turn": "c1"})


def test_only_a_stuck_turn_is_ended():
    turn = running_turn()
    assert act("end").skipped == {"unchanged": 1}
    Turn.objects.update(lease_until=timezone.now() - timedelta(seconds=60))
    assert act("end").done == 1
    turn.refresh_from_db()
    assert turn.status == "interrupted"
    assert Session.objects.get().running is None
    assert AuditEntry.objects.get().action == "end"


def test_a_purge_ends_the_running_turn_and_counts_it():
    running_turn()
    assert act("purge").done == 1
    assert AuditEntry.objects.get().counts == {"messages": 1, "partial_chars": 4}


def test_each_table_of_actions_has_its_members():
    actions = set(JobAction)
    assert ACTIONS.keys() == SKIPPED.keys() == actions
    assert TITLES.keys() == actions | {EXPORT}
    assert FORMS.keys() < actions | {EXPORT}
    assert ALTERNATIVES.keys() | set(ALTERNATIVES.values()) < actions
    assert {found.undo for found in ACTIONS.values() if found.undo} < actions


def test_the_filters_of_jobs_and_of_the_audit_offer_each_action():
    assert jobs.JobActionFilter.conditions.keys() == set(JobAction)
    assert audit.ActionFilter.conditions.keys() == {"changes", "all"}
    assert {*AuditAction} <= audit.action_labels().keys()


def test_each_recorded_action_has_a_label():
    recorded = {*JobAction, *REMOVALS, *LEAVES_TEXT}
    assert recorded <= set(AuditAction)
    assert len({str(label) for label in AuditAction.labels}) == len(AuditAction)


@pytest.mark.parametrize("action", [*REMOVALS, AuditAction.ADOPT, AuditAction.RENAME])
def test_an_entry_has_the_code_of_its_action(action):
    record(make_session(), action, BY, "")
    assert AuditEntry.objects.values_list("action", flat=True).get() == action.value
