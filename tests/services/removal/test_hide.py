"""Trim, clear and purge hide messages, end turns and reject earlier writers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from chatmemory import signals
from chatmemory.errors import BadInput, Held, HistoryCleared, NotFound
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    append_messages,
    clear_session,
    preview_trim,
    purge_session,
    read_history,
    trim_session,
)
from chatmemory.services.turns.progress import add_rows, finish_turn, save_partial, start_turn
from tests.factories import TALK, make_messages, make_session, make_user
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
REMOVALS = (
    lambda **changes: trim_session(**{**TALK, "reason": "", "keep_last": 0, **changes}),
    lambda **changes: clear_session(**{**TALK, "reason": "", **changes}),
    lambda **changes: purge_session(**{**TALK, "reason": "", **changes}),
)


def append(*texts: str) -> None:
    append_messages(**TALK, messages=make_messages(*texts))


def trim(keep_last: int) -> AuditEntry | None:
    return trim_session(**TALK, keep_last=keep_last, reason="too long")


def visible_seqs() -> list[int]:
    return [row.seq for row in read_history(**TALK).rows]


def run_a_turn(*texts: str, client_id: str = "run"):
    """Start a turn that stores these rows; return its claim."""
    claim = admit_turn(**TALK, client_id=client_id, content="hi", owner="me").claim
    assert claim is not None
    start_turn(claim=claim)
    for text in texts:
        add_rows(claim=claim, messages=[{"role": "assistant", "content": text}], step=None)
    return claim


def test_a_trim_hides_all_but_the_last_messages():
    make_session()
    append(*"abcdef")
    entry = trim(2)
    assert visible_seqs() == [5, 6]
    assert (entry.from_seq, entry.to_seq, entry.counts) == (1, 4, {"messages": 4})


def test_a_trim_deletes_no_row_and_reuses_no_seq():
    session = make_session()
    append(*"abcd")
    trim(0)
    append("e")
    assert visible_seqs() == [5]
    assert Message.stored.filter(session=session).count() == 5


def test_the_default_manager_omits_rows_below_the_floor():
    make_session()
    append(*"abcd")
    trim(2)
    assert Message.objects.count() == 2
    assert Message.stored.count() == 4


@pytest.mark.parametrize(("keep", "floor"), [(0, 9), (1, 6), (3, 6), (4, 3), (6, 3), (7, 1)])
def test_a_trim_never_cuts_inside_a_turn(keep, floor):
    session = make_session()
    roles = ["system", "assistant", "user", "tool", "assistant", "user", "tool", "assistant"]
    messages = [{"role": role, "content": "x"} for role in roles]
    append_messages(**TALK, messages=messages)
    session.refresh_from_db()
    assert preview_trim(session, keep_last=keep).messages == floor - 1
    trim(keep)
    session.refresh_from_db()
    assert session.first_seq == floor


def test_a_trim_never_cuts_at_a_user_row_that_a_run_stored():
    make_session()
    append("a", "b")
    claim = run_a_turn()
    add_rows(claim=claim, messages=make_messages("inner", "answer"), step=None)
    finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    trim(2)  # row 4 is a user row that the run stored; the turn starts at 3
    assert visible_seqs() == [3, 4, 5, 6]


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_a_trim_never_cuts_into_the_running_turn(keep):
    make_session()
    append("a", "b")
    claim = run_a_turn("so far")
    trim(keep)
    assert visible_seqs()[-2:] == [3, 4]
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])


def test_a_trim_with_nothing_to_hide_records_no_entry():
    make_session()
    append("a", "b")
    assert trim(2) is trim(1_000_000_000) is None
    assert not AuditEntry.objects.exists()


def test_a_negative_limit_is_refused():
    with pytest.raises(BadInput):
        trim(-1)


def test_a_trim_changes_the_revision_and_not_the_epoch():
    before = make_session()
    append("a", "b", "c")
    trim(0)
    after = Session.objects.get()
    assert after.epoch == before.epoch
    assert after.revision > before.revision


def test_a_clear_hides_all_and_rejects_earlier_writers():
    before = make_session()
    append("a", "b")
    clear_session(**TALK, reason="")
    assert visible_seqs() == []
    assert Session.objects.get().epoch != before.epoch
    append("c")
    assert visible_seqs() == [3]


def test_two_clears_at_different_times_have_different_epochs():
    make_session()
    epochs = set()
    for _ in range(3):
        clear_session(**TALK, reason="")
        epochs.add(Session.objects.get().epoch)
    assert len(epochs) == 3


def test_a_purge_frees_the_key_immediately():
    old = make_session()
    append("a")
    purge_session(**TALK, reason="")
    with pytest.raises(NotFound):
        read_history(**TALK)
    new = make_session()
    append("b")
    assert visible_seqs() == [1]
    assert new.pk != old.pk


def test_a_key_can_be_purged_repeatedly():
    for _ in range(3):
        make_session()
        purge_session(**TALK, reason="")
    assert Session.objects.filter(removed_scope=SERVER).count() == 3


@pytest.mark.parametrize("remove", REMOVALS[1:], ids=["clear", "purge"])
def test_a_run_writes_nothing_after_a_clear_or_purge(remove):
    session = make_session()
    append("a", "b")
    claim = run_a_turn("so far")
    save_partial(claim=claim, text="partial", step=1)
    remove()
    assert not add_rows(claim=claim, messages=make_messages("late"), step=None)
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "late")[1]) is None
    assert not save_partial(claim=claim, text="late", step=2)
    assert not Message.objects.exists()
    session.refresh_from_db()
    assert (session.last_seq, session.running) == (4, None)


@pytest.mark.parametrize("remove", REMOVALS[1:], ids=["clear", "purge"])
def test_a_change_of_the_epoch_ends_the_turns_and_keeps_their_unstored_text(remove):
    session = make_session()
    claim = run_a_turn()
    save_partial(claim=claim, text="partial", step=1)
    Turn.objects.create(session=session, client_id="next", status="waiting", asked="x", epoch=0)
    Session.objects.update(waiting=1)
    remove()
    assert dict(Turn.objects.values_list("client_id", "status")) == {
        "run": "interrupted",
        "next": "cancelled",
    }
    assert set(Turn.objects.values_list("asked", "partial", "lease_until")) == {
        ("", "partial", None),
        ("x", "", None),
    }
    session.refresh_from_db()
    assert (session.running, session.waiting) == (None, 0)


def test_a_clear_cancels_a_requeued_turn():
    make_session()
    run_a_turn()
    Turn.objects.update(status="waiting", started_at=None, lease_until=None)
    clear_session(**TALK, reason="")
    assert Turn.objects.get().status == "cancelled"


def test_turns_that_a_clear_ends_are_announced(django_capture_on_commit_callbacks):
    make_session()
    run_a_turn()
    told = []

    def listen(client_id, status, **_):
        told.append((client_id, status))

    signals.turn_finished.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            clear_session(**TALK, reason="")
    finally:
        signals.turn_finished.disconnect(listen)
    assert told == [("run", "interrupted")]


def test_a_send_that_started_before_a_clear_is_history_cleared():
    session = make_session()
    claim = run_a_turn()
    finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    clear_session(**TALK, reason="")
    for epoch in (None, session.epoch):
        with pytest.raises(HistoryCleared):
            admit_turn(**TALK, client_id="run", content="hi", epoch=epoch)
    with pytest.raises(HistoryCleared):
        admit_turn(**TALK, client_id="new", content="hi", epoch=session.epoch)


@pytest.mark.parametrize("remove", REMOVALS, ids=["trim", "clear", "purge"])
def test_a_removal_writes_before_it_reads_on_sqlite(remove):
    if connection.vendor != "sqlite":
        pytest.skip("other databases lock with a SELECT")
    make_session()
    with CaptureQueriesContext(connection) as queries:
        remove()
    sent = [query["sql"] for query in queries if not query["sql"].startswith("SAVEPOINT")]
    assert sent[0].startswith("UPDATE")


@pytest.mark.parametrize("remove", REMOVALS, ids=["trim", "clear", "purge"])
def test_nothing_is_removed_from_a_session_on_hold(remove):
    make_session(held_at=LONG_AGO)
    append("a", "b")
    with pytest.raises(Held):
        remove()
    assert visible_seqs() == [1, 2]
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("remove", REMOVALS, ids=["trim", "clear", "purge"])
def test_another_users_session_cannot_be_removed(remove):
    make_session()
    append("a")
    with pytest.raises(NotFound):
        remove(by=Actor.user(make_user()), scope=None)
    assert visible_seqs() == [1]


@pytest.mark.parametrize("remove", REMOVALS, ids=["trim", "clear", "purge"])
def test_a_newer_session_with_the_same_key_is_not_removed(remove):
    seen = make_session()
    purge_session(**TALK, reason="")
    make_session()
    append("a")
    with pytest.raises(NotFound):
        remove(session_pk=seen.pk)
    assert visible_seqs() == [1]


@pytest.mark.parametrize("remove", REMOVALS, ids=["trim", "clear", "purge"])
def test_a_removal_and_its_entry_are_one_transaction(remove):
    make_session()
    append("a", "b")
    with transaction.atomic():
        remove()
        transaction.set_rollback(True)
    assert visible_seqs() == [1, 2]
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("remove", REMOVALS, ids=["trim", "clear", "purge"])
def test_a_removal_whose_entry_cannot_be_stored_is_rolled_back(remove):
    make_session()
    append("a", "b")
    with pytest.raises(BadInput):
        remove(reason="a\0")
    assert visible_seqs() == [1, 2]


@pytest.mark.parametrize("remove", REMOVALS, ids=["trim", "clear", "purge"])
def test_the_statements_of_a_removal_do_not_depend_on_the_size(remove):
    make_session()
    counts = []
    for size in (2, 200):
        append(*["a"] * size)
        with CaptureQueriesContext(connection) as queries, transaction.atomic():
            remove()
            transaction.set_rollback(True)
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 14


@pytest.mark.django_db(transaction=True)
def test_one_of_simultaneous_purges_succeeds():
    make_session()

    def purge() -> bool:
        try:
            return bool(purge_session(**TALK, reason=""))
        except NotFound:
            return False

    assert sum(concurrently(*[purge] * 4)) == 1
    assert AuditEntry.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_clear_during_appends_is_before_or_after_each_append():
    before = make_session()

    def talk() -> None:
        for _ in range(8):
            append("a", "b", "c")

    def clear() -> None:
        for _ in range(4):
            clear_session(**TALK, reason="")

    concurrently(talk, clear, talk)
    session = Session.objects.get()
    assert (session.epoch - before.epoch, session.last_seq) == (4, 48)
    assert (session.first_seq - 1) % 3 == 0
    assert visible_seqs() == list(range(session.first_seq, 49))


@pytest.mark.regression
def test_an_expired_session_can_be_purged_only_by_its_primary_key():
    session = make_session(expires_at=LONG_AGO)
    with pytest.raises(NotFound):
        purge_session(**TALK, reason="old")
    with pytest.raises(NotFound):
        purge_session(**TALK | {"session_key": "other"}, session_pk=session.pk, reason="old")
    assert purge_session(**TALK, session_pk=session.pk, reason="old").session_pk == session.pk
    with pytest.raises(NotFound):
        purge_session(**TALK, session_pk=session.pk, reason="again")
