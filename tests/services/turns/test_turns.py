"""Turns are admitted, claimed, run under a fence and ended, each once; none waits forever."""

from __future__ import annotations

import time
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from traceback import walk_stack
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
from chatmemory.live import sweep
from chatmemory.live.hub import hub
from chatmemory.models import Message, Session, Turn
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    append_messages,
    clear_session,
    read_page,
    stop_turn,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.turns.admission import BUSY_POLICIES
from chatmemory.services.turns.claims import Claim, claim_next
from chatmemory.services.turns.progress import (
    add_rows,
    finish_turn,
    save_partial,
    start_turn,
)
from chatmemory.services.turns.recovery import (
    RecoveredTurns,
    recover_all_overdue_turns,
    recover_overdue_turn,
)
from chatmemory.services.turns.run_context import is_in_run, run_context
from tests.factories import TALK, make_messages, make_session, make_user
from tests.locking import concurrently, held, kill_waiting_connections, thread, waits_for_a_lock
from tests.servers import own_threads, wait_for

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
DONE = {"role": "assistant", "content": "done"}
ENDED = ("complete", "interrupted", "failed", "cancelled")


def admit(client_id="run", content="hi", **changes):
    return admit_turn(**{**TALK, "client_id": client_id, "content": content, **changes})


def run(*messages, client_id="run") -> Claim:
    """Start a turn that stores these rows; return its claim."""
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


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_send_that_a_concurrent_call_admits_is_a_duplicate(is_idle):
    make_session()
    if not is_idle:
        admit(owner="me")
    same = {"client_id": "same", "expect_seq": 0 if is_idle else 1}
    earlier = []

    def admit_first(execute, sql, params, many, context):
        answer = execute(sql, params, many, context)
        if "LEFT JOIN" in sql and not earlier:  # after the read of the session's state
            earlier.append(None)
            earlier[0] = admit(**same, owner="other")
        return answer

    with connection.execute_wrapper(admit_first):
        admitted = admit(**same, owner="me")
    assert not earlier[0].is_duplicate
    assert admitted.is_duplicate
    assert admitted.status == ("running" if is_idle else "waiting")
    assert Turn.objects.filter(client_id="same").count() == 1


@pytest.mark.parametrize("policy", ["queue", "reject"])
def test_a_send_reaches_its_sql_in_seven_frames(policy):
    """From `admit_turn` to the statement that stores the message."""
    make_session()
    depths = []

    def count(execute, sql, params, many, context):
        if "chatmemory_message" in sql and "INSERT" in sql:
            names = [
                frame.f_code.co_name
                for frame, _ in walk_stack(None)
                if frame.f_globals["__name__"].startswith("chatmemory.")
            ]
            depths.append(names.index("admit_turn") + 1)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        assert admit(owner="me", if_busy=policy).claim
    assert depths == [7]


def test_a_turn_without_a_runner_waits_with_its_text():
    session = make_session()
    admitted = admit()
    assert (admitted.status, admitted.seq, admitted.claim) == ("waiting", None, None)
    assert "hi" in Turn.objects.get().asked
    session.refresh_from_db()
    assert (session.waiting, session.running, session.last_seq) == (1, None, 0)


def test_a_turn_with_a_runner_is_claimed_immediately():
    session = make_session()
    admitted = admit(owner="me")
    assert (admitted.status, admitted.seq) == ("running", 1)
    turn = Turn.objects.get()
    assert (turn.asked, turn.user_seq, turn.lease_owner) == ("", 1, "me")
    session.refresh_from_db()
    assert (session.running, session.fence) == ("run", turn.fence)
    assert Message.objects.get().turn == 1


def test_an_unstarted_claim_lasts_one_lease():
    make_session()
    with override_settings(CHATMEMORY={"LEASE": 60}):
        admit(owner="me")
    remaining = Turn.objects.get().lease_until - datetime.now(UTC)
    assert 50 < remaining.total_seconds() <= 61


def test_a_session_is_created_on_request_but_not_for_an_old_epoch():
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
def test_invalid_content_is_refused(content, code):
    make_session()
    with pytest.raises(BadInput) as caught:
        admit(content=content)
    assert caught.value.code == code


@pytest.mark.parametrize("content", ["  hi\n", [{"type": "text", "text": "a"}] * 2])
@pytest.mark.parametrize("owner", ["", "me"])
def test_valid_content_is_stored_unchanged(content, owner):
    session = make_session()
    admit(content=content, owner=owner)
    if not owner:
        claim_next(session_pk=session.pk, owner="me")
    [row] = read_page(**TALK).rows
    assert row.plain() == {"role": "user", "content": content}


