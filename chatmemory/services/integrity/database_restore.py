"""Make a database usable after it was restored from a backup.

Clients and runs know rows that are missing in the backup, and the database assigns their primary
keys, seqs and fences again. A new epoch for each session rejects every earlier run, writer and
cursor. See Note [Floor and epoch].
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass

from django.db.models import F

from chatmemory.access.actors import Actor
from chatmemory.database.after_commit import announce_change
from chatmemory.database.batches import Progress, batches, check_size, count_of
from chatmemory.database.locks import lock_all, lock_pk, locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.models import AuditAction, Session, Turn
from chatmemory.services.audit.entries import check_reason, record_person
from chatmemory.services.derived.removal import delete_restored
from chatmemory.services.erasure.past_erasures import Replayed, replay_erasures
from chatmemory.services.removal.floor import cancel_waiting
from chatmemory.services.turns.endings import cancel_turn, interrupt_turn, requeue_turn

BATCH_SIZE = 100
"""Default and maximum number of idle sessions locked in one transaction."""

MIN_JUMP = 2**20
"""More than the number of clears and purges between the backup and its restore."""

JUMP_RANGE = 2**36
"""So large that two restores of one backup do not give the same epoch. An epoch starts below 2**40,
so it stays below JavaScript's 2**53 for 100,000 restores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredSessions:
    """Counts of a recovery after a database restore."""

    sessions: int
    """Sessions with a new epoch."""
    interrupted: int
    """Started turns that were ended."""
    cancelled: int
    """Turns that were cancelled while they waited."""
    kept: int
    """Turns that still wait."""
    failed: int
    """Sessions that stayed locked; call `recover_restored_database` again."""
    erasures: Replayed


def recover_restored_database(
    *,
    by: Actor,
    reason: str,
    keep_waiting: bool = False,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> RecoveredSessions:
    """Reject all writers from before the restore, then repeat the erasures on the erasure list.

    Each session gets a new epoch, so its clients are reset and no earlier run can write. Running
    turns end as interrupted. Waiting turns are cancelled, unless `keep_waiting` is set. One
    transaction locks up to `batch_size` idle sessions, which is at most 100. If the call is
    interrupted, repeat it: a repeated call only resets the clients again. `progress` is called with
    the number of sessions that are done, and with their total.
    Raises BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    check_size("batch_size", batch_size, maximum=BATCH_SIZE)
    counts: Counter[str] = Counter()
    total = count_of(Session.objects.all()) if progress else 0
    done = 0
    for pks in batches(Session.objects.all(), batch_size):
        counts += _recover_batch(pks, keep_waiting=keep_waiting)
        done += len(pks)
        if progress is not None:
            progress(done, total)
    about = {name: counts[name] for name in ("sessions", "interrupted", "cancelled", "failed")}
    durably(
        lambda: record_person("", AuditAction.DATABASE_RESTORED, by, reason, **about),
        is_repeatable=False,
    )
    erasures = replay_erasures(by=by, reason=reason)
    return RecoveredSessions(kept=counts["kept"], erasures=erasures, **about)


def _recover_batch(pks: list[int], *, keep_waiting: bool) -> Counter[str]:
    try:
        moved = set(_move_idle(pks))
    except MemoryUnavailable:  # one of them is locked, so each is recovered separately
        moved = set()
    counts = Counter(sessions=len(moved))
    for session_pk in pks:
        if session_pk not in moved:
            try:
                counts += _recover_one(session_pk, keep_waiting=keep_waiting)
            except NotFound:  # deleted meanwhile
                continue
            except MemoryUnavailable:
                counts["failed"] += 1
    return counts


@retried(is_repeatable=True)
def _move_idle(pks: list[int]) -> list[int]:
    """Give the idle ones of these sessions a new epoch; return their primary keys.

    No change is announced: one notification a session would overload the channel layer. The next
    sweep of each process finds the new epochs.
    """
    with locked_transaction():
        idle = Session.objects.filter(pk__in=pks, running__isnull=True, waiting=0)
        locked = lock_all(idle)
        _move_epochs(locked)
        return locked


@retried(is_repeatable=True)
def _recover_one(session_pk: int, *, keep_waiting: bool) -> Counter[str]:
    with locked_transaction():
        session = lock_pk(session_pk)
        counts = _end_running(session, keep_waiting=keep_waiting)
        if keep_waiting:
            counts["kept"] += session.waiting
        else:
            before = session.waiting
            cancel_waiting(session)
            counts["cancelled"] += before - session.waiting
        _move_epochs([session_pk])
        announce_change(session_pk)
        return counts + Counter(sessions=1)


def _end_running(session: Session, *, keep_waiting: bool) -> Counter[str]:
    """End or keep the turn in `session.running`; return the count. Needs the session's lock."""
    # Note [Fence]: a run's start is written without the session's lock, so the turn is locked too.
    turn = session.turns.filter(client_id=session.running).select_for_update().first()
    if turn is None:
        return Counter()
    if turn.status == Turn.Status.RUNNING and (turn.started_at or not keep_waiting):
        interrupt_turn(session, turn)
        return Counter(interrupted=1)
    if turn.status == Turn.Status.RUNNING:  # claimed, but not started: the model was not called
        requeue_turn(session, turn)
    elif not keep_waiting and cancel_turn(session, turn.client_id):
        return Counter(cancelled=1)
    return Counter(kept=1)


def _move_epochs(pks: list[int]) -> None:
    """Give sessions a new epoch. Needs their locks."""
    delete_restored(pks)
    jump = MIN_JUMP + secrets.randbelow(JUMP_RANGE)
    Session.objects.filter(pk__in=pks).update(
        epoch=F("epoch") + jump, fence=F("fence") + 1, revision=F("revision") + 1
    )
