"""Retention: remove what is due by `SESSION_TTL`, `RETENTION` and `USER_DELETED`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Q

from chatmemory.access.actors import Actor, importing_scope, owner_of
from chatmemory.conf import settings
from chatmemory.database.batches import Progress, in_batches
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.models import AuditAction, AuditEntry, Session, SessionQuerySet, unexpired
from chatmemory.services.audit.entries import actor_of
from chatmemory.services.audit.keys import key_hashes
from chatmemory.services.erasure.erasure import erase_sessions
from chatmemory.services.maintenance.records import recorded
from chatmemory.services.maintenance.tasks import Task
from chatmemory.services.removal.floor import move_floor
from chatmemory.services.removal.hide import EXPIRED, purge
from chatmemory.services.removal.trim_limits import NONE_FOUND, OlderRows
from chatmemory.services.removal.visitors import delete_ended_visitors, of_ended_visitors
from chatmemory.services.retention.rules import Rule, retention_rules
from chatmemory.services.tags import tags_of

OWNER_DELETED = "owner deleted"
"""The reason of a purge or an erasure because an account was deleted."""

VISITOR_ENDED = "visitor ended"
"""The reason of a purge because the visitor ended."""

RETENTION_ACTOR = Actor.server("retention")

OWNERLESS = Q(owner__isnull=True, scope__startswith="user:", expires_at__isnull=True)
"""Sessions whose user account was deleted, and which were not restored since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalCount:
    """Number of sessions and messages removed for one reason."""

    sessions: int = 0
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What one call removed, or would remove."""

    removed: dict[str, RemovalCount]
    """By reason: `expired`, `owner deleted`, `visitor ended`, or the name of a RETENTION limit."""
    left: int
    """Number of sessions that were locked or unreachable; call again to process them."""


def expire_sessions(*, dry_run: bool = False, progress: Progress | None = None) -> Expired:
    """Remove what is due by age: purge expired sessions, apply `RETENTION`.

    Also purges the sessions of deleted users and ended visitors, and deletes these visitors.

    Each session has its own transaction, which rechecks the condition under the lock. The call can
    be interrupted and repeated. Sessions on hold stay. With `dry_run`, nothing is removed; the
    counts state what would be removed now. `progress` is called with the number of sessions that
    are done, and with their total.
    Raises ValueError for a wrong setting, MemoryUnavailable if the sessions cannot be listed.
    """
    plan = retention_rules()
    if dry_run:
        return _expire_all(plan, progress, dry_run=True)
    with recorded(Task.EXPIRE) as outcome:
        expired = _expire_all(plan, progress)
        delete_ended_visitors()
        counts = expired.removed.values()
        outcome.counts = {
            "sessions": sum(count.sessions for count in counts),
            "messages": sum(count.messages for count in counts),
            "left": expired.left,
        }
        outcome.is_ok = not expired.left
    return expired


def _expire_all(
    plan: Sequence[Rule], progress: Progress | None, *, dry_run: bool = False
) -> Expired:
    removed: dict[str, RemovalCount] = {}
    left = 0
    # One transaction for each session: a locked session delays no other, and no lock is held long.
    for session_pk in in_batches(_concerned(plan), progress):
        try:
            done = remove_due(session_pk, plan, dry_run=dry_run)
        except MemoryUnavailable:
            left += 1
            continue
        if done is not None:
            total = removed.get(done.reason, RemovalCount())
            removed[done.reason] = RemovalCount(
                sessions=total.sessions + done.sessions, messages=total.messages + done.messages
            )
    return Expired(removed=removed, left=left)


def deleter_of(scope: str) -> Actor:
    """Return the actor who deleted the account of this scope, or `RETENTION_ACTOR` if unknown."""
    entries = AuditEntry.objects.filter(
        session_pk__isnull=True, action=AuditAction.USER_DELETED, key_hash__in=key_hashes(scope)
    )
    entry = durably(entries.order_by("-pk").first, is_repeatable=True)
    return RETENTION_ACTOR if entry is None else actor_of(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A removal that is due in a session."""

    reason: str
    messages: int
    sessions: int = 1
    floor: int | None = None
    """The floor after a trim; None if the whole session is removed."""