def test_an_archived_session_admits_no_turn():
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
    append_messages(**TALK, messages=make_messages("hi"), client_id="run")
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
def test_simultaneous_repeats_of_a_send_store_one_turn():
    make_session()
    answers = concurrently(*[lambda: admit(owner="me")] * 8)
    assert {answer.seq for answer in answers} == {1}
    assert sorted(answer.is_duplicate for answer in answers) == [False] + [True] * 7
    assert Message.objects.count() == Turn.objects.count() == 1


@commits
def test_one_of_simultaneous_sends_runs_and_the_others_are_busy():
    make_session()

    def send(client_id):
        try:
            return admit(client_id, owner="me", if_busy="reject").status
        except Busy:
            return "busy"

    answers = concurrently(*[lambda n=n: send(f"t{n}") for n in range(6)])
    assert sorted(answers) == ["busy"] * 5 + ["running"]
    assert Message.objects.count() == Turn.objects.count() == 1


def test_a_resend_returns_a_claim_that_was_not_started():
    make_session()
    first = admit(owner="me")
    again = admit(owner="me")
    assert (again.claim, again.is_duplicate) == (first.claim, True)
    assert (admit(owner="another").claim, admit().claim) == (None, None)
    assert start_turn(claim=first.claim)
    assert admit(owner="me").claim is None


def claim_first(session, owner="me"):
    """Claim and start the next turn; return its name."""
    claim = claim_next(session_pk=session.pk, owner=owner)
    return claim.client_id if claim else None


def queued_ids() -> list[str]:
    return list(Turn.objects.waiting().values_list("client_id", flat=True))


@pytest.mark.parametrize("owner", ["", "me"])
def test_turns_wait_while_one_runs_and_start_in_their_order(owner):
    session = make_session()
    claim = run(client_id="one")
    for client_id in ("two", "three"):
        admitted = admit(client_id, owner=owner)
        assert (admitted.status, admitted.seq, admitted.claim) == ("waiting", None, None)
    session.refresh_from_db()
    assert (session.waiting, session.running, session.last_seq) == (2, "one", 1)
    finish(claim, "failed")
    assert [claim_first(session), claim_first(session)] == ["two", None]


def test_a_turn_waits_behind_waiting_turns_although_none_runs():
    make_session()
    admit("one")
    assert admit("two", owner="me").status == "waiting"
    assert queued_ids() == ["one", "two"]


def test_a_full_queue_refuses_turns():
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
    assert (session.waiting, queued_ids()) == (2, ["three", "four"])


def test_an_interrupt_is_first_in_the_queue_and_stops_the_running_turn():
    session = make_session()
    claim = run(client_id="one")
    admit("two")
    admit("three", if_busy="interrupt")
    stopped = Turn.objects.get(client_id="one")
    assert stopped.stop_requested_at is not None
    admit("four", if_busy="interrupt")
    admit("five")
    assert queued_ids() == ["four", "three", "two", "five"]
    assert Turn.objects.get(client_id="one").stop_requested_at == stopped.stop_requested_at
    finish(claim, "interrupted")
    assert claim_first(session) == "four"


def test_an_interrupt_cancels_a_requeued_turn():
    session = make_session()
    admit("one", owner="dead")
    admit("two")
    let_the_lease_end()
    recover_overdue_turn(session.pk)
    admit("three", if_busy="interrupt")
    assert (state("one"), claim_first(session)) == ("cancelled", "three")
    session.refresh_from_db()
    assert (session.running, session.waiting) == ("three", 1)


def test_an_interrupt_without_a_running_turn_is_first_in_the_queue():
    make_session()
    admit("one")
    assert admit("two", if_busy="interrupt").status == "waiting"
    assert queued_ids() == ["two", "one"]


def test_the_default_policy_is_the_setting():
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
def test_the_stop_of_an_interrupt_is_announced_after_its_commit():
    make_session()
    claim = run(client_id="one")
    announced = []

    def listen(turn_pk, **_):
        announced.append((turn_pk, queued_ids()))

    signals.stop_requested.connect(listen)
    try:
        admit("two", if_busy="interrupt")
        admit("three", if_busy="queue")
    finally:
        signals.stop_requested.disconnect(listen)
    assert announced == [(claim.turn_pk, ["two"])]


def test_an_archived_session_queues_no_turn():
    make_session()
    run()
    Session.objects.update(archived_at=LONG_AGO)
    with pytest.raises(Archived):
        admit("two")


def test_a_turn_with_an_old_epoch_is_not_queued():
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
def test_a_change_after_the_first_read_keeps_a_turn_out_of_the_queue(change, error):
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


