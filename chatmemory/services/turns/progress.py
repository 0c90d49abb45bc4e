"""Writes of a run: its start, leases, partial text, finished rows and end.

Each is rejected after the run lost its fence, because another process ended its turn: see Note
[Fence] in `claims`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import Any

from django.db import OperationalError
from django.db.models import CharField, Q, TextField

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.database.after_commit import announce_change, announce_finished, announce_started
from chatmemory.database.faults import Fault, fault_of, ignored_duplicate, write_connection
from chatmemory.database.inserts import store_rows
from chatmemory.database.locks import (
    LockLimit,
    is_one_statement,
    locked_transaction,
    statement_transaction,
    update_without_waiting,
)
from chatmemory.database.pool import Lane, in_pool
from chatmemory.database.refusals import is_client_id_stored, report_damage
from chatmemory.database.retries import retried
from chatmemory.database.statements import CompiledUpdate, Parameter
from chatmemory.database.turn_writes import TurnUpdate
from chatmemory.errors import TurnEndError
from chatmemory.logs import log_error
from chatmemory.models import Change, DatabaseNow, Message, Session, StartedTurn, Turn, TurnQuerySet
from chatmemory.services.turns.at_end import EndingTurn, call_receivers, receivers_of
from chatmemory.services.turns.claims import (
    Claim,
    claim_values,
    claimed_turns,
    compiled_claimed_turns,
    lease_columns,
)
from chatmemory.services.turns.deferral import store_deferred_of
from chatmemory.services.turns.endings import results_for_open_calls

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTurn:
    """The session after its run finished."""

    last_seq: int
    waiting: int
    """Number of waiting turns and of batches that were deferred."""
    status: str
    """How the turn ended: as failed instead of complete, if code of another app failed."""
    change: Change | None = None
    """See Note [Rows from memory]."""
    is_repeated: bool = field(default=False, compare=False)
    """Whether an earlier attempt had stored it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finish:
    """The end of a run, as `finish_turn` stores it."""

    claim: Claim
    last: Row
    usage: str
    first_text_ms: int | None
    batch_id: str

    def turn_update(self) -> TurnUpdate:
        columns = Turn.end_columns(
            self.last.status,
            error=self.last.error,
            model=self.last.model,
            usage=self.usage,
            first_text_ms=self.first_text_ms,
        )
        return TurnUpdate(self.claim.session_pk, self.claim.client_id, columns)

    def announce(self, change: Change | None) -> None:
        claim = self.claim
        announce_change(claim.session_pk, change)
        announce_finished(claim.session_pk, claim.client_id, self.last.status, self.last.error)


# Not repeatable: after a lost commit the second call would find the turn started, and return False.
@retried(is_repeatable=False)
def start_turn(*, claim: Claim) -> bool:
    """Record the start of a run; return False if its fence is lost or it was started before.

    Raises MemoryUnavailable.
    """
    _, identity = claim_values([claim])
    # Note [Fence]: without the session's lock, but only while the fence is valid.
    with statement_transaction():
        change = None
        if is_one_statement():
            times = _START.returned("started_at", True, owner=claim.owner, **identity)
            is_started = bool(times)
            for started_at in times:
                change = StartedTurn(
                    session_pk=claim.session_pk,
                    epoch=claim.epoch,
                    client_id=claim.client_id,
                    started_at=started_at,
                )
        else:
            is_started = bool(_START.run(False, owner=claim.owner, **identity))
        if is_started:
            announce_change(claim.session_pk, change, is_local=True)  # the runner notifies others
            announce_started(claim.session_pk, claim.client_id)
        return is_started


def _start_update(is_alone: bool) -> tuple[TurnQuerySet, dict[str, Any]]:
    """Build the update of a claimed turn that starts. Alone, it limits its own lock waits."""
    turn = compiled_claimed_turns(1).filter(started_at__isnull=True)
    columns = {"started_at": DatabaseNow(), **lease_columns(Parameter("owner"))}
    return turn.filter(LockLimit()) if is_alone else turn, columns


_START = CompiledUpdate(_start_update, "LEASE", "LOCK_TIMEOUT")


@retried(is_repeatable=True)
def is_unanswered(claim: Claim) -> bool:
    """Return whether the fence of a run is valid and the user's message is still the last row.

    Raises MemoryUnavailable.
    """
    return Session.objects.filter(pk=claim.session_pk, **unanswered_conditions(claim)).exists()


