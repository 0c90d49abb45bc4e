"""Edits and new replies: a turn that supersedes all rows from an older message on."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.errors import BadInput, Busy, Conflict, HistoryCleared, NotFound
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    append_messages,
    clear_session,
    read_history,
    restore_session,
    stop_turn,
    trim_session,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.sessions import read_superseded
from chatmemory.services.turns.claims import Claim, claim_next
from chatmemory.services.turns.progress import finish_turn
from chatmemory.services.turns.recovery import recover_all_overdue_turns
from chatmemory.services.turns.versions import Version, list_versions
from chatmemory.window import read_window
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def admit(client_id="new", content="hi", **changes):
    return admit_turn(**{**TALK, "client_id": client_id, "content": content, **changes})


def finish(claim: Claim) -> None:
    assert finish_turn(
        claim=claim, status="complete", message={"role": "assistant", "content": "done"}
    )


def run(client_id: str, **changes) -> None:
    """Run a turn of two rows."""
    finish(admit(client_id, content=client_id, owner="me", **changes).claim)


def talk(*client_ids: str) -> Session:
    """Run these turns in a new session: their user rows are 1, 3, 5, …"""
    session = make_session()
    for client_id in client_ids:
        run(client_id)
    session.refresh_from_db()
    return session


def window_texts() -> list[str]:
    """Return the users' texts in the window."""
    session = Session.objects.get(key="talk")
    return [str(m["content"]) for m in read_window(session).messages if m["role"] == "user"]


def ranges() -> list[tuple[int, int]]:
    return read_superseded(head=read_history(**TALK).head)


def versions(seq: int) -> list[tuple[str | None, int, int, bool]]:
    found = list_versions(**TALK, seq=seq)
    return [(v.turn, v.seq, v.to_seq, v.is_current) for v in found]


@pytest.mark.parametrize("owner", ["", "me"])
def test_a_replacement_supersedes_all_rows_from_the_replaced_one_on(owner):
    session = talk("one", "two", "three")
    before = list(Message.objects.in_order().values())
    admitted = admit(owner=owner, replaces=3, expect_seq=5)
    claim = admitted.claim or claim_next(session_pk=session.pk, owner="me")
    turn = Turn.objects.get(client_id="new")
    assert (turn.replaces_from, turn.replaces_to, turn.user_seq) == (3, 6, 7)
    assert list(Message.objects.in_order().values())[:6] == before
    finish(claim)
    assert window_texts() == ["one", "hi"]
    assert ranges() == [(3, 6)]
    session.refresh_from_db()
    assert session.superseded_to == 6


def test_a_waiting_replacement_supersedes_nothing():
    talk("one")
    assert admit(replaces=1, expect_seq=1).status == "waiting"
    assert (window_texts(), ranges()) == (["one"], [])
    assert stop_turn(**TALK, turn="new") == "cancelled"
    assert (window_texts(), ranges()) == (["one"], [])


@pytest.mark.parametrize("owner", ["", "me"])
@pytest.mark.parametrize("policy", ["queue", "reject", "interrupt"])
def test_a_replacement_is_busy_while_a_turn_runs_or_waits(owner, policy):
    talk("one")
    admit("two", owner=owner)
    with pytest.raises(Busy) as caught:
        admit(replaces=1, expect_seq=1, if_busy=policy)
    assert (caught.value.code, caught.value.turn) == ("busy", "two")
    assert Turn.objects.get(client_id="two").stop_requested_at is None


def test_a_replacement_ends_the_run_of_a_dead_process():
    talk("one")
    admit("two", owner="dead")
    Turn.objects.filter(client_id="two").update(lease_until=LONG_AGO, started_at=LONG_AGO)
    with pytest.raises(Conflict):
        admit(owner="me", replaces=1, expect_seq=1)
    assert Turn.objects.get(client_id="two").status == "interrupted"


@pytest.mark.regression
@pytest.mark.parametrize("seq", [0, 1, 4, 99])
def test_a_conflict_does_not_name_a_wrong_message(seq):
    talk("one", "two")
    with pytest.raises(Conflict, match=rf"^{seq} is not the newest user message \(expect_seq\)\.$"):
        admit(expect_seq=seq)