def test_a_send_ends_a_dead_run_and_is_claimed():
    make_session()
    run(client_id="one")
    let_the_lease_end()
    assert admit("two", owner="me").status == "running"
    assert state("one") == "interrupted"


def test_a_clear_empties_the_queue():
    session = make_session()
    run(client_id="one")
    admit("two")
    clear_session(**TALK, reason="")
    session.refresh_from_db()
    assert (session.waiting, state("two"), claim_first(session)) == (0, "cancelled", None)


@commits
def test_of_simultaneous_sends_one_runs_and_the_queue_accepts_its_depth():
    make_session()

    def send(client_id):
        try:
            return admit(client_id, owner="me").status
        except QueueFull:
            return "full"

    answers = concurrently(*[lambda n=n: send(f"t{n}") for n in range(8)])
    assert sorted(answers) == ["full"] * 2 + ["running"] + ["waiting"] * 5
    assert Session.objects.get().waiting == 5


@commits
def test_simultaneous_repeats_of_a_send_queue_one_turn():
    make_session()
    run(client_id="one")
    answers = concurrently(*[lambda: admit("two", owner="me")] * 6)
    assert {answer.status for answer in answers} == {"waiting"}
    assert sorted(answer.is_duplicate for answer in answers) == [False] + [True] * 5
    assert Session.objects.get().waiting == 1


def test_only_turns_that_can_start_are_claimable():
    make_session()
    make_session("other")
    admit("one", owner="dead")
    admit("two")
    admit("three", session_key="other")
    assert set(Turn.objects.claimable().values_list("client_id", flat=True)) == {"three"}
    let_the_lease_end()
    recover_all_overdue_turns()
    assert set(Turn.objects.claimable().values_list("client_id", flat=True)) == {"one", "three"}


def statements(*steps) -> list[int]:
    """Return the number of statements of each step, without those of its transaction."""
    counts = []
    for step in steps:
        with CaptureQueriesContext(connection) as queries:
            step()
        words = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")
        counts.append(len([q for q in queries if not q["sql"].startswith(words)]))
    return counts


@commits
@pytest.mark.parametrize("is_logged", [False, True])
def test_a_turn_in_an_idle_session_is_three_statements_on_postgresql(caplog, is_logged):
    """One more statement after the end, if a receiver of the signal is connected."""
    caplog.set_level("INFO" if is_logged else "WARNING", "chatmemory.turns")
    make_session()
    claims = []

    def send():
        claims.append(admit(owner="me").claim)

    def end():
        assert finish(claims[0], "complete", DONE, model="m", usage={"in": 1}, first_text_ms=7)

    took = statements(send, lambda: start_turn(claim=claims[0]), end)
    alone = {"postgresql": [1, 1, 1], "sqlite": [3, 1, 3], "mysql": [4, 1, 4]}[connection.vendor]
    assert took == [*alone[:2], alone[2] + is_logged]
    turn = Turn.objects.get()
    assert (turn.status, turn.model, turn.usage) == ("complete", "m", '{"in":1}')
    assert turn.first_text_ms == 7
    assert (turn.user_seq, turn.asked, turn.lease_owner, turn.lease_until) == (1, "", "", None)
    assert claims[0].turn_pk == turn.pk


@commits
def test_a_waiting_turn_is_few_statements():
    make_session()
    run()
    took = statements(lambda: admit("two", owner="me"), lambda: admit("three", owner="me"))
    assert max(took) <= {"postgresql": 7, "sqlite": 6, "mysql": 6}[connection.vendor]


@commits
def test_a_turn_that_changes_while_it_ends_is_still_ended(postgresql):
    session = make_session()
    claim = run()
    with thread() as call:
        with held(session):
            waiting = call(finish, claim)
            wait_for(waits_for_a_lock, "the end of the turn does not wait")
            stop_turn(**TALK, turn="run")
        assert waiting.result(timeout=10)
    turn = Turn.objects.get()
    assert (turn.status, turn.lease_until) == ("complete", None)
    assert turn.stop_requested_at is not None
    assert Session.objects.get().running is None


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
def test_a_resend_with_another_text_is_a_conflict(owner):
    make_session()
    admit(owner=owner)
    with pytest.raises(Conflict):
        admit(content="ho")


def test_a_resend_of_a_cancelled_turn_compares_no_text():
    make_session()
    admit()
    stop_turn(**TALK, turn="run")
    assert resend(content="other") == ("cancelled", None)


def test_a_resend_ends_the_run_of_a_dead_process():
    make_session()
    run()
    let_the_lease_end()
    assert resend() == ("interrupted", 1)


def test_a_resend_requeues_the_unstarted_turn_of_a_dead_process():
    make_session()
    admit(owner="me")
    let_the_lease_end()
    assert resend() == ("waiting", 1)


