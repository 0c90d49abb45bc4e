"""The record of who removed or read what."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from chatmemory.codec import check_value
from chatmemory.models import AuditEntry, DatabaseNow, Session, database_now
from chatmemory.services.actors import Actor
from chatmemory.services.faults import database
from chatmemory.services.keys import key_hash
from chatmemory.services.macs import mac_of
from chatmemory.services.news import tell_act
from chatmemory.services.pool import in_pool

Count = int | str | list[int] | list[list[int]]
"""A number that describes the act, or a text or a list of numbers."""

MAX_REASON_CHARS = 500
MAX_ACTOR_CHARS = 150
COUNTS_FOR = timedelta(hours=1)
"""How long the same reading or refusal is recorded only once."""


def record(
    session: Session,
    action: str,
    by: Actor,
    reason: str,
    *,
    from_seq: int | None = None,
    to_seq: int | None = None,
    **counts: Count,
) -> AuditEntry:
    """Write down an act, in the transaction of the act. A long reason is cut."""
    of = {"session_pk": session.pk, "key_hash": key_hash(session.key)}
    return _record(action, by, reason, counts, from_seq=from_seq, to_seq=to_seq, **of)


def record_ranges(
    session_pk: int, key_hash: str, by: Actor, ranges: list[list[int]], *, first_entry: int
) -> AuditEntry:
    """Record which messages an operator read, after the entry of the first page."""
    of = {"session_pk": session_pk, "key_hash": key_hash}
    counts: dict[str, Count] = {"ranges": ranges, "first_entry": first_entry}
    return _record("read", by, "", counts, from_seq=ranges[0][0], to_seq=ranges[-1][1], **of)


def record_person(scope: str, action: str, by: Actor, reason: str, **counts: Count) -> AuditEntry:
    """Write down what was done to all sessions of a scope; of all scopes, if it is empty.

    Otherwise as `record`; what stands in for the key is a hash of the scope.
    """
    return record_hashed(key_hash(scope) if scope else "", action, by, reason, **counts)


def record_hashed(person: str, action: str, by: Actor, reason: str, **counts: Count) -> AuditEntry:
    """Record an act on a person of whom only the hash of the scope is known."""
    return _record(action, by, reason, counts, key_hash=person)


def _record(action: str, by: Actor, reason: str, counts: dict[str, Count], **of: Any) -> AuditEntry:
    messages = counts.get("messages", 0)
    tell_act(of.get("session_pk"), action, by.kind, messages if isinstance(messages, int) else 0)
    entry = AuditEntry(
        actor_kind=by.kind,
        actor_id=by.id[:MAX_ACTOR_CHARS],
        actor_label=by.label[:200],
        action=action,
        reason=reason[:MAX_REASON_CHARS],
        counts=counts,
        created_at=database_now(database()),  # read before the insert, since the MAC covers it
        **of,
    )
    entry.mac = mac_of(entry)
    entry.save(force_insert=True)
    return entry


def check_reason(reason: str) -> None:
    """See that a reason can be written down. Raises BadInput for control characters."""
    check_value(reason, "reason")


def actor_of(entry: AuditEntry) -> Actor:
    """The actor of an entry."""
    return Actor(entry.actor_kind, entry.actor_id, entry.actor_label)


def is_by(entry: AuditEntry, by: Actor) -> bool:
    """Whether this is the actor of an entry."""
    return (entry.actor_kind, entry.actor_id) == (by.kind, by.id[:MAX_ACTOR_CHARS])


def is_erased(session_pk: int) -> bool:
    """Whether the erasure of this session was begun; what is left of it goes at once."""
    return AuditEntry.objects.filter(session_pk=session_pk, action="erase").exists()


def record_refusal(*, by: Actor, permission: str, session: Session | None = None) -> None:
    """Record that an operator lacks a permission: once an hour for each permission.

    `session` is the one that the operator tried to reach. Later attempts of that hour leave no
    entry, whatever they try to reach, so that no one can fill the audit.
    """
    recent = AuditEntry.objects.filter(
        action="refused",
        actor_kind=by.kind,
        actor_id=by.id[:MAX_ACTOR_CHARS],
        reason=permission[:MAX_REASON_CHARS],
        created_at__gt=DatabaseNow() - COUNTS_FOR,
    )
    if recent.exists():
        return
    if session is None:
        _record("refused", by, permission, {}, key_hash="")
    else:
        record(session, "refused", by, permission)


arecord_refusal = in_pool(record_refusal)
