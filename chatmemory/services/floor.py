"""Floor and epoch: what hides rows, and what fences off who began before."""

from __future__ import annotations

from dataclasses import asdict, dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTurns:
    """Text that was in no row when its turn was ended."""

    waiting: int = 0
    """Cancelled turns whose user's message was not yet stored."""
    partial_chars: int = 0
    """Length of the partial text of the running turn."""

    def counts(self) -> dict[str, int]:
        """For the audit: without the zeros."""
        return {name: count for name, count in asdict(self).items() if count}


def move_floor(
    session: Session,
    floor: int,
    action: str,
    by: Actor,
    reason: str,
    ended: EndedTurns = EndedTurns(),  # it is immutable
) -> AuditEntry:
    """Hide the rows below `floor` and record it, with the turns that were ended. Needs the lock."""
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
    session.first_seq = floor
    Session.objects.filter(pk=session.pk).update(first_seq=floor, revision=F("revision") + 1)
    tell(session.pk)
    return entry


def move_epoch(session: Session) -> EndedTurns:
    """Fence off all earlier writers, end the running turn, cancel the waiting ones. Needs the lock.

    Their `asked` and `partial` stay until the vacuum, so that a restore can show them again.
    """
    waiting = partial_chars = 0
    for turn in session.turns.filter(status__in=LIVE):
        is_running = turn.status == Turn.Status.RUNNING
        waiting += turn.user_seq is None
        partial_chars += len(turn.partial)
        status = Turn.Status.INTERRUPTED if is_running else Turn.Status.CANCELLED
        # As they are by now: a run saves its partial text without the session's lock.
        _end(session, turn, status, asked=F("asked"), partial=F("partial"))
    Session.objects.filter(pk=session.pk).update(
        epoch=F("epoch") + 1, fence=F("fence") + 1, running=None, waiting=0
    )
    session.running, session.waiting = None, 0
    return EndedTurns(waiting=waiting, partial_chars=partial_chars)


def cancel_waiting(session: Session) -> None:
    """Cancel the turns that are not begun; one that was given back stays. Needs the lock."""
    for turn in session.turns.waiting():
        if turn.client_id != session.running:
            _end(session, turn, Turn.Status.CANCELLED)
    Session.objects.filter(pk=session.pk).update(waiting=0)
    session.waiting = 0


def _end(session: Session, turn: Turn, status: str, **columns: F) -> None:
    session.turns.filter(pk=turn.pk).end(status, fence=F("fence") + 1, **columns)
    tell_finished(session.pk, turn.client_id, status, "")


def mark_removed(session: Session) -> None:
    """Take the session's address from it, so that its key is free. Needs the lock."""
    session.removed_scope, session.scope = session.scope, removed(session.pk)
    Session.objects.filter(pk=session.pk).update(
        removed_scope=session.removed_scope, scope=session.scope, removed_at=DatabaseNow()
    )
