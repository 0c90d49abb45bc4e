"""After the recovery of a restored database, no earlier run or writer can write."""

from __future__ import annotations

from itertools import pairwise

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import (
    Actor,
    admit_turn,
    append_messages,
    erase_person,
    hold_session,
    purge_session,
    user_scope,
)
from chatmemory.services.integrity import database_restore as module
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.turns.claims import Claim, claim_next
from chatmemory.services.turns.progress import add_rows, finish_turn, save_partial, start_turn
from chatmemory.services.turns.recovery import recover_overdue_turn
from tests.factories import TALK, make_messages, make_session, make_user
from tests.locking import held, second_connection, thread, waits_for_a_lock
from tests.servers import wait_for
from tests.services.jobs.ordering import finish, make_talks, order, outcomes
from tests.services.turns.test_turns import let_the_lease_end, rows

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.regression]
BY = Actor.server("tests")
DONE = {"role": "assistant", "content": "done"}


def recover(**changes):
    return recover_restored_database(**{"by": BY, "reason": "disk failure", **changes})


def admit(client_id: str, **changes) -> Claim | None:
    return admit_turn(**{**TALK, "client_id": client_id, "content": client_id, **changes}).claim


def state(client_id: str) -> str:
    return Turn.objects.get(client_id=client_id).status


def test_each_session_gets_a_new_epoch():
    purged = make_session()
    purge_session(**TALK, reason="")
    make_session("other")
    seen = [dict(Session.objects.values_list("pk", "epoch"))]
    for _ in range(3):
        assert recover().sessions == 2
        seen.append(dict(Session.objects.values_list("pk", "epoch")))
    for pk in (purged.pk, *seen[0]):
        epochs = [epochs[pk] for epochs in seen]
        assert all(later - epoch >= 2**20 for epoch, later in pairwise(epochs))
        assert epochs[-1] < 2**53
    assert seen[1] != {pk: epoch + 2**20 for pk, epoch in seen[0].items()}


def test_an_earlier_run_cannot_write_and_its_text_is_kept():
    session = make_session()
    claim = admit("run", owner="me")
    start_turn(claim=claim)
    save_partial(claim=claim, text="so f", step=0)
    assert recover().interrupted == 1
    assert rows() == [("user", "run", "complete"), ("assistant", "so f", "interrupted")]
    assert not save_partial(claim=claim, text="late", step=0)
    assert not add_rows(claim=claim, messages=[DONE], step=None)
    assert finish_turn(claim=claim, status="complete", message=DONE) is None
    session.refresh_from_db()
    assert (session.running, state("run")) == (None, "interrupted")
    assert list(check_integrity()) == []


def test_an_unstarted_claim_ends_with_a_row():
    make_session()
    claim = admit("run", owner="me")
    assert recover().interrupted == 1
    assert not start_turn(claim=claim)
    assert rows()[-1] == ("assistant", "", "interrupted")


def test_waiting_turns_are_cancelled():
    session = make_session()
    admit("one", owner="me")
    let_the_lease_end()
    recover_overdue_turn(session.pk)  # it is requeued
    admit("two")
    done = recover()
    assert (done.cancelled, done.kept) == (2, 0)
    assert (state("one"), state("two")) == ("cancelled", "cancelled")
    session.refresh_from_db()
    assert (session.running, session.waiting) == (None, 0)
    assert list(check_integrity()) == []


@pytest.mark.parametrize("is_given_back", [False, True])
def test_waiting_turns_can_be_kept_and_run_in_their_order(is_given_back):
    session = make_session()
    admit("one", owner="me")
    if is_given_back:
        let_the_lease_end()
        recover_overdue_turn(session.pk)
    admit("two")
    done = recover(keep_waiting=True)
    assert (done.cancelled, done.kept) == (0, 2)
    for name in ("one", "two"):
        claim = claim_next(session_pk=session.pk, owner="me")
        assert claim is not None
        assert claim.client_id == name
        assert start_turn(claim=claim)
        assert finish_turn(claim=claim, status="complete", message=DONE)
    assert list(check_integrity()) == []


def test_the_audit_has_an_entry_with_the_counts():
    make_session()
    admit("run", owner="me")
    recover()
    entry = AuditEntry.objects.get(action="database_restored")
    assert (entry.actor_label, entry.reason, entry.session_pk) == ("tests", "disk failure", None)
    assert entry.counts == {"sessions": 1, "interrupted": 1, "cancelled": 0, "failed": 0}


def test_an_interrupted_recovery_is_completed_by_the_next(monkeypatch):
    for number in range(5):
        make_session(f"{number}")
    before = dict(Session.objects.values_list("pk", "epoch"))
    move, calls = module._move_idle, []

    def move_two_batches(pks):
        calls.append(pks)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return move(pks)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_move_idle", move_two_batches)
        with pytest.raises(KeyboardInterrupt):
            recover(batch_size=2)
    assert recover().sessions == 5
    after = dict(Session.objects.values_list("pk", "epoch"))
    assert all(after[pk] - before[pk] >= 2**20 for pk in before)
    assert AuditEntry.objects.filter(action="database_restored").count() == 1


