"""Vacuum deletes only what can no longer be restored."""

from __future__ import annotations

import threading
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from chatmemory.checks.values import MAXIMA
from chatmemory.models import AuditEntry, AuditSeal, Message, Session, Turn
from chatmemory.services import (
    SERVER,
    admit_turn,
    append_messages,
    clear_session,
    hold_session,
    purge_session,
    read_history,
    restore_session,
    stop_turn,
    trim_session,
)
from chatmemory.services.audit.seals import audit_state, seal_audit
from chatmemory.services.removal.vacuum import Vacuumed, _turns_below, vacuum, vacuum_session
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, TALK, age_audit, make_messages, make_session
from tests.locking import concurrently, held

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOTHING = Vacuumed()


def append(*texts: str) -> None:
    append_messages(**TALK, messages=make_messages(*texts))


def trim(keep_last: int) -> AuditEntry:
    entry = trim_session(**TALK, keep_last=keep_last, reason="")
    assert entry is not None
    return entry


def age_all(days: float = 31) -> None:
    """Move all times back by these days."""
    ago = timedelta(days=days)
    age_audit(ago)
    Session.objects.update(removed_at=F("removed_at") - ago)
    Turn.objects.update(ended_at=F("ended_at") - ago)


def stored() -> list[int]:
    return list(Message.stored.in_order().values_list("seq", flat=True))


def run_a_turn(client_id: str) -> None:
    claim = admit_turn(**TALK, client_id=client_id, content="hi", owner="me").claim
    assert claim is not None
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])


@pytest.mark.regression
def test_rows_outside_of_the_counters_are_deleted_with_their_session():
    make_session()
    append(*"abcdefg")
    purge_session(**TALK, reason="")
    age_all()
    Session.objects.update(stored_from=3, first_seq=4, last_seq=3)
    assert vacuum(chunk=2) == Vacuumed(sessions=1, messages=7)
    assert not Session.objects.exists()
    assert not Message.stored.exists()


def test_rows_trimmed_before_undo_days_are_deleted():
    make_session()
    append(*"abcd")
    trim(2)
    age_all()
    assert vacuum() == Vacuumed(messages=2)
    assert stored() == [3, 4]
    assert Session.objects.get().stored_from == 3
    assert vacuum() == NOTHING


def test_rows_that_can_be_restored_are_kept():
    make_session()
    append(*"abcd")
    entry = trim(2)
    age_all(29)
    assert vacuum() == NOTHING
    restore_session(entry_pk=entry.pk, by=BY, scope=SERVER, reason="")
    assert len(read_history(**TALK).rows) == 4


def test_a_recent_removal_keeps_all_rows_from_its_first_one_on():
    make_session()
    append(*"abcdef")
    trim(4)
    age_all()
    trim(2)
    assert vacuum() == Vacuumed(messages=2)
    assert stored() == [3, 4, 5, 6]


def test_an_old_removal_that_was_undone_deletes_nothing():
    make_session()
    append(*"abcd")
    restore_session(entry_pk=trim(2).pk, by=BY, scope=SERVER, reason="")
    age_all()
    assert vacuum() == NOTHING
    assert stored() == [1, 2, 3, 4]


@pytest.mark.regression
@override_settings(CHATMEMORY={"UNDO_DAYS": MAXIMA["UNDO_DAYS"]})
def test_each_database_accepts_the_maximum_of_undo_days():
    make_session()
    append("a", "b")
    entry = purge_session(**TALK, reason="")
    age_all(1_000)
    assert vacuum() == NOTHING
    Session.objects.update(expires_at=timezone.now() - timedelta(days=1))
    restore_session(entry_pk=entry.pk, by=BY, scope=SERVER, reason="")
    assert Session.objects.get().expires_at > timezone.now() + timedelta(days=36_499)


@override_settings(CHATMEMORY={"UNDO_DAYS": 0})
def test_with_zero_undo_days_hidden_rows_are_deleted_immediately():
    make_session()
    append("a", "b")
    clear_session(**TALK, reason="")
    assert vacuum().messages == 2


