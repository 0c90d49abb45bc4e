"""Recover turns of processes that died, paused or are about to exit."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from dataclasses import dataclass

from django.db.models import Case, F, When

from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.logs import log_error
from chatmemory.models import Turn, TurnQuerySet
from chatmemory.services.turns.endings import end_or_requeue

logger = logging.getLogger(__name__)

BATCH_SIZE = 100
"""Default number of overdue turns that one statement reads."""

FAILED = "failed"
"""The outcome of a turn that could not be recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredTurns:
    """Counts of overdue turns by outcome."""

    interrupted: int
    """Started turns."""
    requeued: int
    """Unstarted turns, which wait again."""
    cancelled: int
    """Unstarted turns for which a stop was requested."""
    failed: int
    """Turns that could not be recovered; the log states the reason."""
    is_all: bool = True
    """Fewer than `limit` turns were overdue, so none was left out."""


def recover_overdue_turn(session_pk: int) -> bool:
    """End or requeue the running turn of a session after its lease ended.

    Returns False if the session has no overdue turn. A started turn ends as interrupted, with its
    saved partial text. An unstarted one waits again, first in the queue, or is cancelled if a stop
    was requested. No turn is rerun automatically. Raises NotFound, MemoryUnavailable.
    """
    return _recover(session_pk) is not None


def recover_all_overdue_turns(
    *, limit: int | None = None, skip: int = 0, batch_size: int = BATCH_SIZE
) -> RecoveredTurns:
    """End or requeue the overdue turns of all sessions, at most `limit` of them.

    The newest come first, damaged ones last. `skip` is the number of turns to leave out, such as
    turns that failed before. One statement reads `batch_size` turns. Never waits for a lock: a turn
    of a locked session counts as failed.
    Raises MemoryUnavailable if the overdue turns cannot be read.
    """
    counts: Counter[str | None] = Counter()
    left = sys.maxsize if limit is None else limit
    while batch := _read_overdue(skip, min(left, batch_size)):
        outcomes = Counter(_recover_or_log(session_pk, is_named) for session_pk, is_named in batch)
        counts += outcomes
        skip += outcomes[FAILED]  # they are still overdue, so the next batch would start with them
        left -= len(batch)
    return RecoveredTurns(
        interrupted=counts[Turn.Status.INTERRUPTED],
        requeued=counts[Turn.Status.WAITING],
        cancelled=counts[Turn.Status.CANCELLED],
        failed=counts[FAILED],
        is_all=left > 0,
    )


def requeue_unstarted_turns(*, owner: str) -> int:
    """Requeue the turns that a process claimed and did not start; return their number.

    Other processes can run them immediately. A turn that cannot be requeued now is recovered when
    its lease ends. Raises MemoryUnavailable if the turns cannot be read.
    """
    requeued = 0
    for session_pk in _read_unstarted(owner):
        try:
            requeued += _requeue_unstarted(session_pk, owner)
        except (MemoryUnavailable, NotFound) as error:  # the session is locked, or was deleted
            logger.warning("the claim of session %s is not requeued: %s", session_pk, error.code)
    return requeued


def _recover_or_log(session_pk: int, is_named: bool) -> str | None:
    """Recover a turn; return its new status, FAILED, or None if another process was first."""
    if not is_named:
        logger.warning(
            "the overdue turn of session %s cannot be ended, since the session does not name "
            "it; run chatmemory_check --fix",
            session_pk,
        )
        return FAILED
    try:
        return _recover(session_pk, nowait=True)
    except (MemoryUnavailable, NotFound) as error:  # the session is locked, or was deleted
        logger.warning("the overdue turn of session %s is postponed: %s", session_pk, error.code)
    except Exception as error:  # one damaged session must not prevent the recovery of the others
        log_error(logger, "the overdue turn of session %s cannot be ended", session_pk, error=error)
    return FAILED


@retried(is_repeatable=True)
def _recover(session_pk: int, *, nowait: bool = False) -> str | None:
    """Return the new status of the overdue turn; None if no turn is overdue."""
    with locked_transaction():
        session = lock_pk(session_pk, nowait=nowait)
        # Note [Fence]: a run's start and lease are written without the session's lock, so the turn
        # is locked too. Otherwise a paused process could renew the lease after this check.
        turns = session.turns.overdue().filter(client_id=session.running)
        turn = turns.select_for_update(nowait=nowait).first()
        return None if turn is None else end_or_requeue(session, turn)


@retried(is_repeatable=True)
def _requeue_unstarted(session_pk: int, owner: str) -> bool:
    with locked_transaction():
        session = lock_pk(session_pk)
        # Note [Fence]: a run's start is written without the session's lock, so the turn is locked.
        turns = _unstarted(owner).filter(session=session, client_id=session.running)
        turn = turns.select_for_update().first()
        if turn is None:
            return False
        end_or_requeue(session, turn)
        return True


@retried(is_repeatable=True)
def _read_overdue(skip: int, limit: int) -> list[tuple[int, bool]]:
    """Return the sessions of overdue turns, and whether the session names the turn."""
    is_named = Case(When(client_id=F("session__running"), then=True), default=False)
    turns = Turn.objects.overdue().annotate(is_named=is_named).order_by("-is_named", "-pk")
    return list(turns.values_list("session_id", "is_named")[skip : skip + limit])


@retried(is_repeatable=True)
def _read_unstarted(owner: str) -> list[int]:
    return list(_unstarted(owner).values_list("session_id", flat=True))


def _unstarted(owner: str) -> TurnQuerySet:
    return Turn.objects.filter(
        lease_owner=owner, status=Turn.Status.RUNNING, started_at__isnull=True
    )


arequeue_unstarted_turns = in_pool(requeue_unstarted_turns)