@pytest.mark.parametrize(
    ("given", "error", "code", "field"),
    [
        ({"replaces": 3}, BadInput, "bad_field", "expect_seq"),
        ({"replaces": 0, "expect_seq": 5}, BadInput, "bad_field", "replaces"),
        ({"replaces": -1, "expect_seq": 5}, BadInput, "bad_field", "replaces"),
        ({"replaces": 4, "expect_seq": 5}, BadInput, "bad_field", "replaces"),
        ({"replaces": 99, "expect_seq": 5}, BadInput, "bad_field", "replaces"),
        ({"replaces": 10**30, "expect_seq": 5}, BadInput, "bad_field", "replaces"),
        ({"replaces": 3, "expect_seq": 3}, Conflict, "conflict", None),
        ({"replaces": 3, "expect_seq": 6}, Conflict, "conflict", None),
        ({"replaces": 3, "expect_seq": 0}, Conflict, "conflict", None),
        ({"replaces": 3, "expect_seq": 10**30}, Conflict, "conflict", None),
        ({"replaces": 1, "expect_seq": 5}, HistoryCleared, "history_cleared", None),
        ({"replaces": 3, "expect_seq": 5, "epoch": 7}, HistoryCleared, "history_cleared", None),
    ],
)
@pytest.mark.parametrize("owner", ["", "me"])
def test_a_seq_that_cannot_be_replaced_is_refused(owner, given, error, code, field):
    talk("one", "two", "three")
    trim_session(**TALK, keep_turns=2, reason="")
    with pytest.raises(error) as caught:
        admit(owner=owner, **given)
    assert (caught.value.code, getattr(caught.value, "field", None)) == (code, field)
    assert Turn.objects.count() == 3
    assert Session.objects.get().waiting == 0


def test_a_superseded_message_cannot_be_replaced():
    talk("one", "two")
    run("three", replaces=1, expect_seq=3)
    for seq in (1, 3):
        with pytest.raises(Conflict):
            admit(owner="me", replaces=seq, expect_seq=5)
    run("four", replaces=5, expect_seq=5)
    assert window_texts() == ["four"]


def test_a_replacement_supersedes_at_most_200_rows():
    make_session()
    append_messages(**TALK, messages=make_messages(*map(str, range(202))))
    with pytest.raises(BadInput) as caught:
        admit(owner="me", replaces=1, expect_seq=201)
    assert (caught.value.field, caught.value.limit) == ("replaces", 200)
    assert admit(owner="me", replaces=3, expect_seq=201).seq == 203


def test_a_user_row_that_a_run_stored_cannot_be_replaced():
    talk("one")
    Message.objects.filter(seq=2).update(role="user")
    with pytest.raises(BadInput):
        admit(owner="me", replaces=2, expect_seq=2)
    assert admit(owner="me", replaces=1, expect_seq=2).seq == 3


def test_an_appended_message_can_be_replaced():
    make_session()
    append_messages(**TALK, messages=make_messages("a", "b", "c", "d"))
    run("new", replaces=3, expect_seq=3)
    assert window_texts() == ["a", "new"]
    assert versions(3) == [(None, 3, 4, False), ("new", 5, 6, True)]


@pytest.mark.parametrize("owner", ["", "me"])
@pytest.mark.parametrize("running", [False, True])
def test_expect_seq_must_be_the_newest_user_row(owner, running):
    talk("one")
    if running:
        admit("two", owner="me")
    newest = 3 if running else 1
    for seq in (0, newest - 1, newest + 1):
        with pytest.raises(Conflict):
            admit(owner=owner, expect_seq=seq)
    assert admit(owner=owner, expect_seq=newest).status == (
        "running" if owner and not running else "waiting"
    )


def test_expect_seq_zero_means_no_user_row():
    make_session()
    assert admit(owner="me", expect_seq=0).seq == 1


