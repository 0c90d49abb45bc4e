"""Restore: a removal undone, as long as its rows are still there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db import IntegrityError
from django.db.models import F

from chatmemory.conf import settings
from chatmemory.errors import Busy, ChatMemoryError, Conflict, Forbidden, NotFound
from chatmemory.models import AuditEntry, DatabaseNow, Session
from chatmemory.services.actors import Actor, owner_of, scope_for
from chatmemory.services.audit import check_reason, is_by, is_erased, record
from chatmemory.services.faults import Fault, durably, fault_of
from chatmemory.services.floor import REMOVALS, move_epoch
from chatmemory.services.locks import lock_stored, unit
from chatmemory.services.news import tell
from chatmemory.services.pool import in_pool
from chatmemory.services.removal import purge_expired


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What a restore would do now."""

    session_pk: int
    messages: int
    """How many are shown again."""
    undoes: list[AuditEntry]
    """The removals that it undoes: this one and what came after it, the oldest first."""
    moves_epoch: bool
    """Whoever began to write before it can't write any more."""
    refusal: ChatMemoryError | None
    """Why it would be refused, if it would."""


def restore_session(
    *, entry_pk: int, by: Actor, reason: str, scope: str | None = None
) -> AuditEntry:
    """Undo the trim, clear or purge of this audit entry, and every one that came after it.

    A purged session takes its key back. Where its end has come, or its user is gone, it gets a
    new end, `UNDO_DAYS` from now. Undoing a clear or purge moves the epoch.
    Users and visitors undo only removals of their own: Forbidden if another actor made this one or
    a later one that would be undone with it.
    Raises NotFound, Forbidden, Conflict (restored before, deleted for good, or the key is taken),
    Busy (a clear or purge would be undone while a turn runs), BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    entry = _removal(entry_pk)

    def work() -> AuditEntry:
        session = _find(entry, by, scope)
        if session.removed_at is not None and _plan(session, entry, by).refusal is None:
            with unit():
                purge_expired(session.removed_scope, session.key)
        try:
            with unit():
                session = lock_stored(session.pk, by, scope)
                plan = _plan(session, entry, by)
                if plan.refusal is not None:
                    raise plan.refusal
                return _restore(session, entry, plan, by, reason)
        except IntegrityError as error:
            if fault_of(error) is not Fault.DUPLICATE:
                raise
            raise _taken() from error

    return durably(work, is_repeatable=False)


def preview_restore(*, entry_pk: int, by: Actor, scope: str | None = None) -> Restoration:
    """What a restore would bring back and undo now. Raises NotFound."""
    entry = _removal(entry_pk)

    def work() -> Restoration:
        return _plan(_find(entry, by, scope), entry, by)

    return durably(work, is_repeatable=True)


def _removal(entry_pk: int) -> AuditEntry:
    entries = AuditEntry.objects.filter(pk=entry_pk, action__in=REMOVALS)
    entry = durably(entries.first, is_repeatable=True)
    if entry is None:
        raise NotFound("There is no such removal.")
    return entry


def _find(entry: AuditEntry, by: Actor, scope: str | None) -> Session:
    sessions = Session.objects.of_scopes(scope_for(by, scope))
    session = sessions.filter(pk=entry.session_pk or 0).first()
    if session is None:
        raise NotFound
    return session


def _plan(session: Session, entry: AuditEntry, by: Actor) -> Restoration:
    start = _start(entry)
    undoes = [found for found in standing_removals(session.pk) if found.pk >= entry.pk]
    moves_epoch = any(found.action != "trim" for found in (entry, *undoes))
    refusal: ChatMemoryError | None = None
    if not all(_may_undo(by, found) for found in (entry, *undoes)):
        refusal = Forbidden("Only an operator can undo the removal of another person.")
    elif is_erased(session.pk) or start < session.stored_from:
        refusal = Conflict("These messages were deleted for good.")
    elif not undoes:
        refusal = Conflict("This was restored before.")
    elif moves_epoch and session.running is not None:
        refusal = Busy(turn=session.running)
    elif session.removed_at is not None and _has_heir(session):
        refusal = _taken()
    return Restoration(
        session_pk=session.pk,
        messages=session.first_seq - start if undoes else 0,
        undoes=undoes,
        moves_epoch=moves_epoch,
        refusal=refusal,
    )


def _may_undo(by: Actor, removal: AuditEntry) -> bool:
    """Users and visitors undo only what they removed; operators and server code, everything."""
    is_person = by.kind in ("user", "visitor")
    return not is_person or is_by(removal, by)


def standing_removals(session_pk: int) -> list[AuditEntry]:
    """The removals from a session that nothing has undone, the oldest first."""
    standing: list[AuditEntry] = []
    acts = AuditEntry.objects.filter(session_pk=session_pk, action__in=(*REMOVALS, "restore"))
    for act in acts.order_by("pk"):
        if act.action == "restore":
            standing = [removal for removal in standing if removal.pk < act.counts["undoes"]]
        else:
            standing.append(act)
    return standing


def _restore(
    session: Session, entry: AuditEntry, plan: Restoration, by: Actor, reason: str
) -> AuditEntry:
    """Needs the lock."""
    if plan.moves_epoch:
        move_epoch(session)
    if session.removed_at is not None:
        Session.objects.filter(pk=session.pk).update(
            scope=session.removed_scope, removed_scope="", removed_at=None
        )
    start = _start(entry)
    restored = record(
        session,
        "restore",
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
    tell(session.pk)
    return restored


def _has_heir(session: Session) -> bool:
    """Whether another session lives at the address that this one had."""
    return Session.objects.at(session.removed_scope, session.key).exists()


def _taken() -> Conflict:
    return Conflict("Another session has this key now.")


def _start(entry: AuditEntry) -> int:
    return entry.from_seq or 1


arestore_session = in_pool(restore_session)
apreview_restore = in_pool(preview_restore)
