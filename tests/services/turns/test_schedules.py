"""Test every schedule of a few turns in two processes, one of which may be killed at any point.

The services execute each step. A model defines the expected state: which turn runs, which turns
wait and in which order, which writes are refused. Schedules that lead to the same state of the
model are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from chatmemory import services
from chatmemory.errors import Busy
from chatmemory.models import Session, Turn
from chatmemory.services.turns import admission, claims, progress, recovery
from chatmemory.services.turns.claims import Claim
from tests.factories import TALK, make_session
from tests.services.replaced import services_with

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
DONE = {"role": "assistant", "content": "done"}
PROCESSES = ("p1", "p2")
NOBODY = ""


@dataclass(frozen=True)
class Held:
    """A claim that a process considers valid."""

    turn: int
    has_started: bool
    claim: Claim


@dataclass(frozen=True)
class Model:
    """The expected state. Turns are numbered in the order in which they were sent."""

    sent: int = 0
    running: int | None = None
    phase: str = ""
    """The phase of the running turn: claimed, started or requeued."""
    owner: str = ""
    claim: Claim | None = None
    """The fence of the running turn, also of its next claim."""
    is_stopped: bool = False
    is_overdue: bool = False
    queue: tuple[int, ...] = ()
    killed: str = ""
    held: tuple[tuple[Held, ...], tuple[Held, ...]] = ((), ())

    @property
    def is_idle(self) -> bool:
        return self.running is None and not self.queue

    def ended(self) -> Model:
        return replace(
            self,
            running=None,
            phase="",
            owner="",
            claim=None,
            is_stopped=False,
            is_overdue=False,
        )

    def claimed(self, turn: int, owner: str, claim: Claim | None) -> Model:
        assert claim is not None
        assert claim.client_id == f"t{turn}"
        running = replace(self.ended(), running=turn, phase="claimed", owner=owner, claim=claim)
        return running.holding(owner, *self.of(owner), Held(turn, False, claim))

    def of(self, process: str) -> tuple[Held, ...]:
        return self.held[PROCESSES.index(process)]

    def holding(self, process: str, *held: Held) -> Model:
        both = [*self.held]
        both[PROCESSES.index(process)] = held
        return replace(self, held=(both[0], both[1]))

    def after_the_sweep(self) -> Model:
        if not self.is_overdue:
            return self
        if self.phase == "started" or self.is_stopped:
            return self.ended()
        return replace(self, phase="requeued", owner="", claim=None, is_overdue=False)

    def state(self, *, turns: int) -> tuple[Any, ...]:
        """Return what the later steps depend on, without the names of turns and processes."""
        live = sorted([*self.queue, *([] if self.running is None else [self.running])])
        processes = sorted(
            (
                process == self.killed,
                process == self.owner,
                tuple((each.claim is self.claim, each.has_started) for each in held),
            )
            for process, held in zip(PROCESSES, self.held, strict=True)
        )
        return (
            turns - self.sent,
            None if self.running is None else live.index(self.running),
            self.phase,
            self.is_stopped,
            self.is_overdue,
            tuple(map(live.index, self.queue)),
            *processes,
        )


Step = tuple[str, Callable[[], Model]]
"""The name of a step and its function; steps whose name starts with `zombie` are optional."""


class Schedules:
    """Explore all schedules from a session without turns on, depth first."""

    def __init__(self, turns: int, **wrong: Any) -> None:
        self.turns = turns
        self.services: Any = services_with(**wrong)
        self.session = make_session()
        self.ways: dict[Any, set[Any]] = {}
        """For each state, the next states without a send, a stop or a dead process."""

    def explore(self) -> None:
        """Raise AssertionError with the steps that led to a wrong state."""
        self._from(Model(), [])
        self._assert_that_all_end()

    def _from(self, model: Model, trace: list[str]) -> Any:
        state = model.state(turns=self.turns)
        if state in self.ways:
            return state
        self.ways[state] = set()
        for name, step in self._steps(model):
            before = transaction.savepoint()
            try:
                after = step()
                self._compare(after)
            except AssertionError as error:
                raise AssertionError(" > ".join([*trace, name])) from error
            follows = self._from(after, [*trace, name])
            if name.split()[0] in ("claim", "start", "finish", "lapse", "sweep"):
                self.ways[state].add(follows)
            transaction.savepoint_rollback(before)
        return state

    def _assert_that_all_end(self) -> None:
        """Assert that each state can reach a state without active turns."""
        ending = {state for state in self.ways if state[1] is None and not state[5]}
        while more := {state for state, ways in self.ways.items() if ways & ending} - ending:
            ending |= more
        assert not self.ways.keys() - ending, "a turn waits for ever"

    def _steps(self, model: Model) -> Iterator[Step]:
        living = [process for process in PROCESSES if process != model.killed]
        if model.sent < self.turns:
            # The sender matters only where the turn can be claimed immediately.
            owners = (*living, NOBODY) if model.is_idle or model.is_overdue else living[:1]
            for owner in owners:
                for policy in ("queue",) if model.is_idle else admission.BUSY_POLICIES:
                    yield f"send {policy} {owner}", partial(self._send, model, owner, policy)
        if model.phase == "requeued" or (model.running is None and model.queue):
            for process in living:
                yield f"claim {process}", partial(self._claim, model, process)
        for process, held in zip(PROCESSES, model.held, strict=True):
            who = "zombie" if process == model.killed else process
            for each in held:
                act = self._finish if each.has_started else self._start
                name = act.__name__.removeprefix("_")
                name = f"{who} {name}" if who == "zombie" else f"{name} {who}"
                yield name, partial(act, model, process, each)
            if not model.killed and process == model.owner:
                yield f"kill {process}", partial(replace, model, killed=process)
        if model.killed and model.owner == model.killed and not model.is_overdue:
            yield "lapse", partial(self._lapse, model)
        if model.is_overdue:
            yield "sweep", partial(self._sweep, model)
            yield "resend", partial(self._resend, model)
        running = [] if model.running is None or model.is_stopped else [model.running]
        for turn in (*model.queue, *running):
            yield f"stop t{turn}", partial(self._stop, model, turn)

    def _send(self, model: Model, owner: str, policy: str) -> Model:
        turn = model.sent
        model = replace(model.after_the_sweep(), sent=turn + 1)
        is_busy = not model.is_idle
        send = {"client_id": f"t{turn}", "content": "hi", "owner": owner, "if_busy": policy}
        if is_busy and policy == "reject":
            with pytest.raises(Busy) as caught:
                self.services.admit_turn(**TALK, **send)
            first = model.queue[0] if model.running is None else model.running
            assert caught.value.turn == f"t{first}"
            return model
        admitted = self.services.admit_turn(**TALK, **send)
        if not is_busy and owner:
            return model.claimed(turn, owner, admitted.claim)
        assert admitted.claim is None
        if policy == "queue" or not is_busy:
            return replace(model, queue=(*model.queue, turn))
        model = replace(model, is_stopped=model.running is not None)
        if model.phase == "requeued":
            model = model.ended()
        return replace(model, queue=(turn, *model.queue))

    def _claim(self, model: Model, process: str) -> Model:
        claim = self.services.claim_next(session_pk=self.session.pk, owner=process)
        turn = model.running
        if turn is None:
            turn = model.queue[0]
            model = replace(model, queue=model.queue[1:])
        return model.claimed(turn, process, claim)

    def _start(self, model: Model, process: str, held: Held) -> Model:
        is_valid = held.claim is model.claim
        assert self.services.start_turn(claim=held.claim) == is_valid
        others = [each for each in model.of(process) if each is not held]
        if not is_valid:
            return model.holding(process, *others)
        started = replace(held, has_started=True)
        return replace(model, phase="started").holding(process, *others, started)

    def _finish(self, model: Model, process: str, held: Held) -> Model:
        is_valid = held.claim is model.claim
        ended = self.services.finish_turn(claim=held.claim, status="complete", message=DONE)
        assert (ended is not None) == is_valid
        if ended is not None:
            assert ended.waiting == len(model.queue)
        others = [each for each in model.of(process) if each is not held]
        return (model.ended() if is_valid else model).holding(process, *others)

    def _lapse(self, model: Model) -> Model:
        Turn.objects.filter(lease_owner=model.killed).update(lease_until=LONG_AGO)
        return replace(model, is_overdue=True)

    def _sweep(self, model: Model) -> Model:
        self.services.recover_all_overdue_turns()
        return model.after_the_sweep()

    def _resend(self, model: Model) -> Model:
        send = {"client_id": f"t{model.running}", "content": "hi", "owner": "p1"}
        assert self.services.admit_turn(**TALK, **send).is_duplicate
        return model.after_the_sweep()

    def _stop(self, model: Model, turn: int) -> Model:
        self.services.stop_turn(**TALK, turn=f"t{turn}")
        if turn in model.queue:
            return replace(model, queue=tuple(each for each in model.queue if each != turn))
        if model.phase == "requeued":
            return model.ended()
        return replace(model, is_stopped=True).after_the_sweep()

    def _compare(self, model: Model) -> None:
        ((in_it, waiting, last_seq),) = _rows("SELECT running, waiting, last_seq FROM {session}")
        turns = _rows(
            "SELECT client_id, status, started_at IS NOT NULL, stop_requested_at IS NOT NULL "
            "FROM {turn} WHERE status IN ('waiting', 'running') ORDER BY position, id"
        )
        running = None if model.running is None else f"t{model.running}"
        queue = [f"t{turn}" for turn in model.queue]
        assert (in_it, waiting) == (running, len(queue))
        assert [name for name, *_ in turns if name != running] == queue
        runs = [] if model.phase in ("", "requeued") else [running]
        assert [name for name, status, *_ in turns if status == "running"] == runs
        states = [state for name, _, *state in turns if name == running]
        assert states == ([[model.phase == "started", model.is_stopped]] if running else [])
        rows = _rows("SELECT seq, turn, role FROM {message} ORDER BY seq")
        assert [seq for seq, _, _ in rows] == list(range(1, last_seq + 1))
        of = [(turn, role) for _, turn, role in rows]
        assert len(set(of)) == len(of), "a second reply, or a user's words twice"
        assert [turn for turn, _ in of] == sorted(turn for turn, _ in of)


def _rows(select: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement without parameters; the ORM would be many times slower."""
    tables = {name: f"chatmemory_{name}" for name in ("session", "turn", "message")}
    with connection.cursor() as cursor:
        cursor.execute(select.format(**tables))
        return list(cursor.fetchall())


