"""Code of other apps at the end of a turn: stored with the reply, or the turn fails."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction

from chatmemory import derived, services
from chatmemory.errors import MemoryUnavailable
from chatmemory.live.runner import runner
from chatmemory.models import Message, Session, Turn
from chatmemory.services.turns.progress import finish_turn
from tests.factories import TALK, make_session
from tests.servers import live_process, person_with_talk, use_responder, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


@pytest.fixture
def at_end(monkeypatch):
    """Register functions for this test only."""
    monkeypatch.setattr("chatmemory.services.turns.at_end._receivers", {})
    return derived.at_turn_end


def run(person, client_id):
    runner.enable()
    admitted = services.admit_turn(
        **person.talk, client_id=client_id, content="hi", owner=runner.owner
    )
    runner.launch(admitted.claim)
    return ended(client_id)


def ended(client_id):
    turns = Turn.objects.filter(client_id=client_id, ended_at__isnull=False)
    wait_for(turns.exists, "the turn does not end")
    return turns.get()


def rows():
    return list(Message.objects.in_order().values_list("role", "text", "status", "error"))


def test_rows_are_stored_with_the_reply_from_what_the_responder_left(
    live, ann, settings, at_end, shop
):
    use_responder(settings, "leaving_words")

    @at_end
    def summarize(ending):
        assert (ending.turn, ending.user_seq, ending.status) == ("c1", 1, "complete")
        summary = shop.Summary(low=1, high=2, text=ending.left["words"])
        assert derived.store(ending.seen, [summary])

    assert run(ann, "c1").status == "complete"
    assert shop.Summary.objects.get().text == "a long reply"


def test_a_function_may_concern_only_turns_that_left_a_value(live, ann, settings, at_end):
    calls = []
    at_end(lambda ending: calls.append(("words", ending.turn)), left="wor")
    at_end(lambda ending: calls.append(("other", ending.turn)), left="words of")
    assert run(ann, "c1").status == "complete"
    assert calls == []
    use_responder(settings, "leaving_words")
    assert run(ann, "c2").status == "complete"
    assert calls == [("words", "c2")]


@pytest.mark.parametrize("error", [ValueError("secret"), OperationalError("secret")])
def test_an_error_ends_the_turn_as_failed_and_the_next_one_starts(
    live, ann, settings, at_end, shop, caplog, error
):
    use_responder(settings, "leaving_words")
    calls = []

    @at_end
    def fail(ending):
        calls.append(ending.turn)
        shop.Order.objects.create(chat_id=ending.seen.session_pk, item="kettle")
        if ending.turn == "c1":
            raise error

    with caplog.at_level(logging.ERROR):
        first = run(ann, "c1")
    assert (first.status, first.error) == ("failed", "turn_end_error")
    assert "secret" not in caplog.text
    assert "an app failed at the end of a turn" in caplog.text
    assert not shop.Order.objects.exists()
    assert run(ann, "c2").status == "complete"
    assert shop.Order.objects.count() == 1
    assert calls == ["c1", "c2"]
    assert rows()[1] == ("assistant", "a long reply", "failed", "turn_end_error")
    assert rows()[3] == ("assistant", "a long reply", "complete", "")


def test_what_can_never_be_stored_ends_the_turn_as_failed(live, ann, settings, at_end, shop):
    use_responder(settings, "leaving_words")

    @at_end
    def store_twice(ending):
        for _ in range(2):
            derived.store(ending.seen, [shop.Summary(pk=7, low=1, high=2, text="a")])

    ended = run(ann, "c1")
    assert (ended.status, ended.error) == ("failed", "turn_end_error")
    assert not shop.Summary.objects.exists()


def hide_an_error(order):
    with suppress(IntegrityError):
        order.objects.create(chat_id=None, item="kettle")


def hide_an_error_of_sql(order):
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM nothing")


def roll_back(order):
    order.objects.create(chat=Session.objects.get(), item="kettle")
    transaction.set_rollback(True)


def leave_a_transaction_open(order):
    transaction.atomic().__enter__()
    order.objects.create(chat=Session.objects.get(), item="kettle")


def exit_the_process(order):
    sys.exit(1)


@pytest.mark.database
@pytest.mark.parametrize(
    "misbehave",
    [hide_an_error, hide_an_error_of_sql, roll_back, leave_a_transaction_open, exit_the_process],
)
def test_a_function_that_breaks_the_transaction_fails_its_turn_alone(at_end, shop, misbehave):
    make_session()
    for client_id in ("c1", "c2"):
        claim = services.admit_turn(**TALK, client_id=client_id, content="hi", owner="me").claim
        at_end(lambda _: misbehave(shop.Order))
        ending = derived.EndingTurn(
            seen=derived.see(**TALK), turn=client_id, user_seq=claim.user_seq, status="complete"
        )
        reply = {"role": "assistant", "content": "ho"}
        ended = finish_turn(claim=claim, status="complete", message=reply, ending=ending)
        is_harmless = misbehave is hide_an_error_of_sql and connection.vendor != "postgresql"
        assert ended.status == ("complete" if is_harmless else "failed")
        assert not connection.in_atomic_block
    assert Message.objects.count() == 4
    assert not shop.Order.objects.exists()


def test_a_function_must_be_sync(at_end):
    async def store(ending): ...

    with pytest.raises(TypeError, match="cannot be async"):
        at_end(store)


class Conflict(Exception):
    """The error of a driver after a concurrent transaction."""

    sqlstate = "40001"


def fail_transiently():
    raise OperationalError from Conflict()


def fail_as_a_service():
    try:
        fail_transiently()
    except OperationalError as error:
        raise MemoryUnavailable from error


@pytest.mark.parametrize("fail", [fail_transiently, fail_as_a_service])
def test_the_end_is_stored_again_after_a_transient_error(live, ann, settings, at_end, fail):
    use_responder(settings, "leaving_words")
    calls = []

    @at_end
    def fail_once(ending):
        calls.append(ending.turn)
        if len(calls) == 1:
            fail()

    assert run(ann, "c1").status == "complete"
    assert calls == ["c1", "c1"]


def test_a_failed_turn_has_an_end_too(live, ann, settings, at_end):
    use_responder(settings, "failing")
    statuses = []
    at_end(lambda ending: statuses.append(ending.status))
    assert run(ann, "c1").status == "failed"
    assert statuses == ["failed"]


def test_a_turn_that_was_ended_from_outside_has_no_call(at_end):
    make_session()
    claim = services.admit_turn(**TALK, client_id="c1", content="hi", owner="me").claim
    services.clear_session(**TALK, reason="")
    calls = []
    at_end(calls.append)
    ending = derived.EndingTurn(
        seen=derived.see(**TALK), turn="c1", user_seq=1, status="complete", left={}
    )
    reply = {"role": "assistant", "content": "late"}
    assert finish_turn(claim=claim, status="complete", message=reply, ending=ending) is None
    assert calls == []


def test_a_repeated_end_calls_once(at_end):
    make_session()
    claim = services.admit_turn(**TALK, client_id="c1", content="hi", owner="me").claim
    calls = []
    at_end(calls.append)
    ending = derived.EndingTurn(
        seen=derived.see(**TALK), turn="c1", user_seq=1, status="complete", left={}
    )
    reply = {"role": "assistant", "content": "once"}
    for _ in range(2):
        finished = finish_turn(
            claim=claim, status="complete", message=reply, batch_id="end", ending=ending
        )
        assert (finished.last_seq, finished.status) == (2, "complete")
    assert calls == [ending]


def test_a_function_is_registered_once(at_end):
    """Django calls `ready()` again if a test of the host overrides INSTALLED_APPS."""
    make_session()
    claim = services.admit_turn(**TALK, client_id="c1", content="hi", owner="me").claim
    calls = []
    for _ in range(2):
        at_end(calls.append)
    ending = derived.EndingTurn(
        seen=derived.see(**TALK), turn="c1", user_seq=1, status="complete", left={}
    )
    finish_turn(
        claim=claim,
        status="complete",
        message={"role": "assistant", "content": "ho"},
        ending=ending,
    )
    assert calls == [ending]


def test_only_code_of_a_run_leaves_a_value():
    with pytest.raises(RuntimeError, match="Only code that a responder calls can leave a value"):
        derived.leave("words", "a")
