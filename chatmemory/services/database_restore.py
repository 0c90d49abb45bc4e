"""The time after a database was restored: it knows less than clients and runs do.

Rows, primary keys, fences and epochs are those of an earlier moment and are assigned again. A new
epoch for each session fences off every run, writer and cursor from before.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from functools import partial

from django.db.models import F

from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.models import Session, Turn
from chatmemory.services.actors import Actor
from chatmemory.services.audit import check_reason, record_person
from chatmemory.services.ends import cancel, give_back, interrupt
from chatmemory.services.erasure import Replayed, replay_erasures
from chatmemory.services.faults import durably
from chatmemory.services.floor import cancel_waiting
from chatmemory.services.locks import lock_all, lock_pk, unit
from chatmemory.services.news import tell
from chatmemory.services.pool import in_pool
from chatmemory.services.walk import pages

ACTION = "db_restored"
"""The action of the entry in the audit."""

BATCH = 100
"""Idle sessions locked in one transaction."""

MIN_JUMP = 2**20
"""More than the clears and purges that the lost time can have had."""

JUMP_RANGE = 2**36
"""Large, so that no two restores of one backup give the same epoch. An epoch starts below 2**40, so
it stays below JavaScript's 2**53 for 100,000 restores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredSessions:
    """What was done after a restore."""

    sessions: int
    """Sessions that have a new epoch."""
    interrupted: int
    """Running turns that ended."""
    cancelled: int
    """Waiting turns that ended."""
    kept: int
    """Waiting turns that still wait."""
    failed: int
    """Sessions that stayed locked; call again."""
    erasures: Replayed


def recover_restored_database(
    *, by: Actor, reason: str, keep_waiting: bool = False
) -> RecoveredSessions:
    """Fence off all that began before the database was restored, then repeat the listed erasures.

    Each session gets a new epoch, so its clients are reset and no earlier run can write. Running
    turns end as interrupted. Waiting turns are cancelled, or wait on with `keep_waiting`. After an
    interruption call it again; a further call only resets the clients again.
    Raises BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    counts: Counter[str] = Counter()
    for pks in pages(Session.objects.all(), BATCH):
        counts += _recover_batch(pks, keep_waiting=keep_waiting)
    about = {name: counts[name] for name in ("sessions", "interrupted", "cancelled", "failed")}
    durably(lambda: record_person("", ACTION, by, reason, **about), is_repeatable=False)
    erasures = replay_erasures(by=by, reason=reason)
    return RecoveredSessions(kept=counts["kept"], erasures=erasures, **about)


def _recover_batch(pks: list[int], *, keep_waiting: bool) -> Counter[str]:
    try:
        moved = set(durably(partial(_move_idle, pks), is_repeatable=True))
    except MemoryUnavailable:  # one of them is locked
        moved = set()
    counts = Counter(sessions=len(moved))
    for session_pk in pks:
        if session_pk not in moved:
            recover = partial(_recover_one, session_pk, keep_waiting=keep_waiting)
            try:
                counts += durably(recover, is_repeatable=True)
            except NotFound:  # deleted by now
                continue
            except MemoryUnavailable:
                counts["failed"] += 1
    return counts


def _move_idle(pks: list[int]) -> list[int]:
    """Give the idle ones of these sessions a new epoch; return which they are.

    Open sockets learn of it by the next sweep: a hint for each session would flood the layer.
    """
    with unit():
        idle = Session.objects.filter(pk__in=pks, running__isnull=True, waiting=0)
        locked = lock_all(idle)
        _move_epochs(locked)
        return locked


def _recover_one(session_pk: int, *, keep_waiting: bool) -> Counter[str]:
    with unit():
        session = lock_pk(session_pk)
        counts = _end_running(session, keep_waiting=keep_waiting)
        if keep_waiting:
            counts["kept"] += session.waiting
        else:
            counts["cancelled"] += session.waiting
            cancel_waiting(session)
        _move_epochs([session_pk])
        tell(session_pk)
        return counts + Counter(sessions=1)


def _end_running(session: Session, *, keep_waiting: bool) -> Counter[str]:
    """End the turn that the session names, if it has one. Needs the lock."""
    turn = session.turns.filter(client_id=session.running).first() if session.running else None
    if turn is None:
        return Counter()
    if turn.status == Turn.Status.RUNNING and (turn.started_at or not keep_waiting):
        interrupt(session, turn)
        return Counter(interrupted=1)
    if turn.status == Turn.Status.RUNNING:  # claimed, and the model was not called
        give_back(session, turn)
    elif not keep_waiting and cancel(session, turn.client_id):
        return Counter(cancelled=1)
    return Counter(kept=1)


def _move_epochs(pks: list[int]) -> None:
    """Needs the locks."""
    jump = MIN_JUMP + secrets.randbelow(JUMP_RANGE)
    Session.objects.filter(pk__in=pks).update(
        epoch=F("epoch") + jump, fence=F("fence") + 1, revision=F("revision") + 1
    )


arecover_restored_database = in_pool(recover_restored_database)
