"""Hold and archive: forbid removals from a session, or new messages in it."""

from __future__ import annotations

from django.db.models import F

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import Address
from chatmemory.database.after_commit import announce_change
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import Forbidden
from chatmemory.models import AuditAction, AuditEntry, DatabaseNow, Session
from chatmemory.services.audit.entries import check_reason, lock_unerased, record
from chatmemory.services.removal.floor import cancel_waiting

PERSONS = ("user", "visitor")
OPERATORS = ("operator", "command")
"""The kinds of actors whose archive a person cannot undo."""


@retried(is_repeatable=True)
def hold_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Forbid every removal from a session until it is released; None if it is on hold already.

    This includes removal by people, by age and by vacuum. With `session_pk`, an expired or purged
    session can be held too. Raises BadInput, NotFound, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = lock_unerased(Address(session_key, by, scope, session_pk))
        if session.held_at is not None:
            return None
        return _change(session, AuditAction.HOLD, by, reason, held_at=DatabaseNow())


@retried(is_repeatable=True)
def release_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """End a hold; None if the session is not on hold.

    `session_pk` works as in `hold_session`. Raises BadInput, NotFound, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = lock_unerased(Address(session_key, by, scope, session_pk))
        if session.held_at is None:
            return None
        return _change(session, AuditAction.RELEASE, by, reason, held_at=None)


@retried(is_repeatable=True)
def archive_session(
    *, session_key: str, by: Actor, reason: str, scope: str | None = None
) -> AuditEntry | None:
    """Close a session for new messages; None if it is archived already.

    The running turn continues to its end; waiting turns are cancelled. If an operator or a command
    archives it, also after its owner, the owner cannot open it again.
    Raises BadInput, NotFound, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = Address(session_key, by, scope).lock()
        is_archived = session.archived_at is not None
        if is_archived and (by.kind not in OPERATORS or _is_closed_by_operator(session)):
            return None
        cancel_waiting(session)  # a claim would store their messages after the session was closed
        return _change(session, AuditAction.ARCHIVE, by, reason, archived_at=DatabaseNow())


@retried(is_repeatable=True)
def unarchive_session(
    *, session_key: str, by: Actor, reason: str, scope: str | None = None
) -> AuditEntry | None:
    """Open an archived session for messages; None if it is not archived.

    Raises BadInput, NotFound, MemoryUnavailable, and Forbidden for a user or visitor if an operator
    or a command archived it.
    """
    check_reason(reason)
    with locked_transaction():
        session = Address(session_key, by, scope).lock()
        if session.archived_at is None:
            return None
        if by.kind in PERSONS and _is_closed_by_operator(session):
            raise Forbidden("An operator archived this session, so only an operator can open it.")
        return _change(session, AuditAction.UNARCHIVE, by, reason, archived_at=None)


def _is_closed_by_operator(session: Session) -> bool:
    """Whether an operator archived this archived session last. Needs the lock."""
    entries = AuditEntry.objects.filter(session_pk=session.pk, action=AuditAction.ARCHIVE).order_by(
        "pk"
    )
    last = entries.last()
    return last is not None and last.actor_kind in OPERATORS


def _change(
    session: Session, action: AuditAction, by: Actor, reason: str, **columns: DatabaseNow | None
) -> AuditEntry:
    """Update columns of the session and record the action. Needs the lock."""
    Session.objects.filter(pk=session.pk).update(**columns, revision=F("revision") + 1)
    announce_change(session.pk)
    return record(session, action, by, reason)