@pytest.mark.django_db(transaction=True)
@override_settings(CHATMEMORY={"LOCK_TIMEOUT": 0.2})
def test_a_locked_session_does_not_prevent_the_recovery_of_others():
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one lock for all")
    locked, other = make_session(), make_session("other")
    with held(locked):
        done = recover()
        assert (done.sessions, done.failed) == (1, 1)
    assert Session.objects.get(pk=other.pk).epoch != other.epoch
    assert Session.objects.get(pk=locked.pk).epoch == locked.epoch
    assert recover().failed == 0
    assert Session.objects.get(pk=locked.pk).epoch != locked.epoch


@pytest.mark.django_db(transaction=True)
def test_a_turn_that_starts_during_the_recovery_is_interrupted(postgresql):
    make_session()
    claim = admit("run", owner="me")
    start = "UPDATE chatmemory_turn SET started_at = CURRENT_TIMESTAMP WHERE id = %s"
    with second_connection() as other, thread() as call:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(start, [claim.turn_pk])
        recovered = call(recover, keep_waiting=True)
        wait_for(waits_for_a_lock, "the recovery does not lock the turn")
        other.commit()
        done = recovered.result(timeout=10)
    assert (done.interrupted, done.kept, state("run")) == (1, 0, "interrupted")


def test_the_command_recovers_and_repeats_the_listed_erasures(tmp_path, capsys):
    ann, talk = make_user(), make_session(title="kept")
    with override_settings(CHATMEMORY={"ERASURE_LIST": str(tmp_path / "erased")}):
        hers = make_session("hers", owner=ann)
        by = Actor.user(ann)
        append_messages(session_key="hers", by=by, messages=make_messages("a secret"))
        backup = [*Session.objects.all(), *Message.stored.all()]
        erase_person(by=Actor.server("tests"), reason="request", scope=user_scope(ann))
        AuditEntry.objects.all().delete()
        Session.objects.all().delete()
        for row in backup:
            row.save(force_insert=True)
        call_command("chatmemory_restored", by="olga", reason="disk failure")
    labels = AuditEntry.objects.filter(action="database_restored").values_list(
        "actor_label", flat=True
    )
    assert list(labels) == ["olga, chatmemory_restored"]
    out = capsys.readouterr().out
    assert "2 conversations with a new epoch" in out
    assert "1 erasure repeated, 0 already done: 1 conversation, 1 message" in out
    assert not Message.stored.exists()
    assert Session.objects.get(pk=talk.pk).title == "kept"
    assert not Session.objects.filter(pk=hers.pk).exists()


@pytest.mark.parametrize("option", ["by", "reason"])
def test_the_command_requires_an_actor_and_a_reason(option):
    given = {"by": "olga", "reason": "disk failure", option: " "}
    with pytest.raises(CommandError, match=f"--{option} must not be empty"):
        call_command("chatmemory_restored", **given)


def test_the_command_lists_sessions_that_were_not_erased(tmp_path):
    ann = make_user("ann")
    by = Actor.user(ann)
    append_messages(session_key="hers", by=by, messages=make_messages("hi"), create=True)
    record = str(tmp_path / "erasures.jsonl")
    listed = {"ERASURE_LIST": record, "AUDIT_KEY": "new" * 10, "AUDIT_KEY_FALLBACKS": ["old" * 10]}
    with override_settings(CHATMEMORY=listed | {"AUDIT_KEY": "old" * 10}):
        hold_session(session_key="hers", by=BY, reason="dispute", scope=user_scope(ann))
        erase_person(by=BY, reason="request", scope=user_scope(ann))
    AuditEntry.objects.all().delete()

    with (
        override_settings(CHATMEMORY=listed | {"AUDIT_KEY_FALLBACKS": []}),
        pytest.raises(
            CommandError, match=r"1 erasure recorded .* Add that key to AUDIT_KEY_FALLBACKS"
        ),
    ):
        call_command("chatmemory_restored", by="olga", reason="disk failure")

    pk = Session.objects.get(key="hers").pk
    kept = f"^Kept because of a hold: conversation {pk} of erased persons\\. "
    kept += r"After .* chatmemory_erase\.$"
    with override_settings(CHATMEMORY=listed), pytest.raises(CommandError, match=kept):
        call_command("chatmemory_restored", by="olga", reason="disk failure")
    with override_settings(CHATMEMORY=listed):
        call_command("chatmemory_restored", by="olga", reason="disk failure")


def test_a_job_of_the_backup_changes_no_session_after_the_recovery():
    """As docs/howto/backup.md states."""
    make_talks(2)
    job = order("purge")
    recover()
    assert finish(job).status == "complete"
    assert outcomes(job) == ["changed", "changed"]
    assert Session.objects.active().count() == 2