def test_a_claim_stores_the_users_message():
    session = make_session()
    admit()
    claim = claim_next(session_pk=session.pk, owner="me")
    assert rows() == [("user", "hi", "complete")]
    assert (claim.client_id, claim.user_seq, claim.owner) == ("run", 1, "me")
    session.refresh_from_db()
    assert (session.running, session.waiting, session.fence) == ("run", 0, claim.fence)
    assert Message.objects.get().turn == 1


def test_an_idle_a_busy_and_an_unknown_session_have_no_claim():
    session = make_session()
    assert claim_next(session_pk=session.pk, owner="me") is None
    admit(owner="me")
    assert claim_next(session_pk=session.pk, owner="me") is None
    assert claim_next(session_pk=session.pk + 1, owner="me") is None


def queue(session, *client_ids) -> None:
    for position, client_id in enumerate(client_ids):
        Turn.objects.create(
            session=session,
            client_id=client_id,
            status="waiting",
            position=position,
            asked='{"role":"user","content":"hi"}',
            epoch=session.epoch,
        )
    Session.objects.filter(pk=session.pk).update(waiting=len(client_ids))


def test_waiting_turns_start_in_their_order_however_the_previous_one_ended():
    session = make_session()
    queue(session, "one", "two", "three")
    for client_id, status in (("one", "complete"), ("two", "failed"), ("three", "interrupted")):
        claim = claim_next(session_pk=session.pk, owner="me")
        assert claim.client_id == client_id
        assert finish(claim, status)
    assert claim_next(session_pk=session.pk, owner="me") is None


def test_a_claim_whose_id_a_message_has_fails_only_that_turn():
    session = make_session()
    queue(session, "one", "two")
    append_messages(**TALK, messages=make_messages("other"), client_id="one")
    assert claim_next(session_pk=session.pk, owner="me").client_id == "two"
    failed = Turn.objects.get(client_id="one")
    assert (failed.status, failed.error, failed.asked) == ("failed", "conflict", "")
    session.refresh_from_db()
    assert session.waiting == 0


@commits
def test_one_of_two_simultaneous_claims_succeeds():
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


def test_a_turn_starts_once():
    make_session()
    claim = admit(owner="me").claim
    assert start_turn(claim=claim)
    assert not start_turn(claim=claim)


def test_the_rows_of_a_turn_are_consecutive_and_name_it():
    make_session()
    append_messages(**TALK, messages=make_messages("a", "b"))
    claim = run({"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"})
    assert add_rows(claim=claim, messages=[], step=None)
    finish(claim)
    assert set(Message.objects.filter(seq__gte=3).values_list("turn", flat=True)) == {3}
    assert [row[1] for row in rows()] == ["a", "b", "hi", "one", "two", "done"]


def test_an_end_stores_the_last_row_and_the_status():
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


@pytest.mark.regression
@pytest.mark.parametrize(
    ("saved", "partial", "step"),
    [(0, "", 2), (1, "", 2), (2, "so f", 2), (3, "so f", 3), (None, "", 2)],
)
def test_a_recovered_turn_repeats_no_step_of_a_stored_row(saved, partial, step):
    session = make_session()
    claim = run()
    for stored in (0, 1):
        call = {"id": f"c{stored}", "name": "f", "args": {}}
        message = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
        add_rows(claim=claim, messages=[message], step=stored)
    if saved is not None:
        save_partial(claim=claim, text="so f", step=saved)
    let_the_lease_end()
    assert recover_overdue_turn(session.pk)
    steps = Message.objects.in_order().values_list("step", flat=True)
    assert [each for each in steps if each is not None] == [0, 1, step]
    assert Message.objects.in_order().last().text == partial


def test_no_output_of_a_model_prevents_the_end_of_its_run():
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


def test_the_partial_text_is_saved_only_with_a_valid_fence():
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


def test_a_finished_run_cannot_write():
    make_session()
    claim = run()
    assert finish(claim)
    assert_fenced_off(claim)


def test_a_run_that_another_process_ended_cannot_write():
    session = make_session()
    claim = run()
    let_the_lease_end()
    assert recover_overdue_turn(session.pk)
    assert_fenced_off(claim)


def test_a_requeued_run_cannot_write_while_another_process_runs_the_turn():
    session = make_session()
    old = admit(owner="me").claim
    let_the_lease_end()
    assert recover_overdue_turn(session.pk)
    new = claim_next(session_pk=session.pk, owner="you")
    assert_fenced_off(old)
    assert start_turn(claim=new)
    assert finish(new)


