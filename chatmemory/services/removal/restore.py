"""Restore: undo a removal while its rows are still stored, and list what can be restored."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from chatmemory.access.actors import Actor, owner_of, scope_for
from chatmemory.access.addresses import lock_stored_session
from chatmemory.access.rates import can_pin
from chatmemory.conf import settings
from chatmemory.database.after_commit import announce_change
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import Busy, ChatMemoryError, Conflict, Forbidden, NotFound
from chatmemory.models import AuditAction, AuditEntry, DatabaseNow, Session, StatementNow, start_of
from chatmemory.services.audit.entries import (
    MAX_ACTOR_CHARS,
    check_reason,
    is_by,
    is_erased,
    record,
)
from chatmemory.services.removal.floor import REMOVALS, move_epoch
from chatmemory.services.removal.hide import purge_expired
from chatmemory.services.removal.withdrawal import restore_rows, why_not_restorable

UNDOABLE = (*REMOVALS, AuditAction.WITHDRAW)
"""The actions that a restore undoes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What a restore would do now."""

    session_pk: int
    messages: int
    """Number of messages that become visible again."""
    undoes: list[AuditEntry]
    """The removals to undo: this one and all later ones, oldest first."""
    moves_epoch: bool
    """Whether writers that started before are rejected afterwards."""
    refusal: ChatMemoryError | None
    """The error that the restore would raise; None if it would succeed."""


@retried(is_repeatable=False)
def restore_session(
    *, entry_pk: int, by: Actor, reason: str, scope: str | None = None
) -> AuditEntry:
    """Undo the trim, clear or purge of this audit entry, and all later ones; or its withdrawal.

    A purged session gets its key back, and its pin, unless 100 others are pinned now. If it has
    expired, or its user was deleted, it expires `UNDO_DAYS` from now. Undoing a clear or purge
    changes the epoch.
    Users and visitors can undo only their own removals: NotFound if another actor made this
    removal, Forbidden if another actor made a later one that would be undone too.
    Raises NotFound, Forbidden, Conflict (restored before, deleted permanently, or the key is used
    by another session), Busy (a clear or purge would be undone while a turn runs), BadInput,
    MemoryUnavailable.
    """
    check_reason(reason)
    entry = _removal(entry_pk, by)
    session = _find_session(entry, by, scope)
    free_address(session, entry, by)
    with ignored_duplicate(), locked_transaction():
        session = lock_stored_session(session.pk, by, scope)
        plan = _plan(session, entry, by)
        if plan.refusal is not None:
            raise plan.refusal
        restore = _restore_withdrawn if entry.action == AuditAction.WITHDRAW else _restore_floor
        return restore(session, entry, plan, by, reason)
    raise _key_used()  # by a session that was opened after the plan


def free_address(session: Session, entry: AuditEntry, by: Actor) -> None:
    """Purge an expired session that uses the address to which a restore returns this one.

    In a transaction of its own, since a transaction removes from one session only.
    """
    if session.removed_at is not None and _plan(session, entry, by).refusal is None:
        with locked_transaction():
            purge_expired(session.removed_scope, session.key)


@retried(is_repeatable=True)
def preview_restore(*, entry_pk: int, by: Actor, scope: str | None = None) -> Restoration:
    """Return what a restore would do now, or why it is refused. Raises NotFound."""
    entry = _removal(entry_pk, by)
    return _plan(_find_session(entry, by, scope), entry, by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A purged session that can be restored."""

    entry_pk: int
    """The audit entry of the purge, for `restore_session`."""
    key: str
    title: str
    text: str
    """The beginning of its first user message, up to 200 characters."""
    messages: int
    """Number of messages that the purge has hidden."""
    removed_at: datetime
    until: datetime
    """When vacuum may delete it."""


def undo_until(entry: AuditEntry) -> datetime:
    """Return until when a removal can be restored; after that, vacuum may delete the rows."""
    return entry.created_at + timedelta(days=settings.UNDO_DAYS)