def test_a_purged_session_is_deleted_with_its_rows_and_turns():
    make_session()
    run_a_turn("one")
    append("a", "b")
    purge_session(**TALK, reason="")
    make_session()
    append("c")
    age_all(29)
    assert vacuum() == NOTHING
    age_all(2)
    assert vacuum() == Vacuumed(sessions=1, messages=4, turns=1)
    assert Session.objects.get().key == "talk"
    assert stored() == [1]


def test_turns_are_deleted_with_their_rows():
    make_session()
    for name in ("one", "two"):
        run_a_turn(name)
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    trim(3)
    age_all()
    assert vacuum() == Vacuumed(messages=2, turns=1)
    assert set(Turn.objects.values_list("client_id", flat=True)) == {"two", "run"}


def test_a_turn_that_ended_without_a_row_is_deleted_after_undo_days():
    make_session()
    admit_turn(**TALK, client_id="never", content="hi")
    stop_turn(**TALK, turn="never")
    assert vacuum() == NOTHING
    age_all()
    assert vacuum() == Vacuumed(turns=1)


def test_a_waiting_turn_is_never_deleted():
    session = make_session()
    admit_turn(**TALK, client_id="waits", content="hi")
    trim_session(**TALK, keep_last=0, reason="")
    age_all()
    assert vacuum() == NOTHING
    assert claim_next(session_pk=session.pk, owner="me")


def test_nothing_is_deleted_from_a_session_on_hold():
    make_session()
    append("a", "b")
    admit_turn(**TALK, client_id="never", content="hi")
    stop_turn(**TALK, turn="never")
    trim(0)
    age_all()
    hold_session(**TALK, reason="")
    assert vacuum() == vacuum(dry_run=True) == NOTHING
    assert vacuum_session(Session.objects.get().pk) == (NOTHING, False)
    assert stored() == [1, 2]


def test_it_deletes_in_chunks_and_can_stop_after_each():
    session = make_session()
    append(*"abcdef")
    trim(0)
    age_all()
    assert vacuum_session(session.pk, 4) == (Vacuumed(messages=4), True)
    assert stored() == [5, 6]
    assert Session.objects.get().stored_from == 5
    assert vacuum(chunk=1) == Vacuumed(messages=2)


def test_a_dry_run_counts_what_would_be_deleted():
    make_session()
    for name in ("one", "two"):
        run_a_turn(name)
    purge_session(**TALK, reason="")
    age_all()
    would = vacuum(dry_run=True)
    assert would == Vacuumed(sessions=1, messages=4, turns=2)
    assert stored() == [1, 2, 3, 4]
    assert vacuum() == would


def test_seqs_continue_after_a_vacuum():
    make_session()
    append("a", "b")
    trim(0)
    age_all()
    vacuum()
    append("c")
    assert [row.seq for row in read_history(**TALK).rows] == [3]


@pytest.mark.django_db(transaction=True)
def test_a_locked_session_is_left_for_the_next_vacuum(settings):
    if connection.vendor == "sqlite":
        pytest.skip("one lock for all sessions")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LOCK_TIMEOUT": 0.2}
    stuck = make_session("stuck")
    make_session()
    for key in ("stuck", "talk"):
        append_messages(**{**TALK, "session_key": key}, messages=make_messages("a", "b"))
        trim_session(**{**TALK, "session_key": key}, keep_last=0, reason="")
    age_all()
    with held(stuck):
        assert vacuum() == Vacuumed(messages=2, left=1)
    assert vacuum() == Vacuumed(messages=2)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_appends_continue_during_a_vacuum():
    make_session()
    for _ in range(4):
        append(*["a"] * 100)
    trim(0)
    age_all()
    over = threading.Event()

    def talk() -> int:
        count = 0
        while not over.is_set():
            append("x")
            count += 1
        return count

    def sweep() -> int:
        try:
            return vacuum(chunk=10, pause_seconds=0.005).messages
        finally:
            over.set()

    appended, deleted = concurrently(talk, sweep)
    assert deleted == 400
    assert appended > 0
    assert stored() == list(range(401, 401 + appended))


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_simultaneous_calls_delete_each_row_once():
    make_session()
    append(*["a"] * 60)
    trim(0)
    age_all()
    results = concurrently(*[lambda: vacuum(chunk=5)] * 3)
    assert sum(result.messages for result in results) == 60
    assert stored() == []