def test_a_run_of_a_cleared_session_cannot_write():
    make_session()
    claim = run()
    clear_session(**TALK, reason="")
    assert_fenced_off(claim)


def restore_over(claim: Claim, **columns: Any) -> Turn:
    """Store another turn with the primary keys of this claim, as a restored database does."""
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
def test_a_run_does_not_write_to_a_restored_turn_with_its_primary_key(name):
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
def test_each_step_of_a_turn_has_a_lock_timeout():
    session, idle = make_session(), make_session("idle")
    claim = run()
    admit("waiting", session_key="idle")
    if connection.vendor == "sqlite":
        pytest.skip("the host's timeout")
    steps = (
        lambda: add_rows(claim=claim, messages=[DONE], step=None),
        lambda: finish(claim),
        lambda: recover_overdue_turn(session.pk),
        lambda: clear_session(**TALK, reason=""),
        lambda: claim_next(session_pk=idle.pk, owner="me"),
        lambda: admit("next", session_key="idle", owner="me"),
        lambda: admit("next", session_key="idle"),
    )
    with held(session, idle):
        assert concurrently(*[partial(is_unavailable_in_time, step) for step in steps]) == [
            True
        ] * len(steps)


def is_unavailable_in_time(step) -> bool:
    started_at = time.monotonic()
    try:
        step()
    except MemoryUnavailable:
        return time.monotonic() - started_at < 5 * 2
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
            kill_waiting_connections()
        assert waiting.result(timeout=10)
    session.refresh_from_db()
    assert session.last_seq == Message.objects.count() == (1 if step == "admit" else 2)


def test_a_run_with_a_valid_lease_is_not_ended():
    session = make_session()
    run()
    assert not recover_overdue_turn(session.pk)
    assert state() == "running"


def test_a_started_dead_run_ends_with_its_partial_text():
    session = make_session()
    calls = [{"name": "f", "args": {}, "id": "c1"}]
    claim = run({"role": "assistant", "content": "", "tool_calls": calls})
    save_partial(claim=claim, text="so f", step=2)
    let_the_lease_end()
    assert recover_overdue_turn(session.pk)
    assert not recover_overdue_turn(session.pk)
    assert [row[0] for row in rows()] == ["user", "assistant", "tool", "assistant"]
    assert rows()[-1] == ("assistant", "so f", "interrupted")
    assert state() == "interrupted"
    assert Turn.objects.get().partial == ""
    assert Session.objects.get().running is None


def test_open_calls_with_an_id_get_a_result_even_invalid_ones():
    session = make_session()
    calls = [{"name": "f", "args": {}, "id": name} for name in ("c1", "c2", None, "")]
    invalid = [{"name": "g", "args": "{", "id": "c3", "error": "no JSON"}]
    answer = {"role": "tool", "content": "1", "tool_call_id": "c1"}
    call = {"role": "assistant", "content": "", "tool_calls": calls, "invalid_tool_calls": invalid}
    run(call, answer)
    let_the_lease_end()
    recover_overdue_turn(session.pk)
    rows = Message.objects.filter(role="tool").in_order()
    results = [row.plain().get("tool_call_id") for row in rows]
    assert results == ["c1", "c2", "c3"]
    assert list(check_integrity()) == []


@pytest.mark.slow
@pytest.mark.regression
def test_the_maximum_of_open_calls_ends_in_few_statements():
    session = make_session()
    counts = []
    for number, name in ((1, "one"), (10 * MAX_CALLS, "most")):
        calls = [{"name": "f", "args": {}, "id": f"{name} {n}"} for n in range(number)]
        run({"role": "assistant", "content": "", "tool_calls": calls}, client_id=name)
        let_the_lease_end()
        with CaptureQueriesContext(connection) as queries:
            assert recover_overdue_turn(session.pk)
        counts.append(len(queries))
    assert counts[1] <= counts[0]
    assert Message.objects.filter(role="tool").count() == 1 + MAX_CALLS
    assert list(check_integrity()) == []


def test_a_run_without_a_user_seq_ends_without_a_row():
    session = make_session()
    save_partial(claim=run(), text="so f", step=0)
    Turn.objects.update(user_seq=None)
    let_the_lease_end()
    assert recover_overdue_turn(session.pk)
    session.refresh_from_db()
    assert (session.running, session.last_seq) == (None, 1)
    assert (state(), Turn.objects.get().partial) == ("interrupted", "so f")


