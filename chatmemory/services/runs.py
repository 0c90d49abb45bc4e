"""Runs: begun, their rows stored as they are finished, ended; as long as the fence stands.

A run that lost its fence can't write any more: another ended its turn.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from django.db import IntegrityError, OperationalError

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.models import DatabaseNow, Message, Session, Turn, TurnQuerySet
from chatmemory.services.alongside import EndedTurn
from chatmemory.services.claims import Claim, claimed_turns, lease
from chatmemory.services.ends import results_for_open_calls
from chatmemory.services.faults import Fault, database, durably, fault_of
from chatmemory.services.locks import unit, update_without_waiting
from chatmemory.services.news import tell, tell_finished, tell_started
from chatmemory.services.pool import Lane, in_pool
from chatmemory.services.refusals import damaged, is_stored
from chatmemory.services.rows import store


@dataclass(slots=True)
class _Running:
    """What a run tells the code that it calls, and the tasks that this leaves behind."""

    scope: str
    key: str
    is_over: bool = False


_run_of: ContextVar[_Running | None] = ContextVar("chatmemory_run_of", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What `finish_turn` leaves behind."""

    last_seq: int
    waiting: int


def start_turn(*, claim: Claim) -> bool:
    """Record the start of a run; False if its fence is lost or it was started before.

    Raises MemoryUnavailable.
    """
    turn = claimed_turns([claim]).filter(started_at__isnull=True)

    def work() -> bool:
        with unit():
            begun = turn.update(started_at=DatabaseNow(), **lease(claim.owner))
            if begun:
                tell(claim.session_pk)
                tell_started(claim.session_pk, claim.client_id)
            return bool(begun)

    # Not again where it may have been done: the second call would say that the turn was taken.
    return durably(work, is_repeatable=False)


def is_unanswered(claim: Claim) -> bool:
    """Return whether the fence of a run is valid and the user's message is still the last row.

    Raises MemoryUnavailable.
    """
    session = Session.objects.filter(
        pk=claim.session_pk, last_seq=claim.user_seq, **_standing(claim)
    )
    return durably(session.exists, is_repeatable=True)


def save_partial(*, claim: Claim, text: str, step: int) -> bool:
    """Save the partial text, in case this process dies; return False if the fence is lost.

    Does not wait for a locked turn: the next save comes soon. Raises MemoryUnavailable.
    """
    turn = claimed_turns([claim])
    return durably(
        lambda: bool(update_without_waiting(turn, partial=text, step=step)), is_repeatable=True
    )


def renew_leases(*, claims: Sequence[Claim]) -> None:
    """Renew the leases of one process's started runs, except of those that are locked.

    Never waits for a lock: a turn that stays locked loses only its own run. Does not retry, since
    the caller calls again within a second.
    """
    owner = claims[0].owner if claims else ""
    runs = {"lease_owner": owner, "started_at__isnull": False}
    features = database().features
    if features.has_select_for_update and not features.has_select_for_update_skip_locked:
        for claim in claims:  # MariaDB 10.5
            _renew_unless_locked(claimed_turns([claim]).filter(**runs), owner)
    else:
        turns = claimed_turns(claims).filter(**runs)
        update_without_waiting(turns, skip_locked=True, **lease(owner))


def _renew_unless_locked(turn: TurnQuerySet, owner: str) -> None:
    try:
        update_without_waiting(turn, **lease(owner))
    except OperationalError as error:
        if fault_of(error) is not Fault.WAITED:
            raise


def add_rows(
    *,
    claim: Claim,
    messages: Sequence[Mapping[str, object]],
    step: int | None,
    batch_id: str | None = None,
) -> bool:
    """Store finished rows of a running turn; False if the fence is lost.

    Whoever may have to call again gives both calls the same `batch_id`: the rows are stored once.
    """
    rows = [codec.encode(message, lenient=True, step=step) for message in messages]
    batch_id = batch_id or uuid.uuid4().hex
    if not rows:
        return True

    def work() -> bool:
        try:
            stored = store(
                rows,
                at={"id": claim.session_pk},
                only_if=_standing(claim),
                client_id=batch_id,
                turn=claim.user_seq,
            )
        except IntegrityError as error:
            if fault_of(error) is not Fault.DUPLICATE:
                raise
            if not is_stored(claim.session_pk, batch_id):
                raise damaged(claim.session_pk) from error
            is_added = True  # by the try before, whose answer was lost
        else:
            is_added = stored is not None
        if is_added:
            tell(claim.session_pk)
        return is_added

    return durably(work, is_repeatable=True)


