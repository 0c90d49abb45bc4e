"""Turns: admitted, claimed, run under a fence, ended; none twice, and none waits for ever."""

from __future__ import annotations

import time
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chatmemory import signals
from chatmemory.codec import MAX_CALLS
from chatmemory.errors import (
    Archived,
    BadInput,
    Busy,
    Conflict,
    HistoryCleared,
    MemoryUnavailable,
    NotFound,
    QueueFull,
    UnknownTurn,
)
from chatmemory.models import Message, Session, Turn
from chatmemory.services import (
    BUSY_POLICIES,
    SERVER,
    Actor,
    Claim,
    Recovered,
    add_rows,
    admit_turn,
    append_messages,
    check_integrity,
    claim_next,
    clear_session,
    end_all_overdue,
    end_overdue,
    ends,
    finish_turn,
    in_run,
    read_page,
    running,
    save_partial,
    start_turn,
    stop_turn,
)
from tests.factories import TALK, make_session, make_user, said
from tests.locking import at_once, held, kill_who_waits, thread, waits_for_a_lock

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
DONE = {"role": "assistant", "content": "done"}
ENDED = ("complete", "interrupted", "failed", "cancelled")


def admit(client_id="run", content="hi", **changes):
    return admit_turn(**{**TALK, "client_id": client_id, "content": content, **changes})


def run(*messages, client_id="run") -> Claim:
    """A turn that has begun and stored these rows."""
    claim: Claim = admit(client_id, owner="me").claim
    assert start_turn(claim=claim)
    assert add_rows(claim=claim, messages=messages, step=None)
    return claim


def finish(claim, status="complete", message=DONE, **more):
    return finish_turn(claim=claim, status=status, message=message, **more)


def let_the_lease_end() -> None:
    Turn.objects.filter(status="running").update(lease_until=LONG_AGO)


def rows() -> list[tuple[str, str, str]]:
    return list(Message.objects.in_order().values_list("role", "text", "status"))


def state(client_id="run") -> str:
    return Turn.objects.get(client_id=client_id).status


# Admitted


def test_a_turn_without_a_runner_waits_with_its_words():
    session = make_session()
    admitted = admit()
    assert (admitted.status, admitted.seq, admitted.claim) == ("waiting", None, None)
    assert "hi" in Turn.objects.get().asked
    session.refresh_from_db()
    assert (session.waiting, session.running, session.last_seq) == (1, None, 0)


def test_a_turn_with_a_runner_is_claimed_at_once():
    session = make_session()
    admitted = admit(owner="me")
    assert (admitted.status, admitted.seq) == ("running", 1)
    turn = Turn.objects.get()
    assert (turn.asked, turn.user_seq, turn.lease_owner) == ("", 1, "me")
    session.refresh_from_db()
    assert (session.running, session.fence) == ("run", turn.fence)
    assert Message.objects.get().turn == 1


def test_a_claim_stays_unrun_for_a_lease_at_most():
    make_session()
    with override_settings(CHATMEMORY={"LEASE": 60}):
        admit(owner="me")
    remaining = Turn.objects.get().lease_until - datetime.now(UTC)
    assert 50 < remaining.total_seconds() <= 61


def test_a_session_is_made_on_request_and_not_for_an_old_epoch():
    with pytest.raises(NotFound):
        admit()
    with pytest.raises(HistoryCleared):
        admit(create=True, epoch=7)
    assert admit(create=True, owner="me").seq == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "empty"),
        (" \u200b", "empty"),
        ("a\0", "bad_text"),
        ("\ud800", "bad_text"),
        ("a" * 32_001, "too_large"),
        (5, "bad_field"),
        (None, "bad_field"),
        ([], "bad_field"),
        ([{"type": "image", "url": "https://a"}], "bad_field"),
        ([{"type": "text", "text": "a", "more": 1}], "bad_field"),
        ([{"type": "text", "text": 1}], "bad_field"),
        ([{"type": "text", "text": "a" * 20_000}] * 2, "too_large"),
    ],
)
def test_what_a_person_can_not_say_is_refused(content, code):
    make_session()
    with pytest.raises(BadInput) as caught:
        admit(content=content)
    assert caught.value.code == code


@pytest.mark.parametrize("content", ["  hi\n", [{"type": "text", "text": "a"}] * 2])
@pytest.mark.parametrize("owner", ["", "me"])
def test_what_a_person_says_is_stored_unchanged(content, owner):
    session = make_session()
    admit(content=content, owner=owner)
    if not owner:
        claim_next(session_pk=session.pk, owner="me")
    [row] = read_page(**TALK).rows
    assert row.plain() == {"role": "user", "content": content}


def test_an_archived_session_admits_nothing():
    make_session(archived_at=LONG_AGO)
    with pytest.raises(Archived):
        admit()


@pytest.mark.parametrize("owner", ["", "me"])
def test_a_second_turn_is_busy_and_names_the_first(owner):
    make_session()
    admit("one", owner=owner)
    with pytest.raises(Busy) as caught:
        admit("two", owner="me", if_busy="reject")
    assert (caught.value.code, caught.value.turn) == ("busy", "one")
    assert Turn.objects.count() == 1


@pytest.mark.parametrize("owner", ["", "me"])
def test_an_id_that_an_append_used_is_a_conflict(owner):
    session = make_session()
    append_messages(**TALK, messages=said("hi"), client_id="run")
    with pytest.raises(Conflict):
        admit(owner=owner)
    session.refresh_from_db()
    assert (session.waiting, session.last_seq) == (0, 1)


def test_a_send_ends_the_run_of_a_dead_process():
    make_session()
    run(client_id="one")
    let_the_lease_end()
    assert admit("two", owner="me").seq == 3
    assert state("one") == "interrupted"