def _concerned(plan: Sequence[Rule]) -> SessionQuerySet:
    """Return the sessions in which a removal may be due."""
    concerned = ~unexpired() | of_ended_visitors()
    if settings.USER_DELETED != "keep":
        concerned |= OWNERLESS
    for rule in plan:
        concerned |= rule.concerns()
    return Session.objects.filter(concerned, removed_at__isnull=True, held_at__isnull=True)


@retried(is_repeatable=True)
def remove_due(session_pk: int, plan: Sequence[Rule] = (), *, dry_run: bool = False) -> Due | None:
    """Remove what is due in a session: by these rules, its end, or the deletion of its account.

    Returns what is due, or None. With `dry_run`, nothing is removed. Raises MemoryUnavailable.
    """
    found = Session.objects.filter(pk=session_pk).first()
    if found is None:
        return None
    rule = _rule_for(found, plan)
    searched = {rule: rule.older(found)}
    if dry_run:
        return _due(found, plan, searched)
    # Before the lock: the entry that names the person commits with the deletion of the account.
    deleted_by = deleter_of(found.scope) if _is_ownerless(found) else None
    try:
        with locked_transaction():
            session = lock_pk(session_pk)
            due = _due(session, plan, searched)
            if due is None:
                return None
            by = RETENTION_ACTOR
            if due.reason == OWNER_DELETED:
                if deleted_by is None:  # deleted since the first read: the next call removes it
                    return None
                by = deleted_by
            if due.floor is not None:
                move_floor(session, due.floor, AuditAction.TRIM, by, due.reason)
            elif not _is_erasure(due):
                purge(session, by, due.reason)
    except NotFound:
        return None
    if not _is_erasure(due):
        return due
    # Note [Order of an erasure]: not under this lock, since a line of the list comes first.
    erased = erase_sessions(session.scope, OWNERLESS, by, due.reason)
    return Due(reason=due.reason, sessions=erased.sessions, messages=erased.messages)


def _is_ownerless(session: Session) -> bool:
    """Return whether `OWNERLESS` may apply."""
    return session.owner_id is None and owner_of(session.scope) is not None


def _is_erasure(due: Due) -> bool:
    return due.reason == OWNER_DELETED and settings.USER_DELETED == "erase"


def _rule_for(session: Session, plan: Sequence[Rule]) -> Rule:
    """Return the first rule that applies to a session, or an empty one."""
    if session.scope.startswith(importing_scope("")):
        return Rule()  # `finish_import` stores its tags, on which the rule depends
    tags = tags_of(session) if any(rule.tag is not None for rule in plan) else ()
    return next((rule for rule in plan if rule.applies_to(tags)), Rule())


def _due(session: Session, plan: Sequence[Rule], searched: Mapping[Rule, OlderRows]) -> Due | None:
    """Return what is due now.

    `searched` was found without the lock; another rule may apply since.
    """
    if session.held_at is not None or session.removed_at is not None:
        return None
    same = Session.objects.filter(pk=session.pk)
    rule = _rule_for(session, plan)
    # The account first: where its deletion erases, a purge for another reason would not be enough.
    ends = {} if settings.USER_DELETED == "keep" else {OWNER_DELETED: OWNERLESS}
    ends |= {EXPIRED: ~unexpired(), VISITOR_ENDED: of_ended_visitors(), "max_idle": rule.is_idle()}
    for reason, has_ended in ends.items():
        if same.filter(has_ended).exists():
            return Due(reason=reason, messages=session.message_count)
    older = searched.get(rule, NONE_FOUND)
    floors = {name: rule.floor(session, name, older) for name in ("max_age", "max_messages")}
    reason = max(floors, key=floors.__getitem__)
    messages = floors[reason] - session.first_seq
    return Due(reason=reason, messages=messages, floor=floors[reason]) if messages else None
