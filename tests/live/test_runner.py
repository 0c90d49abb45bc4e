"""The runner: each turn ends visibly and once, even if its responder fails."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from asgiref.sync import sync_to_async as db
from django.db import InterfaceError, connection, transaction

from chatmemory import services
from chatmemory.database import pool
from chatmemory.errors import MemoryUnavailable
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.live import keeper, sweep
from chatmemory.live import run as runs
from chatmemory.live import runner as runner_module
from chatmemory.live.hub import hub
from chatmemory.live.layer import RUNNERS
from chatmemory.live.run import Run
from chatmemory.live.runner import runner
from chatmemory.live.texts import LiveText, SessionRef
from chatmemory.models import DatabaseNow, Message, Session, Turn
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.turns import claims, progress, recovery
from chatmemory.services.turns.progress import FinishedTurn
from tests import responders_for_tests
from tests.factories import make_messages, make_session
from tests.locking import held, second_connection
from tests.servers import (
    DEADLINE,
    Tab,
    connected,
    live_process,
    person_with_talk,
    use_responder,
    wait_for,
)

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


ann = person_with_talk
live = live_process


@pytest.fixture(autouse=True)
def _frequent_checks(live, monkeypatch):
    monkeypatch.setattr(runner.keeper, "seconds", 0.1)
    monkeypatch.setattr(hub.sweep, "seconds", 0.2)


def begin(person, text="hi", client_id="c1", key="talk"):
    """Send a message in a process that runs turns."""
    runner.enable()
    at = {**person.talk, "session_key": key}
    admitted = services.admit_turn(**at, client_id=client_id, content=text, owner=runner.owner)
    runner.launch(admitted.claim)
    return admitted


def turn(client_id="c1"):
    return Turn.objects.get(client_id=client_id)


def ended(client_id="c1"):
    """Wait until the turn has ended, and return it."""
    wait_for(lambda: turn(client_id).ended_at is not None, "the turn does not end")
    return turn(client_id)


def warnings(caplog):
    """The warnings and errors of the pool and of runs."""
    loggers = {pool.__name__, keeper.__name__, runs.__name__, runner_module.__name__}
    found = [one for one in caplog.records if one.name in loggers]
    return [one.getMessage() for one in found if one.levelno >= logging.WARNING]


def wait_until_begun():
    assert responders_for_tests.BEGUN.wait(DEADLINE)


def rows():
    return list(Message.objects.in_order().values_list("role", "text", "status"))


def test_a_reply_is_stored_and_its_turn_complete(ann):
    begin(ann, "good morning")
    assert (ended().status, turn().error) == ("complete", "")
    assert rows() == [
        ("user", "good morning", "complete"),
        ("assistant", "good morning ", "complete"),
    ]
    session = Session.objects.get()
    assert (session.running, session.waiting) == (None, 0)


@pytest.mark.slow
def test_a_turn_that_is_launched_a_second_time_is_answered_once(ann, settings):
    use_responder(settings, "slow")
    admitted = begin(ann)
    runner.launch(admitted.claim)
    wait_until_begun()
    renewed = Turn.objects.filter(lease_until__gt=turn().lease_until)
    wait_for(renewed.exists, "it is not renewed")
    responders_for_tests.GO.set()
    assert ended().status == "complete"
    assert len(rows()) == 2


def test_the_responder_gets_the_window_with_the_new_message_last(ann):
    services.append_messages(**ann.talk, messages=make_messages("a", "b"))
    begin(ann, "c")
    ended()
    [window] = responders_for_tests.SEEN
    assert window == make_messages("a", "b", "c")


def test_a_responder_that_fails_leaves_a_row_with_the_partial_text(ann, settings, caplog):
    use_responder(settings, "failing")
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "responder_error")
    reply = Message.objects.get(role="assistant")
    assert (reply.text, reply.status, reply.error) == ("So far, ", "failed", "responder_error")
    assert "builtins.RuntimeError" in caplog.text
    assert "secret" not in str(list(Turn.objects.values()) + list(Message.objects.values()))


def test_a_reply_that_a_filter_ended_fails_and_keeps_its_text(ann, settings):
    use_responder(settings, "filtered")
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "blocked")
    assert rows()[-1] == ("assistant", "So far, ", "failed")


@pytest.mark.parametrize(
    ("name", "code", "level", "trace"),
    [
        ("blocked", "blocked", "ERROR", "responders_for_tests.Blocked"),
        ("refused", "model_unavailable", "WARNING", "builtins.ConnectionError"),
        ("unreachable", "model_unavailable", "WARNING", "ModelUnavailable"),
    ],
)
def test_a_failure_is_logged_with_its_class_and_cause(
    ann, settings, caplog, name, code, level, trace
):
    use_responder(settings, name)
    begin(ann, "secret words")
    assert (ended().status, turn().error) == ("failed", code)
    [record] = [record for record in caplog.records if record.name == runner_module.__name__]
    first, *frames = record.getMessage().splitlines()
    assert (record.levelname, first.rpartition(": ")[0]) == (level, f"turn c1 ends as {code}")
    text = caplog.handler.format(record)
    assert trace in text
    assert any("responders_for_tests.py:" in frame for frame in frames)
    assert "secret" not in text


@pytest.mark.parametrize("name", ["quitting", "cancelling", "closing"])
def test_a_responder_that_exits_or_cancels_fails_only_its_own_turn(ann, settings, name):
    use_responder(settings, name)
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "responder_error")
    assert rows()[-1] == ("assistant", "So far, ", "failed")
    use_responder(settings, "echo")
    begin(ann, "again", "c2")
    assert ended("c2").status == "complete"


def test_a_task_that_a_responder_left_behind_ends_no_other_run(ann, settings, caplog):
    use_responder(settings, "leaving_a_task_that_exits")
    begin(ann)
    ended()
    use_responder(settings, "slow")
    begin(ann, "again", "c2")
    wait_until_begun()
    responders_for_tests.GO.set()
    assert ended("c2").status == "complete"
    wait_for(lambda: responders_for_tests.LEFT[0].done(), "the task does not exit")
    begin(ann, "and again", "c3")
    assert ended("c3").status == "complete"
    assert "ended the loop of chatmemory-runner" in caplog.text


@pytest.mark.slow
def test_while_the_loop_is_blocked_nothing_is_claimed(ann, settings, monkeypatch):
    use_responder(settings, "blocking")
    begin(ann)
    wait_until_begun()
    use_responder(settings, "blocking", TURN_TIMEOUT=0.2)
    assert ended().error == "model_timeout"
    assert runner.owner
    use_responder(settings, "blocking", LEASE=0.2)
    wait_for(lambda: not runner.owner, "it still claims")
    wait_for(lambda: not runner._runs, "the run continues")
    responders_for_tests.GO.set()
    wait_for(lambda: runner.owner, "it does not claim again")


def test_unstorable_characters_are_replaced_in_the_partial_text(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    use_responder(settings, "unstorable")
    begin(ann)
    wait_for(lambda: turn().partial == "a\ufffdb\ufffdc", "nothing is saved")
    responders_for_tests.GO.set()
    assert ended().status == "complete"
    message = Message.objects.get(role="assistant")
    assert (message.text, message.plain()["repaired"]) == ("a\ufffdb\ufffdc", ["content"])


@pytest.mark.parametrize("name", ["nothing_here", "SEEN", "_wait"])
def test_a_responder_that_cannot_be_used_fails_the_turn(ann, settings, name):
    use_responder(settings, name)
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "responder_error")
    assert rows()[-1] == ("assistant", "", "failed")


def test_a_stop_ends_an_endless_reply_with_its_partial_text(ann, settings, caplog):
    use_responder(settings, "endless")
    begin(ann)
    wait_until_begun()
    assert services.stop_turn(**ann.talk, turn="c1") in ("running", "interrupted")
    assert ended().status == "interrupted"
    role, text, status = rows()[-1]
    assert (role, status) == ("assistant", "interrupted")
    assert text.startswith("word ")
    assert "the responder failed" not in caplog.text


def test_an_endless_reply_is_read_only_up_to_the_limit(ann, settings):
    use_responder(settings, "endless", MAX_REPLY_CHARS=12)
    begin(ann)
    assert ended().status == "complete"
    message = Message.objects.get(role="assistant")
    assert (message.text, message.plain()["cut"]) == ("word word wo", 15)


def test_empty_pieces_of_text_are_ignored(ann, settings, monkeypatch):
    texts = []
    monkeypatch.setattr(hub, "end_text", lambda at, turn: texts.append(hub.text_of(at)))
    use_responder(settings, "pausing")
    begin(ann)
    assert ended().status == "complete"
    wait_for(lambda: bool(texts), "the text does not end")
    assert texts[0].pieces == ["So ", "far."]


@pytest.mark.parametrize("name", ["stubborn", "blocking"])
def test_a_stop_does_not_wait_for_the_responder(ann, settings, monkeypatch, name):
    use_responder(settings, name)
    begin(ann)
    wait_until_begun()
    services.stop_turn(**ann.talk, turn="c1")
    assert ended().status == "interrupted"
    assert rows()[-1][1].startswith("So far, ")
    responders_for_tests.GO.set()


def test_a_stopped_question_does_not_wait_for_an_answer(ann, settings):
    use_responder(settings, "asking_and_continuing")
    begin(ann)
    wait_until_begun()
    services.stop_turn(**ann.talk, turn="c1")
    assert ended().status == "interrupted"
    message = Message.objects.get(role="assistant")
    assert (message.text, message.plain().get("asks")) == ("Sure?", None)


@pytest.mark.slow
def test_progress_is_published_within_bounds_and_not_stored(ann, settings, monkeypatch):
    texts = []
    monkeypatch.setattr(hub, "end_text", lambda at, turn: texts.append(hub.text_of(at)))
    use_responder(settings, "restless")
    responders_for_tests.GO.set()
    begin(ann)
    assert ended().status == "complete"
    assert rows()[-1] == ("assistant", "Done.", "complete")
    wait_for(lambda: texts, "its text does not end")
    events = texts[0].pieces[:-1]
    assert len(events) == runs.MAX_EVENTS
    assert (events[7].name, events[7].state) == ("7[2J" + "x" * 96, "ab")


def test_the_keeper_finds_a_stop_without_a_notification(ann, settings):
    use_responder(settings, "endless")
    begin(ann)
    wait_until_begun()
    Turn.objects.update(stop_requested_at=DatabaseNow())
    assert ended().status == "interrupted"


def test_a_notified_stop_does_not_wait_for_the_next_check_of_the_keeper(ann, settings, monkeypatch):
    monkeypatch.setattr(runner.keeper, "seconds", 60)
    use_responder(settings, "endless", LEASE=600)
    begin(ann)
    wait_until_begun()
    services.stop_turn(**ann.talk, turn="c1")
    assert ended().status == "interrupted"


def test_a_stopped_reply_is_flagged_as_repaired(ann, settings):
    use_responder(settings, "unstorable")
    begin(ann)
    wait_until_begun()
    services.stop_turn(**ann.talk, turn="c1")
    ended()
    message = Message.objects.get(role="assistant")
    assert (message.text, message.plain()["repaired"]) == ("a\ufffdb\ufffdc", ["content"])


@pytest.mark.slow
def test_a_responder_that_never_waits_does_not_block_others(ann, settings):
    use_responder(settings, "greedy", MAX_REPLY_CHARS=10**9)
    make_session("other", owner=ann.user)
    begin(ann, "talk")
    wait_until_begun()
    begin(ann, "hello", "c2", key="other")
    assert ended("c2").status == "complete"
    assert turn("c1").status == "running"
    responders_for_tests.GO.set()
    assert ended().status == "complete"


def test_saves_of_a_long_text_write_a_bounded_number_of_characters(monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 600)
    run, saved = Run(None, LiveText("c1", 0)), []
    for chars in range(0, 1_000_000, 16):
        run.chars = chars
        if run.is_save_due:
            saved.append(chars)
            run.saved_chars = chars
    assert sum(saved) < 10 * run.chars
    assert all(later - chars <= max(2_048, later / 8) for chars, later in pairwise([0, *saved]))


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for all")
def test_a_blocked_save_does_not_block_the_stream(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    use_responder(settings, "endless")
    begin(ann)
    wait_for(lambda: turn().partial, "nothing is saved")
    text = hub.text_of(SessionRef(turn().session_id, turn().epoch))
    with second_connection() as other, other.cursor() as cursor:
        other.set_autocommit(False)
        cursor.execute("UPDATE chatmemory_turn SET fence = fence")
        count = len(text.pieces)
        wait_for(lambda: len(text.pieces) > count + 20, "the stream waits")
        other.rollback()
    services.stop_turn(**ann.talk, turn="c1")
    assert ended().status == "interrupted"


def test_a_save_that_fails_does_not_end_the_run(ann, settings, monkeypatch, caplog):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    use_responder(settings, "slow")
    monkeypatch.setattr(progress, "save_partial", unavailable)
    begin(ann)
    wait_for(lambda: "cannot be saved: unavailable" in caplog.text, "no save was attempted")
    responders_for_tests.GO.set()
    assert ended().status == "complete"


def unavailable(**_):
    raise MemoryUnavailable


def end_from_outside(**columns):
    """End the turn as another process does if the lease has expired."""

    def is_ended():
        running = Turn.objects.filter(status="running")
        running.update(lease_until=LONG_AGO, **columns)
        recovery.recover_overdue_turn(Session.objects.get().pk)  # if no sweep has done it before
        return turn().status == "interrupted"

    # Again: the launch has woken the keeper, whose check may renew the lease in between.
    wait_for(is_ended, "the turn is not ended")


def test_a_save_detects_that_another_process_ended_the_turn(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    monkeypatch.setattr(runner.keeper, "seconds", 60)
    use_responder(settings, "endless", LEASE=600)
    begin(ann)
    wait_for(lambda: turn().started_at, "it does not start")
    end_from_outside()
    wait_for(lambda: not runner._runs, "the run continues")


def test_the_read_of_the_window_is_retried_after_a_lost_connection(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    faults = [InterfaceError()]

    def lose_once(execute, sql, params, many, context):
        if faults:
            raise faults.pop()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(lose_once):
        request = runs.read_request(claim=claim, left={})
    assert request.messages == make_messages("hi")


def test_the_turn_of_a_removed_session_is_not_answered(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    assert runs.read_request(claim=replace(claim, session_pk=claim.session_pk + 1), left={}) is None


@pytest.mark.regression
@pytest.mark.parametrize("is_answered_by_another", [False, True])
def test_a_run_that_lost_its_turn_does_not_read_the_next_turns_message(ann, is_answered_by_another):
    def admit(client_id, owner):
        at = {**ann.talk, "client_id": client_id, "content": f"{client_id} asks"}
        claim = services.admit_turn(**at, owner=owner).claim
        progress.start_turn(claim=claim)
        return claim

    lost = admit("first", "me")
    Turn.objects.update(lease_until=LONG_AGO)
    recovery.recover_overdue_turn(lost.session_pk)
    if is_answered_by_another:
        admit("second", "another")
    assert runs.read_request(claim=lost, left={}) is None


@pytest.mark.regression
def test_a_run_that_loses_its_turn_during_the_read_gets_no_request(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    progress.start_turn(claim=claim)

    def lose_then_read(execute, sql, params, many, context):
        if not taken and "SELECT seq" in sql:
            taken.append(sql)
            Turn.objects.update(lease_until=LONG_AGO)
            recovery.recover_overdue_turn(claim.session_pk)
            services.append_messages(**ann.talk, messages=make_messages("another's words"))
        return execute(sql, params, many, context)

    taken = []
    with connection.execute_wrapper(lose_then_read):
        assert runs.read_request(claim=claim, left={}) is None
    assert taken


@pytest.mark.regression
def test_a_requeued_turn_is_answered_by_its_next_run(ann):
    lost = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    Turn.objects.update(lease_until=LONG_AGO)
    recovery.recover_overdue_turn(lost.session_pk)
    claim = claims.claim_next(session_pk=lost.session_pk, owner="another")
    assert runs.read_request(claim=claim, left={}).messages == make_messages("hi")
    assert runs.read_request(claim=lost, left={}) is None


def test_a_turn_that_takes_too_long_fails(ann, settings):
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    use_responder(settings, "slow", TURN_TIMEOUT=0.1)
    assert (ended().status, turn().error) == ("failed", "model_timeout")
    assert rows()[-1] == ("assistant", "So far, ", "failed")


def test_after_a_turn_that_ended_badly_the_next_one_is_answered(ann, settings):
    use_responder(settings, "failing")
    begin(ann)
    ended()
    use_responder(settings, "echo")
    begin(ann, "again", "c2")
    assert ended("c2").status == "complete"


@pytest.mark.parametrize("remove", [services.clear_session, services.purge_session])
def test_a_history_that_is_removed_during_a_run_stays_removed(ann, settings, remove):
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    remove(**ann.talk, reason="test")
    responders_for_tests.GO.set()
    wait_for(lambda: not runner._runs, "the run continues")
    assert turn().status == "interrupted"
    assert rows() == []
    assert Message.stored.count() == 1


@pytest.mark.parametrize("instructions", ["", "Be kind."])
def test_a_message_that_is_cleared_before_the_window_is_read_is_not_answered(
    ann, monkeypatch, caplog, instructions
):
    Session.objects.update(instructions=instructions)
    start, has_run = progress.astart_turn, threading.Event()

    async def start_and_clear(**given):
        begun = await start(**given)
        await services.aclear_session(**ann.talk, reason="test")
        has_run.set()
        return begun

    monkeypatch.setattr(progress, "astart_turn", start_and_clear)
    begin(ann)
    assert has_run.wait(DEADLINE)
    wait_for(lambda: not runner._runs, "the run continues")
    assert turn().status == "interrupted"
    assert responders_for_tests.SEEN == []
    runner.shut_down()  # waits for a read that the keeper cancelled
    assert warnings(caplog) == []


@pytest.mark.regression
def test_a_read_that_the_keeper_cancels_logs_no_failure(ann, monkeypatch, caplog):
    read, is_done = runs.read_window, threading.Event()

    def clear_and_read(session, **given):
        services.clear_session(**ann.talk, reason="test")
        wait_for(lambda: not runner._runs, "the keeper does not drop the run")
        is_done.set()
        return read(session, **given)

    monkeypatch.setattr(runs, "read_window", clear_and_read)
    begin(ann)
    assert is_done.wait(DEADLINE)
    runner.shut_down()  # waits for the read
    assert turn().status == "interrupted"
    assert warnings(caplog) == []


def test_an_unreadable_message_is_not_answered(ann):
    runner.enable()
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner=runner.owner)
    Message.stored.update(quarantined=True)
    runner.launch(admitted.claim)
    assert (ended().status, turn().error) == ("failed", "model_error")


def test_a_run_without_a_lease_cannot_write(ann, settings, monkeypatch):
    monkeypatch.setattr(runner.keeper, "seconds", 60)
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    wait_for(lambda: turn().started_at is not None, "it does not start")
    end_from_outside(partial="kept")
    responders_for_tests.GO.set()
    wait_for(lambda: not runner._runs, "the run continues")
    assert rows() == [("user", "hi", "complete"), ("assistant", "kept", "interrupted")]


def test_the_keeper_drops_a_run_that_another_process_ended(ann, settings):
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    Turn.objects.update(lease_owner="another", lease_until=LONG_AGO)
    recovery.recover_overdue_turn(Session.objects.get().pk)
    wait_for(lambda: not runner._runs, "the run continues")
    assert [status for _, _, status in rows()] == ["complete", "interrupted"]


@pytest.mark.regression
@pytest.mark.parametrize("name", ["client_id", "epoch", "fence"])
def test_the_keeper_drops_a_run_whose_primary_key_is_another_turns(ann, settings, name):
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    columns = {"client_id": "other", "epoch": 7, "fence": 7}
    far = datetime(2100, 1, 1, tzinfo=UTC)
    Turn.objects.update(lease_until=far, **{name: columns[name]})
    wait_for(lambda: not runner._runs, "the run continues")
    assert Turn.objects.get().lease_until == far


@pytest.mark.regression
def test_a_turn_runs_although_a_run_here_has_its_primary_key(ann, settings):
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    stale = turn()
    Turn.objects.filter(pk=stale.pk).update(id=stale.pk + 1000)
    make_session("other", owner=ann.user)
    at = {**ann.talk, "session_key": "other"}
    claim = services.admit_turn(**at, client_id="c2", content="hi", owner=runner.owner).claim
    Turn.objects.filter(client_id="c2").update(id=stale.pk)
    runner.launch(replace(claim, turn_pk=stale.pk))
    responders_for_tests.GO.set()
    assert ended("c2").status == "complete"


@pytest.mark.slow
def test_the_keeper_renews_the_lease_of_a_responder_that_blocks(ann, settings):
    use_responder(settings, "blocking")
    begin(ann)
    wait_until_begun()
    renewed = Turn.objects.filter(lease_until__gt=turn().lease_until)
    wait_for(renewed.exists, "it is not renewed")
    responders_for_tests.GO.set()
    assert ended().status == "complete"
    assert rows()[-1] == ("assistant", "So far, so good.", "complete")


@pytest.mark.slow
def test_a_short_lease_is_renewed_in_time(ann, settings, monkeypatch):
    monkeypatch.setattr(runner.keeper, "seconds", 60)
    use_responder(settings, "slow", LEASE=6)
    begin(ann)
    wait_until_begun()
    later = Turn.objects.filter(lease_until__gt=turn().started_at + timedelta(seconds=6 + 1))
    wait_for(later.exists, "it is not renewed")
    responders_for_tests.GO.set()
    assert ended().status == "complete"


@pytest.mark.slow
async def test_a_responder_that_blocks_delays_no_other_socket(ann, settings):
    await db(make_session)("other", owner=ann.user)
    use_responder(settings, "blocking")
    async with connected(tab := Tab(ann), other := Tab(ann, "other")):
        await tab.send("hi")
        assert await db(responders_for_tests.BEGUN.wait)(DEADLINE)
        await other.send("from the other", "c2")
        assert (await other.ask("fetch", before_seq=9))["messages"][0]["seq"] == 1
        await tab.ask("fetch", before_seq=9)
        assert (await db(turn)()).status == "running"
        async with connected(Tab(ann)):
            assert (await db(turn)()).status == "running"
        responders_for_tests.GO.set()
        await tab.idle(2)


def test_the_partial_text_is_saved_during_the_run(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    use_responder(settings, "slow")
    begin(ann)
    wait_for(lambda: turn().partial == "So far, ", "nothing is saved")
    responders_for_tests.GO.set()
    assert ended().partial == ""


def test_each_step_of_a_turn_with_tools_is_a_row(ann, settings):
    use_responder(settings, "with_tools")
    begin(ann)
    assert ended().status == "complete"
    found = Message.objects.in_order().values_list("role", "text", "step", "turn")
    assert list(found) == [
        ("user", "hi", None, 1),
        ("assistant", "Let me look. ", 0, 1),
        ("tool", "rain", None, 1),
        ("assistant", "It rains.", 1, 1),
    ]


def test_an_unanswered_tool_call_gets_a_placeholder_result(ann, settings):
    use_responder(settings, "tool_that_hangs")
    begin(ann)
    wait_until_begun()
    services.stop_turn(**ann.talk, turn="c1")
    ended()
    assert [role for role, _, _ in rows()] == ["user", "assistant", "tool", "assistant"]
    assert "unknown" in rows()[2][1]


@pytest.mark.regression
def test_a_stop_stores_an_unstored_tool_call_with_a_result(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="p1").claim
    progress.start_turn(claim=claim)
    run = Run(claim, LiveText("c1", 0))
    call = {"id": "call1", "name": "look", "args": {}}
    run.last = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert runs.store_end(run, "interrupted", "")
    assert [row[0] for row in rows()] == ["user", "assistant", "tool", "assistant"]
    assert turn().status == "interrupted"
    assert list(check_integrity()) == []


def test_a_message_that_is_being_stored_at_a_stop_is_stored_once(ann, settings, monkeypatch):
    add_rows, is_stored = progress.add_rows, threading.Event()

    def add_and_wait(**given):
        added = add_rows(**given)
        is_stored.set()
        responders_for_tests.GO.wait(DEADLINE)
        return added

    monkeypatch.setattr(progress, "add_rows", add_and_wait)
    use_responder(settings, "tool_that_hangs")
    begin(ann)
    assert is_stored.wait(DEADLINE)
    services.stop_turn(**ann.talk, turn="c1")
    wait_for(lambda: any(run.is_ending for run in runner._runs.values()), "no end")
    threading.Event().wait(0.3)
    responders_for_tests.GO.set()
    assert ended().status == "interrupted"
    assert [(role, status) for role, _, status in rows()] == [
        ("user", "complete"),
        ("assistant", "complete"),
        ("tool", "interrupted"),
        ("assistant", "interrupted"),
    ]
    assert rows()[-1][1] == ""


def unconfirmed_once(monkeypatch, name):
    """Let the first call of a service commit and then fail; return the list of its results."""
    service, results = getattr(progress, name), []

    def commit_and_fail(**given):
        answer = service(**given)
        results.append(answer)
        if len(results) == 1:
            raise MemoryUnavailable
        return answer

    monkeypatch.setattr(progress, name, commit_and_fail)
    return results


def test_a_message_whose_commit_was_not_confirmed_is_stored_once(ann, settings, monkeypatch):
    results = unconfirmed_once(monkeypatch, "add_rows")
    use_responder(settings, "two_messages")
    begin(ann)
    assert ended().status == "interrupted"
    assert results == [True, True]
    assert rows()[1:] == [("assistant", "The first.", "complete"), ("assistant", "", "interrupted")]


def test_an_end_whose_commit_was_not_confirmed_is_stored_once(ann, monkeypatch):
    monkeypatch.setattr(runs, "END_RETRY_SECONDS", 0.05)
    results = unconfirmed_once(monkeypatch, "finish_turn")
    begin(ann)
    wait_for(lambda: len(results) == 2, "it is not retried")
    assert results[0] == results[1] == FinishedTurn(last_seq=2, waiting=0, status="complete")
    assert rows() == [("user", "hi", "complete"), ("assistant", "hi ", "complete")]


def test_text_after_a_finished_message_is_a_new_step(ann, settings):
    use_responder(settings, "two_messages")
    begin(ann)
    wait_until_begun()
    services.stop_turn(**ann.talk, turn="c1")
    ended()
    assert rows()[1:] == [
        ("assistant", "The first.", "complete"),
        ("assistant", "The sec", "interrupted"),
    ]


def test_a_caller_without_a_runner_runs_the_turn_to_its_end(ann):
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    runner.run(Session.objects.get().pk)
    assert turn().status == "complete"
    assert rows()[-1] == ("assistant", "hi ", "complete")


def test_a_run_continues_after_the_timeout_of_its_caller(ann, settings):
    use_responder(settings, "slow")
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    runner.run(Session.objects.get().pk, timeout_seconds=0.1)
    wait_until_begun()
    assert turn().status == "running"
    responders_for_tests.GO.set()
    assert ended().status == "complete"


async def test_a_run_does_not_use_the_event_loop_of_its_caller(ann, settings):
    use_responder(settings, "where")
    await db(services.admit_turn)(**ann.talk, client_id="c1", content="hi")
    await db(runner.run)((await Session.objects.aget()).pk)
    [loop] = responders_for_tests.LOOPS
    assert loop is not asyncio.get_running_loop()


def test_a_memory_error_in_a_responder_is_reported_as_an_error_of_the_responder(ann, settings):
    use_responder(settings, "not_found")
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "responder_error")


def test_a_turn_that_already_runs_is_not_run_again_by_a_caller(ann, settings):
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    runner.run(Session.objects.get().pk)
    assert turn().status == "running"


@pytest.mark.parametrize("about", [{"_is_draining": True}, {"_probed_at": 0.0}])
def test_a_caller_claims_nothing_in_a_process_that_cannot_run_turns(ann, monkeypatch, about):
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    for name, value in about.items():
        monkeypatch.setattr(runner, name, value)
    runner.run(Session.objects.get().pk, timeout_seconds=0)
    assert (turn().status, turn().fence) == ("waiting", 0)


def test_other_runners_are_notified_of_the_next_turn_when_this_process_drains(
    ann, settings, monkeypatch, wire
):
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    services.admit_turn(**ann.talk, client_id="c2", content="next")
    wait_for(lambda: hub.is_everything_sent, "notifications are unsent")
    wire.sent.clear()
    monkeypatch.setattr(runner, "_is_draining", True)
    responders_for_tests.GO.set()
    ended()
    wait_for(lambda: (RUNNERS, "work") in wire.sent, "no other runner is notified")
    assert turn("c2").status == "waiting"


def test_a_process_that_runs_turns_starts_a_waiting_one_immediately(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60)
    runner.enable()
    assert services.admit_turn(**ann.talk, client_id="c1", content="hi").status == "waiting"
    assert ended().status == "complete"


def test_the_sweep_finds_a_waiting_turn_without_a_notification(ann):
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    runner.enable()
    ended()  # the first sweep found this turn
    Session.objects.update(waiting=1)
    session = Session.objects.get()
    Turn.objects.create(
        session=session,
        client_id="c2",
        status="waiting",
        asked='{"role": "user", "content": "again"}',
        epoch=session.epoch,
    )
    assert ended("c2").status == "complete"


def test_a_process_that_starts_to_run_turns_runs_waiting_ones(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60)
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    hub._thread.loop()
    threading.Event().wait(0.2)
    assert turn().status == "waiting"
    runner.enable()
    assert ended().status == "complete"


@pytest.mark.slow
def test_a_dead_process_is_detected_when_its_lease_expires(ann, settings, monkeypatch):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 30}
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
    progress.start_turn(claim=admitted.claim)
    Turn.objects.update(lease_until=DatabaseNow() + timedelta(seconds=0.5))
    runner.enable()
    assert ended().status == "interrupted"


@pytest.mark.regression
def test_a_lease_that_expires_during_a_sweep_is_known_to_the_next_one(ann, monkeypatch):
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
    progress.start_turn(claim=admitted.claim)
    recover = recovery.recover_all_overdue_turns

    def recover_before_the_end(**options):
        ended = recover(**options)
        Turn.objects.update(lease_until=DatabaseNow() - timedelta(seconds=1))
        return ended

    monkeypatch.setattr(sweep.recovery, "recover_all_overdue_turns", recover_before_the_end)
    assert sweep._recover_turns().lease_ends_in is not None
    monkeypatch.undo()
    sweep._recover_turns()
    assert turn("c1").status == "interrupted"


@pytest.mark.slow
def test_a_process_that_dies_between_two_sweeps_is_detected_with_a_short_lease(
    ann, settings, monkeypatch
):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 0.5}
    runner.enable()
    enabled_at = hub.sweep._succeeded_at["_sweep_turns"]
    wait_for(lambda: hub.sweep._succeeded_at["_sweep_turns"] > enabled_at, "no first sweep")
    threading.Event().wait(0.2)  # for a second one, which the start may request
    with transaction.atomic():  # a sweep sees the claim only after its start
        admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
        assert progress.start_turn(claim=admitted.claim)
    assert ended().status == "interrupted"


def test_a_process_that_runs_no_turns_leaves_them_waiting(ann):
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    runner.run_waiting(Session.objects.get().pk)
    assert (runner.owner, turn().status) == ("", "waiting")


def test_an_unstarted_claim_of_a_dead_process_is_requeued_and_run(ann):
    services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="a dead process")
    Turn.objects.update(lease_until=LONG_AGO)
    runner.enable()
    assert ended().status == "complete"
    assert rows() == [("user", "hi", "complete"), ("assistant", "hi ", "complete")]


def test_a_run_of_a_dead_process_is_ended_by_the_sweep_and_not_run_again(ann):
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
    progress.start_turn(claim=admitted.claim)
    progress.save_partial(claim=admitted.claim, text="So f", step=0)
    Turn.objects.update(lease_until=LONG_AGO)
    runner.enable()
    assert ended().status == "interrupted"
    assert rows()[-1] == ("assistant", "So f", "interrupted")
    assert responders_for_tests.SEEN == []


def test_partial_text_that_is_already_in_a_row_is_not_stored_again_for_a_dead_process(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead").claim
    progress.start_turn(claim=claim)
    progress.save_partial(claim=claim, text="Let me look.", step=0)
    call = {"id": "call1", "name": "weather", "args": {}}
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    progress.add_rows(claim=claim, messages=[message], step=0)
    Turn.objects.update(lease_until=LONG_AGO)
    recovery.recover_all_overdue_turns()
    assert [text for role, text, _ in rows() if role == "assistant"] == ["Let me look.", ""]


def test_a_turn_that_cannot_be_ended_does_not_stop_the_sweep(ann, settings, caplog):
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
    progress.start_turn(claim=admitted.claim)
    Turn.objects.update(lease_until=LONG_AGO)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_REPLY_CHARS": "many"}
    pk = Session.objects.get().pk
    assert sweep._recover_turns().waiting == set()
    assert f"the overdue turn of session {pk} cannot be ended" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for all")
def test_an_end_that_cannot_be_stored_is_retried(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "END_RETRY_SECONDS", 0.05)
    use_responder(settings, "slow", LOCK_TIMEOUT=0.1)
    begin(ann)
    wait_until_begun()
    with held(Session.objects.get()):
        responders_for_tests.GO.set()
        wait_for(lambda: any(run.is_ending for run in runner._runs.values()), "no end")
        threading.Event().wait(1)
        assert turn().status == "running"
    assert ended().status == "complete"


def test_a_responder_can_detect_that_it_runs_for_this_session(ann):
    begin(ann)
    ended()
    assert responders_for_tests.IN_RUN == [True]


def test_langchains_memory_of_the_session_is_empty_and_stores_nothing_in_a_run(ann, settings):
    services.append_messages(**ann.talk, messages=make_messages("a", "b"))
    use_responder(settings, "with_history")
    begin(ann, "c")
    assert ended().status == "complete"
    assert rows()[-1][1] == "0 messages"
    assert len(rows()) == 4
    assert len(DjangoChatMessageHistory("talk", owner=ann.user).messages) == 4


def test_an_unexpected_error_of_a_run_is_logged(ann, monkeypatch, caplog):
    monkeypatch.setattr("chatmemory.live.runner.aclaim_next", None)
    runner.enable()
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    with caplog.at_level(logging.ERROR):
        wait_for(lambda: "a run failed" in caplog.text, "nothing is logged")
    assert "its turn: builtins.TypeError" in caplog.text
    assert "object is not callable" not in caplog.text


@pytest.mark.slow
def test_a_run_that_is_closed_with_its_loop_awaits_nothing(ann, settings, caplog):
    use_responder(settings, "slow")
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    loop = asyncio.new_event_loop()
    context = copy_context()
    run = loop.create_task(runner._run_turn(claim), context=context)
    loop.run_until_complete(loop.run_in_executor(None, wait_until_begun))
    with suppress(RuntimeError):  # of a generator that is closed while it runs
        context.run(run.get_coro().close)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    del run, loop
    gc.collect()  # a coroutine that was never awaited would warn now, not in a later test
    assert "the responder failed" not in caplog.text
    assert (turn().status, runner._runs) == ("running", {})


def test_a_process_that_ends_leaves_its_turns_to_others(ann, settings):
    use_responder(settings, "slow")
    begin(ann)
    wait_until_begun()
    runner.shut_down()
    assert turn().status == "running"


def test_shut_down_ends_the_threads_and_the_next_run_starts_them(ann):
    begin(ann)
    ended()
    runner.shut_down()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"chatmemory-runner", "chatmemory-keeper"}
    begin(ann, "again", "c2")
    assert ended("c2").status == "complete"