@commits
def test_of_the_same_send_many_times_at_once_one_is_stored():
    make_session()
    answers = at_once(*[lambda: admit(owner="me")] * 8)
    assert {answer.seq for answer in answers} == {1}
    assert sorted(answer.is_duplicate for answer in answers) == [False] + [True] * 7
    assert Message.objects.count() == Turn.objects.count() == 1


@commits
def test_of_many_sends_at_once_one_runs_and_the_others_are_busy():
    make_session()

    def send(client_id):
        try:
            return admit(client_id, owner="me", if_busy="reject").status
        except Busy:
            return "busy"

    answers = at_once(*[lambda n=n: send(f"t{n}") for n in range(6)])
    assert sorted(answers) == ["busy"] * 5 + ["running"]
    assert Message.objects.count() == Turn.objects.count() == 1


def test_a_claim_whose_answer_was_lost_is_given_again_until_it_begins():
    make_session()
    first = admit(owner="me")
    again = admit(owner="me")
    assert (again.claim, again.is_duplicate) == (first.claim, True)
    assert (admit(owner="another").claim, admit().claim) == (None, None)
    assert start_turn(claim=first.claim)
    assert admit(owner="me").claim is None


# Queued


def begun(session, owner="me"):
    """The turn that a claim begins."""
    claim = claim_next(session_pk=session.pk, owner=owner)
    return claim.client_id if claim else None


def the_queue() -> list[str]:
    return list(Turn.objects.waiting().values_list("client_id", flat=True))


@pytest.mark.parametrize("owner", ["", "me"])
def test_turns_wait_while_one_runs_and_begin_in_their_order(owner):
    session = make_session()
    claim = run(client_id="one")
    for client_id in ("two", "three"):
        admitted = admit(client_id, owner=owner)
        assert (admitted.status, admitted.seq, admitted.claim) == ("waiting", None, None)
    session.refresh_from_db()
    assert (session.waiting, session.running, session.last_seq) == (2, "one", 1)
    finish(claim, "failed")
    assert [begun(session), begun(session)] == ["two", None]


def test_a_turn_waits_behind_those_that_wait_though_nothing_runs():
    make_session()
    admit("one")
    assert admit("two", owner="me").status == "waiting"
    assert the_queue() == ["one", "two"]


def test_a_queue_has_an_end():
    session = make_session()
    with override_settings(CHATMEMORY={"QUEUE_DEPTH": 2}):
        run(client_id="one")
        admit("two")
        admit("three")
        for policy in ("queue", "interrupt"):
            with pytest.raises(QueueFull) as caught:
                admit("four", if_busy=policy)
            assert (caught.value.code, caught.value.turn) == ("queue_full", "one")
        assert Turn.objects.get(client_id="one").stop_requested_at is None
        stop_turn(**TALK, turn="two")
        assert admit("four").status == "waiting"
    session.refresh_from_db()
    assert (session.waiting, the_queue()) == (2, ["three", "four"])


def test_an_interrupt_goes_before_all_others_and_stops_what_runs():
    session = make_session()
    claim = run(client_id="one")
    admit("two")
    admit("three", if_busy="interrupt")
    stopped = Turn.objects.get(client_id="one")
    assert stopped.stop_requested_at is not None
    admit("four", if_busy="interrupt")
    admit("five")
    assert the_queue() == ["four", "three", "two", "five"]
    assert Turn.objects.get(client_id="one").stop_requested_at == stopped.stop_requested_at
    finish(claim, "interrupted")
    assert begun(session) == "four"


def test_an_interrupt_cancels_what_was_given_back():
    session = make_session()
    admit("one", owner="dead")
    admit("two")
    let_the_lease_end()
    end_overdue(session.pk)
    admit("three", if_busy="interrupt")
    assert (state("one"), begun(session)) == ("cancelled", "three")
    session.refresh_from_db()
    assert (session.running, session.waiting) == ("three", 1)


def test_an_interrupt_of_nothing_just_goes_first():
    make_session()
    admit("one")
    assert admit("two", if_busy="interrupt").status == "waiting"
    assert the_queue() == ["two", "one"]


def test_the_policy_is_the_settings_unless_the_sender_says():
    make_session()
    admit("one")
    with override_settings(CHATMEMORY={"BUSY_POLICY": "reject"}):
        with pytest.raises(Busy):
            admit("two")
        assert admit("two", if_busy="queue").status == "waiting"
    with pytest.raises(BadInput) as caught:
        admit("three", if_busy="wait")
    assert (caught.value.code, caught.value.field) == ("bad_field", "if_busy")


@commits
def test_the_stop_of_an_interrupt_is_told_with_its_commit():
    make_session()
    claim = run(client_id="one")
    told = []

    def listen(turn_pk, **_):
        told.append((turn_pk, the_queue()))

    signals.stop_requested.connect(listen)
    try:
        admit("two", if_busy="interrupt")
        admit("three", if_busy="queue")
    finally:
        signals.stop_requested.disconnect(listen)
    assert told == [(claim.turn_pk, ["two"])]


def test_an_archived_session_takes_nothing_into_its_queue():
    make_session()
    run()
    Session.objects.update(archived_at=LONG_AGO)
    with pytest.raises(Archived):
        admit("two")


