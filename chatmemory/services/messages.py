"""Append messages to a session, all of a batch or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from django.db.models import F

from chatmemory import codec
from chatmemory.access.actors import Actor, check_own_name, scope_for
from chatmemory.access.addresses import address_lane, check_length, check_session_key
from chatmemory.codec import Row
from chatmemory.database.after_commit import announce_change
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.inserts import OPEN_SESSION, store_rows
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.refusals import SessionState, read_session_state
from chatmemory.errors import BadInput, Busy, Conflict, HistoryCleared, NotFound
from chatmemory.models import MAX_AUTHOR_CHARS, Session, Turn
from chatmemory.services.sessions import MAX_ATTEMPTS, unexplained_refusal, write_or_open
from chatmemory.services.turns.deferral import defer, store_deferred
from chatmemory.services.turns.recovery import recover_overdue_turn

MAX_BATCH = 1_000

BUSY_POLICIES = ("reject", "defer")
"""Policies for a batch during a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The seqs of a stored batch."""

    session_pk: int
    epoch: int
    first_seq: int
    last_seq: int
    is_duplicate: bool
    """An earlier call with this client_id stored the batch."""
    is_deferred: bool = False
    """The batch waits for the end of the running turn. It has no seqs yet: both are 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Validated messages that are stored together."""

    scope: str
    key: str
    rows: Sequence[Row]
    client_id: str
    author: str | None
    epoch: int | None
    is_deferrable: bool

    def conditions(self) -> dict[str, object]:
        """Return what the columns of the session must be."""
        return {**OPEN_SESSION, **({} if self.epoch is None else {"epoch": self.epoch})}


def append_messages(
    *,
    session_key: str,
    messages: Sequence[Mapping[str, object]],
    by: Actor,
    scope: str | None = None,
    client_id: str | None = None,
    author: str | None = None,
    epoch: int | None = None,
    create: bool = False,
    lenient: bool = False,
    if_busy: str = "reject",
) -> Appended:
    """Store a batch of up to 1,000 plain messages, all or none, with consecutive seqs.

    `client_id` is the idempotency key: a repeated call stores nothing and returns the seqs of the
    first batch. With `epoch`, nothing is stored after a clear or purge. `create` opens the session
    if it is missing, unless `epoch` is given. `lenient` repairs and flags values that the database
    cannot store, instead of refusing them.

    `author`, 1 to 100 characters, is who wrote the messages if it was neither the session's own
    person nor the bot, such as `operator:3`: an id without a name. A redaction keeps it. Only host
    code and operators may give it: TypeError for users and visitors.

    `if_busy` applies while a turn runs, whose rows are consecutive. `reject` raises Busy. `defer`
    accepts the batch and stores it when the turn ends, however it ends: directly after its rows.
    Until then a repeated call returns a duplicate without seqs. A clear, purge or redaction removes
    it; then a repeated call raises HistoryCleared. A turn that only waits defers nothing: the batch
    is stored now, before the message of that turn, which gets its seq when it starts.

    An empty batch stores nothing, not even its `client_id`, also if the session is archived or
    busy. Its `first_seq` is the next seq, one above `last_seq`.

    On PostgreSQL it is one statement outside a transaction. Inside a caller's transaction there is
    only one attempt, and the batch is durable only if that transaction commits.

    Raises BadInput, NotFound, Conflict, HistoryCleared, Archived, Busy, MemoryUnavailable.
    """
    check_own_name(by)
    scope = scope_for(by, scope)
    check_session_key(session_key)
    if if_busy not in BUSY_POLICIES:
        raise BadInput(f"if_busy must be one of {', '.join(BUSY_POLICIES)}.", field="if_busy")
    if len(messages) > MAX_BATCH:
        raise BadInput(
            f"A batch can have at most {MAX_BATCH} messages.", code="too_many", limit=MAX_BATCH
        )
    if author is not None:
        _check_author(author, by)
    batch = _Batch(
        scope=scope,
        key=session_key,
        rows=[
            codec.encode(message, lenient=lenient, field=f"messages[{index}]")
            for index, message in enumerate(messages)
        ],
        client_id=codec.new_client_id() if client_id is None else codec.check_client_id(client_id),
        author=author,
        epoch=epoch,
        is_deferrable=if_busy == "defer",
    )
    return write_or_open(
        partial(_append_batch if batch.rows else _append_nothing, batch),
        session_key=session_key,
        by=by,
        scope=scope,
        epoch=epoch,
        create=create,
    )


def _check_author(author: str, by: Actor) -> None:
    if by.kind in ("user", "visitor"):
        raise TypeError(f"A {by.kind} writes in their own name; pass no author.")
    check_length("author", author, 1, MAX_AUTHOR_CHARS)
    codec.check_value(author, "author")


def _append_batch(batch: _Batch) -> Appended:
    for _ in range(MAX_ATTEMPTS):
        # Most writes succeed, so the reason for a refusal is read only afterwards. The WHERE clause
        # of the write has checked all conditions. But an earlier call may have deferred the batch:
        # if it was removed since, its rows must not return.
        if not batch.is_deferrable and (appended := _insert_batch(batch, waiting=0)):
            return appended
        if appended := _append_by_state(batch):
            return appended
    raise unexplained_refusal(batch.scope, batch.key)


def _insert_batch(batch: _Batch, **only_if: int) -> Appended | None:
    """Store the rows; return None if the session refuses them or the client_id is stored."""
    conditions = {**batch.conditions(), "running": None, **only_if}
    with ignored_duplicate():
        stored = store_rows(
            batch.rows,
            address={"scope": batch.scope, "key": batch.key},
            conditions=conditions,
            only_unexpired=True,
            client_id=batch.client_id,
            author=batch.author,
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


def _append_by_state(batch: _Batch) -> Appended | None:
    """Return the batch of an earlier call, store or defer it, or raise the reason for a refusal.

    Returns None if the reason has ended.
    """
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
    if state.turn is not None and (batch.is_deferrable or state.turn.is_deferred):
        return _replay_deferred(batch, state)
    state.check_open(batch.epoch)
    if state.running is None and not state.waiting:
        return _insert_batch(batch, waiting=0)
    # The run of a dead process would refuse all messages until the next sweep.
    if state.is_overdue and recover_overdue_turn(state.session_pk):
        return None
    if state.running is not None and not batch.is_deferrable:
        raise Busy(turn=state.running)
    return _append_locked(batch)


def _append_locked(batch: _Batch) -> Appended | None:
    """Store the rows behind deferred ones, before the messages of turns that wait; or defer them.

    Returns None if a turn runs and the batch can't be deferred, the session is closed, or the
    client_id is used.
    """
    with ignored_duplicate(), locked_transaction():
        sessions = Session.objects.at(batch.scope, batch.key).filter(**batch.conditions())
        # Locks the session only if it meets the conditions.
        if not sessions.update(fence=F("fence")):
            return None
        session = sessions.get()
        if session.running is None:
            store_deferred(session)
            return _insert_batch(batch)
        if batch.is_deferrable:
            defer(session, batch.client_id, batch.rows, batch.author)
            return _deferred(session.pk, session.epoch, is_duplicate=False)
    return None


def _replay_deferred(batch: _Batch, state: SessionState) -> Appended:
    """Return the deferred batch of an earlier call. Raises Conflict, HistoryCleared."""
    earlier = state.turn
    assert earlier is not None  # noqa: S101  # the caller checked it
    # A redaction empties `asked`.
    if earlier.asked and earlier.asked != codec.encode_batch(batch.rows, batch.author):
        raise Conflict
    if earlier.status != Turn.Status.WAITING or batch.epoch not in (None, state.epoch):
        raise HistoryCleared
    return _deferred(state.session_pk, state.epoch, is_duplicate=True)


def _deferred(session_pk: int, epoch: int, *, is_duplicate: bool) -> Appended:
    return Appended(
        session_pk=session_pk,
        epoch=epoch,
        first_seq=0,
        last_seq=0,
        is_duplicate=is_duplicate,
        is_deferred=True,
    )


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