@retried(is_repeatable=True)
def list_removed(
    *, by: Actor, scope: str | None = None, before: int | None = None, limit: int = 50
) -> list[Removed]:
    """Return the sessions that this actor purged and that can be restored, the last one first.

    A page starts after the `entry_pk` in `before`; it is empty if that is no entry of this actor.
    Raises BadInput, MemoryUnavailable.
    """
    session = Session.objects.filter(
        pk=OuterRef("session_pk"),
        removed_scope=scope_for(by, scope),
        stored_from__lte=Coalesce(OuterRef("from_seq"), 1),
    )
    later = AuditEntry.objects.filter(
        session_pk=OuterRef("session_pk"),
        pk__gt=OuterRef("pk"),
        action__in=(AuditAction.PURGE, AuditAction.RESTORE, AuditAction.ERASE),
    )
    actor = by.responsible
    own = AuditEntry.objects.filter(actor_kind=actor.kind, actor_id=actor.id[:MAX_ACTOR_CHARS])
    # By time, as the index `chatmemory_audit_actor`: by primary key, PostgreSQL reads the
    # entries of all actors.
    oldest = StatementNow() - timedelta(days=settings.UNDO_DAYS)
    purges = own.filter(~Exists(later), action=AuditAction.PURGE, created_at__gt=oldest)
    if before is not None:
        at = Subquery(own.filter(pk=before).values("created_at")[:1])
        purges = purges.filter(created_at__lte=at).exclude(created_at=at, pk__gte=before)
    found = purges.annotate(
        key=Subquery(session.values("key")),
        title=Subquery(session.values("title")),
        text=start_of(OuterRef("session_pk"), Coalesce(OuterRef("from_seq"), 1)),
    ).filter(key__isnull=False)
    return [
        Removed(
            entry_pk=entry.pk,
            key=entry.key,
            title=entry.title,
            text=entry.text or "",
            messages=entry.counts["messages"],
            removed_at=entry.created_at,
            until=undo_until(entry),
        )
        for entry in found.order_by("-created_at", "-pk")[:limit]
    ]


def _removal(entry_pk: int, by: Actor) -> AuditEntry:
    """Return the entry of a removal. Raises NotFound, also for a person who did not make it."""
    entries = AuditEntry.objects.filter(pk=entry_pk, action__in=UNDOABLE)
    entry = durably(entries.first, is_repeatable=True)
    if entry is None or not _may_undo(by, entry):
        raise NotFound("No removal has this audit entry.")
    return entry


def _find_session(entry: AuditEntry, by: Actor, scope: str | None) -> Session:
    sessions = Session.objects.of_scopes(scope_for(by, scope))
    session = sessions.filter(pk=entry.session_pk or 0).first()
    if session is None:
        raise NotFound
    return session


def _plan(session: Session, entry: AuditEntry, by: Actor) -> Restoration:
    start = _start_of(entry)
    if entry.action == AuditAction.WITHDRAW:
        problem = why_not_restorable(session, start, entry.to_seq or start)
        if problem is None and entry not in not_undone(removal_actions(session.pk)):
            problem = Conflict("This removal was already undone.")  # and a later one made
        return Restoration(
            session_pk=session.pk,
            messages=entry.counts["messages"],
            undoes=[entry],
            moves_epoch=False,
            refusal=problem,
        )
    undoes = [found for found in effective_removals(session.pk) if found.pk >= entry.pk]
    moves_epoch = any(found.action != AuditAction.TRIM for found in (entry, *undoes))
    refusal: ChatMemoryError | None = None
    if not all(_may_undo(by, found) for found in undoes):
        refusal = Forbidden("Only an operator can undo a removal by another person.")
    elif is_erased(session.pk) or start < session.stored_from:
        refusal = Conflict("These messages were deleted permanently.")
    elif not undoes:
        refusal = Conflict("This removal was already undone.")
    elif moves_epoch and session.running is not None:
        refusal = Busy(turn=session.running)
    elif session.removed_at is not None and _is_address_used(session):
        refusal = _key_used()
    return Restoration(
        session_pk=session.pk,
        messages=session.first_seq - start if undoes else 0,
        undoes=undoes,
        moves_epoch=moves_epoch,
        refusal=refusal,
    )