def test_an_old_epoch_takes_nothing_into_the_queue():
    session = make_session()
    run()
    with pytest.raises(HistoryCleared):
        admit("two", epoch=session.epoch - 1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"archived_at": LONG_AGO}, Archived),
        ({"epoch": 5}, HistoryCleared),
        ({"waiting": 5}, QueueFull),
    ],
)
def test_what_changed_since_it_was_looked_at_keeps_a_turn_out_of_the_queue(change, error):
    session = make_session(epoch=1)
    run()
    changed = []

    def change_after_the_look(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if sql.startswith("SELECT s.id") and not changed:
            changed.append(Session.objects.filter(pk=session.pk).update(**change))
        return result

    with connection.execute_wrapper(change_after_the_look), pytest.raises(error):
        admit("two", epoch=1)
    assert changed
    assert Turn.objects.count() == 1


def test_a_send_that_meets_a_dead_run_ends_it_and_takes_its_place():
    make_session()
    run(client_id="one")
    let_the_lease_end()
    assert admit("two", owner="me").status == "running"
    assert state("one") == "interrupted"


def test_a_cleared_session_has_no_queue_any_more():
    session = make_session()
    run(client_id="one")
    admit("two")
    clear_session(**TALK, reason="")
    session.refresh_from_db()
    assert (session.waiting, state("two"), begun(session)) == (0, "cancelled", None)


@commits
def test_of_many_sends_at_once_one_runs_a_few_wait_and_the_queue_is_full_for_others():
    make_session()

    def send(client_id):
        try:
            return admit(client_id, owner="me").status
        except QueueFull:
            return "full"

    answers = at_once(*[lambda n=n: send(f"t{n}") for n in range(8)])
    assert sorted(answers) == ["full"] * 2 + ["running"] + ["waiting"] * 5
    assert Session.objects.get().waiting == 5


@commits
def test_of_the_same_send_many_times_at_once_one_waits():
    make_session()
    run(client_id="one")
    answers = at_once(*[lambda: admit("two", owner="me")] * 6)
    assert {answer.status for answer in answers} == {"waiting"}
    assert sorted(answer.is_duplicate for answer in answers) == [False] + [True] * 5
    assert Session.objects.get().waiting == 1


def test_only_what_can_begin_is_claimable():
    make_session()
    make_session("other")
    admit("one", owner="dead")
    admit("two")
    admit("three", session_key="other")
    assert set(Turn.objects.claimable().values_list("client_id", flat=True)) == {"three"}
    let_the_lease_end()
    end_all_overdue()
    assert set(Turn.objects.claimable().values_list("client_id", flat=True)) == {"one", "three"}


# What it costs


def statements(*steps) -> list[int]:
    """How many each step takes, besides those of its transaction."""
    counts = []
    for step in steps:
        with CaptureQueriesContext(connection) as queries:
            step()
        words = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")
        counts.append(len([q for q in queries if not q["sql"].startswith(words)]))
    return counts


@commits
@pytest.mark.parametrize("is_logged", [False, True])
def test_a_turn_with_nothing_before_it_takes_four_statements_on_postgresql(caplog, is_logged):
    """And one more after its end, where somebody hears of that."""
    caplog.set_level("INFO" if is_logged else "WARNING", "chatmemory.turns")
    make_session()
    claims = []

    def send():
        claims.append(admit(owner="me").claim)

    def end():
        assert finish(claims[0], "complete", DONE, model="m", usage={"in": 1})

    took = statements(send, lambda: start_turn(claim=claims[0]), end)
    alone = {"postgresql": [1, 2, 1], "sqlite": [3, 1, 3], "mysql": [4, 1, 4]}[connection.vendor]
    assert took == [*alone[:2], alone[2] + is_logged]
    turn = Turn.objects.get()
    assert (turn.status, turn.model, turn.usage) == ("complete", "m", '{"in":1}')
    assert (turn.user_seq, turn.asked, turn.lease_owner, turn.lease_until) == (1, "", "", None)
    assert claims[0].turn_pk == turn.pk


@commits
def test_a_turn_that_waits_takes_few_statements():
    make_session()
    run()
    took = statements(lambda: admit("two", owner="me"), lambda: admit("three", owner="me"))
    assert max(took) <= {"postgresql": 7, "sqlite": 6, "mysql": 6}[connection.vendor]


@commits
def test_a_turn_that_is_changed_while_it_ends_is_ended_all_the_same(postgresql):
    session = make_session()
    claim = run()
    with thread() as call:
        with held(session):
            waiting = call(finish, claim)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and not waits_for_a_lock():
                time.sleep(0.05)
            stop_turn(**TALK, turn="run")
        assert waiting.result(timeout=10)
    turn = Turn.objects.get()
    assert (turn.status, turn.lease_until) == ("complete", None)
    assert turn.stop_requested_at is not None
    assert Session.objects.get().running is None


# Sent again


def resend(**changes):
    again = admit(**changes)
    assert again.is_duplicate
    assert again.claim is None
    return again.status, again.seq


def test_a_resend_returns_the_turn_as_it_is_now():
    session = make_session()
    admit()
    assert resend() == resend(owner="you") == ("waiting", None)
    claim = claim_next(session_pk=session.pk, owner="me")
    assert resend() == ("running", 1)
    start_turn(claim=claim)
    finish(claim, "failed")
    assert resend() == ("failed", 1)


@pytest.mark.parametrize("owner", ["", "me"])
def test_a_resend_with_other_words_is_a_conflict(owner):
    make_session()
    admit(owner=owner)
    with pytest.raises(Conflict):
        admit(content="ho")


def test_a_resend_of_a_cancelled_turn_compares_no_words():
    make_session()
    admit()
    stop_turn(**TALK, turn="run")
    assert resend(content="other") == ("cancelled", None)


def test_a_resend_ends_the_run_of_a_dead_process():
    make_session()
    run()
    let_the_lease_end()
    assert resend() == ("interrupted", 1)


def test_a_resend_gives_back_what_a_dead_process_never_began():
    make_session()
    admit(owner="me")
    let_the_lease_end()
    assert resend() == ("waiting", 1)


# Claimed


def test_a_claim_stores_the_users_message_and_begins_the_turn():
    session = make_session()
    admit()
    claim = claim_next(session_pk=session.pk, owner="me")
    assert rows() == [("user", "hi", "complete")]
    assert (claim.client_id, claim.user_seq, claim.owner) == ("run", 1, "me")
    session.refresh_from_db()
    assert (session.running, session.waiting, session.fence) == ("run", 0, claim.fence)
    assert Message.objects.get().turn == 1


def test_an_idle_a_busy_and_an_unknown_session_give_no_claim():
    session = make_session()
    assert claim_next(session_pk=session.pk, owner="me") is None
    admit(owner="me")
    assert claim_next(session_pk=session.pk, owner="me") is None
    assert claim_next(session_pk=session.pk + 1, owner="me") is None


def queue(session, *client_ids) -> None:
    for place, client_id in enumerate(client_ids):
        Turn.objects.create(
            session=session,
            client_id=client_id,
            status="waiting",
            place=place,
            asked='{"role":"user","content":"hi"}',
            epoch=session.epoch,
        )
    Session.objects.filter(pk=session.pk).update(waiting=len(client_ids))


def test_waiting_turns_start_in_their_order_whatever_became_of_the_one_before():
    session = make_session()
    queue(session, "one", "two", "three")
    for client_id, status in (("one", "complete"), ("two", "failed"), ("three", "interrupted")):
        claim = claim_next(session_pk=session.pk, owner="me")
        assert claim.client_id == client_id
        assert finish(claim, status)
    assert claim_next(session_pk=session.pk, owner="me") is None


def test_a_claim_whose_id_is_a_messages_fails_that_turn_alone():
    session = make_session()
    queue(session, "one", "two")
    append_messages(**TALK, messages=said("other"), client_id="one")
    assert claim_next(session_pk=session.pk, owner="me").client_id == "two"
    failed = Turn.objects.get(client_id="one")
    assert (failed.status, failed.error, failed.asked) == ("failed", "conflict", "")
    session.refresh_from_db()
    assert session.waiting == 0


@commits
def test_of_two_who_claim_a_turn_at_once_one_gets_it():
    session = make_session()
    admit()
    with thread() as one, thread() as two:
        with held(session):
            waiting = [
                call(claim_next, session_pk=session.pk, owner=owner)
                for call, owner in ((one, "p1"), (two, "p2"))
            ]
            time.sleep(0.2)
        [claim] = filter(None, [claimed.result(timeout=30) for claimed in waiting])
    turn = Turn.objects.get()
    assert (turn.status, turn.lease_owner) == ("running", claim.owner)
    assert Message.objects.count() == 1


# Run


def test_a_turn_begins_once():
    make_session()
    claim = admit(owner="me").claim
    assert start_turn(claim=claim)
    assert not start_turn(claim=claim)


def test_the_rows_of_a_turn_lie_together_and_name_it():
    make_session()
    append_messages(**TALK, messages=said("a", "b"))
    claim = run({"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"})
    assert add_rows(claim=claim, messages=[], step=None)
    finish(claim)
    assert set(Message.objects.filter(seq__gte=3).values_list("turn", flat=True)) == {3}
    assert [row[1] for row in rows()] == ["a", "b", "hi", "one", "two", "done"]


def test_an_end_stores_the_last_row_and_how_it_ended():
    session = make_session()
    claim = run()
    ended = finish(claim, "failed", error="model_error", model="m", usage={"n": 1}, step=2)
    assert (ended.last_seq, ended.waiting) == (2, 0)
    last = Message.objects.get(seq=2)
    assert (last.status, last.error, last.model, last.step) == ("failed", "model_error", "m", 2)
    turn = Turn.objects.get()
    assert (turn.status, turn.error, turn.model, turn.usage) == (
        "failed",
        "model_error",
        "m",
        '{"n":1}',
    )
    assert (turn.partial, turn.lease_owner, turn.lease_until) == ("", "", None)
    session.refresh_from_db()
    assert (session.running, session.waiting) == (None, 0)


def test_what_a_model_sends_never_keeps_its_run_from_ending():
    make_session()
    strange = {"nan": float("nan"), "nul": "\0", "set": {1}, "lone": "\ud800"}
    message = {"role": "assistant", "content": "a\0", "tool_calls": ["x", {"id": None}]}
    claim = run(message)
    ended = finish(claim, message={**message, **strange}, model="m\0" * 200, usage=strange)
    assert ended is not None
    assert rows()[-1][1] == "a\ufffd"


def test_open_tool_calls_get_a_result():
    make_session()
    calls = [{"name": "f", "args": {}, "id": name} for name in ("c1", "c2", "c3")]
    claim = run(
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "42", "tool_call_id": "c2"},
    )
    finish(claim, "interrupted")
    plains = [row.plain() for row in read_page(**TALK).rows]
    answered = [plain.get("tool_call_id") for plain in plains]
    assert answered == [None, None, "c2", "c1", "c3", None]
    assert plains[3]["tool_status"] == "error"