def run_command(*args: str) -> str:
    out = StringIO()
    call_command("chatmemory_vacuum", *args, stdout=out)
    return out.getvalue()


def test_the_command_prints_the_counts(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 1}
    make_session()
    append("a", "b")
    trim(0)
    age_all(days=2)
    assert (
        run_command("--dry-run") == "2 messages, 0 turns, 0 conversations (nothing was deleted)\n"
    )
    lines = run_command("--chunk", "1", "--pause", "0").splitlines()
    assert lines[0] == "2 messages, 0 turns, 0 conversations"
    head = audit_state().head
    assert lines[2:] == ["Sealed now: 1", f"head {head}"]
    assert run_command().splitlines() == [
        "0 messages, 0 turns, 0 conversations",
        "Sealed now: 0",
        f"head {head}",
    ]


@pytest.mark.regression
def test_the_command_logs_the_head(caplog):
    make_session()
    append("a")
    with caplog.at_level("INFO", "chatmemory.audit"):
        run_command()
    assert "audit head" not in caplog.text, "nothing is sealed yet"
    trim(0)
    with caplog.at_level("INFO", "chatmemory.audit"):
        run_command()
    assert caplog.messages[-1] == f"audit head {audit_state().head}"


@pytest.mark.regression
def test_the_command_does_not_seal_an_altered_audit():
    make_session()
    append("a")
    clear_session(**TALK, reason="true")
    seal_audit()
    AuditEntry.objects.update(reason="forged")
    AuditSeal.objects.all().delete()
    with pytest.raises(CommandError, match="nothing was sealed"):
        run_command()
    with pytest.raises(CommandError, match="1 finding"):
        call_command("chatmemory_audit_verify", stdout=StringIO())
    assert not AuditSeal.objects.exists()


@pytest.mark.regression
def test_the_command_fails_if_old_entries_have_no_seal():
    make_session()
    append("a")
    clear_session(**TALK, reason="")
    age_audit(timedelta(days=4))
    seal_audit()
    run_command()
    AuditSeal.objects.all().delete()
    with pytest.raises(CommandError, match="without a seal for more than 3 days"):
        run_command()
    with pytest.raises(CommandError, match="without a seal"):
        call_command("chatmemory_audit_verify", stdout=StringIO())
    assert not AuditSeal.objects.exists()
    call_command("chatmemory_audit_verify", "--seal-old", stdout=StringIO())
    run_command()


def test_the_command_seals_the_audit_unless_it_is_a_dry_run():
    make_session()
    append("a", "b")
    trim(0)
    run_command("--dry-run")
    assert not AuditSeal.objects.exists()
    run_command()
    assert AuditSeal.objects.count() == 1


@pytest.mark.slow
@pytest.mark.regression
@pytest.mark.django_db(transaction=True)  # ANALYZE commits on MariaDB
def test_the_turns_of_a_chunk_are_found_by_an_index():
    """A scan for each chunk would read all turns of the session under its lock."""
    session = make_session()
    Turn.objects.bulk_create(
        Turn(session=session, client_id=str(n), status="complete", user_seq=n, epoch=1)
        for n in range(1, 2_001)
    )
    with connection.cursor() as cursor:
        table = "TABLE " if connection.vendor == "mysql" else ""
        cursor.execute(f"ANALYZE {table}chatmemory_turn")
    chunk = _turns_below(session, 20)
    assert "chatmemory_turn_user_seq" in chunk.explain()


@pytest.mark.parametrize(
    "wrong", [("--chunk", "0"), ("--pause", "-1"), ("--pause", "nan"), ("--pause", "inf")]
)
def test_the_command_refuses_invalid_arguments(wrong):
    with pytest.raises(CommandError):
        run_command(*wrong)
