"""Quick forms of the torture plans, and tests of their checker with planted faults."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.services import append_messages
from tests import limits
from tests.conftest import database_environment, missing
from tests.factories import TALK, make_messages
from tests.programs.torture.__main__ import SCHEDULE
from tests.programs.torture.checker import (
    Evidence,
    StoredRow,
    StoredTalk,
    StoredTurn,
    Violation,
    foreign_canaries,
    violations,
)
from tests.programs.torture.history import Event, History, read_history
from tests.programs.torture.plans import PLANS, dying
from tests.programs.torture.plans.crowds import isolation, readers, storm, stuck
from tests.programs.torture.plans.dying import kill, pause, rolling, unfenced
from tests.programs.torture.plans.failovers import failover
from tests.programs.torture.plans.greedy import greedy
from tests.programs.torture.plans.layers import sentinel, shard
from tests.programs.torture.plans.links import commits, loss, redis
from tests.programs.torture.plans.locks import locks
from tests.programs.torture.plans.restores import restore
from tests.programs.torture.plans.slow import slow
from tests.programs.torture.plans.upgrades import upgrade
from tests.programs.torture.plans.zombies import NoStallFound, zombie
from tests.programs.torture.proxy import APPEND, statement_in
from tests.programs.torture.standbys import FOLDER, find_programs
from tests.programs.torture.talker import Talker
from tests.programs.torture.verdict import Absent, Figure, Outcome, Verdict, summary
from tests.programs.torture.world import Redis, World
from tests.servers import DEADLINE

SEED = 7

QUESTION = StoredRow(1, "user", "count 2 t.1", client_id="t.1", turn=1)
REPLY = StoredRow(2, "assistant", "1 2 ", turn=1)
TURN = StoredTurn("t.1", "complete")
EVENTS = (
    Event(kind="invoke", client="at t", session="t", id="t.1", text="count 2 t.1"),
    Event(kind="ack", client="at t", session="t", id="t.1", seq=1, status="running"),
    Event(kind="token", client="at t", session="t", id="t.1", text="1 "),
    Event(kind="done", client="at t", session="t", id="t.1", seq=2, text="1 2 ", status="complete"),
    Event(kind="fault", text="killed"),
)
SECOND = (
    Event(kind="invoke", client="at t", session="t", id="t.2", text="count 1 t.2"),
    Event(kind="ack", client="at t", session="t", id="t.2", status="running"),
)


def wrongs(
    rows: Any = (QUESTION, REPLY),
    turns: Any = (TURN,),
    events: Any = EVENTS,
    *,
    last_seq: int | None = None,
    running: str | None = None,
    faults: int = 1,
) -> set[str]:
    """Return the kinds of violations that the checker finds."""
    last_seq = len(rows) if last_seq is None else last_seq
    talk = StoredTalk("t", 1, last_seq, running, rows, turns)
    evidence = Evidence(events, {"t": talk}, {"killed": faults})
    return {violation.wrong for violation in violations(evidence)}


def row(like: StoredRow, **other: Any) -> StoredRow:
    columns = {name: getattr(like, name) for name in StoredRow.__slots__}
    return StoredRow(**{**columns, **other})


def test_a_correct_history_has_no_violations():
    assert wrongs() == set()
    cut = row(REPLY, text="1 ", status="interrupted")
    done = Event(kind="done", session="t", id="t.1", text="1 ", status="interrupted")
    assert (
        wrongs((QUESTION, cut), (StoredTurn("t.1", "interrupted"),), (*EVENTS[:3], done, EVENTS[4]))
        == set()
    )


@pytest.mark.parametrize(
    ("planted", "wrong"),
    [
        ({"rows": (), "turns": ()}, "lost"),
        ({"rows": (row(QUESTION, seq=2), row(REPLY, seq=1))}, "lost"),
        ({"rows": (QUESTION, REPLY, row(QUESTION, seq=3, client_id="t.9"))}, "doubled"),
        ({"rows": (QUESTION, REPLY), "last_seq": 3}, "gap"),
        ({"rows": (QUESTION, row(REPLY, seq=3)), "last_seq": 3}, "gap"),
        ({"rows": (row(QUESTION, text="count 2 t.l"), REPLY)}, "changed"),
        (
            {
                "rows": (
                    row(QUESTION, text="count 1 t.2", client_id="t.2"),
                    row(QUESTION, seq=2),
                ),
                "events": (*EVENTS, *SECOND),
            },
            "misordered",
        ),
        ({"rows": (QUESTION,)}, "reply"),
        ({"rows": (QUESTION, REPLY, row(REPLY, seq=3))}, "reply"),
        ({"rows": (QUESTION, row(REPLY, role="tool"))}, "reply"),
        ({"rows": (QUESTION, row(REPLY, text="1 3 "))}, "reply"),
        ({"rows": (QUESTION, row(REPLY, text="1 "))}, "reply"),
        ({"rows": (QUESTION, row(REPLY, status="interrupted"))}, "reply"),
        (
            {"events": (*EVENTS, Event(kind="error", session="t", id="t.1", is_final=True))},
            "false",
        ),
        ({"rows": (QUESTION, row(REPLY, text="canary-u 2 "))}, "foreign"),
        ({"events": (*EVENTS, Event(kind="token", session="t", text="canary-u 2"))}, "foreign"),
        ({"turns": (StoredTurn("t.1", "running", overdue=1.5),), "running": "t.1"}, "overrun"),
        ({"turns": (TURN, StoredTurn("t.2", "waiting"))}, "overrun"),
        ({"running": "t.1"}, "overrun"),
        ({"events": EVENTS[:4]}, "no fault"),
    ],
)
def test_the_checker_finds_each_planted_fault(planted, wrong):
    assert wrong in wrongs(**planted)


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("canary-t1 canary-t1 cana", set()),
        ("ary-u1 canary-t1 canary-t", set()),
        ("canary-t canary-t1", {"t"}),
        ("canary-t1 canary-u1", {"u1"}),
        ("canary-t1 canary-u", {"u"}),
    ],
)
def test_a_truncated_canary_of_the_session_itself_is_not_foreign(text, foreign):
    assert foreign_canaries(text, "t1") == foreign


def test_a_history_round_trips_through_its_file(tmp_path):
    history = History(tmp_path / "history.jsonl")
    for event in EVENTS:
        history.note(event)
    history.close()
    assert read_history(tmp_path / "history.jsonl") == history.events
    assert history.faults() == {"killed": 1}
    assert [event.at for event in history.events] == sorted(e.at for e in history.events)


SLOW = Figure("s", 3.0, time_limit=2.0)
LOST = Violation("lost", "talk", "message 1")
BOUND = Figure("MB", 65, at_most=64)


@pytest.mark.parametrize(
    ("outcome", "verdict", "shown"),
    [
        (Outcome([], [Figure("s", 2.0, time_limit=2.0)]), Verdict.GOOD, "0 time limits exceeded"),
        (Outcome([], [SLOW]), Verdict.SLOW, "0 violations; 0 figures out of bounds; 1 time limit"),
        (Outcome([LOST], [SLOW]), Verdict.VIOLATED, "1 violation; 0 figures"),
        (Outcome([], [BOUND]), Verdict.VIOLATED, "1 figure out of bounds"),
        (Outcome([], [Figure("faults", 1, at_least=2)]), Verdict.VIOLATED, "1 figure out"),
    ],
)
def test_a_time_limit_is_no_violation(outcome, verdict, shown):
    assert outcome.verdict is verdict
    assert shown in str(outcome)


@pytest.mark.parametrize(
    ("verdicts", "status", "last_line"),
    [
        ({}, 1, "0 stages"),
        ({"a": Verdict.GOOD}, 0, "1 stage: 0 with violations, 0 not finished"),
        ({"a": Verdict.GOOD, "b": Verdict.SLOW}, 4, "1 with only time limits exceeded, 1 good"),
        ({"a": Verdict.SLOW, "b": Verdict.VIOLATED}, 1, "1 with violations"),
        ({"a": Verdict.SLOW, "b": Verdict.BROKEN}, 1, "1 not finished"),
        ({"a": Verdict.GOOD, "b": Verdict.SKIPPED}, 0, "1 good, 1 skipped."),
        ({"a": Verdict.SKIPPED}, 1, "0 good, 1 skipped."),
    ],
)
def test_a_run_in_which_only_time_limits_were_exceeded_has_its_own_exit_status(
    verdicts, status, last_line
):
    lines, returned = summary(verdicts)
    assert returned == status
    assert last_line in lines[-1]
    assert len(lines) == 1 + sum(verdict is not Verdict.GOOD for verdict in verdicts.values())


@pytest.fixture(scope="module")
def pair(django_db_setup: None, tmp_path_factory: Any) -> Iterator[World]:
    """Two servers for the plans that leave them unchanged."""
    world = new_world(tmp_path_factory.mktemp("pair"))
    asyncio.run(world.start(2))
    yield world
    world.close()


@pytest.fixture
def alone(transactional_db: None, tmp_path: Path) -> Iterator[World]:
    """A world for a plan that starts its own servers."""
    world = new_world(tmp_path)
    yield world
    world.close()


def new_world(folder: Path) -> World:
    redis = Redis(folder) if shutil.which("redis-server") else None
    return World(database_environment(), folder, seed=SEED, redis=redis)


@pytest.fixture
def shared(transactional_db: None, pair: World) -> World:
    """The pair, with an empty history."""
    pair.forget()
    return pair


@pytest.mark.long
async def test_servers_killed_at_steps_of_a_turn_lose_and_duplicate_nothing(shared):
    outcome = await kill(shared, 1, ["before_ack", "in_stream", "before_poke"])
    assert outcome.violations == []


@pytest.mark.long
async def test_a_paused_server_adds_no_second_reply(shared):
    outcome = await pause(shared, 1, talking=2)
    assert outcome.violations == []


@pytest.mark.regression
async def test_a_pause_after_which_no_turn_is_taken_over_is_reported(alone, monkeypatch):
    monkeypatch.setattr(dying, "DEADLINE", 0.1)
    await dying._note_takeovers(alone, set())
    [found] = await alone.check(faults={"takeover": 1})
    assert found.wrong == "no fault"


@pytest.mark.long
async def test_without_a_fence_the_checker_reports_a_second_reply(shared):
    outcome = await unfenced(shared, 1)
    assert outcome.violations == []


@pytest.mark.long
async def test_servers_replaced_one_by_one_lose_nothing(shared):
    outcome = await rolling(shared, 1, talking=3)
    assert outcome.violations == []


@pytest.mark.long
async def test_a_commit_that_was_cut_is_answered_correctly(alone):
    if connection.vendor != "postgresql":
        pytest.skip("the proxy supports only PostgreSQL")
    outcome = await commits(alone, 4)
    assert outcome.violations == []


@pytest.mark.long
async def test_redis_killed_or_frozen_during_a_reply_does_not_change_stored_rows(shared):
    outcome = await redis(shared, 1)
    assert outcome.violations == []


@pytest.mark.long
async def test_sockets_show_all_changes_although_half_of_all_notifications_are_lost(shared):
    if shared.redis is None:
        missing("redis-server is not installed")
    outcome = await loss(shared, 1, talking=2)
    assert outcome.violations == []


@pytest.mark.long
async def test_stalled_readers_use_bounded_memory(shared):
    outcome = await readers(shared, 1, stalled=20, fast=2)
    assert outcome.violations == []
    [more] = [figure.value for figure in outcome.figures if figure.name == "MB more"]
    assert more < 64


@pytest.mark.long
async def test_sockets_dropped_simultaneously_reconnect(shared):
    outcome = await storm(shared, 1, sockets=40)
    assert outcome.violations == []


@pytest.mark.long
async def test_cancelled_requests_show_no_canary_in_another_session(shared):
    outcome = await isolation(shared, 5_000, talking=10)
    assert outcome.violations == []


@pytest.mark.long
async def test_a_held_lock_of_a_session_delays_no_other_session(shared):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one lock for all sessions")
    outcome = await stuck(shared, 1, seconds=1.0)
    assert outcome.violations == []


@pytest.mark.regression
@pytest.mark.long
async def test_a_user_who_exhausts_every_limit_causes_no_errors_of_others(alone):
    outcome = await greedy(alone, 4)
    assert outcome.violations == []
    [errors] = [figure.value for figure in outcome.figures if figure.name == "errors of others"]
    assert errors == 0


@pytest.mark.long
@pytest.mark.regression
async def test_a_restore_shows_no_foreign_rows_and_reports_each_loss(shared):
    if connection.vendor != "postgresql":
        pytest.skip("the plan restores only dumps of PostgreSQL")
    outcome = await restore(shared, 2)
    assert outcome.violations == []
    assert not [figure for figure in outcome.figures if figure.is_out_of_bounds]


@pytest.mark.long
@pytest.mark.regression
async def test_a_stalled_run_does_not_receive_the_text_of_the_next_turn(shared):
    outcome = await zombie(shared, 1, last=4)
    assert outcome.violations == []


@pytest.mark.long
async def test_a_plan_without_a_stall_behind_the_start_of_a_run_does_not_finish(shared):
    with pytest.raises(NoStallFound):
        await zombie(shared, 0)


@pytest.mark.long
async def test_a_stalled_database_closes_no_socket_and_loses_nothing(alone):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite cannot lock a table")
    await alone.start(2, limits=limits.SHORT)
    outcome = await slow(alone, 1, seconds=8.0, talking=2, listening=6)
    assert outcome.violations == []
    [closed] = [figure.value for figure in outcome.figures if "closed" in figure.name]
    assert closed == 0


@pytest.mark.regression
@pytest.mark.long
async def test_a_locked_row_delays_only_its_own_session(alone):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks no rows")
    outcome = await locks(alone, 1, rows=("session", "turn", "ticket", "user"))
    assert outcome.violations == []


@pytest.mark.long
def test_a_failover_to_a_synchronous_standby_loses_nothing():
    """It needs servers of its own, whose addresses must be known before Django is set up."""
    if find_programs() is None:
        missing("the programs of the PostgreSQL server are not installed")
    command = [sys.executable, "-m", "tests.programs.torture", "--plan", "failover"]
    done = subprocess.run(  # noqa: S603  # our own module
        [*command, "--rounds", "1", "--seed", str(SEED)],
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {Verdict.GOOD, Verdict.SLOW}, done.stdout + done.stderr
    assert "0 violations; 0 figures out of bounds" in done.stdout


@pytest.mark.long
async def test_two_versions_side_by_side_lose_nothing(alone):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite copies a table whose column is dropped")
    outcome = await upgrade(alone, 1, talking=2)
    assert outcome.violations == []
    assert not [figure for figure in outcome.figures if figure.is_out_of_bounds]


@pytest.mark.long
@pytest.mark.parametrize("plan", [shard, sentinel])
async def test_a_redis_lost_to_the_layer_interrupts_no_turn(alone, plan):
    if alone.redis is None:
        missing("redis-server is not installed")
    outcome = await plan(alone, 1, talking=2)
    assert outcome.violations == []
    assert not [figure for figure in outcome.figures if figure.is_out_of_bounds]


async def test_without_a_standby_the_plan_of_a_failover_is_skipped(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(Absent, match="standbys"):
        await failover(SimpleNamespace(), 1)


def test_every_plan_is_in_the_schedule():
    assert {stage.plan for stage in SCHEDULE} == set(PLANS)


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_the_proxy_recognizes_an_append():
    if connection.vendor != "postgresql":
        pytest.skip("the proxy cuts commits of PostgreSQL")
    with CaptureQueriesContext(connection) as queries:
        append_messages(**TALK, messages=make_messages("a"), create=True)
    assert queries.captured_queries[-1]["sql"].encode().startswith(APPEND)


def test_the_proxy_finds_the_statement_that_is_executed():
    prepared: dict[bytes, bytes] = {}
    assert statement_in(b"Q", b"COMMIT\0", prepared) == b"COMMIT\0"
    assert statement_in(b"P", b"_pg3_0\0WITH a\0\0\0", prepared) == b""
    assert statement_in(b"B", b"\0_pg3_0\0\0\0", prepared).startswith(b"WITH a")
    assert statement_in(b"B", b"\0other\0\0\0", prepared) == b""


class Scripted(Talker):
    """Gets text and then waits until `end`, or gets a reply without text."""

    def __init__(self, *args: Any, has_text: bool) -> None:
        super().__init__(*args)
        self.has_text = has_text
        self.end = asyncio.Event()

    async def ask(self, text: str) -> str:
        if self.has_text:
            self._has_text.set()
            await self.end.wait()
        return text


@pytest.mark.regression
@pytest.mark.parametrize("has_text", [True, False])
async def test_a_turn_has_begun_with_its_text_or_its_end(has_text):
    """After a lost socket a client gets only the stored reply, and would wait without end."""
    talker = Scripted(SimpleNamespace(history=None), None, "talk", None, has_text=has_text)
    async with asyncio.timeout(DEADLINE):
        asking = await talker.begin("hi")
        assert asking.done() is not has_text
        talker.end.set()
        assert await asking == "hi"