@pytest.fixture
def _on_sqlite(settings: Any) -> None:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 10_000}  # a step of the schedule ends it
    if connection.vendor != "sqlite":
        pytest.skip("the same on each database, and fastest on SQLite")


@pytest.mark.usefixtures("_on_sqlite")
def test_every_schedule_of_steps_matches_the_model():
    schedules = Schedules(3)
    schedules.explore()
    assert len(schedules.ways) > 200


def finish_without_a_fence(**of: Any) -> Any:
    """Finish the turn that runs now, also without its fence."""
    session = Session.objects.get()
    turn = Turn.objects.filter(client_id=session.running).first()
    if turn is not None:
        claim = of["claim"]
        now = {"fence": session.fence, "client_id": session.running, "turn_pk": turn.pk}
        of["claim"] = replace(claim, **now, user_seq=turn.user_seq)
    return progress.finish_turn(**of)


def claim_the_newest(**of: Any) -> Any:
    Turn.objects.filter(status="waiting").update(position=-F("pk"))
    return claims.claim_next(**of)


def sweep_only_started_turns(**of: Any) -> Any:
    fresh = Turn.objects.filter(status="running", started_at__isnull=True)
    fresh.update(lease_until=datetime(2999, 1, 1, tzinfo=UTC))
    return recovery.recover_all_overdue_turns(**of)


def stop_without_updating_the_session(**of: Any) -> Any:
    waiting = Turn.objects.filter(client_id=of["turn"], status="waiting")
    return "cancelled" if waiting.update(status="cancelled") else services.stop_turn(**of)


@pytest.mark.parametrize(
    "fault",
    [
        {"finish_turn": finish_without_a_fence},
        {"claim_next": claim_the_newest},
        {"recover_all_overdue_turns": sweep_only_started_turns},
        {"stop_turn": stop_without_updating_the_session},
    ],
    ids=["no fence", "the newest first", "not requeued", "stopped by halves"],
)
@pytest.mark.usefixtures("_on_sqlite")
def test_a_planted_fault_is_found(fault):
    with pytest.raises(AssertionError):
        Schedules(3, **fault).explore()


class NobodySweeps(Schedules):
    """No step finds the turn of a dead process."""

    def _steps(self, model: Model) -> Iterator[Step]:
        return (step for step in super()._steps(model) if step[0] not in ("sweep", "resend"))


@pytest.mark.usefixtures("_on_sqlite")
def test_a_turn_that_waits_forever_is_found():
    with pytest.raises(AssertionError, match="waits for ever"):
        NobodySweeps(1).explore()