@commits
def test_the_end_of_a_turn_announces_the_next():
    session = make_session()
    announced = []

    def listen(client_id, **_):
        announced.append(client_id)

    signals.turn_waiting.connect(listen)
    try:
        run()
        queue(session, "one", "two")
        let_the_lease_end()
        recover_overdue_turn(session.pk)
        assert announced == ["one"]
        claim_next(session_pk=session.pk, owner="dead")
        let_the_lease_end()
        recover_overdue_turn(session.pk)
        stop_turn(**TALK, turn="one")
        assert announced == ["one", "one", "two"]
    finally:
        signals.turn_waiting.disconnect(listen)


def test_a_dead_run_without_text_gets_a_last_row():
    session = make_session()
    run()
    let_the_lease_end()
    recover_overdue_turn(session.pk)
    assert rows() == [("user", "hi", "complete"), ("assistant", "", "interrupted")]


def test_an_unstarted_dead_run_is_requeued_and_runs_first():
    session = make_session()
    admit(owner="me")
    let_the_lease_end()
    assert recover_overdue_turn(session.pk)
    session.refresh_from_db()
    assert (state(), session.running, session.waiting) == ("waiting", "run", 0)
    claim = claim_next(session_pk=session.pk, owner="you")
    assert (claim.client_id, claim.user_seq) == ("run", 1)
    assert start_turn(claim=claim)
    assert rows() == [("user", "hi", "complete")]


def test_a_requeued_turn_can_be_cancelled():
    session = make_session()
    admit(owner="me")
    let_the_lease_end()
    recover_overdue_turn(session.pk)
    assert stop_turn(**TALK, turn="run") == "cancelled"
    session.refresh_from_db()
    assert (session.running, session.waiting) == (None, 0)
    append_messages(**TALK, messages=make_messages("a"))


@commits
def test_a_run_that_starts_during_its_requeue_either_starts_or_is_requeued():
    session = make_session()
    claim = admit(owner="me").claim
    let_the_lease_end()
    starts = []
    with thread() as call:

        def begin_in_between(execute, sql, params, many, context):
            result = execute(sql, params, many, context)
            if sql.startswith("SELECT") and "lease_until" in sql and not starts:
                starts.append(call(start_turn, claim=claim))
                time.sleep(0.2)
            return result

        with connection.execute_wrapper(begin_in_between):
            recover_overdue_turn(session.pk)
        assert starts
        has_started = starts[0].result(timeout=30)
    assert (state() == "running") == has_started


def overdue(key, *, has_started=True) -> Session:
    """Create a session with an overdue turn."""
    session = make_session(key)
    claim = admit(key, session_key=key, owner="dead").claim
    if has_started:
        start_turn(claim=claim)
    let_the_lease_end()
    return session


def test_all_overdue_turns_are_ended_in_several_batches():
    for number in range(5):
        overdue(f"t{number}", has_started=number > 0)
    make_session("alive")
    admit("alive", session_key="alive", owner="me")
    first = recover_all_overdue_turns(limit=3, batch_size=2)
    assert (first.interrupted, first.is_all) == (3, False)
    assert recover_all_overdue_turns(batch_size=2) == RecoveredTurns(
        interrupted=1, requeued=1, cancelled=0, failed=0
    )
    assert recover_all_overdue_turns() == RecoveredTurns(
        interrupted=0, requeued=0, cancelled=0, failed=0
    )
    assert (state("t0"), state("t1"), state("alive")) == ("waiting", "interrupted", "running")


@pytest.mark.regression
def test_damaged_turns_hide_no_older_overdue_turn(monkeypatch):
    """A turn that its session does not name cannot be ended."""
    for number in range(5):
        overdue(f"t{number}")
    Session.objects.exclude(key="t0").update(running=None)
    found = recover_all_overdue_turns(limit=3)
    assert (found.interrupted, found.failed, found.is_all) == (1, 2, False)
    assert state("t0") == "interrupted"


@pytest.mark.parametrize(
    "write",
    [
        lambda claim: add_rows(claim=claim, messages=make_messages("a"), step=1),
        lambda claim: finish(claim),
    ],
    ids=["add_rows", "finish_turn"],
)
def test_a_run_of_a_damaged_session_does_not_seem_to_have_lost_its_fence(write, caplog):
    make_session()
    claim = run()
    Session.objects.update(last_seq=0)  # its next seq exists already
    with pytest.raises(MemoryUnavailable, match="The session is damaged"):
        write(claim)
    assert "is damaged and accepts no messages" in caplog.text


@commits
@pytest.mark.regression
def test_the_next_sweep_skips_the_turns_that_failed():
    for number in range(5):
        overdue(f"t{number}")
    Session.objects.exclude(key="t0").update(last_seq=0)  # its next seqs exist already
    first = recover_all_overdue_turns(limit=3)
    assert (first.failed, first.interrupted, first.is_all) == (3, 0, False)
    second = recover_all_overdue_turns(limit=3, skip=3)
    assert (second.failed, second.interrupted, second.is_all) == (1, 1, True)


