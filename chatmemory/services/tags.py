"""Tags of sessions, which rules of `RETENTION` select by."""

from __future__ import annotations

from collections.abc import Iterable

from chatmemory.codec import check_value
from chatmemory.models import MAX_TAG_CHARS, AuditEntry, Session, SessionTag
from chatmemory.services.actors import Actor
from chatmemory.services.addresses import check_length
from chatmemory.services.audit import check_reason, record
from chatmemory.services.faults import durably
from chatmemory.services.locks import lock_any, unit
from chatmemory.services.pool import address_lane, in_pool


def tag_session(
    *,
    session_key: str,
    tag: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Add a tag of 1 to 100 characters to a session; None if it has it already.

    For host code and operators: raises TypeError for users and visitors. With a `session_pk` it is
    that session, even if it has expired or was purged.
    Raises BadInput, NotFound, MemoryUnavailable.
    """
    return _set("tag", session_key, tag, by, reason, scope, session_pk)


def untag_session(
    *,
    session_key: str,
    tag: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Remove a tag from a session; None if it does not have it. Raises as `tag_session`."""
    return _set("untag", session_key, tag, by, reason, scope, session_pk)


def check_tag(tag: str) -> None:
    """Check that a text can be a tag. Raises BadInput; TypeError if it is not a text."""
    check_length("tag", tag, 1, MAX_TAG_CHARS)
    check_value(tag, "tag")


def add_tags(session: Session, tags: Iterable[str]) -> None:
    """Add tags that the session may have already. Needs the lock."""
    rows = [SessionTag(session=session, tag=tag) for tag in tags]
    SessionTag.objects.bulk_create(rows, ignore_conflicts=True)


def tags_of(session: Session) -> set[str]:
    """Return the tags of a session."""
    return set(SessionTag.objects.filter(session=session.pk).values_list("tag", flat=True))


def _set(
    action: str,
    session_key: str,
    tag: str,
    by: Actor,
    reason: str,
    scope: str | None,
    session_pk: int | None,
) -> AuditEntry | None:
    if by.kind in ("user", "visitor"):
        raise TypeError(f"{by.kind}s do not tag sessions")
    check_tag(tag)
    check_reason(reason)

    def work() -> AuditEntry | None:
        with unit():
            session = lock_any(session_key, by, scope, session_pk)
            if (tag in tags_of(session)) == (action == "tag"):
                return None
            if action == "tag":
                add_tags(session, [tag])
            else:
                SessionTag.objects.filter(session=session, tag=tag).delete()
            return record(session, action, by, reason, tag=tag)

    return durably(work, is_repeatable=True)


atag_session = in_pool(tag_session, lane=address_lane)
auntag_session = in_pool(untag_session, lane=address_lane)
