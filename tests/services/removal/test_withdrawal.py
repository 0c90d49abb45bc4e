"""Withdrawn rows: hidden without a floor and without a version that replaces them."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from chatmemory import derived
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.errors import BadInput, Conflict, Held, HistoryCleared
from chatmemory.formats import jsonl
from chatmemory.formats.exporting import export_sessions
from chatmemory.formats.importing import Target, import_lines
from chatmemory.formats.reading import read_sessions
from chatmemory.models import Message, Session, Turn, WithdrawnRange, starts_of
from chatmemory.services import (
    admit_turn,
    append_messages,
    clear_session,
    erase_person,
    hold_session,
    purge_session,
    read_history,
    restore_session,
    set_feedback,
    trim_session,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.redaction.find_text import find_text
from chatmemory.services.removal.vacuum import Vacuumed, vacuum, vacuum_session
from chatmemory.services.removal.withdrawal import restore_rows, withdraw_rows
from chatmemory.services.sessions import read_content, read_superseded
from chatmemory.services.titles import store_title
from chatmemory.services.transfers.imports import begin_import, import_rows
from chatmemory.services.turns.progress import finish_turn
from chatmemory.services.turns.versions import list_versions
from chatmemory.window import read_question, read_window
from tests.factories import BY, TALK, age_audit, make_messages, make_session, make_user
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)


def append(*texts: str) -> None:
    append_messages(**TALK, messages=make_messages(*texts))


def talk(count: int = 6) -> Session:
    """Store this number of rows in a new session: the row of seq 1 is `m1`."""
    session = make_session()
    append(*(f"m{n}" for n in range(1, count + 1)))
    return session


def run(client_id: str, **changes: Any) -> None:
    """Run a turn of two rows."""
    claim = admit_turn(**TALK, client_id=client_id, content=client_id, owner="me", **changes).claim
    assert claim is not None
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])


def withdraw(session: Session, low: int, high: int) -> None:
    with locked_transaction():
        withdraw_rows(lock_pk(session.pk), low, high)


def restore(session: Session, low: int, high: int) -> None:
    with locked_transaction():
        restore_rows(lock_pk(session.pk), low, high)


def age(days: float = 31) -> None:
    """Move withdrawals and the audit back by these days."""
    ago = timedelta(days=days)
    WithdrawnRange.objects.update(withdrawn_at=F("withdrawn_at") - ago)
    Session.objects.update(removed_at=F("removed_at") - ago)
    age_audit(ago)


def shown() -> list[int]:
    return [row.seq for row in read_history(**TALK, superseded=False).rows]


def texts() -> list[str]:
    return list(Message.stored.in_order().values_list("text", flat=True))


def window_texts() -> list[object]:
    return [message["content"] for message in read_window(Session.objects.get()).messages]


def exported(format: str) -> str:
    return "".join(export_sessions(Session.objects.all(), format=format))


def test_every_reader_omits_withdrawn_rows():
    session = talk()
    withdraw(session, 3, 4)
    append("m7")
    assert window_texts() == ["m1", "m2", "m5", "m6", "m7"]
    page = read_history(**TALK)
    assert [row.seq for row in page.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert read_superseded(head=page.head) == [(3, 4)]
    assert shown() == [1, 2, 5, 6, 7]
    assert [row[3] for row in read_content(**TALK).rows] == [1, 2, 5, 6, 7]
    assert [m["content"] for m in json.loads(exported("openai"))["messages"]] == window_texts()
    states = [row[6] for row in csv.reader(io.StringIO(exported("csv"), newline=""))]
    assert states[1:] == ["", "", "withdrawn", "withdrawn", "", "", ""]
    [found] = find_text(sessions=Session.objects.all(), text="m4")
    assert found.state == "withdrawn"


def test_the_beginning_of_a_session_is_no_withdrawn_message():
    session = talk()
    withdraw(session, 1, 2)
    assert starts_of([session.pk]) == {session.pk: "m3"}


def test_a_session_without_withdrawn_rows_needs_no_further_statement():
    session = talk()
    with CaptureQueriesContext(connection) as queries:
        read_window(session)
        shown()
    assert not [query for query in queries if "withdrawn" in query["sql"]]
    assert len(queries) == 2


def test_an_edited_session_needs_no_statement_of_its_own_for_withdrawn_rows():
    make_session()
    run("one")
    run("two", replaces=1, expect_seq=1)
    with CaptureQueriesContext(connection) as queries:
        assert shown() == [3, 4]
    assert len(queries) == 2


def test_withdrawn_rows_are_no_version_of_the_message_after_them():
    session = make_session()
    for client_id in ("one", "two", "three"):
        run(client_id)
    withdraw(session, 3, 4)
    found = [(v.seq, v.to_seq, v.is_current) for v in list_versions(**TALK, seq=5)]
    assert found == [(5, 6, True)]
    assert [(v.to_seq, v.is_current) for v in list_versions(**TALK, seq=3)] == [(4, False)]


def test_a_withdrawn_message_cannot_be_replaced_and_an_earlier_one_can():
    session = make_session()
    for client_id in ("one", "two", "three"):
        run(client_id)
    withdraw(session, 3, 4)
    with pytest.raises(Conflict):
        admit_turn(**TALK, client_id="x", content="x", replaces=3, expect_seq=5)
    run("better", replaces=1, expect_seq=5)
    assert window_texts() == ["better", "done"]
    assert [v.seq for v in list_versions(**TALK, seq=7)] == [1, 7]
    states = [row[6] for row in csv.reader(io.StringIO(exported("csv"), newline=""))]
    assert states[1:] == ["replaced"] * 6 + ["", ""]


def test_a_withdrawn_question_has_no_answer():
    session = make_session()
    interrupts = [{"id": "i", "value": "Which one?"}]
    asks = {"thread": f"{session.pk}.1.c", "interrupts": interrupts}
    append_messages(
        **TALK,
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Which one?", "asks": asks},
        ],
    )
    admit_turn(**TALK, client_id="answer", content="that", owner="me")
    turn = Turn.objects.get()
    at = {"turn_pk": turn.pk, "user_seq": 3}
    assert read_question(session, **at) is not None
    withdraw(session, 2, 2)
    assert read_question(session, **at) is None


def test_derived_rows_of_withdrawn_messages_are_hidden_or_deleted(shop):
    session = talk()
    seen = derived.see(**TALK)
    derived.store(seen, [shop.Summary(low=1, high=4, text="x"), shop.Summary(low=5, high=6)])
    derived.store(seen, [shop.SearchBlock(low=3, high=3), shop.SearchBlock(low=6, high=6)])
    withdraw(session, 3, 4)
    assert [row.low for row in shop.Summary.objects.current()] == [5]
    assert [row.low for row in shop.SearchBlock.objects.all()] == [6]
    restore(session, 3, 4)
    assert [row.low for row in shop.Summary.objects.current().order_by("low")] == [1, 5]


def test_derived_rows_that_were_read_before_a_withdrawal_are_not_stored(shop):
    session = talk()
    seen = derived.see(**TALK)
    withdraw(session, 3, 4)
    assert not derived.store(seen, [shop.SearchBlock(low=3, high=3)])


@pytest.mark.parametrize(
    ("low", "high", "error"),
    [
        (1, 3, HistoryCleared),
        (4, 7, BadInput),
        (5, 4, BadInput),
        (4, 5, Conflict),
        (5, 5, Conflict),
    ],
)
def test_a_range_must_be_visible_and_new(low, high, error):
    session = talk()
    trim_session(**TALK, before_seq=3, reason="")
    withdraw(session, 4, 5)
    before = list(Session.objects.values())
    with pytest.raises(error):
        withdraw(session, low, high)
    assert list(Session.objects.values()) == before


def test_a_held_session_withdraws_nothing():
    session = talk()
    hold_session(**TALK, reason="evidence")
    with pytest.raises(Held):
        withdraw(session, 3, 4)


def test_the_table_refuses_an_impossible_range():
    session = talk()
    for low, high in ((0, 1), (2, 1)):
        with pytest.raises(IntegrityError), transaction.atomic():
            WithdrawnRange.objects.create(session=session, low=low, high=high)


def test_a_restore_shows_the_rows_again_and_moves_no_floor():
    session = talk()
    withdraw(session, 3, 4)
    trim_session(**TALK, before_seq=3, reason="")
    restore(session, 3, 4)
    assert shown() == [3, 4, 5, 6]
    with pytest.raises(Conflict):
        restore(session, 3, 4)


def test_readers_see_a_withdrawal_and_its_restore_by_the_revisions():
    session = talk()
    make_edit = {"replaces": 5, "expect_seq": 5}
    run("edit", **make_edit)
    before = Session.objects.get()
    withdraw(session, 1, 2)
    between = Session.objects.get()
    restore(session, 1, 2)
    after = Session.objects.get()
    assert [s.superseded_to for s in (before, between, after)] == [6, 6, 6]
    assert before.revision < between.revision == between.rows_revision
    assert between.revision < after.revision == after.rows_revision


def test_a_wider_withdrawal_contains_an_earlier_one():
    session = talk()
    withdraw(session, 3, 4)
    withdraw(session, 2, 5)
    assert shown() == [1, 6]
    restore(session, 2, 5)
    assert shown() == [1, 2, 5, 6]


@commits
def test_withdrawals_and_appends_at_the_same_time_lose_nothing():
    session = talk(12)
    ranges = [(3, 4), (5, 6), (7, 8)]
    before = Session.objects.get().revision
    concurrently(
        *(lambda low=low, high=high: withdraw(session, low, high) for low, high in ranges),
        *(lambda: append("x", "y") for _ in range(3)),
    )
    now = Session.objects.get()
    assert (now.revision - before, now.last_seq, now.superseded_to) == (3, 18, 8)
    assert shown() == [1, 2, *range(9, 19)]
    assert list(check_integrity()) == []


@commits
def test_one_of_two_simultaneous_withdrawals_of_the_same_rows_is_a_conflict():
    session = talk()

    def attempt() -> str:
        try:
            withdraw(session, 3, 4)
        except Conflict:
            return "conflict"
        return "done"

    assert sorted(concurrently(attempt, attempt)) == ["conflict", "done"]


def test_vacuum_empties_withdrawn_rows_after_undo_days():
    session = make_session()
    for client_id in ("one", "two", "three"):
        run(client_id)
    set_feedback(**TALK, turn="two", value=-1, reason="secret words")
    Turn.objects.update(partial="half a secret")
    withdraw(session, 3, 4)
    age()
    planned = vacuum(dry_run=True)
    assert planned == Vacuumed(emptied=2)
    revision = Session.objects.get().rows_revision
    assert vacuum() == planned
    assert texts() == ["one", "done", "", "", "three", "done"]
    assert [row.redacted for row in Message.stored.in_order()] == [
        *(False, False),
        *(True, True),
        *(False, False),
    ]
    assert Turn.objects.get(user_seq=3).partial == ""
    assert session.feedback.get().reason == ""
    assert Session.objects.get().rows_revision == revision + 1
    assert window_texts() == ["one", "done", "three", "done"]
    with pytest.raises(Conflict):
        restore(session, 3, 4)
    assert vacuum() == Vacuumed()
    assert list(check_integrity()) == []


def test_vacuum_leaves_no_words_of_withdrawn_rows_in_derived_rows(shop):
    session = talk()
    derived.store(derived.see(**TALK), [shop.Summary(low=1, high=4, text="m3")])
    withdraw(session, 3, 4)
    age()
    vacuum()
    assert not shop.Summary.objects.exists()


def test_vacuum_keeps_withdrawn_rows_before_undo_days_and_on_hold():
    session = talk()
    withdraw(session, 3, 4)
    assert vacuum() == Vacuumed()
    age()
    hold_session(**TALK, reason="evidence")
    assert vacuum() == Vacuumed()
    assert texts() == ["m1", "m2", "m3", "m4", "m5", "m6"]


def test_vacuum_empties_in_chunks_and_can_stop_after_each():
    session = talk()
    withdraw(session, 2, 6)
    age()
    assert vacuum_session(session.pk, 2) == (Vacuumed(emptied=2), True)
    assert texts() == ["m1", "", "", "m4", "m5", "m6"]
    with pytest.raises(Conflict):
        restore(session, 2, 6)
    assert vacuum(dry_run=True, chunk=2) == Vacuumed(emptied=3)
    assert vacuum(chunk=2) == Vacuumed(emptied=3)
    assert texts() == ["m1", "", "", "", "", ""]


def test_vacuum_ends_although_all_withdrawn_rows_are_redacted():
    session = talk()
    withdraw(session, 3, 4)
    Message.stored.filter(seq__in=(3, 4)).update(redacted=True)
    age()
    vacuum()
    assert session.withdrawn.get().emptied_to == 4


def test_a_range_goes_when_the_floor_passes_it():
    session = talk()
    withdraw(session, 1, 2)
    withdraw(session, 4, 5)
    trim_session(**TALK, before_seq=5, reason="")
    age()
    planned = vacuum(dry_run=True)
    assert planned == Vacuumed(messages=4, emptied=1)
    assert vacuum() == planned
    assert [(one.low, one.high) for one in session.withdrawn.all()] == [(4, 5)]
    assert texts() == ["", "m6"]


def test_a_range_stays_while_a_removal_of_its_rows_can_be_undone():
    session = talk()
    withdraw(session, 1, 2)
    entry = clear_session(**TALK, reason="")
    vacuum()
    restore_session(entry_pk=entry.pk, by=BY, scope=TALK["scope"], reason="")
    assert shown() == [3, 4, 5, 6]


def test_an_erasure_deletes_the_ranges():
    session = talk()
    withdraw(session, 3, 4)
    erase_person(by=BY, scope=TALK["scope"], reason="asked for it")
    assert not WithdrawnRange.objects.exists()
    assert not Session.objects.exists()


def test_the_vacuum_of_a_purged_session_deletes_the_ranges():
    session = talk()
    withdraw(session, 3, 4)
    purge_session(**TALK, reason="")
    age()
    vacuum()
    assert not WithdrawnRange.objects.exists()
    assert not Session.objects.exists()


def test_an_import_contains_the_ranges_of_the_export():
    session = talk()
    withdraw(session, 3, 4)
    withdraw(session, 6, 6)
    age()
    vacuum()
    withdraw(session, 5, 5)
    lines = exported("jsonl").splitlines()
    before = list(session.withdrawn.order_by("high").values_list("low", "high"))
    assert before == [(3, 4), (5, 5), (6, 6)]
    mira = make_user("mira")
    target = Target(by=BY, scope=f"user:{mira.pk}")
    for _ in range(2):  # the second import finds the session
        [outcome] = import_lines(enumerate(map(str.encode, lines), 1), target=target)
        assert outcome.error is None
    new = Session.objects.get(owner=mira)
    columns = ("low", "high", "withdrawn_at")
    found = [list(one.withdrawn.order_by("high").values(*columns)) for one in (session, new)]
    assert found[0] == found[1]
    assert new.superseded_to == 6
    assert list(check_integrity()) == []


def test_an_export_contains_no_range_of_rows_that_it_does_not_contain():
    session = talk()
    withdraw(session, 3, 4)
    [reading] = read_sessions(Session.objects.all())
    append("m7")
    withdraw(session, 7, 7)
    lines = list(map(json.loads, jsonl.write(reading)))
    assert [line["high"] for line in lines if line["type"] == "withdrawn"] == [4]
    assert lines[-1]["withdrawn"] == 1


def test_a_repeated_call_of_an_import_stores_a_range_once():
    session = talk()
    columns = {"created_at": session.created_at, "stored_from": 1, "first_seq": 1, "last_seq": 0}
    at = {"by": BY, "scope": TALK["scope"]}
    found = begin_import(session_key="copy", session=columns, digest="x", **at)
    row = {"role": "user", "text": "hi", "tokens": 1, "created_at": session.created_at}
    import_rows(found=found, turns=[], rows=[{"seq": 1, **row}])
    one = {"low": 1, "high": 1, "withdrawn_at": session.created_at}
    for _ in range(2):
        import_rows(found=found, turns=[], rows=[], withdrawn=[one])
    new = Session.objects.get(pk=found.session_pk)
    assert (new.withdrawn.get().low, new.withdrawn.get().emptied_to) == (1, None)


def test_an_export_during_a_vacuum_leaves_no_content_in_the_import():
    session = talk()
    withdraw(session, 3, 4)
    age()
    [reading] = read_sessions(Session.objects.all())
    lines = []
    for line in jsonl.write(reading):
        lines.append(line)
        if json.loads(line)["type"] == "message" and json.loads(line)["seq"] == 6:
            vacuum()
    mira = make_user("mira")
    target = Target(by=BY, scope=f"user:{mira.pk}")
    [outcome] = import_lines(enumerate(map(str.encode, lines), 1), target=target)
    assert outcome.error is None
    copy = Message.stored.filter(session__owner=mira, seq__in=(3, 4))
    assert all(copy.values_list("text", flat=True))
    vacuum()
    assert not any(copy.values_list("text", flat=True))


def test_a_vacuum_empties_a_few_rows_in_a_transaction(monkeypatch):
    monkeypatch.setattr("chatmemory.services.removal.withdrawal.MAX_EMPTIED", 2)
    session = talk()
    withdraw(session, 1, 6)
    age()
    assert vacuum_session(session.pk) == (Vacuumed(emptied=2), True)
    assert vacuum().emptied == 4
    assert not any(texts())


def test_rows_of_another_app_follow_no_withdrawn_message(shop):
    session = talk()
    withdraw(session, 2, 2)
    seen = derived.see(**TALK)
    assert not derived.store(seen, [shop.SearchBlock(low=1, high=4, words="m2")])
    assert derived.store(seen, [shop.SearchBlock(low=3, high=None, words="m3")])


def test_a_title_of_withdrawn_messages_is_not_stored():
    session = talk()
    run("edit", replaces=5, expect_seq=5)
    before = Session.objects.get()
    withdraw(session, 1, 2)
    assert not store_title(session=before, title="m1")
    assert store_title(session=Session.objects.get(), title="m3")


@pytest.mark.parametrize(
    ("change", "field"),
    [({"high": 7}, "high"), ({"low": 0}, "high"), ({"low": 5}, "high"), ({"low": "3"}, "low")],
)
def test_an_import_refuses_a_range_without_messages(change, field):
    session = talk()
    withdraw(session, 3, 4)
    lines = [json.loads(line) for line in exported("jsonl").splitlines()]
    [line] = [line for line in lines if line["type"] == "withdrawn"]
    line.update(change)
    raw = [json.dumps(line).encode() for line in lines]
    target = Target(by=BY, scope="server", prefix="copy")
    [outcome, *_] = import_lines(enumerate(raw, 1), target=target)
    assert isinstance(outcome.error, BadInput)
    assert outcome.error.field == field
    assert Session.objects.count() == 1


@pytest.mark.parametrize("count", [0, 2])
def test_an_import_refuses_missing_and_duplicate_ranges(count):
    session = talk()
    withdraw(session, 3, 4)
    raw: list[bytes] = []
    for line in exported("jsonl").splitlines():
        kind = json.loads(line)["type"]
        changed = line.replace('"withdrawn":1', f'"withdrawn":{max(count, 1)}')
        raw += [changed.encode()] * (count if kind == "withdrawn" else 1)
    target = Target(by=BY, scope="server", prefix="copy")
    [outcome] = import_lines(enumerate(raw, 1), target=target)
    assert outcome.error is not None
    assert outcome.error.code == "bad_shape"


def test_the_check_finds_and_repairs_a_range_that_no_reader_sees():
    session = talk()
    withdraw(session, 3, 4)
    Session.objects.update(superseded_to=0)
    assert [found.code for found in check_integrity(repair_by=BY)] == ["superseded_to"]
    assert shown() == [1, 2, 5, 6]


def test_the_check_finds_a_range_of_rows_that_do_not_exist():
    session = talk()
    WithdrawnRange.objects.create(session=session, low=6, high=7)
    Session.objects.update(superseded_to=7)
    assert [found.code for found in check_integrity()] == ["withdrawn"]