@commits
@pytest.mark.regression
def test_the_sweeps_of_a_process_end_turns_after_those_that_failed(monkeypatch):
    monkeypatch.setattr(hub.sweep, "seconds", 0.1)
    monkeypatch.setattr(sweep, "MAX_SWEPT_TURNS", 3)
    for number in range(5):
        overdue(f"t{number}")
    Session.objects.exclude(key="t0").update(last_seq=0)  # its next seqs exist already
    with own_threads():
        hub.serve()
        wait_for(lambda: state("t0") == "interrupted", "the same turns are tried again")


@commits
def test_a_turn_that_cannot_be_ended_does_not_block_others(caplog):
    for key in ("one", "two", "three"):
        overdue(key)
    Session.objects.filter(key="two").update(last_seq=0)  # its next seqs exist already
    assert recover_all_overdue_turns() == RecoveredTurns(
        interrupted=2, requeued=0, cancelled=0, failed=1
    )
    assert [state(key) for key in ("one", "two", "three")] == [
        "interrupted",
        "running",
        "interrupted",
    ]
    assert f"session {Session.objects.get(key='two').pk} is postponed" in caplog.text


def test_a_waiting_turn_is_cancelled():
    session = make_session()
    admit()
    assert stop_turn(**TALK, turn="run") == "cancelled"
    assert Turn.objects.get().asked == ""
    session.refresh_from_db()
    assert session.waiting == 0
    assert claim_next(session_pk=session.pk, owner="me") is None


def test_the_stop_of_a_running_turn_is_requested():
    make_session()
    claim = run()
    assert stop_turn(**TALK, turn="run") == "running"
    assert Turn.objects.get().stop_requested_at is not None
    assert finish(claim, "interrupted")


@commits
def test_a_stop_is_announced_to_the_runner():
    make_session()
    claim = run()
    announced = []

    def listen(turn_pk, **_):
        announced.append(turn_pk)

    signals.stop_requested.connect(listen)
    try:
        stop_turn(**TALK, turn="run")
    finally:
        signals.stop_requested.disconnect(listen)
    assert announced == [claim.turn_pk]


def test_a_second_stop_keeps_the_time_of_the_first():
    make_session()
    run()
    stop_turn(**TALK, turn="run")
    Turn.objects.update(stop_requested_at=LONG_AGO)
    stop_turn(**TALK, turn="run")
    assert Turn.objects.get().stop_requested_at == LONG_AGO


def test_a_stop_does_not_change_an_ended_turn():
    make_session()
    finish(run())
    assert stop_turn(**TALK, turn="run") == "complete"
    assert Turn.objects.get().stop_requested_at is None


def test_a_stop_ends_the_run_of_a_dead_process():
    make_session()
    run()
    let_the_lease_end()
    assert stop_turn(**TALK, turn="run") == "interrupted"


def test_a_stop_cancels_the_unstarted_turn_of_a_dead_process():
    make_session()
    admit(owner="me")
    let_the_lease_end()
    assert stop_turn(**TALK, turn="run") == "cancelled"


def test_an_unstarted_turn_with_a_stop_request_is_not_requeued():
    session = make_session()
    admit(owner="dead")
    assert stop_turn(**TALK, turn="run") == "running"
    let_the_lease_end()
    assert recover_all_overdue_turns().cancelled == 1
    session.refresh_from_db()
    assert (state(), session.running, session.waiting) == ("cancelled", None, 0)
    assert claim_next(session_pk=session.pk, owner="me") is None


def test_a_turn_of_another_session_is_unknown():
    make_session()
    make_session("other")
    admit(session_key="other")
    for turn in ("run", "RUN", "nothing"):
        with pytest.raises(UnknownTurn):
            stop_turn(**TALK, turn=turn)


def test_another_users_turn_is_not_found():
    make_session(owner=make_user())
    with pytest.raises(NotFound):
        stop_turn(session_key="talk", turn="run", by=Actor.user(make_user()))


def test_is_in_run_is_true_only_for_the_runs_own_session():
    make_session()
    claim = admit(owner="me").claim
    with run_context(claim, {}):
        assert is_in_run(SERVER, "talk")
        assert not is_in_run(SERVER, "other")
        left_behind = copy_context()
        assert left_behind.run(is_in_run, SERVER, "talk")
    assert not is_in_run(SERVER, "talk")
    assert not left_behind.run(is_in_run, SERVER, "talk")


