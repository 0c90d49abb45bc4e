"""The recovery after a restore of the database: nothing from before it can write."""

from __future__ import annotations

from itertools import pairwise

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import (
    Actor,
    Claim,
    add_rows,
    admit_turn,
    append_messages,
    check_integrity,
    claim_next,
    end_overdue,
    erase_person,
    finish_turn,
    hold_session,
    purge_session,
    recover_restored_database,
    save_partial,
    start_turn,
    user_scope,
)
from chatmemory.services import database_restore as module
from tests.factories import TALK, make_session, make_user, said
from tests.locking import held
from tests.test_turns import let_the_lease_end, rows

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.regression]
BY = Actor.server("tests")
DONE = {"role": "assistant", "content": "done"}


def recover(**changes):
    return recover_restored_database(**{"by": BY, "reason": "disk failure", **changes})


def admit(client_id: str, **changes) -> Claim | None:
    return admit_turn(**{**TALK, "client_id": client_id, "content": client_id, **changes}).claim


def state(client_id: str) -> str:
    return Turn.objects.get(client_id=client_id).status


def test_every_session_gets_an_epoch_that_it_never_had():
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


def test_a_run_from_before_can_write_no_more_and_its_text_stays():
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


def test_a_claim_that_has_not_begun_ends_with_a_row():
    make_session()
    claim = admit("run", owner="me")
    assert recover().interrupted == 1
    assert not start_turn(claim=claim)
    assert rows()[-1] == ("assistant", "", "interrupted")


def test_waiting_turns_are_cancelled():
    session = make_session()
    admit("one", owner="me")
    let_the_lease_end()
    end_overdue(session.pk)  # it is given back
    admit("two")
    done = recover()
    assert (done.cancelled, done.kept) == (2, 0)
    assert (state("one"), state("two")) == ("cancelled", "cancelled")
    session.refresh_from_db()
    assert (session.running, session.waiting) == (None, 0)
    assert list(check_integrity()) == []


@pytest.mark.parametrize("is_given_back", [False, True])
def test_waiting_turns_are_kept_on_request_and_run_in_their_order(is_given_back):
    session = make_session()
    admit("one", owner="me")
    if is_given_back:
        let_the_lease_end()
        end_overdue(session.pk)
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
    entry = AuditEntry.objects.get(action="db_restored")
    assert (entry.actor_label, entry.reason, entry.session_pk) == ("tests", "disk failure", None)
    assert entry.counts == {"sessions": 1, "interrupted": 1, "cancelled": 0, "failed": 0}


def test_an_interrupted_recovery_is_finished_by_the_next(monkeypatch):
    monkeypatch.setattr(module, "BATCH", 2)
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
            recover()
    assert recover().sessions == 5
    after = dict(Session.objects.values_list("pk", "epoch"))
    assert all(after[pk] - before[pk] >= 2**20 for pk in before)
    assert AuditEntry.objects.filter(action="db_restored").count() == 1


@pytest.mark.django_db(transaction=True)
@override_settings(CHATMEMORY={"LOCK_TIMEOUT": 0.2})
def test_a_locked_session_keeps_no_other_from_its_epoch():
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


def test_the_command_recovers_and_repeats_the_listed_erasures(tmp_path, capsys):
    ann, talk = make_user(), make_session(title="kept")
    with override_settings(CHATMEMORY={"ERASURE_LIST": str(tmp_path / "erased")}):
        hers = make_session("hers", owner=ann)
        by = Actor.user(ann)
        append_messages(session_key="hers", by=by, messages=said("a secret"))
        backup = [*Session.objects.all(), *Message.stored.all()]
        erase_person(by=Actor.server("tests"), reason="request", scope=user_scope(ann))
        AuditEntry.objects.all().delete()
        Session.objects.all().delete()
        for row in backup:
            row.save(force_insert=True)
        call_command("chatmemory_restored", by="olga", reason="disk failure")
    labels = AuditEntry.objects.filter(action="db_restored").values_list("actor_label", flat=True)
    assert list(labels) == ["olga, chatmemory_restored"]
    out = capsys.readouterr().out
    assert "2 sessions with a new epoch" in out
    assert "1 erasure repeated, 0 known: 1 session, 1 message" in out
    assert not Message.stored.exists()
    assert Session.objects.get(pk=talk.pk).title == "kept"
    assert not Session.objects.filter(pk=hers.pk).exists()


@pytest.mark.parametrize("option", ["by", "reason"])
def test_the_command_needs_who_acts_and_why(option):
    given = {"by": "olga", "reason": "disk failure", option: " "}
    with pytest.raises(CommandError, match=f"--{option} is empty"):
        call_command("chatmemory_restored", **given)


def test_the_command_names_what_was_not_erased_again(tmp_path):
    ann = make_user("ann")
    by = Actor.user(ann)
    append_messages(session_key="hers", by=by, messages=said("hi"), create=True)
    record = str(tmp_path / "erasures.jsonl")
    listed = {"ERASURE_LIST": record, "AUDIT_KEY": "new" * 10, "AUDIT_KEY_FALLBACKS": ["old" * 10]}
    with override_settings(CHATMEMORY=listed | {"AUDIT_KEY": "old" * 10}):
        hold_session(session_key="hers", by=BY, reason="dispute", scope=user_scope(ann))
        erase_person(by=BY, reason="request", scope=user_scope(ann))
    AuditEntry.objects.all().delete()

    with (
        override_settings(CHATMEMORY=listed | {"AUDIT_KEY_FALLBACKS": []}),
        pytest.raises(CommandError, match=r"1 erasure recorded .* Add it to AUDIT_KEY_FALLBACKS"),
    ):
        call_command("chatmemory_restored", by="olga", reason="disk failure")

    pk = Session.objects.get(key="hers").pk
    kept = f"^On hold, and kept: session {pk} of erased persons\\.$"
    with override_settings(CHATMEMORY=listed), pytest.raises(CommandError, match=kept):
        call_command("chatmemory_restored", by="olga", reason="disk failure")
    with override_settings(CHATMEMORY=listed):
        call_command("chatmemory_restored", by="olga", reason="disk failure")
