"""The vacuum: deletes what can't be restored any more, and nothing else."""

from __future__ import annotations

import threading
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.test import override_settings

from chatmemory.models import AuditEntry, AuditSeal, Message, Session, Turn
from chatmemory.services import (
    SERVER,
    Vacuumed,
    admit_turn,
    append_messages,
    audit_state,
    claim_next,
    clear_session,
    finish_turn,
    hold_session,
    purge_session,
    read_history,
    restore_session,
    seal_audit,
    stop_turn,
    trim_session,
    vacuum,
)
from chatmemory.services.vacuum import _turns_below, vacuum_session
from tests.factories import BY, TALK, age_audit, make_session, said
from tests.locking import at_once, held

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOTHING = Vacuumed()


def append(*texts: str) -> None:
    append_messages(**TALK, messages=said(*texts))


def trim(keep_last: int) -> AuditEntry:
    entry = trim_session(**TALK, keep_last=keep_last, reason="")
    assert entry is not None
    return entry


def let_pass(days: float = 31) -> None:
    """As if all that was done so far had been done so many days earlier."""
    ago = timedelta(days=days)
    age_audit(ago)
    Session.objects.update(removed_at=F("removed_at") - ago)
    Turn.objects.update(ended_at=F("ended_at") - ago)


def stored() -> list[int]:
    return list(Message.stored.in_order().values_list("seq", flat=True))


def run_a_turn(client_id: str) -> None:
    claim = admit_turn(**TALK, client_id=client_id, content="hi", owner="me").claim
    assert claim is not None
    assert finish_turn(claim=claim, status="complete", message=said("", "done")[1])


def test_what_was_trimmed_long_ago_is_deleted():
    make_session()
    append(*"abcd")
    trim(2)
    let_pass()
    assert vacuum() == Vacuumed(messages=2)
    assert stored() == [3, 4]
    assert Session.objects.get().stored_from == 3
    assert vacuum() == NOTHING


def test_what_can_still_be_restored_stays():
    make_session()
    append(*"abcd")
    entry = trim(2)
    let_pass(29)
    assert vacuum() == NOTHING
    restore_session(entry_pk=entry.pk, by=BY, scope=SERVER, reason="")
    assert len(read_history(**TALK).rows) == 4


def test_a_young_removal_keeps_all_from_where_it_began():
    make_session()
    append(*"abcdef")
    trim(4)
    let_pass()
    trim(2)
    assert vacuum() == Vacuumed(messages=2)
    assert stored() == [3, 4, 5, 6]


def test_an_old_removal_that_was_undone_deletes_nothing():
    make_session()
    append(*"abcd")
    restore_session(entry_pk=trim(2).pk, by=BY, scope=SERVER, reason="")
    let_pass()
    assert vacuum() == NOTHING
    assert stored() == [1, 2, 3, 4]


@override_settings(CHATMEMORY={"UNDO_DAYS": 0})
def test_without_days_to_undo_all_goes_at_once():
    make_session()
    append("a", "b")
    clear_session(**TALK, reason="")
    assert vacuum().messages == 2


def test_a_purged_session_goes_with_its_rows_and_turns():
    make_session()
    run_a_turn("one")
    append("a", "b")
    purge_session(**TALK, reason="")
    make_session()
    append("c")
    let_pass(29)
    assert vacuum() == NOTHING
    let_pass(2)
    assert vacuum() == Vacuumed(sessions=1, messages=4, turns=1)
    assert Session.objects.get().key == "talk"
    assert stored() == [1]


def test_turns_go_with_their_rows_and_others_stay():
    make_session()
    for name in ("one", "two"):
        run_a_turn(name)
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    trim(3)
    let_pass()
    assert vacuum() == Vacuumed(messages=2, turns=1)
    assert set(Turn.objects.values_list("client_id", flat=True)) == {"two", "run"}


def test_a_turn_that_ended_without_a_row_is_forgotten_in_time():
    make_session()
    admit_turn(**TALK, client_id="never", content="hi")
    stop_turn(**TALK, turn="never")
    assert vacuum() == NOTHING
    let_pass()
    assert vacuum() == Vacuumed(turns=1)


def test_a_turn_that_waits_is_never_forgotten():
    session = make_session()
    admit_turn(**TALK, client_id="waits", content="hi")
    trim_session(**TALK, keep_last=0, reason="")
    let_pass()
    assert vacuum() == NOTHING
    assert claim_next(session_pk=session.pk, owner="me")


def test_on_hold_nothing_is_deleted():
    make_session()
    append("a", "b")
    admit_turn(**TALK, client_id="never", content="hi")
    stop_turn(**TALK, turn="never")
    trim(0)
    let_pass()
    hold_session(**TALK, reason="")
    assert vacuum() == vacuum(dry_run=True) == NOTHING
    assert vacuum_session(Session.objects.get().pk) == (NOTHING, False)
    assert stored() == [1, 2]


