"""Vacuum: delete rows that have been hidden for longer than `UNDO_DAYS`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial

from django.db.models import Exists, F, Min, OuterRef, Q
from django.db.models.expressions import CombinedExpression

from chatmemory.access.actors import importing_scope
from chatmemory.conf import settings
from chatmemory.database.batches import Progress, check_size, in_batches
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.models import (
    AuditEntry,
    DatabaseNow,
    Job,
    JobItem,
    Message,
    Session,
    SessionQuerySet,
    Turn,
    TurnQuerySet,
)
from chatmemory.services.audit.entries import is_erased
from chatmemory.services.derived.removal import clean_up, delete_all, delete_below
from chatmemory.services.maintenance.records import recorded
from chatmemory.services.maintenance.tasks import Task
from chatmemory.services.removal.deletions import (
    Deletion,
    count_before_deletion,
    prepare_counters,
)
from chatmemory.services.removal.floor import REMOVALS
from chatmemory.services.removal.withdrawal import (
    count_due,
    due_ranges,
    empty_withdrawn,
    forget_withdrawn,
)

CHUNK = 1_000
"""Rows deleted in one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """Number of rows deleted, or to be deleted."""

    sessions: int = 0
    messages: int = 0
    turns: int = 0
    emptied: int = 0
    """Number of withdrawn messages that stay without their content."""
    left: int = 0
    """Number of sessions that were locked or unreachable; call again to process them."""

    def __add__(self, other: Vacuumed) -> Vacuumed:
        return Vacuumed(
            sessions=self.sessions + other.sessions,
            messages=self.messages + other.messages,
            turns=self.turns + other.turns,
            emptied=self.emptied + other.emptied,
            left=self.left + other.left,
        )