def unanswered_conditions(claim: Claim) -> dict[str, object]:
    """Return the columns of a session of which `is_unanswered` is true."""
    return {"last_seq": claim.user_seq, **_fence_conditions(claim)}


@retried(is_repeatable=True)
def save_partial(*, claim: Claim, text: str, step: int) -> bool:
    """Save the partial text in case this process dies; return False if the fence is lost.

    Does not wait for a locked turn: the next save follows soon. Raises MemoryUnavailable.
    """
    _, identity = claim_values([claim])
    with statement_transaction(waits=False):
        return bool(_SAVE.run(is_one_statement(), partial=text, step=step, **identity))


def _save_update(is_alone: bool) -> tuple[TurnQuerySet, dict[str, Any]]:
    turn = compiled_claimed_turns(1)
    columns = {"partial": Parameter("partial", TextField()), "step": Parameter("step")}
    return turn.filter(LockLimit(waits=False)) if is_alone else turn, columns


_SAVE = CompiledUpdate(_save_update)


def renew_leases(*, claims: Sequence[Claim]) -> None:
    """Renew the leases of one process's started runs, except those that are locked.

    Never waits for a lock: a turn that stays locked loses only its own run. Does not retry, since
    the caller calls again within a second.
    """
    connection = write_connection()
    owner = claims[0].owner if claims else ""
    runs = {"lease_owner": owner, "started_at__isnull": False}
    features = connection.features
    if features.has_select_for_update and not features.has_select_for_update_skip_locked:
        # MariaDB 10.5: one locked row would prevent the renewal of all others in a statement.
        for claim in claims:
            _renew_unless_locked(claimed_turns([claim]).filter(**runs), owner)
    elif connection.vendor == "mysql":
        turns = claimed_turns(claims).filter(**runs)
        update_without_waiting(turns, skip_locked=True, **lease_columns(owner))
    elif claims:
        count, identities = claim_values(claims)
        _RENEW.run(count, features.has_select_for_update, owner=owner, **identities)


def _renew(count: int, has_row_locks: bool) -> tuple[TurnQuerySet, dict[str, Any]]:
    """Build the renewal of leases, except those that are locked, in one statement."""
    turns = compiled_claimed_turns(count).filter(
        lease_owner=Parameter("owner", CharField()), started_at__isnull=False
    )
    if has_row_locks:  # MariaDB can't update a table that the subquery reads
        unlocked = turns.select_for_update(skip_locked=True).values("pk")
        # With the sessions again: PostgreSQL would read all partitions of a table by session.
        sessions = (Q(session_id=Parameter(f"session_id_{index}")) for index in range(count))
        turns = Turn.objects.filter(reduce(or_, sessions), pk__in=unlocked)
    return turns, lease_columns(Parameter("owner", CharField()))


_RENEW = CompiledUpdate(_renew, "LEASE")


def _renew_unless_locked(turn: TurnQuerySet, owner: str) -> None:
    try:
        update_without_waiting(turn, **lease_columns(owner))
    except OperationalError as error:
        if fault_of(error) is not Fault.LOCK_TIMEOUT:
            raise


def add_rows(
    *,
    claim: Claim,
    messages: Sequence[Mapping[str, object]],
    step: int | None,
    batch_id: str | None = None,
) -> bool:
    """Store finished rows of a running turn; return False if the fence is lost.

    `batch_id` is the idempotency key: a caller that may repeat the call must pass its own. Raises
    MemoryUnavailable.
    """
    rows = [codec.encode(message, lenient=True, step=step) for message in messages]
    return _add_rows(claim, rows, batch_id or codec.new_client_id()) if rows else True


@retried(is_repeatable=True)
def _add_rows(claim: Claim, rows: Sequence[Row], batch_id: str) -> bool:
    with ignored_duplicate():
        stored = store_rows(
            rows,
            address={"id": claim.session_pk},
            conditions=_fence_conditions(claim),
            client_id=batch_id,
            turn=claim.user_seq,
        )
        if stored is not None:
            announce_change(claim.session_pk, stored.change)
        return stored is not None
    if not is_client_id_stored(claim.session_pk, batch_id):
        raise report_damage(claim.session_pk)
    # An earlier attempt stored the rows, and lost the connection after its commit.
    announce_change(claim.session_pk)
    return True