def test_the_text_so_far_is_kept_for_who_holds_the_fence():
    make_session()
    claim = run()
    assert save_partial(claim=claim, text="so far", step=3)
    turn = Turn.objects.get()
    assert (turn.partial, turn.step) == ("so far", 3)
    finish(claim)
    assert not save_partial(claim=claim, text="late", step=3)
    assert Turn.objects.get().partial == ""


def assert_fenced_off(claim: Claim) -> None:
    before = rows()
    assert not start_turn(claim=claim)
    assert not save_partial(claim=claim, text="late", step=1)
    assert not add_rows(claim=claim, messages=[DONE], step=None)
    assert finish(claim) is None
    assert rows() == before


def test_who_finished_can_write_no_more():
    make_session()
    claim = run()
    assert finish(claim)
    assert_fenced_off(claim)


def test_who_was_taken_over_can_write_no_more():
    session = make_session()
    claim = run()
    let_the_lease_end()
    assert end_overdue(session.pk)
    assert_fenced_off(claim)


def test_who_was_given_back_can_write_no_more_although_another_runs_it():
    session = make_session()
    old = admit(owner="me").claim
    let_the_lease_end()
    assert end_overdue(session.pk)
    new = claim_next(session_pk=session.pk, owner="you")
    assert_fenced_off(old)
    assert start_turn(claim=new)
    assert finish(new)