def test_it_deletes_in_chunks_and_can_stop_after_each():
    session = make_session()
    append(*"abcdef")
    trim(0)
    let_pass()
    assert vacuum_session(session.pk, 4) == (Vacuumed(messages=4), True)
    assert stored() == [5, 6]
    assert Session.objects.get().stored_from == 5
    assert vacuum(chunk=1) == Vacuumed(messages=2)


def test_a_dry_run_says_what_would_go_and_deletes_nothing():
    make_session()
    for name in ("one", "two"):
        run_a_turn(name)
    purge_session(**TALK, reason="")
    let_pass()
    would = vacuum(dry_run=True)
    assert would == Vacuumed(sessions=1, messages=4, turns=2)
    assert stored() == [1, 2, 3, 4]
    assert vacuum() == would


def test_numbers_go_on_after_a_vacuum():
    make_session()
    append("a", "b")
    trim(0)
    let_pass()
    vacuum()
    append("c")
    assert [row.seq for row in read_history(**TALK).rows] == [3]


@pytest.mark.django_db(transaction=True)
def test_a_session_that_can_not_be_reached_waits_for_the_next_time(settings):
    if connection.vendor == "sqlite":
        pytest.skip("one lock for all sessions")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LOCK_TIMEOUT": 0.2}
    stuck = make_session("stuck")
    make_session()
    for key in ("stuck", "talk"):
        append_messages(**{**TALK, "session_key": key}, messages=said("a", "b"))
        trim_session(**{**TALK, "session_key": key}, keep_last=0, reason="")
    let_pass()
    with held(stuck):
        assert vacuum() == Vacuumed(messages=2, left=1)
    assert vacuum() == Vacuumed(messages=2)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_appends_go_on_while_it_deletes():
    make_session()
    for _ in range(4):
        append(*["a"] * 100)
    trim(0)
    let_pass()
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

    appended, deleted = at_once(talk, sweep)
    assert deleted == 400
    assert appended > 0
    assert stored() == list(range(401, 401 + appended))


@pytest.mark.django_db(transaction=True)
def test_two_at_once_delete_each_row_once():
    make_session()
    append(*["a"] * 60)
    trim(0)
    let_pass()
    gone = at_once(*[lambda: vacuum(chunk=5)] * 3)
    assert sum(part.messages for part in gone) == 60
    assert stored() == []


def told(*args: str) -> str:
    out = StringIO()
    call_command("chatmemory_vacuum", *args, stdout=out)
    return out.getvalue()


def test_the_command_says_what_went(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 1}
    make_session()
    append("a", "b")
    trim(0)
    let_pass(days=2)
    assert told("--dry-run") == "2 messages, 0 turns, 0 sessions (nothing was deleted)\n"
    lines = told("--chunk", "1", "--pause", "0").splitlines()
    assert lines[0] == "2 messages, 0 turns, 0 sessions"
    head = audit_state().head
    assert lines[2:] == ["1 sealed now", f"head {head}"]
    assert told().splitlines() == [
        "0 messages, 0 turns, 0 sessions",
        "0 sealed now",
        f"head {head}",
    ]


@pytest.mark.regression
def test_the_command_logs_the_head(caplog):
    make_session()
    append("a")
    trim(0)
    with caplog.at_level("INFO", "chatmemory.audit"):
        told()
    assert caplog.messages[-1] == f"audit head {audit_state().head}"


@pytest.mark.regression
def test_the_command_never_seals_an_altered_audit_anew():
    make_session()
    append("a")
    clear_session(**TALK, reason="true")
    seal_audit()
    AuditEntry.objects.update(reason="forged")
    AuditSeal.objects.all().delete()
    with pytest.raises(CommandError, match="nothing was sealed"):
        told()
    with pytest.raises(CommandError, match="1 finding"):
        call_command("chatmemory_audit_verify", stdout=StringIO())
    assert not AuditSeal.objects.exists()


@pytest.mark.regression
def test_the_command_fails_when_old_entries_have_lost_their_seals():
    make_session()
    append("a")
    clear_session(**TALK, reason="")
    age_audit(timedelta(days=4))
    seal_audit()
    told()
    AuditSeal.objects.all().delete()
    with pytest.raises(CommandError, match="without a seal for more than 3 days"):
        told()
    with pytest.raises(CommandError, match="without a seal"):
        call_command("chatmemory_audit_verify", stdout=StringIO())
    assert not AuditSeal.objects.exists()
    call_command("chatmemory_audit_verify", "--seal-old", stdout=StringIO())
    told()


def test_the_command_seals_the_audit_unless_it_is_a_dry_run():
    make_session()
    append("a", "b")
    trim(0)
    told("--dry-run")
    assert not AuditSeal.objects.exists()
    told()
    assert AuditSeal.objects.count() == 1


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)  # ANALYZE commits on MariaDB
def test_the_turns_of_a_chunk_are_found_by_an_index():
    """Not by a scan of all turns of the session, for each chunk and under its lock."""
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
def test_the_command_refuses_what_can_not_be(wrong):
    with pytest.raises(CommandError):
        told(*wrong)