def _may_undo(by: Actor, removal: AuditEntry) -> bool:
    """Return whether this actor can undo this removal.

    Users and visitors undo only their own removals; operators and server code undo any.
    """
    is_person = by.kind in ("user", "visitor")
    return not is_person or is_by(removal, by)


def effective_removals(session_pk: int) -> list[AuditEntry]:
    """Return what moved the floor and was not undone by a restore, oldest first."""
    return [found for found in not_undone(removal_actions(session_pk)) if found.action in REMOVALS]


def removal_actions(*session_pks: int) -> QuerySet[AuditEntry]:
    """Select the removals and withdrawals from sessions, and their restores, oldest first."""
    entries = AuditEntry.objects.filter(
        session_pk__in=session_pks, action__in=(*UNDOABLE, AuditAction.RESTORE)
    )
    return entries.order_by("pk")


def not_undone(actions: Iterable[AuditEntry]) -> list[AuditEntry]:
    """Return the removals among these actions of a session that no later restore has undone."""
    effective: list[AuditEntry] = []
    for action in actions:
        effective = after(effective, action)
    return effective


def after(removals: list[AuditEntry], action: AuditEntry) -> list[AuditEntry]:
    """Return the removals that are effective after a further action on the session."""
    if action.action == AuditAction.RESTORE:
        return [removal for removal in removals if not _undoes(action, removal)]
    return [*removals, action] if action.action in UNDOABLE else removals


def _undoes(restore: AuditEntry, removal: AuditEntry) -> bool:
    counts: dict[str, int] = restore.counts
    if removal.action == AuditAction.WITHDRAW:
        return removal.pk == counts.get("withdrawal")
    return removal.pk >= counts.get("undoes", math.inf)


def _restore_withdrawn(
    session: Session, entry: AuditEntry, plan: Restoration, by: Actor, reason: str
) -> AuditEntry:
    """Show withdrawn rows again. Needs the lock."""
    low, high = _start_of(entry), entry.to_seq or 0
    restore_rows(session, low, high)
    counts = {"messages": plan.messages, "withdrawal": entry.pk}
    return record(session, AuditAction.RESTORE, by, reason, from_seq=low, to_seq=high, **counts)


def _restore_floor(
    session: Session, entry: AuditEntry, plan: Restoration, by: Actor, reason: str
) -> AuditEntry:
    """Move the floor down and return the session to its address. Needs the lock."""
    if plan.moves_epoch:
        move_epoch(session)
    if session.removed_at is not None:
        is_pinned = session.pinned_at is not None and can_pin(session.removed_scope)
        Session.objects.filter(pk=session.pk).update(
            scope=session.removed_scope,
            removed_scope="",
            removed_at=None,
            pinned_at=session.pinned_at if is_pinned else None,
        )
    start = _start_of(entry)
    restored = record(
        session,
        AuditAction.RESTORE,
        by,
        reason,
        from_seq=start,
        to_seq=session.first_seq - 1,
        messages=plan.messages,
        undoes=entry.pk,
    )
    same = Session.objects.filter(pk=session.pk)
    same.update(first_seq=start, revision=F("revision") + 1)
    is_ownerless = session.owner_id is None and owner_of(session.removed_scope) is not None
    if is_ownerless or same.expired().exists():
        same.update(expires_at=DatabaseNow() + timedelta(days=settings.UNDO_DAYS))
    announce_change(session.pk)
    return restored


def _is_address_used(session: Session) -> bool:
    """Return whether another session has the address that this one had."""
    return Session.objects.at(session.removed_scope, session.key).exists()


def _key_used() -> Conflict:
    return Conflict("Another session uses this key now.")


def _start_of(entry: AuditEntry) -> int:
    return entry.from_seq or 1
