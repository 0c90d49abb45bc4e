"""Tags of sessions, by which the rules of `RETENTION` can select sessions."""

from __future__ import annotations

from collections.abc import Iterable

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import Address, check_length
from chatmemory.codec import check_value
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.models import MAX_TAG_CHARS, AuditAction, AuditEntry, Session, SessionTag
from chatmemory.services.audit.entries import check_reason, lock_unerased, record


@retried(is_repeatable=True)
def tag_session(
    *,
    session_key: str,
    tag: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Add a tag of 1 to 100 characters to a session; return None if it has the tag already.

    For host code and operators: raises TypeError for users and visitors. `session_pk` selects that
    session even if it is expired or purged. Raises BadInput, NotFound, MemoryUnavailable.
    """
    _check_call(tag, by, reason)
    with locked_transaction():
        session = lock_unerased(Address(session_key, by, scope, session_pk))
        if tag in tags_of(session):
            return None
        add_tags(session, [tag])
        return record(session, AuditAction.TAG, by, reason, tag=tag)


@retried(is_repeatable=True)
def untag_session(
    *,
    session_key: str,
    tag: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Remove a tag from a session; return None if it does not have the tag.

    For host code and operators, as `tag_session`. Raises BadInput, NotFound, MemoryUnavailable.
    """
    _check_call(tag, by, reason)
    with locked_transaction():
        session = lock_unerased(Address(session_key, by, scope, session_pk))
        if tag not in tags_of(session):
            return None
        SessionTag.objects.filter(session=session, tag=tag).delete()
        return record(session, AuditAction.UNTAG, by, reason, tag=tag)


def check_tag(tag: str) -> None:
    """Raise BadInput if this text cannot be a tag, and TypeError if it is not a text."""
    check_length("tag", tag, 1, MAX_TAG_CHARS)
    check_value(tag, "tag")


def add_tags(session: Session, tags: Iterable[str]) -> None:
    """Add tags to a session, which may have some of them. Needs the session's lock."""
    rows = [SessionTag(session=session, tag=tag) for tag in tags]
    SessionTag.objects.bulk_create(rows, ignore_conflicts=True)


def tags_of(session: Session) -> set[str]:
    return set(SessionTag.objects.filter(session=session.pk).values_list("tag", flat=True))


def _check_call(tag: str, by: Actor, reason: str) -> None:
    if by.kind in ("user", "visitor"):
        raise TypeError(f"A {by.kind} cannot tag sessions; pass an operator or server actor.")
    check_tag(tag)
    check_reason(reason)