def finish_turn(
    *,
    claim: Claim,
    status: str,
    message: Mapping[str, object],
    error: str = "",
    model: str = "",
    usage: Mapping[str, object] | None = None,
    first_text_ms: int | None = None,
    step: int | None = None,
    batch_id: str | None = None,
    ending: EndingTurn | None = None,
) -> FinishedTurn | None:
    """End a run and store its last row in one transaction; return None if the fence is lost.

    Each tool call without a result gets one that states that the outcome is unknown. `batch_id` is
    the idempotency key, as in `add_rows`. `ending` is passed to code of other apps, see
    `at_turn_end`. Raises MemoryUnavailable.
    """

    encode = partial(codec.encode, lenient=True, model=model, step=step)
    finish = _Finish(
        claim=claim,
        last=encode(message, status=status, error=error),
        usage="" if usage is None else _usage_json(usage),
        first_text_ms=first_text_ms,
        batch_id=batch_id or codec.new_client_id(),
    )
    if ending is None or not receivers_of(ending):
        return _finish(finish)
    try:
        return _finish_with(finish, ending)
    except TurnEndError as problem:
        log_error(logger, "an app failed at the end of a turn", error=problem.__cause__ or problem)
    # A failed turn cannot be answered.
    unasked = {name: value for name, value in message.items() if name != "asks"}
    last = encode(unasked, status=Message.Status.FAILED, error=TurnEndError.code)
    return _finish(replace(finish, last=last))


@retried(is_repeatable=True)
def _finish_with(finish: _Finish, ending: EndingTurn) -> FinishedTurn | None:
    """Store the end and what other apps store with it. Raises TurnEndError."""
    with locked_transaction():
        finished = _store_finish(finish)
        if finished is not None and not finished.is_repeated:
            call_receivers(ending)
        return finished


@retried(is_repeatable=True)
def _finish(finish: _Finish) -> FinishedTurn | None:
    return _store_finish(finish)


def _store_finish(finish: _Finish) -> FinishedTurn | None:
    claim = finish.claim
    # While the user row is the last one, there is no tool call: the usual reply is one statement.
    finished = _store_end(finish, [], last_seq=claim.user_seq)
    if finished is None:  # the run stored rows, or its fence is lost
        finished = _store_end(finish, results_for_open_calls(claim.session_pk, claim.user_seq))
    if finished is None:
        finished = _find_finished(finish)
    if finished is not None:
        finish.announce(finished.change)
        if finished.waiting:
            store_deferred_of(claim.session_pk)
    return finished


def _store_end(finish: _Finish, results: list[Row], **only_if: int) -> FinishedTurn | None:
    claim = finish.claim
    with ignored_duplicate():
        stored = store_rows(
            [*results, finish.last],
            address={"id": claim.session_pk},
            conditions={**_fence_conditions(claim), **only_if},
            client_id=finish.batch_id,
            turn=claim.user_seq,
            updates={"running": None},
            increments={"revision": 1},
            turn_write=finish.turn_update(),
        )
        if stored is None:
            return None
        return FinishedTurn(
            last_seq=stored.last_seq,
            waiting=stored.waiting,
            status=finish.last.status,
            change=stored.change,
        )
    # Not a repeated `batch_id`: its first call has set `running` to null.
    raise report_damage(claim.session_pk)


def _find_finished(finish: _Finish) -> FinishedTurn | None:
    """Return the result of an earlier attempt that lost the connection after its commit."""
    rows = Message.stored.filter(session=finish.claim.session_pk, client_id=finish.batch_id)
    columns = rows.values_list("session__last_seq", "session__waiting", "status")
    for last_seq, waiting, status in columns[:1]:
        return FinishedTurn(last_seq=last_seq, waiting=waiting, status=status, is_repeated=True)
    return None


def _usage_json(usage: Mapping[str, object]) -> str:
    """Return a model's usage as JSON, without what JSON cannot represent."""
    message = {"role": "assistant", "content": "", "usage": usage}
    row = codec.encode(message, lenient=True)
    return codec.dump_json(codec.decode(row.role, row.text, row.body).get("usage"))


def _fence_conditions(claim: Claim) -> dict[str, object]:
    """Return the columns of a session in which this claim may write. See Note [Fence]."""
    return {"epoch": claim.epoch, "running": claim.client_id, "fence": claim.fence}


def _claim_lane(*, claim: Claim, **_: object) -> Lane:
    return (claim.scope, claim.key)


astart_turn = in_pool(start_turn, lane=_claim_lane)
