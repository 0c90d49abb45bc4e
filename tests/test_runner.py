"""The runner: each turn ends, visibly and once, whatever its responder does."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from asgiref.sync import sync_to_async as db
from django.db import InterfaceError, connection

from chatmemory import hub as hub_module
from chatmemory import runner as runner_module
from chatmemory import runs, services
from chatmemory.errors import MemoryUnavailable
from chatmemory.hub import LiveText, Place, hub
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.layer import RUNNERS
from chatmemory.models import DatabaseNow, Message, Session, Turn
from chatmemory.runner import runner
from chatmemory.runs import FenceLost, Run
from chatmemory.services import Ended
from tests import responders_for_tests
from tests.factories import make_session, said
from tests.locking import held, second_connection
from tests.servers import DEADLINE, Tab, greeted, own_threads, sign_in, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

HERE = "tests.responders_for_tests"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _live(transactional_db, settings, monkeypatch):
    settings.CHATMEMORY = {"RESPONDER": f"{HERE}.echo", "SENDS_PER_MINUTE": None}
    monkeypatch.setattr(runner_module, "KEEPER_SECONDS", 0.1)
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 0.2)
    with own_threads():
        yield


@pytest.fixture
def ann(transactional_db):
    person = sign_in()
    make_session(owner=person.user)
    return person


def answered_by(settings, name, **more):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{HERE}.{name}", **more}


def begin(person, text="hi", client_id="c1", key="talk"):
    """Send something; this process runs turns."""
    runner.enable()
    at = {**person.talk, "session_key": key}
    admitted = services.admit_turn(**at, client_id=client_id, content=text, owner=runner.owner)
    runner.launch(admitted.claim)
    return admitted


def turn(client_id="c1"):
    return Turn.objects.get(client_id=client_id)


def ended(client_id="c1"):
    """The turn, once it has ended."""
    wait_for(lambda: turn(client_id).ended_at is not None, "the turn does not end")
    return turn(client_id)


def begun():
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
def test_what_is_launched_twice_is_answered_once(ann, settings):
    answered_by(settings, "slow", LEASE=2)
    admitted = begin(ann)
    runner.launch(admitted.claim)
    begun()
    wait_for(lambda: turn().lease_until > turn().started_at + timedelta(seconds=3), "not renewed")
    responders_for_tests.GO.set()
    assert ended().status == "complete"
    assert len(rows()) == 2


def test_the_responder_is_given_the_window_with_the_new_message_last(ann):
    services.append_messages(**ann.talk, messages=said("a", "b"))
    begin(ann, "c")
    ended()
    [window] = responders_for_tests.SEEN
    assert window == said("a", "b", "c")


def test_a_responder_that_fails_leaves_a_row_with_the_text_so_far(ann, settings, caplog):
    answered_by(settings, "failing")
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "model_error")
    reply = Message.objects.get(role="assistant")
    assert (reply.text, reply.status, reply.error) == ("So far, ", "failed", "model_error")
    assert "builtins.RuntimeError" in caplog.text
    assert "secret" not in str(list(Turn.objects.values()) + list(Message.objects.values()))


@pytest.mark.parametrize(
    ("name", "code", "level", "trace"),
    [
        ("blocked", "blocked", "ERROR", "responders_for_tests.Blocked"),
        ("refused", "model_unavailable", "WARNING", "builtins.ConnectionError"),
        ("unreachable", "model_unavailable", "WARNING", "ModelUnavailable"),
    ],
)
def test_a_failure_is_logged_with_what_the_host_has_to_know(
    ann, settings, caplog, name, code, level, trace
):
    answered_by(settings, name)
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
def test_a_responder_that_ends_more_than_itself_fails_its_turn_alone(ann, settings, name):
    answered_by(settings, name)
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "model_error")
    assert rows()[-1] == ("assistant", "So far, ", "failed")
    answered_by(settings, "echo")
    begin(ann, "again", "c2")
    assert ended("c2").status == "complete"


def test_a_task_that_a_responder_left_ends_no_other_run(ann, settings, caplog):
    answered_by(settings, "leaving_one_that_quits")
    begin(ann)
    ended()
    answered_by(settings, "slow")
    begin(ann, "again", "c2")
    begun()
    responders_for_tests.GO.set()
    assert ended("c2").status == "complete"
    wait_for(lambda: responders_for_tests.LEFT[0].done(), "it does not quit")
    begin(ann, "and again", "c3")
    assert ended("c3").status == "complete"
    assert "ended the runner's loop" in caplog.text


@pytest.mark.slow
def test_while_the_loop_is_blocked_nothing_is_claimed(ann, settings, monkeypatch):
    answered_by(settings, "blocking", LEASE=0.5, TURN_TIMEOUT=0.2)
    begin(ann)
    assert ended().error == "model_timeout"
    wait_for(lambda: not runner.owner, "it still claims")
    assert not runner._runs
    responders_for_tests.GO.set()
    wait_for(lambda: runner.owner, "it claims no more")


def test_the_text_so_far_of_what_no_database_holds_is_kept(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    answered_by(settings, "unstorable")
    begin(ann)
    wait_for(lambda: turn().partial == "a\ufffdb\ufffdc", "nothing is kept")
    responders_for_tests.GO.set()
    assert ended().status == "complete"
    message = Message.objects.get(role="assistant")
    assert (message.text, message.plain()["repaired"]) == ("a\ufffdb\ufffdc", ["content"])


@pytest.mark.parametrize("name", ["nothing_here", "HERE", "_wait"])
def test_a_responder_that_can_not_be_used_fails_the_turn(ann, settings, name):
    answered_by(settings, name)
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "model_error")
    assert rows()[-1] == ("assistant", "", "failed")


def test_a_stop_ends_an_endless_reply_with_what_was_said(ann, settings, caplog):
    answered_by(settings, "endless")
    begin(ann)
    begun()
    assert services.stop_turn(**ann.talk, turn="c1") in ("running", "interrupted")
    assert ended().status == "interrupted"
    role, text, status = rows()[-1]
    assert (role, status) == ("assistant", "interrupted")
    assert text.startswith("word ")
    assert "the responder failed" not in caplog.text


def test_of_an_endless_reply_no_more_is_awaited_than_is_stored(ann, settings):
    answered_by(settings, "endless", MAX_REPLY_CHARS=12)
    begin(ann)
    assert ended().status == "complete"
    message = Message.objects.get(role="assistant")
    assert (message.text, message.plain()["cut"]) == ("word word wo", 15)


def test_of_pieces_that_say_nothing_none_is_kept(ann, settings, monkeypatch):
    told = []
    monkeypatch.setattr(hub, "end_text", lambda at, turn: told.append(hub.text_of(at)))
    answered_by(settings, "pausing")
    begin(ann)
    assert ended().status == "complete"
    wait_for(lambda: bool(told), "the text does not end")
    assert told[0].pieces == ["So ", "far."]


@pytest.mark.parametrize("name", ["stubborn", "blocking"])
def test_a_stop_does_not_wait_for_the_responder(ann, settings, monkeypatch, name):
    monkeypatch.setattr(responders_for_tests, "BLOCK_SECONDS", 1.0)
    answered_by(settings, name)
    begin(ann)
    begun()
    services.stop_turn(**ann.talk, turn="c1")
    assert ended().status == "interrupted"
    assert rows()[-1][1].startswith("So far, ")
    responders_for_tests.GO.set()


def test_a_question_that_was_stopped_waits_for_no_answer(ann, settings):
    answered_by(settings, "asking_and_going_on")
    begin(ann)
    begun()
    services.stop_turn(**ann.talk, turn="c1")
    assert ended().status == "interrupted"
    message = Message.objects.get(role="assistant")
    assert (message.text, message.plain().get("asks")) == ("Sure?", None)


def test_progress_is_told_within_bounds_and_not_stored(ann, settings, monkeypatch):
    told = []
    monkeypatch.setattr(hub, "end_text", lambda at, turn: told.append(hub.text_of(at)))
    answered_by(settings, "restless")
    responders_for_tests.GO.set()
    begin(ann)
    assert ended().status == "complete"
    assert rows()[-1] == ("assistant", "Done.", "complete")
    wait_for(lambda: told, "its text does not end")
    events = told[0].pieces[:-1]
    assert len(events) == runs.MAX_EVENTS
    assert (events[7].name, events[7].state) == ("7[2J" + "x" * 96, "ab")


def test_a_stop_of_which_nobody_told_is_found_by_the_keeper(ann, settings):
    answered_by(settings, "endless")
    begin(ann)
    begun()
    Turn.objects.update(stop_requested_at=DatabaseNow())
    assert ended().status == "interrupted"


def test_a_stop_that_is_told_does_not_wait_for_the_keeper(ann, settings, monkeypatch):
    monkeypatch.setattr(runner_module, "KEEPER_SECONDS", 60)
    answered_by(settings, "endless", LEASE=600)
    begin(ann)
    begun()
    services.stop_turn(**ann.talk, turn="c1")
    assert ended().status == "interrupted"


def test_what_was_repaired_is_flagged_in_a_reply_that_was_stopped(ann, settings):
    answered_by(settings, "unstorable")
    begin(ann)
    begun()
    services.stop_turn(**ann.talk, turn="c1")
    ended()
    message = Message.objects.get(role="assistant")
    assert (message.text, message.plain()["repaired"]) == ("a\ufffdb\ufffdc", ["content"])


@pytest.mark.slow
def test_a_responder_that_waits_for_nothing_holds_up_no_other(ann, settings):
    answered_by(settings, "greedy", MAX_REPLY_CHARS=10**9)
    make_session("other", owner=ann.user)
    begin(ann, "talk")
    begun()
    begin(ann, "hello", "c2", key="other")
    assert ended("c2").status == "complete"
    assert turn("c1").status == "running"
    responders_for_tests.GO.set()
    assert ended().status == "complete"


def test_a_long_text_is_not_saved_ever_more_often(monkeypatch):
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
def test_a_save_that_is_held_up_does_not_hold_up_the_stream(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    answered_by(settings, "endless")
    begin(ann)
    wait_for(lambda: turn().partial, "nothing is kept")
    text = hub.text_of(Place(turn().session_id, turn().epoch))
    with second_connection() as other, other.cursor() as cursor:
        other.set_autocommit(False)
        cursor.execute("UPDATE chatmemory_turn SET fence = fence")
        said = len(text.pieces)
        wait_for(lambda: len(text.pieces) > said + 20, "it waits")
        other.rollback()
    services.stop_turn(**ann.talk, turn="c1")
    assert ended().status == "interrupted"


def test_a_save_that_fails_does_not_end_the_run(ann, settings, monkeypatch, caplog):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    answered_by(settings, "slow")
    monkeypatch.setattr(services, "save_partial", unavailable)
    begin(ann)
    wait_for(lambda: "can't be saved now: unavailable" in caplog.text, "it is not tried")
    responders_for_tests.GO.set()
    assert ended().status == "complete"


def unavailable(**_):
    raise MemoryUnavailable


def test_a_save_finds_out_that_another_ended_the_turn(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    monkeypatch.setattr(runner_module, "KEEPER_SECONDS", 60)
    answered_by(settings, "endless", LEASE=600)
    begin(ann)
    wait_for(lambda: turn().started_at, "it does not start")
    Turn.objects.update(lease_until=LONG_AGO)
    services.end_overdue(Session.objects.get().pk)  # if no sweep was quicker
    assert turn().status == "interrupted"
    wait_for(lambda: not runner._runs, "it goes on")


def test_a_lost_connection_while_the_window_is_read_is_no_end(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    faults = [InterfaceError()]

    def lose_once(execute, sql, params, many, context):
        if faults:
            raise faults.pop()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(lose_once):
        request = runs.read_request(claim=claim)
    assert request.messages == said("hi")


def test_of_a_session_that_has_gone_nothing_is_asked(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    with pytest.raises(FenceLost):
        runs.read_request(claim=replace(claim, session_pk=claim.session_pk + 1))


@pytest.mark.regression
@pytest.mark.parametrize("is_answered_by_another", [False, True])
def test_a_run_that_lost_its_turn_is_not_given_the_next_turns_words(ann, is_answered_by_another):
    def admit(client_id, owner):
        at = {**ann.talk, "client_id": client_id, "content": f"{client_id} asks"}
        claim = services.admit_turn(**at, owner=owner).claim
        services.start_turn(claim=claim)
        return claim

    lost = admit("first", "me")
    Turn.objects.update(lease_until=LONG_AGO)
    services.end_overdue(lost.session_pk)
    if is_answered_by_another:
        admit("second", "another")
    with pytest.raises(FenceLost):
        runs.read_request(claim=lost)


@pytest.mark.regression
def test_a_run_that_loses_its_turn_while_it_reads_is_given_nothing(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    services.start_turn(claim=claim)

    def lose_then_read(execute, sql, params, many, context):
        if not taken and "SELECT seq" in sql:
            taken.append(sql)
            Turn.objects.update(lease_until=LONG_AGO)
            services.end_overdue(claim.session_pk)
            services.append_messages(**ann.talk, messages=said("another's words"))
        return execute(sql, params, many, context)

    taken = []
    with connection.execute_wrapper(lose_then_read), pytest.raises(FenceLost):
        runs.read_request(claim=claim)
    assert taken


@pytest.mark.regression
def test_a_turn_that_was_given_back_is_answered_by_its_next_run(ann):
    lost = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    Turn.objects.update(lease_until=LONG_AGO)
    services.end_overdue(lost.session_pk)
    claim = services.claim_next(session_pk=lost.session_pk, owner="another")
    assert runs.read_request(claim=claim).messages == said("hi")
    with pytest.raises(FenceLost):
        runs.read_request(claim=lost)


def test_a_turn_that_takes_too_long_fails(ann, settings):
    answered_by(settings, "slow", TURN_TIMEOUT=0.3)
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "model_timeout")
    assert rows()[-1] == ("assistant", "So far, ", "failed")


def test_after_a_turn_that_ended_badly_the_next_one_is_answered(ann, settings):
    answered_by(settings, "failing")
    begin(ann)
    ended()
    answered_by(settings, "echo")
    begin(ann, "again", "c2")
    assert ended("c2").status == "complete"


@pytest.mark.parametrize("remove", [services.clear_session, services.purge_session])
def test_what_is_removed_while_the_model_thinks_does_not_come_back(ann, settings, remove):
    answered_by(settings, "slow")
    begin(ann)
    begun()
    remove(**ann.talk, reason="test")
    responders_for_tests.GO.set()
    wait_for(lambda: not runner._runs, "the run goes on")
    assert turn().status == "interrupted"
    assert rows() == []
    assert Message.stored.count() == 1


@pytest.mark.parametrize("instructions", ["", "Be kind."])
def test_what_is_cleared_before_the_window_is_read_is_not_answered(
    ann, monkeypatch, caplog, instructions
):
    Session.objects.update(instructions=instructions)
    start, has_run = services.astart_turn, threading.Event()

    async def start_and_clear(**given):
        begun = await start(**given)
        await services.aclear_session(**ann.talk, reason="test")
        has_run.set()
        return begun

    monkeypatch.setattr(services, "astart_turn", start_and_clear)
    begin(ann)
    assert has_run.wait(DEADLINE)
    wait_for(lambda: not runner._runs, "the run goes on")
    assert turn().status == "interrupted"
    assert responders_for_tests.SEEN == []
    assert "failed" not in caplog.text


def test_a_message_that_can_not_be_read_is_not_answered(ann):
    runner.enable()
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner=runner.owner)
    Message.stored.update(quarantined=True)
    runner.launch(admitted.claim)
    assert (ended().status, turn().error) == ("failed", "model_error")


def test_who_lost_the_lease_can_not_write_any_more(ann, settings, monkeypatch):
    monkeypatch.setattr(runner_module, "KEEPER_SECONDS", 60)
    answered_by(settings, "slow")
    begin(ann)
    begun()
    wait_for(lambda: turn().started_at is not None, "it does not start")
    Turn.objects.update(lease_until=LONG_AGO, partial="kept")
    services.end_overdue(Session.objects.get().pk)  # if no sweep was quicker
    assert turn().status == "interrupted"
    responders_for_tests.GO.set()
    wait_for(lambda: not runner._runs, "the run goes on")
    assert rows() == [("user", "hi", "complete"), ("assistant", "kept", "interrupted")]


def test_the_keeper_drops_a_run_that_another_ended(ann, settings):
    answered_by(settings, "slow")
    begin(ann)
    begun()
    Turn.objects.update(lease_owner="another", lease_until=LONG_AGO)
    services.end_overdue(Session.objects.get().pk)
    wait_for(lambda: not runner._runs, "the run goes on")
    assert [status for _, _, status in rows()] == ["complete", "interrupted"]


@pytest.mark.regression
@pytest.mark.parametrize("name", ["client_id", "epoch", "fence"])
def test_the_keeper_drops_a_run_whose_primary_key_is_another_turns(ann, settings, name):
    answered_by(settings, "slow")
    begin(ann)
    begun()
    columns = {"client_id": "other", "epoch": 7, "fence": 7}
    far = datetime(2100, 1, 1, tzinfo=UTC)
    Turn.objects.update(lease_until=far, **{name: columns[name]})
    wait_for(lambda: not runner._runs, "the run goes on")
    assert Turn.objects.get().lease_until == far


@pytest.mark.regression
def test_a_turn_runs_although_a_run_here_has_its_primary_key(ann, settings):
    answered_by(settings, "slow")
    begin(ann)
    begun()
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
    answered_by(settings, "blocking", LEASE=1)
    begin(ann)
    begun()
    assert ended().status == "complete"
    assert rows()[-1] == ("assistant", "So far, so good.", "complete")


@pytest.mark.slow
def test_a_lease_is_renewed_in_time_however_short_it_is(ann, settings, monkeypatch):
    monkeypatch.setattr(runner_module, "KEEPER_SECONDS", 60)
    answered_by(settings, "slow", LEASE=1)
    begin(ann)
    begun()
    later = Turn.objects.filter(lease_until__gt=turn().lease_until + timedelta(seconds=1))
    wait_for(later.exists, "it is not renewed")
    responders_for_tests.GO.set()
    assert ended().status == "complete"


@pytest.mark.slow
async def test_a_responder_that_blocks_delays_no_other_socket(ann, settings):
    await db(make_session)("other", owner=ann.user)
    answered_by(settings, "blocking")
    async with greeted(tab := Tab(ann), other := Tab(ann, "other")):
        await tab.send("hi")
        assert await db(responders_for_tests.BEGUN.wait)(DEADLINE)
        await other.send("from the other", "c2")
        assert (await other.ask("fetch", before_seq=9))["messages"][0]["seq"] == 1
        await tab.ask("fetch", before_seq=9)
        assert (await db(turn)()).status == "running"
        async with greeted(Tab(ann)):
            assert (await db(turn)()).status == "running"
        responders_for_tests.GO.set()
        await tab.idle(2)


def test_the_text_so_far_is_kept_for_the_case_that_the_process_dies(ann, settings, monkeypatch):
    monkeypatch.setattr(runs, "PARTIAL_SECONDS", 0.0)
    answered_by(settings, "slow")
    begin(ann)
    wait_for(lambda: turn().partial == "So far, ", "nothing is kept")
    responders_for_tests.GO.set()
    assert ended().partial == ""


def test_each_step_of_a_turn_with_tools_is_a_row(ann, settings):
    answered_by(settings, "with_tools")
    begin(ann)
    assert ended().status == "complete"
    found = Message.objects.in_order().values_list("role", "text", "step", "turn")
    assert list(found) == [
        ("user", "hi", None, 1),
        ("assistant", "Let me look. ", 0, 1),
        ("tool", "rain", None, 1),
        ("assistant", "It rains.", 1, 1),
    ]


def test_a_tool_call_that_was_not_answered_gets_a_result_that_says_so(ann, settings):
    answered_by(settings, "tool_that_hangs")
    begin(ann)
    begun()
    services.stop_turn(**ann.talk, turn="c1")
    ended()
    assert [role for role, _, _ in rows()] == ["user", "assistant", "tool", "assistant"]
    assert "unknown" in rows()[2][1]


@pytest.mark.regression
def test_a_stop_stores_a_held_tool_call_with_a_result(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="p1").claim
    services.start_turn(claim=claim)
    run = Run(claim, LiveText("c1", 0))
    call = {"id": "call1", "name": "look", "args": {}}
    run.last = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert runs.store_end(run, "interrupted", "")
    assert [row[0] for row in rows()] == ["user", "assistant", "tool", "assistant"]
    assert turn().status == "interrupted"
    assert list(services.check_integrity()) == []


def test_what_is_being_stored_at_a_stop_is_stored_once(ann, settings, monkeypatch):
    add_rows, is_stored = services.add_rows, threading.Event()

    def add_and_wait(**given):
        added = add_rows(**given)
        is_stored.set()
        responders_for_tests.GO.wait(DEADLINE)
        return added

    monkeypatch.setattr(services, "add_rows", add_and_wait)
    answered_by(settings, "tool_that_hangs")
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


def unanswered_once(monkeypatch, name):
    """Let this service do its work the first time and say that it could not; what it then says."""
    service, said = getattr(services, name), []

    def unanswered(**given):
        answer = service(**given)
        said.append(answer)
        if len(said) == 1:
            raise MemoryUnavailable
        return answer

    monkeypatch.setattr(services, name, unanswered)
    return said


def test_a_message_that_is_stored_without_an_answer_is_not_stored_again_at_the_end(
    ann, settings, monkeypatch
):
    said = unanswered_once(monkeypatch, "add_rows")
    answered_by(settings, "two_messages")
    begin(ann)
    assert ended().status == "interrupted"
    assert said == [True, True]
    assert rows()[1:] == [("assistant", "The first.", "complete"), ("assistant", "", "interrupted")]


def test_an_end_that_is_stored_without_an_answer_is_answered_as_if_it_had(ann, monkeypatch):
    monkeypatch.setattr(runner_module, "FINISH_AGAIN_SECONDS", 0.05)
    said = unanswered_once(monkeypatch, "finish_turn")
    begin(ann)
    wait_for(lambda: len(said) == 2, "it is not tried again")
    assert said[0] == said[1] == Ended(last_seq=2, waiting=0)
    assert rows() == [("user", "hi", "complete"), ("assistant", "hi ", "complete")]


def test_what_follows_a_finished_message_is_a_step_of_its_own(ann, settings):
    answered_by(settings, "two_messages")
    begin(ann)
    begun()
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


def test_a_caller_that_waited_long_enough_goes_on_and_so_does_the_run(ann, settings):
    answered_by(settings, "slow")
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    runner.run(Session.objects.get().pk, timeout_seconds=0.1)
    begun()
    assert turn().status == "running"
    responders_for_tests.GO.set()
    assert ended().status == "complete"


async def test_a_caller_in_an_event_loop_does_not_give_the_run_that_loop(ann, settings):
    answered_by(settings, "where")
    await db(services.admit_turn)(**ann.talk, client_id="c1", content="hi")
    await db(runner.run)((await Session.objects.aget()).pk)
    [loop] = responders_for_tests.LOOPS
    assert loop is not asyncio.get_running_loop()


def test_an_error_of_our_own_in_a_responder_is_the_models(ann, settings):
    answered_by(settings, "looking_in_vain")
    begin(ann)
    assert (ended().status, turn().error) == ("failed", "model_error")


def test_a_caller_finds_nothing_to_run_where_another_runs_it(ann, settings):
    answered_by(settings, "slow")
    begin(ann)
    begun()
    runner.run(Session.objects.get().pk)
    assert turn().status == "running"


@pytest.mark.parametrize("about", [{"_is_draining": True}, {"_asked_at": 0.0}])
def test_a_caller_claims_nothing_in_a_process_that_can_not_run_it(ann, monkeypatch, about):
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    for name, value in about.items():
        monkeypatch.setattr(runner, name, value)
    runner.run(Session.objects.get().pk, timeout_seconds=0)
    assert (turn().status, turn().fence) == ("waiting", 0)


def test_what_waits_behind_a_run_is_told_of_where_this_process_runs_no_more(
    ann, settings, monkeypatch, wire
):
    answered_by(settings, "slow")
    begin(ann)
    begun()
    services.admit_turn(**ann.talk, client_id="c2", content="next")
    wait_for(lambda: hub.has_told_all, "hints are left")
    wire.sent.clear()
    monkeypatch.setattr(runner, "_is_draining", True)
    responders_for_tests.GO.set()
    ended()
    wait_for(lambda: (RUNNERS, "work") in wire.sent, "no other runner is told")
    assert turn("c2").status == "waiting"


def test_a_waiting_turn_is_run_at_once_by_a_process_that_runs_turns(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 60)
    runner.enable()
    assert services.admit_turn(**ann.talk, client_id="c1", content="hi").status == "waiting"
    assert ended().status == "complete"


def test_a_waiting_turn_of_which_nobody_was_told_is_found_by_the_sweep(ann):
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    runner.enable()
    ended()  # of this, the first sweep found
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


def test_a_process_that_begins_runs_what_waits(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 60)
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    hub._running_loop()
    threading.Event().wait(0.2)
    assert turn().status == "waiting"
    runner.enable()
    assert ended().status == "complete"


def test_a_dead_process_is_noticed_when_its_lease_ends(ann, settings, monkeypatch):
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 60)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 30}
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
    services.start_turn(claim=admitted.claim)
    Turn.objects.update(lease_until=DatabaseNow() + timedelta(seconds=0.5))
    runner.enable()
    assert ended().status == "interrupted"


@pytest.mark.slow
def test_a_process_that_dies_between_two_sweeps_is_noticed_however_short_the_lease(
    ann, settings, monkeypatch
):
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 60)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 0.5}
    runner.enable()
    threading.Event().wait(0.2)
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
    services.start_turn(claim=admitted.claim)
    assert ended().status == "interrupted"


def test_a_process_that_runs_no_turns_leaves_them_waiting(ann):
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    runner.consider(Session.objects.get().pk)
    assert (runner.owner, turn().status) == ("", "waiting")


def test_a_claim_that_nobody_began_is_given_back_and_run(ann):
    services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="a dead process")
    Turn.objects.update(lease_until=LONG_AGO)
    runner.enable()
    assert ended().status == "complete"
    assert rows() == [("user", "hi", "complete"), ("assistant", "hi ", "complete")]


def test_a_run_of_a_dead_process_is_ended_by_the_sweep_and_not_run_again(ann):
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
    services.start_turn(claim=admitted.claim)
    services.save_partial(claim=admitted.claim, text="So f", step=0)
    Turn.objects.update(lease_until=LONG_AGO)
    runner.enable()
    assert ended().status == "interrupted"
    assert rows()[-1] == ("assistant", "So f", "interrupted")
    assert responders_for_tests.SEEN == []


def test_what_stands_in_a_row_already_is_not_said_again_for_a_dead_process(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead").claim
    services.start_turn(claim=claim)
    services.save_partial(claim=claim, text="Let me look.", step=0)
    call = {"id": "call1", "name": "weather", "args": {}}
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    services.add_rows(claim=claim, messages=[message], step=0)
    Turn.objects.update(lease_until=LONG_AGO)
    services.end_all_overdue()
    assert [text for role, text, _ in rows() if role == "assistant"] == ["Let me look.", ""]


def test_a_turn_that_can_not_be_ended_does_not_stop_the_sweep(ann, settings, caplog):
    admitted = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="dead")
    services.start_turn(claim=admitted.claim)
    Turn.objects.update(lease_until=LONG_AGO)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_REPLY_CHARS": "many"}
    pk = Session.objects.get().pk
    assert hub_module._help().waiting == set()
    assert f"the overdue turn of session {pk} can't be ended" in caplog.text


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for all")
def test_an_end_that_can_not_be_stored_is_tried_again(ann, settings, monkeypatch):
    monkeypatch.setattr(runner_module, "FINISH_AGAIN_SECONDS", 0.05)
    answered_by(settings, "slow", LOCK_TIMEOUT=0.1)
    begin(ann)
    begun()
    with held(Session.objects.get()):
        responders_for_tests.GO.set()
        wait_for(lambda: any(run.is_ending for run in runner._runs.values()), "no end")
        threading.Event().wait(1)
        assert turn().status == "running"
    assert ended().status == "complete"


def test_a_responder_knows_that_it_answers_in_this_session(ann):
    begin(ann)
    ended()
    assert responders_for_tests.IN_RUN == [True]


def test_langchains_memory_of_the_session_is_empty_and_stores_nothing_in_a_run(ann, settings):
    services.append_messages(**ann.talk, messages=said("a", "b"))
    answered_by(settings, "with_history")
    begin(ann, "c")
    assert ended().status == "complete"
    assert rows()[-1][1] == "0 messages"
    assert len(rows()) == 4
    assert len(DjangoChatMessageHistory("talk", owner=ann.user).messages) == 4


def test_what_breaks_off_a_run_is_logged(ann, monkeypatch, caplog):
    monkeypatch.setattr(services, "aclaim_next", None)
    runner.enable()
    services.admit_turn(**ann.talk, client_id="c1", content="hi")
    with caplog.at_level(logging.ERROR):
        wait_for(lambda: "a run failed" in caplog.text, "nothing is logged")


def test_a_run_that_is_thrown_away_with_its_loop_awaits_nothing_more(ann, settings, caplog):
    answered_by(settings, "slow")
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="me").claim
    loop = asyncio.new_event_loop()
    context = copy_context()
    run = loop.create_task(runner._run(claim), context=context)
    loop.run_until_complete(loop.run_in_executor(None, begun))
    with suppress(RuntimeError):  # of a generator that is closed while it runs
        context.run(run.get_coro().close)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert "failed" not in caplog.text
    assert (turn().status, runner._runs) == ("running", {})


def test_a_process_that_ends_leaves_its_turns_to_others(ann, settings):
    answered_by(settings, "slow")
    begin(ann)
    begun()
    runner.shut_down()
    assert turn().status == "running"


def test_threads_end_when_told_and_begin_again(ann):
    begin(ann)
    ended()
    runner.shut_down()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"chatmemory-runner", "chatmemory-keeper"}
    begin(ann, "again", "c2")
    assert ended("c2").status == "complete"
