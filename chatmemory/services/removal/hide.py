"""Trim, clear and purge: hide messages by moving the floor. Vacuum deletes the rows later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from django.db.models import F

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import Address, address_lane, lock_stored_session
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import durably, retried
from chatmemory.errors import NotFound
from chatmemory.models import AuditAction, AuditEntry, Session
from chatmemory.services.audit.entries import check_reason
from chatmemory.services.removal.floor import (
    check_held,
    lock_for_removal,
    mark_removed,
    move_epoch,
    move_floor,
)
from chatmemory.services.removal.trim_limits import (
    NONE_FOUND,
    TrimLimit,
    check_trim_limit,
    find_older_rows,
    floor_for_limit,
)

EXPIRED = "expired"
"""The reason of a purge because the session expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a removal would do now."""

    messages: int
    """Number of messages to hide."""
    waiting: int = 0
    """Number of waiting turns to cancel."""
    ends_run: bool = False
    """Whether a running turn ends."""
    partial_chars: int = 0
    """Length of the running turn's text, as last saved."""
    is_held: bool
    """Whether the session is on hold: the removal would be refused."""


@retried(is_repeatable=False)
def trim_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
    **limit: Unpack[TrimLimit],
) -> AuditEntry | None:
    """Hide the oldest messages. Return the audit entry, or None if no message was hidden.

    Give one limit: `keep_last` (messages), `keep_turns`, `keep_tokens`, `before` (an aware time) or
    `before_seq`. A turn is hidden completely or not at all, and the running turn is never hidden,
    so more messages may remain than the limit allows. With `session_pk`, a newer session under the
    same key is NotFound. A missing session is NotFound too, not None: an operator must not mistake
    a wrong key for success.
    Raises BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_trim_limit(limit)
    check_reason(reason)
    address = Address(session_key, by, scope, session_pk)
    older = NONE_FOUND
    # Searched before the lock, since other writers of the session wait for this transaction.
    if "before" in limit:
        for found in address.sessions():
            older = find_older_rows(found, limit)
    with locked_transaction():
        session = lock_for_removal(address)
        floor = floor_for_limit(session, limit, older)
        if floor == session.first_seq:
            return None
        return move_floor(session, floor, AuditAction.TRIM, by, reason)


@retried(is_repeatable=False)
def clear_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry:
    """Hide all messages, and reject writers that started before.

    The running turn ends as interrupted without a row; waiting turns are cancelled. `session_pk`
    works as in `trim_session`. Raises BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = lock_for_removal(Address(session_key, by, scope, session_pk))
        ended = move_epoch(session)
        return move_floor(session, session.last_seq + 1, AuditAction.CLEAR, by, reason, ended=ended)


@retried(is_repeatable=False)
def purge_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry:
    """Remove the session and all its messages; its key is free immediately.

    A writer that started before cannot reach a new session under the same key. With `session_pk`,
    an expired session can be purged too, and a newer session under the same key is NotFound.
    Raises BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = _lock_unpurged(Address(session_key, by, scope, session_pk))
        return purge(session, by, reason)


def _lock_unpurged(address: Address) -> Session:
    """Lock a session that is not purged; with `session_pk`, even an expired one.

    Needs a transaction. Raises BadInput, NotFound, Held.
    """
    if address.session_pk is None:
        return lock_for_removal(address)
    session = lock_stored_session(address.session_pk, address.by, address.scope)
    if session.key != address.session_key or session.removed_at is not None:
        raise NotFound
    check_held(session)
    return session


def preview_trim(session: Session, **limit: Unpack[TrimLimit]) -> Preview:
    """Count the messages that a trim would hide now. Raises BadInput."""
    check_trim_limit(limit)
    messages = floor_for_limit(session, limit) - session.first_seq
    return Preview(messages=messages, is_held=session.held_at is not None)


def preview_removal(session: Session) -> Preview:
    """Count what a clear or a purge would hide and end now. Raises MemoryUnavailable."""
    running = session.turns.filter(client_id=session.running or "")
    partial = durably(running.values_list("partial", flat=True).first, is_repeatable=True)
    return Preview(
        messages=session.message_count,
        waiting=session.waiting,
        ends_run=session.running is not None,
        partial_chars=len(partial or ""),
        is_held=session.held_at is not None,
    )


def purge_expired(scope: str, key: str) -> None:
    """Purge an expired session that still occupies this address. Needs a transaction."""
    at_address = Session.objects.filter(scope=scope, key=key)
    # By primary key: MariaDB locks each row that it reads, and reads all rows of a small table.
    for pk in at_address.values_list("pk", flat=True):
        expired = at_address.filter(pk=pk).expired()
        # The update locks the row, also on SQLite, which has no SELECT FOR UPDATE.
        if expired.update(fence=F("fence")):
            purge(expired.get(), Actor.server("expiry"), EXPIRED)


def purge(session: Session, by: Actor, reason: str) -> AuditEntry:
    """Remove the session and free its key. Needs the lock."""
    ended = move_epoch(session)
    mark_removed(session)
    return move_floor(session, session.last_seq + 1, AuditAction.PURGE, by, reason, ended=ended)


aclear_session = in_pool(clear_session, lane=address_lane)
