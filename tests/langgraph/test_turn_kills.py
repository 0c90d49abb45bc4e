"""A process that is killed at any step of a graph: no tool runs again, and each turn ends."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chatmemory import codec
from chatmemory.langgraph.models import Checkpoint, Thread
from chatmemory.models import Message, Session, Turn
from chatmemory.services.turns import recovery
from tests.conftest import database_environment
from tests.factories import make_session
from tests.killed import Kill, killable

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

STRIDE = int(os.environ.get("TURN_KILL_STRIDE", "5"))
"""With 1 the long test kills a process at each step."""


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


@pytest.fixture
def run(effects: Path) -> Iterator[Kill]:
    """Return a function that runs turns in a process, and returns whether it was killed."""
    env = {**database_environment(), "LANGSMITH_TRACING": "false"}
    with killable("tests.langgraph.turn_process", env, str(effects)) as kill:
        yield kill


def recover(session: Session) -> None:
    """End the turn of a process that was killed, as a sweep does after its lease."""
    Turn.objects.filter(session=session).exclude(lease_until=None).update(
        lease_until=datetime(2020, 1, 1, tzinfo=UTC)
    )
    recovery.recover_overdue_turn(session.pk)


def check_turns(session: Session) -> list[str]:
    """Check that each turn has ended visibly; return how."""
    statuses = []
    for turn in Turn.objects.filter(session=session).order_by("pk"):
        rows = [*Message.stored.filter(session=session, turn=turn.user_seq).in_order()]
        assert turn.ended_at is not None
        assert rows[-1].role == "assistant"
        assert rows[-1].status == turn.status
        plain = [row.plain() for row in rows]
        called = [call for message in plain for call in codec.call_ids(message)]
        assert sorted(called) == sorted(filter(None, map(codec.answered_call, plain)))
        replies = [row for row in rows if row.role == "assistant" and row.text]
        assert len(replies) <= 1, "two answers"
        statuses.append(turn.status)
    return statuses


def kill_at(run: Kill, number: int) -> tuple[bool, list[str]]:
    """Kill a process at a step of two turns, continue in others, and check what is stored."""
    key = f"talk{number}"
    session = make_session(key)
    is_killed = run(number, key, "c1=remove", "c2=yes")
    recover(session)
    asked = Message.stored.filter(session=session, text="Remove it?").exists()
    is_answered = Turn.objects.filter(session=session, client_id="c2", started_at__isnull=False)
    resumes = asked and not is_answered.exists()
    run(0, key, "c1=remove", "c2=yes", "c3=thanks")
    if resumes:  # in another process than the one that asked
        reply = Message.stored.filter(session=session, turn=is_answered.get().user_seq).last()
        assert reply is not None
        assert reply.text == "Done."
    statuses = check_turns(session)
    assert statuses[2:] == ["complete"]
    assert not Thread.objects.exists() | Checkpoint.objects.exists()
    return is_killed, statuses


def check_effects(effects: Path) -> None:
    counts = Counter(effects.read_text().splitlines())
    assert {name.split()[1] for name in counts} == {"weather", "remove"}
    assert set(counts.values()) == {1}, "a tool ran again"


@pytest.mark.slow
def test_no_tool_runs_again_after_a_kill(run, effects):
    results = [kill_at(run, number) for number in (25, 60, 95)]
    assert [is_killed for is_killed, _ in results] == [True, True, True]
    check_effects(effects)


@pytest.mark.long
def test_no_tool_runs_again_after_a_kill_at_any_step(run, effects):
    number, results = 1, []
    while (result := kill_at(run, number))[0]:
        results.append(result)
        number += STRIDE
    assert len(results) > 20 // STRIDE
    ends = {tuple(statuses[:2]) for _, statuses in results}
    assert ends >= {
        ("complete", "complete"),
        ("interrupted", "complete"),
        ("complete", "interrupted"),
    }
    check_effects(effects)