def test_whose_session_was_cleared_can_write_no_more():
    make_session()
    claim = run()
    clear_session(**TALK, reason="")
    assert_fenced_off(claim)


def restore_over(claim: Claim, **columns: Any) -> Turn:
    """Put another turn under the primary keys of this claim, as a restored database does."""
    Message.stored.all().delete()
    Turn.objects.all().delete()
    Session.objects.all().delete()
    new = replace(claim, **columns)
    fences: dict[str, Any] = {"epoch": new.epoch, "fence": new.fence}
    session = make_session("other", pk=new.session_pk, running=new.client_id, **fences)
    about = {"client_id": new.client_id, "status": "running", "user_seq": 1, **fences}
    return Turn.objects.create(pk=claim.turn_pk, session=session, **about)


@pytest.mark.regression
@pytest.mark.parametrize("name", ["client_id", "epoch", "fence", "session_pk"])
def test_a_run_writes_to_no_turn_that_has_its_primary_key_after_a_restore(name):
    make_session()
    claim: Claim = admit(owner="me").claim
    columns = {"client_id": "other", "epoch": 7, "fence": 7, "session_pk": claim.session_pk + 1}
    other = restore_over(claim, **{name: columns[name]})
    assert not start_turn(claim=claim)
    assert_fenced_off(claim)
    other.refresh_from_db()
    assert (other.started_at, other.partial, other.status) == (None, "", "running")


@pytest.mark.regression
def test_an_end_is_stored_in_the_turn_that_the_session_names():
    make_session()
    make_session("other")
    claim = run()
    foreign = admit("foreign", session_key="other", owner="me").claim
    assert finish(replace(claim, turn_pk=foreign.turn_pk))
    assert (state("run"), state("foreign")) == ("complete", "running")


def test_archiving_and_expiry_do_not_stop_a_running_turn():
    make_session()
    claim = run()
    Session.objects.update(archived_at=LONG_AGO, expires_at=LONG_AGO)
    assert add_rows(claim=claim, messages=[DONE], step=None)
    assert finish(claim)


@commits
@pytest.mark.slow
@override_settings(CHATMEMORY={"LOCK_TIMEOUT": 0.2})
def test_no_step_of_a_turn_waits_for_a_lock_without_bound():
    session, idle = make_session(), make_session("idle")
    claim = run()
    admit("waiting", session_key="idle")
    if connection.vendor == "sqlite":
        pytest.skip("the host's timeout")
    steps = (
        lambda: add_rows(claim=claim, messages=[DONE], step=None),
        lambda: finish(claim),
        lambda: end_overdue(session.pk),
        lambda: clear_session(**TALK, reason=""),
        lambda: claim_next(session_pk=idle.pk, owner="me"),
        lambda: admit("next", session_key="idle", owner="me"),
        lambda: admit("next", session_key="idle"),
    )
    with held(session, idle):
        assert at_once(*[partial(gives_up, step) for step in steps]) == [True] * len(steps)


def gives_up(step) -> bool:
    began = time.monotonic()
    try:
        step()
    except MemoryUnavailable:
        return time.monotonic() - began < 5 * 2
    return False


@commits
@pytest.mark.slow
@pytest.mark.parametrize("step", ["rows", "finish", "admit"])
def test_a_step_whose_connection_is_killed_is_done_exactly_once(step):
    session = make_session()
    if connection.vendor == "sqlite":
        pytest.skip("no server")
    claim = None if step == "admit" else run()
    steps = {
        "rows": lambda: add_rows(claim=claim, messages=[DONE], step=None),
        "finish": lambda: finish(claim),
        "admit": lambda: admit(owner="me"),
    }
    with thread() as call:
        with held(session):
            waiting = call(steps[step])
            kill_who_waits()
        assert waiting.result(timeout=10)
    session.refresh_from_db()
    assert session.last_seq == Message.objects.count() == (1 if step == "admit" else 2)


# Overdue


def test_a_run_within_its_lease_is_left_alone():
    session = make_session()
    run()
    assert not end_overdue(session.pk)
    assert state() == "running"


def test_a_dead_run_that_had_begun_ends_with_the_text_so_far():
    session = make_session()
    calls = [{"name": "f", "args": {}, "id": "c1"}]
    claim = run({"role": "assistant", "content": "", "tool_calls": calls})
    save_partial(claim=claim, text="so f", step=2)
    let_the_lease_end()
    assert end_overdue(session.pk)
    assert not end_overdue(session.pk)
    assert [row[0] for row in rows()] == ["user", "assistant", "tool", "assistant"]
    assert rows()[-1] == ("assistant", "so f", "interrupted")
    assert state() == "interrupted"
    assert Turn.objects.get().partial == ""
    assert Session.objects.get().running is None