def test_a_user_row_below_the_floor_is_not_the_newest():
    talk("one")
    clear_session(**TALK, reason="")
    with pytest.raises(Conflict):
        admit(owner="me", expect_seq=1)
    assert admit(owner="me", expect_seq=0).seq == 3


@pytest.mark.parametrize("owner", ["", "me"])
def test_a_repeated_replacement_is_a_duplicate_and_supersedes_nothing_more(owner):
    talk("one")
    admit(owner=owner, replaces=1, expect_seq=1)
    again = admit(owner=owner, replaces=1, expect_seq=1)
    assert again.is_duplicate
    for other in ({}, {"replaces": 3, "expect_seq": 3}):
        with pytest.raises(Conflict):
            admit(owner=owner, **other)
    assert Turn.objects.count() == 2


@commits
def test_simultaneous_repeats_of_a_replacement_store_one_turn():
    talk("one")
    answers = concurrently(*[lambda: admit(owner="me", replaces=1, expect_seq=1)] * 6)
    assert {answer.seq for answer in answers} == {3}
    assert sorted(answer.is_duplicate for answer in answers) == [False] + [True] * 5


@commits
def test_one_of_simultaneous_replacements_succeeds():
    talk("one")

    def send(client_id):
        try:
            return admit(client_id, owner="me", replaces=1, expect_seq=1).status
        except (Busy, Conflict) as error:
            return error.code

    answers = concurrently(*[lambda n=n: send(f"t{n}") for n in range(6)])
    assert answers.count("running") == 1
    assert set(answers) <= {"running", "busy", "conflict"}
    assert Turn.objects.filter(replaces_from=1).count() == 1


@pytest.mark.parametrize(
    ("meanwhile", "code"),
    [
        (lambda: append_messages(**TALK, messages=make_messages("more")), "conflict"),
        (lambda: trim_session(**TALK, keep_turns=1, reason=""), "history_cleared"),
        (
            lambda: append_messages(**TALK, messages=[{"role": "assistant", "content": "x"}] * 200),
            "bad_field",
        ),
        (lambda: append_messages(**TALK, messages=make_messages("x"), client_id="new"), "conflict"),
    ],
    ids=["a user spoke", "trimmed", "too far back", "its id was used"],
)
def test_a_waiting_replacement_is_rechecked_and_fails_alone(meanwhile, code):
    session = talk("one", "two")
    admit(replaces=1, expect_seq=3)
    meanwhile()
    admit("three")
    claim = claim_next(session_pk=session.pk, owner="me")
    turn = Turn.objects.get(client_id="new")
    assert (turn.status, turn.error, turn.user_seq) == ("failed", code, None)
    assert claim.client_id == "three"
    session.refresh_from_db()
    assert (session.waiting, session.superseded_to, ranges()) == (0, 0, [])


def test_a_waiting_replacement_supersedes_all_rows_up_to_its_own():
    session = talk("one")
    admit(replaces=1, expect_seq=1)
    append_messages(**TALK, messages=[{"role": "assistant", "content": "by the way"}])
    finish(claim_next(session_pk=session.pk, owner="me"))
    assert (ranges(), window_texts()) == ([(1, 3)], ["hi"])


def test_a_requeued_replacement_keeps_its_range():
    session = talk("one")
    admit(owner="dead", replaces=1, expect_seq=1)
    Turn.objects.update(lease_until=LONG_AGO)
    assert recover_all_overdue_turns().requeued == 1
    finish(claim_next(session_pk=session.pk, owner="me"))
    assert (ranges(), window_texts()) == ([(1, 2)], ["hi"])


def test_all_versions_of_a_message_are_found_from_each_version():
    talk("one", "two")
    run("two-b", replaces=3, expect_seq=3)
    run("three")
    run("two-c", replaces=5, expect_seq=7)
    expected = [("two", 3, 4, False), ("two-b", 5, 8, False), ("two-c", 9, 10, True)]
    assert versions(3) == versions(5) == versions(9) == expected
    assert versions(1) == [("one", 1, 10, True)]
    assert versions(7) == [("three", 7, 8, False)]


