"""Move floor and epoch: hide rows, and reject writers that started before."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from django.db.models import F

from chatmemory.access.actors import Actor, purged_scope
from chatmemory.access.addresses import Address
from chatmemory.database.after_commit import announce_change, announce_finished
from chatmemory.errors import Held
from chatmemory.models import AuditAction, AuditEntry, DatabaseNow, Session, Turn
from chatmemory.services.audit.entries import record
from chatmemory.services.derived.removal import hide_rows

# Note [Floor and epoch]
#
# A removal moves the session's floor (`first_seq`) up and deletes no row. So it updates one row,
# whatever the number of messages, and a restore can move the floor down again. Every read starts
# at the floor. Vacuum deletes the rows between `stored_from` and the floor after `UNDO_DAYS`.
#
# The floor alone does not stop a writer that read the history before: it would store its reply
# after the removal, as if nothing had been removed. So clear and purge also change the epoch, and
# with it end the running turn and cancel the waiting ones, in the same transaction. A writer, run
# or cursor that started in an older epoch is rejected. A trim keeps the epoch, since it never hides
# a row of the running turn.

REMOVALS = (AuditAction.TRIM, AuditAction.CLEAR, AuditAction.PURGE)
"""The actions that move the floor up."""


def lock_for_removal(address: Address) -> Session:
    """Lock a session from which the caller removes. Needs a transaction.

    With `session_pk`, a newer session under the same key is NotFound. Raises BadInput, Held too.
    """
    session = address.lock()
    check_held(session)
    return session


def check_held(session: Session) -> None:
    """Refuse a removal from a session on hold. Needs the lock. Raises Held."""
    if session.held_at is not None:
        raise Held


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstoredText:
    """Text of ended turns that no message contains."""

    waiting: int = 0
    """Number of cancelled turns whose user message was not stored as a row."""
    partial_chars: int = 0
    """Length of the running turn's partial text."""

    def counts(self) -> dict[str, int]:
        """Return the counts for the audit entry, without zeros."""
        return {name: count for name, count in asdict(self).items() if count}


def move_floor(
    session: Session,
    floor: int,
    action: AuditAction,
    by: Actor,
    reason: str,
    *,
    ended: UnstoredText = UnstoredText(),  # immutable, so it is a safe default
) -> AuditEntry:
    """Hide the rows below `floor`, and record this and the ended turns. Needs the lock."""
    entry = record(
        session,
        action,
        by,
        reason,
        from_seq=session.first_seq,
        to_seq=floor - 1,
        messages=floor - session.first_seq,
        **ended.counts(),
    )
    hide_rows(session.pk, session.first_seq, floor - 1)
    session.first_seq = floor
    Session.objects.filter(pk=session.pk).update(first_seq=floor, revision=F("revision") + 1)
    announce_change(session.pk)
    return entry


def move_epoch(session: Session) -> UnstoredText:
    """Reject earlier writers, end the running turn, cancel the waiting ones. Needs the lock.

    `asked` and `partial` of these turns stay until vacuum, so that a restore shows them again.
    """
    waiting = partial_chars = 0
    for turn in session.turns.filter(status__in=Turn.ACTIVE_STATUSES):
        is_running = turn.status == Turn.Status.RUNNING
        waiting += turn.user_seq is None
        partial_chars += len(turn.partial)
        status = Turn.Status.INTERRUPTED if is_running else Turn.Status.CANCELLED
        # By F(): a run saves its partial text without the session's lock, so it may be newer now.
        end_turn(session, turn, status, asked=F("asked"), partial=F("partial"))
    Session.objects.filter(pk=session.pk).update(
        epoch=F("epoch") + 1, fence=F("fence") + 1, running=None, waiting=0
    )
    session.running, session.waiting = None, 0
    return UnstoredText(waiting=waiting, partial_chars=partial_chars)


def cancel_waiting(session: Session) -> None:
    """Cancel the waiting turns, except one that returned to the queue. Needs the lock.

    Deferred messages stay: they were accepted. See Note [Deferred messages].
    """
    for turn in session.turns.waiting():
        if turn.client_id != session.running:
            end_turn(session, turn, Turn.Status.CANCELLED)
    session.waiting = session.turns.deferred().count() if session.waiting else 0
    Session.objects.filter(pk=session.pk).update(waiting=session.waiting)


def end_turn(session: Session, turn: Turn, status: str, **columns: F) -> None:
    """End an active turn without a row. Needs the lock."""
    session.turns.filter(pk=turn.pk).mark_ended(status, fence=F("fence") + 1, **columns)
    announce_finished(session.pk, turn.client_id, status, "")


def mark_removed(session: Session) -> None:
    """Move the session to an internal scope, so that its key is free. Needs the lock."""
    session.removed_scope, session.scope = session.scope, purged_scope(session.pk)
    Session.objects.filter(pk=session.pk).update(
        removed_scope=session.removed_scope, scope=session.scope, removed_at=DatabaseNow()
    )
