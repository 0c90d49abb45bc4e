"""Select the sessions of an export, and record it in the audit before any message is read."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F, QuerySet, Sum

from chatmemory.access.actors import Actor, all_scopes_of, person_for
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.models import AuditAction, Session, SessionQuerySet
from chatmemory.services.audit.entries import check_reason, record, record_person
from chatmemory.services.sessions import get_session

MAX_ENTRIES = 100
"""Sessions of which each export has an entry of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The sessions of an export. The counts are taken at its beginning."""

    sessions: SessionQuerySet
    format: str
    session_count: int
    message_count: int


@retried(is_repeatable=False)
def begin_export(
    *,
    format: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_key: str | None = None,
) -> Export:
    """Record the export of one session, or of all sessions of a person, and return it.

    All sessions means all that are stored under the scope: also archived, expired and partially
    imported ones, and purged ones until they are deleted.

    Raises NotFound, BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    scope = person_for(by, scope)
    if session_key is None:
        export = _count_export(Session.objects.of_scopes(*all_scopes_of(scope)), format)
        _record_all(export, scope, by, reason)
        return export
    session = get_session(session_key=session_key, by=by, scope=scope)
    export = _count_export(Session.objects.filter(pk=session.pk), format)
    record(session, AuditAction.EXPORT, by, reason, messages=export.message_count, format=format)
    return export


@retried(is_repeatable=False)
def begin_export_of_all(*, format: str, by: Actor, reason: str) -> Export:
    """Record the export of all sessions of all people, and return it.

    Raises BadInput, MemoryUnavailable, and TypeError if `by` is a user or visitor.
    """
    if by.kind in ("user", "visitor"):
        raise TypeError(f"A {by.kind} can only export their own sessions; call begin_export.")
    check_reason(reason)
    export = _count_export(Session.objects.all(), format)
    _record_all(export, "", by, reason)
    return export


@retried(is_repeatable=False)
def begin_export_of(*, sessions: QuerySet[Session], format: str, by: Actor, reason: str) -> Export:
    """Record the export of the sessions that a queryset selects, and return it.

    With an entry for each session, or from 101 sessions on one entry with their number.
    Raises BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    export = _count_export(Session.objects.filter(pk__in=sessions.order_by().values("pk")), format)
    if export.session_count > MAX_ENTRIES:
        _record_all(export, "", by, reason)
        return export
    with locked_transaction():
        for session in export.sessions.order_by("pk").defer("instructions", "metadata"):
            rows = session.last_seq - session.stored_from + 1
            record(session, AuditAction.EXPORT, by, reason, messages=rows, format=format)
    return export


@retried(is_repeatable=True)
def preview_export(
    *, format: str, by: Actor, scope: str | None = None, session_key: str | None = None
) -> Export:
    """Return the export that `begin_export` would begin, without an entry; of all if no scope.

    Raises NotFound, BadInput, MemoryUnavailable.
    """
    if scope is None:
        return _count_export(Session.objects.all(), format)
    if session_key is None:
        return _count_export(
            Session.objects.of_scopes(*all_scopes_of(person_for(by, scope))), format
        )
    session = get_session(session_key=session_key, by=by, scope=scope)
    return _count_export(Session.objects.filter(pk=session.pk), format)


def _count_export(sessions: SessionQuerySet, format: str) -> Export:
    rows = Sum(F("last_seq") - F("stored_from") + 1, default=0)
    return Export(
        sessions=sessions,
        format=format,
        session_count=sessions.count(),
        message_count=sessions.aggregate(rows=rows)["rows"],
    )


def _record_all(export: Export, scope: str, by: Actor, reason: str) -> None:
    """Record the export of all sessions of a scope, or of all scopes if it is empty."""
    counts = {"sessions": export.session_count, "messages": export.message_count}
    record_person(scope, AuditAction.EXPORT, by, reason, **counts, format=export.format)


abegin_export = in_pool(begin_export)
