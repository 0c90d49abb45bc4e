"""The record of who removed or read what."""

from __future__ import annotations

from datetime import timedelta

from django.utils.crypto import salted_hmac

from chatmemory.codec import check_value
from chatmemory.models import AuditEntry, DatabaseNow, Session
from chatmemory.services.actors import Actor
from chatmemory.services.pool import in_pool

MAX_REASON_CHARS = 500
READING_COUNTS_FOR = timedelta(hours=1)


def record(
    session: Session,
    action: str,
    by: Actor,
    reason: str,
    *,
    from_seq: int | None = None,
    to_seq: int | None = None,
    **counts: int,
) -> AuditEntry:
    """Write down an act, in the transaction of the act. A long reason is cut.

    Raises BadInput for a reason with control characters.
    """
    check_value(reason, "reason")
    return AuditEntry.objects.create(
        actor_kind=by.kind,
        actor_id=by.id[:150],
        actor_label=by.label[:200],
        action=action,
        session_pk=session.pk,
        key_hash=key_hash(session.key),
        reason=reason[:MAX_REASON_CHARS],
        from_seq=from_seq,
        to_seq=to_seq,
        counts=counts,
    )


def record_reading(*, session: Session, by: Actor) -> None:
    """Write down that an operator read a transcript; once an hour for the same session."""
    recently = AuditEntry.objects.filter(
        session_pk=session.pk,
        action="read",
        actor_kind=by.kind,
        actor_id=by.id,
        created_at__gt=DatabaseNow() - READING_COUNTS_FOR,
    )
    if not recently.exists():
        record(session, "read", by, "")


def record_refusal(*, session: Session, by: Actor, permission: str) -> None:
    """Write down that an operator tried what they have no right to."""
    record(session, "refused", by, permission)


def key_hash(key: str) -> str:
    """A session's key as the audit keeps it: recognisable to who knows the key, else not."""
    return salted_hmac("chatmemory.audit", key, algorithm="sha256").hexdigest()


arecord_reading = in_pool(record_reading)
arecord_refusal = in_pool(record_refusal)