def test_open_calls_that_can_be_named_get_a_result_invalid_ones_too():
    session = make_session()
    calls = [{"name": "f", "args": {}, "id": name} for name in ("c1", "c2", None, "")]
    invalid = [{"name": "g", "args": "{", "id": "c3", "error": "no JSON"}]
    answer = {"role": "tool", "content": "1", "tool_call_id": "c1"}
    call = {"role": "assistant", "content": "", "tool_calls": calls, "invalid_tool_calls": invalid}
    run(call, answer)
    let_the_lease_end()
    end_overdue(session.pk)
    results = [row.plain().get("tool_call_id") for row in Message.objects.filter(role="tool")]
    assert results == ["c1", "c2", "c3"]
    assert list(check_integrity()) == []


@pytest.mark.regression
def test_the_most_open_calls_end_in_a_bounded_number_of_statements():
    session = make_session()
    counts = []
    for number, name in ((1, "one"), (10 * MAX_CALLS, "most")):
        calls = [{"name": "f", "args": {}, "id": f"{name} {n}"} for n in range(number)]
        run({"role": "assistant", "content": "", "tool_calls": calls}, client_id=name)
        let_the_lease_end()
        with CaptureQueriesContext(connection) as queries:
            assert end_overdue(session.pk)
        counts.append(len(queries))
    assert counts[1] <= counts[0]
    assert Message.objects.filter(role="tool").count() == 1 + MAX_CALLS
    assert list(check_integrity()) == []


def test_a_run_whose_users_row_nobody_knows_ends_without_a_row():
    session = make_session()
    save_partial(claim=run(), text="so f", step=0)
    Turn.objects.update(user_seq=None)
    let_the_lease_end()
    assert end_overdue(session.pk)
    session.refresh_from_db()
    assert (session.running, session.last_seq) == (None, 1)
    assert (state(), Turn.objects.get().partial) == ("interrupted", "so f")


@commits
def test_whoever_ends_a_turn_says_that_the_next_can_begin():
    session = make_session()
    told = []

    def listen(client_id, **_):
        told.append(client_id)

    signals.turn_waiting.connect(listen)
    try:
        run()
        queue(session, "one", "two")
        let_the_lease_end()
        end_overdue(session.pk)
        assert told == ["one"]
        claim_next(session_pk=session.pk, owner="dead")
        let_the_lease_end()
        end_overdue(session.pk)
        stop_turn(**TALK, turn="one")
        assert told == ["one", "one", "two"]
    finally:
        signals.turn_waiting.disconnect(listen)


def test_a_dead_run_without_a_word_still_gets_a_last_row():
    session = make_session()
    run()
    let_the_lease_end()
    end_overdue(session.pk)
    assert rows() == [("user", "hi", "complete"), ("assistant", "", "interrupted")]


def test_a_dead_run_that_never_began_is_given_back_and_run_first():
    session = make_session()
    admit(owner="me")
    let_the_lease_end()
    assert end_overdue(session.pk)
    session.refresh_from_db()
    assert (state(), session.running, session.waiting) == ("waiting", "run", 0)
    claim = claim_next(session_pk=session.pk, owner="you")
    assert (claim.client_id, claim.user_seq) == ("run", 1)
    assert start_turn(claim=claim)
    assert rows() == [("user", "hi", "complete")]


def test_a_turn_given_back_can_be_cancelled_and_frees_its_session():
    session = make_session()
    admit(owner="me")
    let_the_lease_end()
    end_overdue(session.pk)
    assert stop_turn(**TALK, turn="run") == "cancelled"
    session.refresh_from_db()
    assert (session.running, session.waiting) == (None, 0)
    append_messages(**TALK, messages=said("a"))


@commits
def test_a_run_that_begins_while_it_is_given_back_begins_not_at_all_or_stays():
    session = make_session()
    claim = admit(owner="me").claim
    let_the_lease_end()
    begun = []
    with thread() as call:

        def begin_in_between(execute, sql, params, many, context):
            result = execute(sql, params, many, context)
            if sql.startswith("SELECT") and "lease_until" in sql and not begun:
                begun.append(call(start_turn, claim=claim))
                time.sleep(0.2)
            return result

        with connection.execute_wrapper(begin_in_between):
            end_overdue(session.pk)
        assert begun
        has_begun = begun[0].result(timeout=30)
    assert (state() == "running") == has_begun


def overdue(key, *, has_begun=True) -> Session:
    """A session whose running turn was a dead process's."""
    session = make_session(key)
    claim = admit(key, session_key=key, owner="dead").claim
    if has_begun:
        start_turn(claim=claim)
    let_the_lease_end()
    return session


def test_all_overdue_turns_are_ended_however_many_are_read_at_a_time(monkeypatch):
    monkeypatch.setattr(ends, "OVERDUE", 2)
    for number in range(5):
        overdue(f"t{number}", has_begun=number > 0)
    make_session("alive")
    admit("alive", session_key="alive", owner="me")
    first = end_all_overdue(limit=3)
    assert (first.interrupted, first.is_all) == (3, False)
    assert end_all_overdue() == Recovered(interrupted=1, given_back=1, cancelled=0, failed=0)
    assert end_all_overdue() == Recovered(interrupted=0, given_back=0, cancelled=0, failed=0)
    assert (state("t0"), state("t1"), state("alive")) == ("waiting", "interrupted", "running")


@pytest.mark.regression
def test_damaged_turns_hide_no_older_overdue_turn(monkeypatch):
    """A turn that its session does not name cannot be ended."""
    for number in range(5):
        overdue(f"t{number}")
    Session.objects.exclude(key="t0").update(running=None)
    end_all_overdue(limit=3)
    assert state("t0") == "interrupted"