def vacuum(
    *,
    chunk: int = CHUNK,
    pause_seconds: float = 0.0,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Vacuumed:
    """Delete rows below the floor, purged sessions, ended turns without rows, after `UNDO_DAYS`.

    Of withdrawn messages above the floor, it deletes the content; see Note [Withdrawn ranges].
    Each transaction deletes at most `chunk` rows of one session under its lock, and a pause
    follows. The call can be interrupted and repeated. Sessions on hold stay. Jobs that ended before
    that time are deleted too. With `dry_run`, nothing is deleted; the counts state what would be
    deleted now. `progress` is called by the counters of optional apps, then with the number of
    sessions that are done, and with their total.
    Raises MemoryUnavailable if the sessions cannot be listed.
    """
    check_size("chunk", chunk)
    if dry_run:
        return _vacuum_all(chunk, pause_seconds, progress, dry_run=True)
    prepare_counters(progress)
    with recorded(Task.VACUUM) as outcome:
        total = _vacuum_all(chunk, pause_seconds, progress)
        outcome.counts, outcome.is_ok = asdict(total), not total.left
    return total


def _vacuum_all(
    chunk: int, pause_seconds: float, progress: Progress | None, *, dry_run: bool = False
) -> Vacuumed:
    total = Vacuumed()
    for session_pk in in_batches(_with_deletable_rows(), progress):
        planned = durably(partial(_count_deletable, session_pk), is_repeatable=True)
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
    if not dry_run:
        while _delete_old_jobs(chunk):
            time.sleep(pause_seconds)
        clean_up()
    return total


def vacuum_session(session_pk: int, chunk: int = CHUNK) -> tuple[Vacuumed, bool]:
    """Delete at most `chunk` deletable rows of a session; also return whether more are left.

    Raises MemoryUnavailable, also if a row that Django does not delete refers to the session.
    """
    try:
        return _vacuum_chunk(session_pk, chunk)
    except NotFound as error:  # of a foreign key: the session itself was found
        raise MemoryUnavailable("A row of another table refers to the session.") from error


@retried(is_repeatable=True)
def _vacuum_chunk(session_pk: int, chunk: int) -> tuple[Vacuumed, bool]:
    with locked_transaction():
        try:
            session = lock_pk(session_pk)
        except NotFound:
            return Vacuumed(), False
        if session.held_at is not None:
            return Vacuumed(), False
        limit = _deletable_below(session)
        up_to = min(session.stored_from + chunk, limit)
        if delete_below(session_pk, up_to, chunk):
            return Vacuumed(), True
        messages, turns = _delete_below(session, up_to)
        if up_to < limit:
            return Vacuumed(messages=messages, turns=turns), True
        if emptied := empty_withdrawn(session, limit, chunk):
            return Vacuumed(messages=messages, turns=turns, emptied=emptied), True
        is_final = _is_unrestorable(session)
        if is_final and delete_all(session_pk, chunk):
            return Vacuumed(messages=messages, turns=turns), True
        if is_final and (extra := _delete_rows_outside_counters(session, chunk)):
            return Vacuumed(messages=messages + extra, turns=turns), True
        if is_final:
            turns += _delete_session(session)
        return Vacuumed(sessions=int(is_final), messages=messages, turns=turns), False


@retried(is_repeatable=True)
def _delete_old_jobs(chunk: int) -> bool:
    """Delete items, or else the jobs, that ended too long ago to be undone; False if none did."""
    old = Job.objects.filter(ended_at__lt=_undo_ends())
    # By primary keys, since not all databases can limit a DELETE.
    pks = list(JobItem.objects.filter(job__in=old).values_list("pk", flat=True)[:chunk])
    with locked_transaction():
        if pks:
            JobItem.objects.filter(pk__in=pks).delete()
            return True
        return bool(old.delete()[0])


def _with_deletable_rows() -> SessionQuerySet:
    # EXISTS and not pk IN (…): for IN, PostgreSQL reads all turns for each batch.
    rowless = Turn.objects.filter(_is_rowless(), session=OuterRef("pk"))
    return Session.objects.filter(
        Q(stored_from__lt=F("first_seq"))
        | Q(removed_at__isnull=False)
        | Exists(rowless)
        | Exists(due_ranges().filter(session=OuterRef("pk"))),
        # `finish_import` counts the turns of an unfinished import.
        ~Q(scope__startswith=importing_scope("")),
        held_at__isnull=True,
    )


def _count_deletable(session_pk: int) -> Vacuumed:
    session = Session.objects.filter(pk=session_pk).first()
    if session is None:
        return Vacuumed()
    limit = _deletable_below(session)
    is_final = _is_unrestorable(session)
    turns = session.turns.all() if is_final else _turns_below(session, limit)
    return Vacuumed(
        sessions=int(is_final),
        messages=limit - session.stored_from,
        turns=turns.count(),
        emptied=count_due(session, limit),
    )


def _deletable_below(session: Session) -> int:
    """Return the seq below which no row can be restored."""
    if _is_unrestorable(session):
        return session.first_seq
    # Undoing one of these would show all rows from its `from_seq` on.
    recent = AuditEntry.objects.filter(
        session_pk=session.pk, action__in=REMOVALS, created_at__gt=_undo_ends()
    )
    lowest = recent.aggregate(lowest=Min("from_seq"))["lowest"]
    return max(session.stored_from, min(session.first_seq, lowest or session.first_seq))


def _is_unrestorable(session: Session) -> bool:
    """Return whether a session was purged more than `UNDO_DAYS` ago, or is being erased."""
    if session.removed_at is None:
        return False
    old = Session.objects.filter(pk=session.pk, removed_at__lte=_undo_ends())
    return is_erased(session.pk) or old.exists()


def _delete_session(session: Session) -> int:
    """Delete a session without messages, and return the number of its turns. Needs the lock."""
    turns = session.turns.all()
    itself = Session.objects.filter(pk=session.pk)
    count_before_deletion(Deletion(turns=turns, feedback=session.feedback.all(), sessions=itself))
    deleted: int = turns.delete()[0]
    session.delete()
    return deleted


def _delete_below(session: Session, up_to: int) -> tuple[int, int]:
    """Delete stored rows below `up_to` and their turns. Needs the lock."""
    turns = _turns_below(session, up_to)
    # The lower bound skips the index entries of rows that earlier chunks deleted.
    rows = Message.stored.filter(session=session, seq__gte=session.stored_from, seq__lt=up_to)
    count_before_deletion(Deletion(turns=turns, messages=rows))
    deleted = turns.delete()[0]
    # The value stays: see Note [Feedback].
    below = Q(user_seq__gte=session.stored_from, user_seq__lt=up_to)
    session.feedback.filter(below).exclude(reason="").update(reason="")
    messages = rows.delete()[0]
    if session.superseded_to >= session.stored_from:
        forget_withdrawn(session, up_to)
    Session.objects.filter(pk=session.pk).update(stored_from=up_to)
    return messages, deleted


def _delete_rows_outside_counters(session: Session, chunk: int) -> int:
    """Delete rows outside of a damaged session's counters. Needs the lock."""
    # By primary keys, since not all databases can limit a DELETE.
    stored = Message.stored.filter(session=session)
    pks = list(stored.values_list("pk", flat=True)[:chunk])
    if not pks:
        return 0
    rows = stored.filter(pk__in=pks)
    count_before_deletion(Deletion(messages=rows))
    deleted: int = rows.delete()[0]
    return deleted


def _turns_below(session: Session, up_to: int) -> TurnQuerySet:
    """Return the ended turns whose user row is deleted, or that have no rows."""
    below = Q(user_seq__gte=session.stored_from, user_seq__lt=up_to)
    return session.turns.filter(below | _is_rowless())


def _is_rowless() -> Q:
    """Return a condition on turns: ended without a row, more than `UNDO_DAYS` ago."""
    return Q(user_seq__isnull=True, ended_at__lt=_undo_ends())


def _undo_ends() -> CombinedExpression:
    """Return the time before which a removal can no longer be undone."""
    return DatabaseNow() - timedelta(days=settings.UNDO_DAYS)