def finish_turn(
    *,
    claim: Claim,
    status: str,
    message: Mapping[str, object],
    error: str = "",
    model: str = "",
    usage: Mapping[str, object] | None = None,
    step: int | None = None,
    batch_id: str | None = None,
) -> Ended | None:
    """End a run and store its last row, in one transaction; None if the fence is lost.

    A run that ends in the middle leaves no tool call open: each gets a result that says so.
    Whoever may have to call again gives both calls the same `batch_id`: the second answers as the
    first would have.
    """
    last = codec.encode(message, lenient=True, status=status, error=error, model=model, step=step)
    usage_text = "" if usage is None else _usage_text(usage)
    batch_id = batch_id or uuid.uuid4().hex
    written = EndedTurn(
        claim.client_id, Turn.ended(status, error=last.error, model=last.model, usage=usage_text)
    )

    def work() -> Ended | None:
        # Where the user's row is still the last, there is no call to look for.
        ended = finish([last], last_seq=claim.user_seq)
        if ended is not None:
            return ended
        results = results_for_open_calls(claim.session_pk, claim.user_seq)
        return finish([*results, last]) or finished_before()

    def finished_before() -> Ended | None:
        """What this same call did, if it lost the connection after its commit."""
        values = Message.stored.filter(session=claim.session_pk, client_id=batch_id).values_list(
            "session__last_seq", "session__waiting"
        )
        for last_seq, waiting in values:
            say()
            return Ended(last_seq=last_seq, waiting=waiting)
        return None

    def finish(rows: list[Row], **only_if: int) -> Ended | None:
        try:
            stored = store(
                rows,
                at={"id": claim.session_pk},
                only_if={**_standing(claim), **only_if},
                client_id=batch_id,
                turn=claim.user_seq,
                put={"running": None},
                add={"revision": 1},
                turn_write=written,
            )
        except IntegrityError as problem:
            if fault_of(problem) is not Fault.DUPLICATE:
                raise
            raise damaged(claim.session_pk) from problem
        if stored is None:
            return None
        say()
        return Ended(last_seq=stored.last_seq, waiting=stored.waiting)

    def say() -> None:
        tell(claim.session_pk)
        tell_finished(claim.session_pk, claim.client_id, status, error)

    return durably(work, is_repeatable=True)


def _usage_text(usage: Mapping[str, object]) -> str:
    """What a model says of its usage, made fit for JSON."""
    message = {"role": "assistant", "content": "", "usage": usage}
    row = codec.encode(message, lenient=True)
    return codec.dump_json(codec.decode(row.role, row.text, row.body).get("usage"))


@contextmanager
def running(claim: Claim) -> Iterator[None]:
    """In this context, and in copies of it, `in_run` is true of the claim's session."""
    run = _Running(claim.scope, claim.key)
    token = _run_of.set(run)
    try:
        yield
    finally:
        run.is_over = True  # a task that outlives the run has a copy of the context
        _run_of.reset(token)


def in_run(scope: str, key: str) -> bool:
    """Whether this code is called by the responder that answers in this session."""
    run = _run_of.get()
    return run is not None and not run.is_over and (run.scope, run.key) == (scope, key)


def _standing(claim: Claim) -> dict[str, object]:
    return {"epoch": claim.epoch, "running": claim.client_id, "fence": claim.fence}


def _claim_lane(*, claim: Claim, **_: object) -> Lane:
    return (claim.scope, claim.key)


astart_turn = in_pool(start_turn, lane=_claim_lane)
arenew_leases = in_pool(renew_leases)
asave_partial = in_pool(save_partial, lane=_claim_lane)
aadd_rows = in_pool(add_rows, lane=_claim_lane)
afinish_turn = in_pool(finish_turn, lane=_claim_lane)