class Turns(RuleBasedStateMachine):
    """One session under random orders of events, with the invariants after each event."""

    @initialize()
    def begin(self) -> None:
        self.session = make_session(f"talk{time.monotonic_ns()}")
        self.at = {**TALK, "session_key": self.session.key}
        self.claims: list[Claim] = []
        self.started: set[tuple[int, int]] = set()
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
            assert claim.turn_pk not in {pk for pk, _ in self.started}, (
                "a turn started more than once"
            )
            self.started.add((claim.turn_pk, claim.fence))

    @precondition(lambda self: self.claims)
    @rule(pick=st.randoms(use_true_random=False))
    def add(self, pick) -> None:
        claim = pick.choice(self.claims)
        is_fence_valid = self.is_valid(claim)
        assert add_rows(claim=claim, messages=[DONE], step=None) == is_fence_valid

    @precondition(lambda self: self.claims)
    @rule(pick=st.randoms(use_true_random=False))
    def finish(self, pick) -> None:
        claim = pick.choice(self.claims)
        is_fence_valid = self.is_valid(claim)
        assert (finish(claim) is not None) == is_fence_valid

    @precondition(lambda self: self.sent)
    @rule(pick=st.randoms(use_true_random=False))
    def stop(self, pick) -> None:
        with suppress(UnknownTurn):
            stop_turn(**self.at, turn=f"t{pick.randint(1, self.sent)}")

    @rule()
    def die(self) -> None:
        self.session.turns.filter(status="running").update(lease_until=LONG_AGO)
        recover_overdue_turn(self.session.pk)

    @rule()
    def clear(self) -> None:
        clear_session(**self.at, reason="")

    @rule()
    def append(self) -> None:
        with suppress(Busy):
            append_messages(**self.at, messages=make_messages("a", "b"))

    def is_valid(self, claim: Claim) -> bool:
        now = Session.objects.get(pk=self.session.pk)
        return (now.epoch, now.fence, now.running) == (claim.epoch, claim.fence, claim.client_id)

    @invariant()
    def session_row_matches_its_turns(self) -> None:
        now = Session.objects.get(pk=self.session.pk)
        live = dict(now.turns.exclude(status__in=ENDED).values_list("client_id", "status"))
        assert list(live.values()).count("running") <= 1
        assert (now.running is not None) == (now.running in live)
        assert "running" not in live.values() or live[now.running] == "running"
        assert now.waiting == len(set(live) - {now.running})

    @invariant()
    def seqs_have_no_gaps_and_turns_are_consecutive(self) -> None:
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
        """With an active process, all turns end."""
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


@pytest.mark.long
@pytest.mark.hypothesis
def test_in_every_order_of_events_one_turn_runs_and_none_waits_forever():
    budget = hypothesis_settings(max_examples=30, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(Turns, settings=budget)


def refuse_all(person: Actor) -> bool:
    """A policy under which no person may chat."""
    return False


def end_rights(user, settings, how):
    match how:
        case "deactivated":
            User.objects.filter(pk=user.pk).update(is_active=False)
        case "deleted":
            User.objects.filter(pk=user.pk).delete()
        case "out of reach":
            settings.CHATMEMORY = {
                **settings.CHATMEMORY,
                "REACH": "tests.services.turns.test_turns.refuse_all",
            }


@pytest.mark.regression
@pytest.mark.parametrize("how", ["deactivated", "deleted", "out of reach"])
def test_the_queue_of_a_person_without_the_right_to_chat_is_cancelled(settings, how):
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
def test_a_requeued_turn_is_cancelled_too():
    user = make_user()
    session = make_session(owner=user)
    about = {"session_key": "talk", "content": "hi", "by": Actor.user(user)}
    admit_turn(**about, client_id="c1", owner="dead")
    admit_turn(**about, client_id="c2")
    Turn.objects.filter(client_id="c1").update(lease_until=LONG_AGO)
    recover_overdue_turn(session.pk)
    User.objects.update(is_active=False)
    assert claim_next(session_pk=session.pk, owner="me") is None
    assert [*Turn.objects.values_list("status", flat=True)] == ["cancelled"] * 2
    session.refresh_from_db()
    assert (session.running, session.waiting, session.last_seq) == (None, 0, 1)


@pytest.mark.parametrize("scope", [SERVER, "visitor:abc"])
def test_turns_of_visitors_and_servers_are_claimed(scope):
    session = make_session()
    Session.objects.update(scope=scope)
    admit(scope=scope)
    assert claim_next(session_pk=session.pk, owner="me") is not None


def test_turns_of_a_missing_user_are_cancelled():
    session = make_session()
    Session.objects.update(scope="user:missing")
    admit(scope="user:missing")
    assert claim_next(session_pk=session.pk, owner="me") is None
    assert Turn.objects.get().status == "cancelled"
