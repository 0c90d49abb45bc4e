"""Append messages to a session, all of a batch or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from chatmemory import codec
from chatmemory.access.actors import Actor, scope_for
from chatmemory.access.addresses import address_lane, check_session_key
from chatmemory.codec import Row
from chatmemory.database.after_commit import announce_change
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.inserts import OPEN_SESSION, store_rows
from chatmemory.database.pool import in_pool
from chatmemory.database.refusals import read_session_state
from chatmemory.errors import BadInput, Busy, HistoryCleared, NotFound
from chatmemory.models import Session
from chatmemory.services.sessions import MAX_ATTEMPTS, unexplained_refusal, write_or_open
from chatmemory.services.turns.recovery import recover_overdue_turn

MAX_BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The seqs of a stored batch."""

    session_pk: int
    epoch: int
    first_seq: int
    last_seq: int
    is_duplicate: bool
    """An earlier call with this client_id stored the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Validated messages that are stored together."""

    scope: str
    key: str
    rows: Sequence[Row]
    client_id: str
    epoch: int | None


def append_messages(
    *,
    session_key: str,
    messages: Sequence[Mapping[str, object]],
    by: Actor,
    scope: str | None = None,
    client_id: str | None = None,
    epoch: int | None = None,
    create: bool = False,
    lenient: bool = False,
) -> Appended:
    """Store a batch of up to 1,000 plain messages, all or none, with consecutive seqs.

    `client_id` is the idempotency key: a repeated call stores nothing and returns the seqs of the
    first batch. With `epoch`, nothing is stored after a clear or purge. `create` opens the session
    if it is missing, unless `epoch` is given. `lenient` repairs and flags values that the database
    cannot store, instead of refusing them.

    An empty batch stores nothing, not even its `client_id`, also if the session is archived or
    busy. Its `first_seq` is the next seq, one above `last_seq`.

    On PostgreSQL it is one statement outside a transaction. Inside a caller's transaction there is
    only one attempt, and the batch is durable only if that transaction commits.

    Raises BadInput, NotFound, Conflict, HistoryCleared, Archived, Busy, MemoryUnavailable.
    """
    scope = scope_for(by, scope)
    check_session_key(session_key)
    if len(messages) > MAX_BATCH:
        raise BadInput(
            f"A batch can have at most {MAX_BATCH} messages.", code="too_many", limit=MAX_BATCH
        )
    batch = _Batch(
        scope=scope,
        key=session_key,
        rows=[
            codec.encode(message, lenient=lenient, field=f"messages[{index}]")
            for index, message in enumerate(messages)
        ],
        client_id=codec.new_client_id() if client_id is None else codec.check_client_id(client_id),
        epoch=epoch,
    )
    return write_or_open(
        partial(_append if batch.rows else _append_nothing, batch),
        session_key=session_key,
        by=by,
        scope=scope,
        epoch=epoch,
        create=create,
    )


def _append(batch: _Batch) -> Appended:
    for _ in range(MAX_ATTEMPTS):
        # Most writes succeed, so the reason for a refusal is read only afterwards. The WHERE clause
        # of the write has checked all conditions.
        if (appended := _insert(batch)) or (appended := _explain_refusal(batch)):
            return appended
    raise unexplained_refusal(batch.scope, batch.key)


def _insert(batch: _Batch) -> Appended | None:
    """Store the rows; return None if the session refuses them or the client_id is stored."""
    conditions = {**OPEN_SESSION, "running": None}
    if batch.epoch is not None:
        conditions["epoch"] = batch.epoch
    with ignored_duplicate():
        stored = store_rows(
            batch.rows,
            address={"scope": batch.scope, "key": batch.key},
            conditions=conditions,
            only_unexpired=True,
            client_id=batch.client_id,
        )
        if stored is None:
            return None
        announce_change(stored.session_pk, stored.change)
        return Appended(
            session_pk=stored.session_pk,
            epoch=stored.epoch,
            first_seq=stored.first_seq,
            last_seq=stored.last_seq,
            is_duplicate=False,
        )
    return None


def _explain_refusal(batch: _Batch) -> Appended | None:
    """Return the batch of an earlier call, or raise the reason; None if the reason has ended."""
    state = read_session_state(batch.scope, batch.key, batch.client_id)
    # Before all other reasons: a repeated call succeeds even if the session was closed meanwhile.
    if state.rows:
        state.check_replay(batch.rows)
        return Appended(
            session_pk=state.session_pk,
            epoch=state.epoch,
            first_seq=state.rows[0].seq,
            last_seq=state.rows[-1].seq,
            is_duplicate=True,
        )
    state.check_open(batch.epoch)
    if state.running is not None:
        # The run of a dead process would refuse all messages until the next sweep.
        is_ended = state.is_overdue and recover_overdue_turn(state.session_pk)
        if not is_ended:
            raise Busy(turn=state.running)
    return None


def _append_nothing(batch: _Batch) -> Appended:
    session = Session.objects.at(batch.scope, batch.key).first()
    if session is None:
        raise NotFound
    if batch.epoch not in (None, session.epoch):
        raise HistoryCleared
    return Appended(
        session_pk=session.pk,
        epoch=session.epoch,
        first_seq=session.last_seq + 1,
        last_seq=session.last_seq,
        is_duplicate=False,
    )


aappend_messages = in_pool(append_messages, lane=address_lane)
