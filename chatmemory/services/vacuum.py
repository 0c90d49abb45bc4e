"""Vacuum: deletes what was hidden longer ago than it can be restored."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db.models import Exists, F, Min, OuterRef, Q
from django.db.models.expressions import CombinedExpression

from chatmemory.conf import settings
from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.models import (
    AuditEntry,
    DatabaseNow,
    Message,
    Session,
    SessionQuerySet,
    Turn,
    TurnQuerySet,
)
from chatmemory.services.audit import is_erased
from chatmemory.services.faults import durably
from chatmemory.services.floor import REMOVALS
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.pool import in_pool
from chatmemory.services.walk import walk

CHUNK = 1_000
"""Rows deleted in one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What was deleted."""

    sessions: int = 0
    messages: int = 0
    turns: int = 0
    left: int = 0
    """Sessions that could not be reached; they wait for the next time."""

    def __add__(self, other: Vacuumed) -> Vacuumed:
        return Vacuumed(
            sessions=self.sessions + other.sessions,
            messages=self.messages + other.messages,
            turns=self.turns + other.turns,
            left=self.left + other.left,
        )


def vacuum(*, chunk: int = CHUNK, pause_seconds: float = 0.0, dry_run: bool = False) -> Vacuumed:
    """Delete rows below the floor, purged sessions and forgotten turns older than `UNDO_DAYS`.

    At most `chunk` rows in a transaction, each of one session and under its lock, with a pause
    after each. It can be stopped at any moment and goes on when it is called again. What is on
    hold stays. With `dry_run` nothing is deleted, and the counts are what would be now.
    Raises MemoryUnavailable where not even the sessions can be looked at.
    """
    total = Vacuumed()
    for session_pk in walk(_with_leftovers()):
        planned = durably(partial(_would_go, session_pk), is_repeatable=True)
        if dry_run:
            total += planned
            continue
        is_more = planned != Vacuumed()
        while is_more:
            try:
                done, is_more = vacuum_session(session_pk, chunk)
            except MemoryUnavailable:
                done, is_more = Vacuumed(left=1), False
            total += done
            time.sleep(pause_seconds)
    return total


def vacuum_session(session_pk: int, chunk: int = CHUNK) -> tuple[Vacuumed, bool]:
    """Delete at most `chunk` rows of a session that may go; also return whether more may."""

    def work() -> tuple[Vacuumed, bool]:
        with unit():
            session = lock_pk(session_pk)
            if session.held_at is not None:
                return Vacuumed(), False
            limit = _limit(session)
            upto = min(session.stored_from + chunk, limit)
            messages, turns = _delete_below(session, upto)
            if upto < limit:
                return Vacuumed(messages=messages, turns=turns), True
            is_gone = _is_past(session)
            if is_gone:
                turns += session.turns.all().delete()[0]
                session.delete()
            return Vacuumed(sessions=int(is_gone), messages=messages, turns=turns), False

    try:
        return durably(work, is_repeatable=True)
    except NotFound:
        return Vacuumed(), False


def _with_leftovers() -> SessionQuerySet:
    # Not pk IN (…): PostgreSQL would read all turns there are for each page of the walk.
    forgotten = Turn.objects.filter(_forgotten(), session=OuterRef("pk"))
    return Session.objects.filter(
        Q(stored_from__lt=F("first_seq")) | Q(removed_at__isnull=False) | Exists(forgotten),
        held_at__isnull=True,
    )


def _would_go(session_pk: int) -> Vacuumed:
    session = Session.objects.filter(pk=session_pk).first()
    if session is None:
        return Vacuumed()
    limit = _limit(session)
    is_gone = _is_past(session)
    turns = session.turns.all() if is_gone else _turns_below(session, limit)
    return Vacuumed(
        sessions=int(is_gone), messages=limit - session.stored_from, turns=turns.count()
    )


def _limit(session: Session) -> int:
    """The number below which rows may go: none that can still be restored."""
    if _is_past(session):
        return session.first_seq
    young = AuditEntry.objects.filter(
        session_pk=session.pk, action__in=REMOVALS, created_at__gt=_undo_ends()
    )
    lowest = young.aggregate(lowest=Min("from_seq"))["lowest"]
    return max(session.stored_from, min(session.first_seq, lowest or session.first_seq))


def _is_past(session: Session) -> bool:
    """Whether a session was purged longer ago than it can be restored, or is being erased."""
    if session.removed_at is None:
        return False
    old = Session.objects.filter(pk=session.pk, removed_at__lte=_undo_ends())
    return is_erased(session.pk) or old.exists()


def _delete_below(session: Session, upto: int) -> tuple[int, int]:
    """Needs the lock."""
    turns = _turns_below(session, upto).delete()[0]
    rows = Message.stored.filter(session=session, seq__gte=session.stored_from, seq__lt=upto)
    messages = rows.delete()[0]
    Session.objects.filter(pk=session.pk).update(stored_from=upto)
    return messages, turns


def _turns_below(session: Session, upto: int) -> TurnQuerySet:
    """The ended turns whose user's row goes, and the forgotten ones."""
    below = Q(user_seq__gte=session.stored_from, user_seq__lt=upto)
    return session.turns.filter(below | _forgotten())


def _forgotten() -> Q:
    """A turn that ended without a row, longer ago than anything can be restored."""
    return Q(user_seq__isnull=True, ended_at__lt=_undo_ends())


def _undo_ends() -> CombinedExpression:
    """The time before which a removal can't be undone any more."""
    return DatabaseNow() - timedelta(days=settings.UNDO_DAYS)


avacuum = in_pool(vacuum)
