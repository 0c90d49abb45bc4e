"""Audit entries: insert a record of each removal, export and read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import TextChoices

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import Address, lock_stored_session
from chatmemory.codec import check_value
from chatmemory.database.after_commit import announce_action
from chatmemory.database.faults import write_connection
from chatmemory.errors import NotFound
from chatmemory.models import AuditAction, AuditEntry, DatabaseNow, Session, database_now
from chatmemory.services.audit.actions import check_registered
from chatmemory.services.audit.keys import key_hash
from chatmemory.services.audit.macs import mac_of

Count = int | str | list[int] | list[list[int]]
"""A value that describes the action: a number, a text, numbers or ranges."""

BY_OWNER = "requested by the owner"
"""The reason of what people do with their own sessions in an entry point."""

MAX_REASON_CHARS = 500
MAX_ACTOR_CHARS = 150
DEDUPLICATED_FOR = timedelta(hours=1)
"""How long repeated reads or refusals share one entry."""


def record(
    session: Session,
    action: TextChoices,
    by: Actor,
    reason: str,
    *,
    from_seq: int | None = None,
    to_seq: int | None = None,
    **counts: Count,
) -> AuditEntry:
    """Insert an entry, in the transaction of the action. A long reason is truncated.

    Raises LookupError for an action of another app that is not registered.
    """
    columns = {"session_pk": session.pk, "key_hash": key_hash(session.key)}
    return _insert_entry(action, by, reason, counts, from_seq=from_seq, to_seq=to_seq, **columns)


def record_ranges(
    session_pk: int, key_hash: str, by: Actor, ranges: list[list[int]], *, first_entry: int
) -> AuditEntry:
    """Record which messages an operator read, after the entry of the first page."""
    counts: dict[str, Count] = {"ranges": ranges, "first_entry": first_entry}
    columns = {"session_pk": session_pk, "key_hash": key_hash}
    return _insert_entry(
        AuditAction.READ, by, "", counts, from_seq=ranges[0][0], to_seq=ranges[-1][1], **columns
    )


def record_person(
    scope: str, action: TextChoices, by: Actor, reason: str, **counts: Count
) -> AuditEntry:
    """Insert an entry about all sessions of a scope, or of all scopes if it is empty.

    The entry contains a hash of the scope in place of the session's key.
    """
    return record_hashed(key_hash(scope) if scope else "", action, by, reason, **counts)


def record_hashed(
    person: str, action: TextChoices, by: Actor, reason: str, **counts: Count
) -> AuditEntry:
    """Insert an entry about a person of whom only the hash of the scope is known."""
    return _insert_entry(action, by, reason, counts, key_hash=person)


def _insert_entry(
    action: TextChoices, by: Actor, reason: str, counts: dict[str, Count], **columns: Any
) -> AuditEntry:
    check_registered(action)
    by = by.responsible
    entry = AuditEntry(
        actor_kind=by.kind,
        actor_id=by.id[:MAX_ACTOR_CHARS],
        actor_label=by.label[:200],
        action=action.value,
        reason=reason[:MAX_REASON_CHARS],
        counts=counts,
        created_at=database_now(write_connection()),  # before the insert, as the MAC covers it
        **columns,
    )
    entry.mac = mac_of(entry)
    entry.save(force_insert=True)
    messages = counts.get("messages", 0)
    messages = messages if isinstance(messages, int) else 0
    announce_action(entry.session_pk, action.value, by.kind, messages)
    return entry


def check_reason(reason: str) -> None:
    """Check that a reason can be stored. Raises BadInput for control characters."""
    check_value(reason, "reason")


def actor_of(entry: AuditEntry) -> Actor:
    """Return the actor of an entry."""
    return Actor(entry.actor_kind, entry.actor_id, entry.actor_label)


def is_by(entry: AuditEntry, by: Actor) -> bool:
    """Return whether this is the actor of an entry."""
    by = by.responsible
    return (entry.actor_kind, entry.actor_id) == (by.kind, by.id[:MAX_ACTOR_CHARS])


def is_erased(session_pk: int) -> bool:
    """Return whether the erasure of this session has started."""
    return AuditEntry.objects.filter(session_pk=session_pk, action=AuditAction.ERASE).exists()


def record_refusal(*, by: Actor, permission: str, session: Session | None = None) -> None:
    """Record that an operator lacks a permission, once an hour for each permission.

    `session` is the session that the operator tried to reach. Further attempts in that hour, at any
    session, are not recorded, so that an operator cannot flood the audit.
    """
    recent = AuditEntry.objects.filter(
        action=AuditAction.REFUSED,
        actor_kind=by.kind,
        actor_id=by.id[:MAX_ACTOR_CHARS],
        reason=permission[:MAX_REASON_CHARS],
        created_at__gt=DatabaseNow() - DEDUPLICATED_FOR,
    )
    if recent.exists():
        return
    if session is None:
        _insert_entry(AuditAction.REFUSED, by, permission, {}, key_hash="")
    else:
        record(session, AuditAction.REFUSED, by, permission)


def lock_unerased(address: Address) -> Session:
    """Lock an active session; with `session_pk`, that session, even if expired or purged.

    A session that is being erased is NotFound: a hold would keep its messages.
    Needs a transaction. Raises NotFound, BadInput.
    """
    if address.session_pk is None:
        return address.lock()
    session = lock_stored_session(address.session_pk, address.by, address.scope)
    check_unerased(session)
    return session


def check_unerased(session: Session) -> None:
    """Refuse a session that is being erased. Raises NotFound."""
    if session.removed_at is not None and is_erased(session.pk):
        raise NotFound