@commits
@pytest.mark.regression
def test_the_next_sweep_goes_on_behind_the_turns_that_failed():
    for number in range(5):
        overdue(f"t{number}")
    Session.objects.exclude(key="t0").update(last_seq=0)  # its numbers are taken already
    first = end_all_overdue(limit=3)
    assert (first.failed, first.interrupted, first.is_all) == (3, 0, False)
    second = end_all_overdue(limit=3, skip=3)
    assert (second.failed, second.interrupted, second.is_all) == (1, 1, True)


@commits
def test_a_turn_that_can_not_be_ended_keeps_no_other_from_its_end(caplog):
    for key in ("one", "two", "three"):
        overdue(key)
    Session.objects.filter(key="two").update(last_seq=0)  # its numbers are taken already
    assert end_all_overdue() == Recovered(interrupted=2, given_back=0, cancelled=0, failed=1)
    assert [state(key) for key in ("one", "two", "three")] == [
        "interrupted",
        "running",
        "interrupted",
    ]
    assert f"session {Session.objects.get(key='two').pk} is left for now" in caplog.text


# Stopped


def test_a_waiting_turn_is_cancelled():
    session = make_session()
    admit()
    assert stop_turn(**TALK, turn="run") == "cancelled"
    assert Turn.objects.get().asked == ""
    session.refresh_from_db()
    assert session.waiting == 0
    assert claim_next(session_pk=session.pk, owner="me") is None


def test_a_running_turn_is_asked_to_stop():
    make_session()
    claim = run()
    assert stop_turn(**TALK, turn="run") == "running"
    assert Turn.objects.get().stop_requested_at is not None
    assert finish(claim, "interrupted")


@commits
def test_the_runner_is_told_of_a_stop():
    make_session()
    claim = run()
    told = []

    def listen(turn_pk, **_):
        told.append(turn_pk)

    signals.stop_requested.connect(listen)
    try:
        stop_turn(**TALK, turn="run")
    finally:
        signals.stop_requested.disconnect(listen)
    assert told == [claim.turn_pk]


def test_a_second_stop_keeps_the_time_of_the_first():
    make_session()
    run()
    stop_turn(**TALK, turn="run")
    Turn.objects.update(stop_requested_at=LONG_AGO)
    stop_turn(**TALK, turn="run")
    assert Turn.objects.get().stop_requested_at == LONG_AGO


def test_an_ended_turn_stays_as_it_is():
    make_session()
    finish(run())
    assert stop_turn(**TALK, turn="run") == "complete"
    assert Turn.objects.get().stop_requested_at is None


def test_a_stop_ends_the_run_of_a_dead_process():
    make_session()
    run()
    let_the_lease_end()
    assert stop_turn(**TALK, turn="run") == "interrupted"


def test_a_stop_cancels_what_a_dead_process_never_began():
    make_session()
    admit(owner="me")
    let_the_lease_end()
    assert stop_turn(**TALK, turn="run") == "cancelled"


def test_a_turn_that_never_began_and_shall_stop_is_not_given_back():
    session = make_session()
    admit(owner="dead")
    assert stop_turn(**TALK, turn="run") == "running"
    let_the_lease_end()
    assert end_all_overdue().cancelled == 1
    session.refresh_from_db()
    assert (state(), session.running, session.waiting) == ("cancelled", None, 0)
    assert claim_next(session_pk=session.pk, owner="me") is None


def test_an_unknown_turn_and_another_sessions_are_unknown():
    make_session()
    make_session("other")
    admit(session_key="other")
    for turn in ("run", "RUN", "nothing"):
        with pytest.raises(UnknownTurn):
            stop_turn(**TALK, turn=turn)


def test_anothers_turn_is_not_found():
    make_session(owner=make_user())
    with pytest.raises(NotFound):
        stop_turn(session_key="talk", turn="run", by=Actor.user(make_user()))


# Within a run


def test_code_knows_in_whose_run_it_is():
    make_session()
    claim = admit(owner="me").claim
    with running(claim):
        assert in_run(SERVER, "talk")
        assert not in_run(SERVER, "other")
        left_behind = copy_context()
        assert left_behind.run(in_run, SERVER, "talk")
    assert not in_run(SERVER, "talk")
    assert not left_behind.run(in_run, SERVER, "talk")


# All orders of events