def test_an_edit_of_an_earlier_message_ends_all_versions_of_later_ones():
    talk("one", "two")
    run("two-b", replaces=3, expect_seq=3)
    run("one-b", replaces=1, expect_seq=5)
    assert versions(3) == [("two", 3, 4, False), ("two-b", 5, 6, False)]
    assert versions(1) == [("one", 1, 6, False), ("one-b", 7, 8, True)]
    assert (ranges(), window_texts()) == ([(3, 4), (1, 6)], ["one-b"])


def test_superseded_ranges_are_ordered_by_their_ends():
    talk("one", "two", "three", "four")
    run("four-b", replaces=7, expect_seq=7)
    run("five")
    run("five-b", replaces=11, expect_seq=11)
    assert ranges() == [(7, 8), (11, 12)]
    run("six", replaces=9, expect_seq=13)
    assert ranges() == [(7, 8), (11, 12), (9, 14)]


def test_versions_and_ranges_below_the_floor_are_not_returned():
    talk("one", "two")
    run("two-b", replaces=3, expect_seq=3)
    trim_session(**TALK, before_seq=5, reason="")
    assert (versions(5), ranges()) == ([("two-b", 5, 6, True)], [])
    with pytest.raises(NotFound):
        versions(3)


def test_a_floor_within_a_range_shortens_it():
    talk("one", "two")
    run("three", replaces=1, expect_seq=3)
    trim_session(**TALK, before_seq=3, reason="")
    assert (ranges(), window_texts()) == ([(3, 4)], ["three"])
    assert versions(5) == [("three", 5, 6, True)]


@pytest.mark.parametrize("seq", [2, 4, 99, 10**18])
def test_a_seq_without_a_user_message_is_not_found(seq):
    talk("one")
    with pytest.raises(NotFound):
        versions(seq)


def test_versions_in_another_users_session_are_not_found():
    talk("one")
    with pytest.raises(NotFound):
        list_versions(session_key="talk", seq=1, by=Actor.user(make_user()))


def test_versions_are_values():
    talk("one")
    assert list_versions(**TALK, seq=1) == [Version(turn="one", seq=1, to_seq=2, is_current=True)]


def test_a_restore_restores_ranges_and_versions():
    talk("one", "two")
    run("two-b", replaces=3, expect_seq=3)
    entry = trim_session(**TALK, keep_last=0, reason="")
    assert ranges() == []
    restore_session(entry_pk=entry.pk, by=BY, scope=SERVER, reason="")
    assert (ranges(), window_texts()) == ([(3, 4)], ["one", "two-b"])
    assert len(versions(3)) == 2


def test_vacuum_deletes_the_turns_of_its_rows_and_keeps_other_ranges():
    talk("one", "two")
    run("two-b", replaces=3, expect_seq=3)
    run("two-c", replaces=5, expect_seq=5)
    trim_session(**TALK, before_seq=5, reason="")
    AuditEntry.objects.update(created_at=LONG_AGO)
    assert vacuum().messages == 4
    assert (ranges(), window_texts()) == ([(5, 6)], ["two-c"])
    assert versions(7) == [("two-b", 5, 6, False), ("two-c", 7, 8, True)]
    assert list(check_integrity()) == []


def test_a_session_with_a_wrong_superseded_to_is_found_and_repaired():
    talk("one")
    run("two", replaces=1, expect_seq=1)
    Session.objects.update(superseded_to=0)
    assert window_texts() == ["one", "two"]
    [finding] = check_integrity(repair_by=BY)
    assert (finding.code, finding.is_fixed) == ("superseded_to", True)
    assert window_texts() == ["two"]


@pytest.mark.parametrize("is_edit", [False, True])
def test_turns_are_read_only_if_something_was_superseded(is_edit):
    talk("one")
    run("two", **({"replaces": 1, "expect_seq": 1} if is_edit else {}))
    head = read_history(**TALK).head
    with CaptureQueriesContext(connection) as queries:
        read_superseded(head=head)
    assert len(queries) == is_edit
