"""Floor and epoch: what hides rows, and what fences off who began before."""

from __future__ import annotations

from django.db.models import F

from chatmemory.errors import Held
from chatmemory.models import AuditEntry, DatabaseNow, Session, Turn
from chatmemory.services.actors import Actor, removed
from chatmemory.services.audit import record
from chatmemory.services.news import tell, tell_finished

REMOVALS = ("trim", "clear", "purge")
"""The acts that move the floor up, as the audit names them."""

LIVE = (Turn.Status.WAITING, Turn.Status.RUNNING)


def check_held(session: Session) -> None:
    """See that nothing holds the session. Needs the lock. Raises Held."""
    if session.held_at is not None:
        raise Held


def move_floor(session: Session, floor: int, action: str, by: Actor, reason: str) -> AuditEntry:
    """Hide what is below `floor`. Needs the lock."""
    entry = record(
        session,
        action,
        by,
        reason,
        from_seq=session.first_seq,
        to_seq=floor - 1,
        messages=floor - session.first_seq,
    )
    session.first_seq = floor
    Session.objects.filter(pk=session.pk).update(first_seq=floor, revision=F("revision") + 1)
    tell(session.pk)
    return entry


def move_epoch(session: Session) -> None:
    """Fence off who began before: the running turn ends, the waiting ones too. Needs the lock."""
    for turn in session.turns.filter(status__in=LIVE):
        was_running = turn.status == Turn.Status.RUNNING
        _end(session, turn, Turn.Status.INTERRUPTED if was_running else Turn.Status.CANCELLED)
    Session.objects.filter(pk=session.pk).update(
        epoch=F("epoch") + 1, fence=F("fence") + 1, running=None, waiting=0
    )
    session.running, session.waiting = None, 0


def cancel_waiting(session: Session) -> None:
    """Cancel the turns that are not begun; one that was given back stays. Needs the lock."""
    for turn in session.turns.waiting():
        if turn.client_id != session.running:
            _end(session, turn, Turn.Status.CANCELLED)
    Session.objects.filter(pk=session.pk).update(waiting=0)
    session.waiting = 0


def _end(session: Session, turn: Turn, status: str) -> None:
    session.turns.filter(pk=turn.pk).end(status, fence=F("fence") + 1)
    tell_finished(session.pk, turn.client_id, status, "")


def mark_removed(session: Session) -> None:
    """Take the session's address from it, so that its key is free. Needs the lock."""
    session.removed_scope, session.scope = session.scope, removed(session.pk)
    Session.objects.filter(pk=session.pk).update(
        removed_scope=session.removed_scope, scope=session.scope, removed_at=DatabaseNow()
    )