class Turns(RuleBasedStateMachine):
    """One session under every order of events; what must hold is looked at after each."""

    @initialize()
    def begin(self) -> None:
        self.session = make_session(f"talk{time.monotonic_ns()}")
        self.at = {**TALK, "session_key": self.session.key}
        self.claims: list[Claim] = []
        self.began: set[tuple[int, int]] = set()
        self.sent = 0

    @rule(owner=st.sampled_from(["", "p1"]), if_busy=st.sampled_from(BUSY_POLICIES))
    def admit(self, owner, if_busy) -> None:
        self.sent += 1
        with suppress(Busy):
            admitted = admit_turn(
                **self.at,
                client_id=f"t{self.sent}",
                content="hi",
                owner=owner,
                if_busy=if_busy,
            )
            if admitted.claim:
                self.claims.append(admitted.claim)

    @rule()
    def claim(self) -> None:
        claim = claim_next(session_pk=self.session.pk, owner="p2")
        if claim:
            self.claims.append(claim)

    @precondition(lambda self: self.claims)
    @rule(pick=st.randoms(use_true_random=False))
    def start(self, pick) -> None:
        claim = pick.choice(self.claims)
        if start_turn(claim=claim):
            assert claim.turn_pk not in {pk for pk, _ in self.began}, "a turn began twice"
            self.began.add((claim.turn_pk, claim.fence))

    @precondition(lambda self: self.claims)
    @rule(pick=st.randoms(use_true_random=False))
    def add(self, pick) -> None:
        claim = pick.choice(self.claims)
        stands = self.stands(claim)
        assert add_rows(claim=claim, messages=[DONE], step=None) == stands

    @precondition(lambda self: self.claims)
    @rule(pick=st.randoms(use_true_random=False))
    def finish(self, pick) -> None:
        claim = pick.choice(self.claims)
        stands = self.stands(claim)
        assert (finish(claim) is not None) == stands

    @precondition(lambda self: self.sent)
    @rule(pick=st.randoms(use_true_random=False))
    def stop(self, pick) -> None:
        with suppress(UnknownTurn):
            stop_turn(**self.at, turn=f"t{pick.randint(1, self.sent)}")

    @rule()
    def die(self) -> None:
        self.session.turns.filter(status="running").update(lease_until=LONG_AGO)
        end_overdue(self.session.pk)

    @rule()
    def clear(self) -> None:
        clear_session(**self.at, reason="")

    @rule()
    def append(self) -> None:
        with suppress(Busy):
            append_messages(**self.at, messages=said("a", "b"))

    def stands(self, claim: Claim) -> bool:
        now = Session.objects.get(pk=self.session.pk)
        return (now.epoch, now.fence, now.running) == (claim.epoch, claim.fence, claim.client_id)

    @invariant()
    def the_session_row_is_true(self) -> None:
        now = Session.objects.get(pk=self.session.pk)
        live = dict(now.turns.exclude(status__in=ENDED).values_list("client_id", "status"))
        assert list(live.values()).count("running") <= 1
        assert (now.running is not None) == (now.running in live)
        assert "running" not in live.values() or live[now.running] == "running"
        assert now.waiting == len(set(live) - {now.running})

    @invariant()
    def numbers_have_no_holes_and_turns_lie_together(self) -> None:
        now = Session.objects.get(pk=self.session.pk)
        stored = list(
            Message.stored.filter(session=now).in_order().values_list("seq", "turn", "client_id")
        )
        assert [seq for seq, _, _ in stored] == list(range(1, now.last_seq + 1))
        turns = [turn for _, turn, _ in stored if turn is not None]
        assert turns == sorted(turns)
        for turn in set(turns):
            seqs = [seq for seq, of, _ in stored if of == turn]
            assert seqs == list(range(turn, turn + len(seqs)))

    def teardown(self) -> None:
        """Nothing waits for ever: with a process that lives, all turns end."""
        if not hasattr(self, "session"):
            return
        for _ in range(2 * self.sent + 2):
            self.die()
            claim = claim_next(session_pk=self.session.pk, owner="p3")
            if claim and start_turn(claim=claim):
                assert finish(claim)
        now = Session.objects.get(pk=self.session.pk)
        assert (now.running, now.waiting) == (None, 0)
        assert not now.turns.exclude(status__in=ENDED).exists()


@pytest.mark.slow
def test_under_every_order_of_events_one_runs_and_nothing_waits_for_ever():
    budget = hypothesis_settings(max_examples=30, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(Turns, settings=budget)


# Whose turns may run


def nobody(person: Actor) -> bool:
    """A policy by which nobody may chat."""
    return False


def end_rights(user, settings, how):
    match how:
        case "deactivated":
            User.objects.filter(pk=user.pk).update(is_active=False)
        case "deleted":
            User.objects.filter(pk=user.pk).delete()
        case "out of reach":
            settings.CHATMEMORY = {**settings.CHATMEMORY, "REACH": "tests.test_turns.nobody"}


@pytest.mark.regression
@pytest.mark.parametrize("how", ["deactivated", "deleted", "out of reach"])
def test_the_queue_of_a_person_who_may_not_chat_any_more_is_cancelled(settings, how):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "keep"}
    user = make_user()
    session = make_session(owner=user)
    for name in ("c1", "c2", "c3"):
        admit_turn(session_key="talk", client_id=name, content="hi", by=Actor.user(user))
    end_rights(user, settings, how)
    assert claim_next(session_pk=session.pk, owner="me") is None
    assert [*Turn.objects.values_list("status", flat=True)] == ["cancelled"] * 3
    session.refresh_from_db()
    assert (session.running, session.waiting, session.last_seq) == (None, 0, 0)


@pytest.mark.regression
def test_a_turn_that_was_given_back_is_cancelled_too():
    user = make_user()
    session = make_session(owner=user)
    about = {"session_key": "talk", "content": "hi", "by": Actor.user(user)}
    admit_turn(**about, client_id="c1", owner="dead")
    admit_turn(**about, client_id="c2")
    Turn.objects.filter(client_id="c1").update(lease_until=LONG_AGO)
    end_overdue(session.pk)
    User.objects.update(is_active=False)
    assert claim_next(session_pk=session.pk, owner="me") is None
    assert [*Turn.objects.values_list("status", flat=True)] == ["cancelled"] * 2
    session.refresh_from_db()
    assert (session.running, session.waiting, session.last_seq) == (None, 0, 1)


@pytest.mark.parametrize("scope", [SERVER, "visitor:abc"])
def test_turns_of_no_account_are_claimed(scope):
    session = make_session()
    Session.objects.update(scope=scope)
    admit(scope=scope)
    assert claim_next(session_pk=session.pk, owner="me") is not None


def test_turns_of_a_user_who_never_was_are_cancelled():
    session = make_session()
    Session.objects.update(scope="user:nobody")
    admit(scope="user:nobody")
    assert claim_next(session_pk=session.pk, owner="me") is None
    assert Turn.objects.get().status == "cancelled"
