"""Adoption: a visitor who signs in takes over the sessions into the account."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import DatabaseError
from django.db.models.functions import Coalesce

from chatmemory.access.actors import Actor, check_own_name, owner_of
from chatmemory.access.rates import MAX_VISITOR_SESSIONS, can_pin
from chatmemory.access.visitors import authenticate_visitor, digest_of
from chatmemory.database.after_commit import announce_change, announce_visitor_ended
from chatmemory.database.faults import Fault, fault_of
from chatmemory.database.locks import lock_all, lock_visitor, locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import Conflict, MemoryUnavailable, NotFound, Unauthenticated
from chatmemory.models import AuditAction, DatabaseNow, JobItem, Session, Turn, Visitor, starts_of
from chatmemory.services.audit.entries import record, record_person
from chatmemory.services.derived.removal import adopt_rows

# Note [Adoption]
#
# One transaction locks the visitor, then all stored sessions in the order of their primary keys,
# and moves them to the scope of the user.
# - The visitor's lock stops `open_session`, so no session stays behind. A second call finds the
#   visitor adopted, and returns the stored keys.
# - A running turn does not block it: its writes depend on primary key, epoch and fence, and on
#   neither scope nor key. Its row and waiting turns' rows have a copy of the scope, which moves.
# - The user may open a session under a key that moves, which no lock of ours prevents. The unique
#   constraint then refuses the adoption, which is repeated and finds the key taken.

RECENT = timedelta(hours=1)
"""Sessions without a message for longer may belong to an earlier user of the browser."""

MAX_ATTEMPTS = 3
"""Attempts if the user opens sessions with the same keys meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoptable:
    """A session of a visitor, as the user sees it before the adoption."""

    key: str
    title: str
    text: str
    """The start of the first user message, up to 200 characters."""
    last_message_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionOffer:
    """What a user can take over from the visitor of a browser."""

    visitor: Actor
    sessions: list[Adoptable]
    """The sessions that an adoption would move, the last active first."""
    is_done: bool
    """Whether the user has already taken over sessions of this visitor."""


class _KeyTaken(Exception):
    """A key was taken after it was found free."""


def offer_adoption(*, by: Actor, token: str) -> AdoptionOffer | None:
    """Return what a user can take over from the visitor with this credential.

    None if the visitor is unknown, has ended, or was adopted by another user or without a session.
    Raises MemoryUnavailable.
    """
    try:
        visitor = authenticate_visitor(token=token).actor
    except Unauthenticated:
        visitor = Actor.known_visitor(digest_of(token))
        is_done = durably(partial(_has_adopted, by, visitor), is_repeatable=True)
        return AdoptionOffer(visitor=visitor, sessions=[], is_done=True) if is_done else None
    return AdoptionOffer(visitor=visitor, sessions=_list_adoptable(visitor), is_done=False)


def _has_adopted(by: Actor, visitor: Actor) -> bool:
    adopted = Visitor.objects.filter(digest=visitor.id, adopted_by=by.owner)
    return any(adopted.values_list("moved", flat=True))


@retried(is_repeatable=True)
def _list_adoptable(visitor: Actor) -> list[Adoptable]:
    sessions = list(Session.objects.active().filter(scope=visitor.owner).most_recent_first())
    texts = starts_of(session.pk for session in sessions)
    return [
        Adoptable(
            key=session.key,
            title=session.title,
            text=texts.get(session.pk, ""),
            last_message_at=session.last_message_at,
        )
        for session in sessions
    ]


def adopt_visitor(*, by: Actor, visitor: Actor, only_recent: bool = False) -> dict[str, str]:
    """Move a visitor's sessions to a user, and end the visitor. Return the new keys by old key.

    The caller must have the visitor's credential: see `offer_adoption`. Turns that run or
    wait continue, purged sessions and those on hold move too. A key that the user already has
    becomes a new UUID, and pins above the limit of the user are removed. A repeated call by the
    same user returns the same keys. With `only_recent` nothing moves if a session had no message
    for an hour.
    Raises NotFound for a visitor who is unknown or has ended, Conflict if another user adopted the
    visitor, MemoryUnavailable.
    """
    if (by.kind, visitor.kind) != ("user", "visitor"):
        raise TypeError("adopt_visitor needs a user and a visitor")
    check_own_name(by)
    for _ in range(MAX_ATTEMPTS):
        try:
            return durably(partial(_adopt, by, visitor, only_recent), is_repeatable=True)
        except _KeyTaken:
            continue
    raise MemoryUnavailable


def _adopt(by: Actor, visitor: Actor, only_recent: bool) -> dict[str, str]:
    with locked_transaction():
        row = lock_visitor(visitor.id)
        if row.adopted_at is not None:
            if row.adopted_by != by.owner:
                raise Conflict("Another account has taken over these sessions.")
            stored: dict[str, str] = row.moved
            return stored
        if not Visitor.objects.current().filter(pk=row.pk).exists():
            raise NotFound
        pks = lock_all(Session.objects.of_scopes(row.scope))
        if len(pks) > MAX_VISITOR_SESSIONS:
            raise Conflict(f"The visitor has more than {MAX_VISITOR_SESSIONS} stored sessions.")
        if only_recent and _has_older(pks):
            return {}
        announce_visitor_ended(row.scope)  # first: an open chat ends with its visitor
        row.moved = moved = _move_all(pks, by)
        row.adopted_by, row.adopted_at = by.owner, DatabaseNow()
        row.save(update_fields=["moved", "adopted_by", "adopted_at"])
        adopt_rows(row.scope, by.owner)
        record_person(row.scope, AuditAction.ADOPT, by, "", sessions=len(pks))
        return moved


def _has_older(pks: Collection[int]) -> bool:
    since = Coalesce("last_message_at", "created_at")
    stored = Session.objects.filter(pk__in=pks, removed_at__isnull=True).annotate(since=since)
    return stored.filter(since__lte=DatabaseNow() - RECENT).exists()


def _move_all(pks: Collection[int], by: Actor) -> dict[str, str]:
    """Move locked sessions to a user; return the new keys of those that are not purged."""
    sessions = list(Session.objects.filter(pk__in=pks).order_by("pk"))
    stored = [session for session in sessions if session.removed_at is None]
    keys = {session.key for session in stored}
    taken = set(Session.objects.filter(scope=by.owner, key__in=keys).values_list("key", flat=True))
    moved = {key: str(uuid.uuid4()) if key in taken else key for key in sorted(keys)}
    try:
        for session in sessions:
            _move_session(session, moved, by)
    except DatabaseError as error:
        if fault_of(error) is not Fault.DUPLICATE:
            raise
        raise _KeyTaken from error
    return moved


def _move_session(session: Session, moved: dict[str, str], by: Actor) -> None:
    """Move a locked session to a user."""
    record(session, AuditAction.ADOPT, by, "")
    if session.removed_at is None:
        session.scope, session.key = by.owner, moved[session.key]
        if session.pinned_at is not None and not can_pin(by.owner):
            session.pinned_at = None
    else:
        session.removed_scope = by.owner
    session.owner_id = owner_of(by.owner)
    session.revision += 1
    columns = ["scope", "key", "removed_scope", "owner", "pinned_at", "revision"]
    session.save(update_fields=columns)
    turns = Turn.objects.filter(session=session.pk, status__in=Turn.ACTIVE_STATUSES)
    turns.undeferred().update(scope=by.owner)
    items = JobItem.objects.filter(session_pk=session.pk, outcome="")
    items.update(scope=session.scope, key=session.key)
    announce_change(session.pk)
