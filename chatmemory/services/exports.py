"""What is exported, and the entry that says so before the first word of it leaves."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F, Sum

from chatmemory.models import Session, SessionQuerySet
from chatmemory.services.actors import Actor, person_for, spaces_of
from chatmemory.services.audit import check_reason, record, record_person
from chatmemory.services.faults import durably
from chatmemory.services.pool import in_pool
from chatmemory.services.sessions import get_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Which sessions are exported, and how much there was of them at the beginning."""

    sessions: SessionQuerySet
    form: str
    session_count: int
    message_count: int


def begin_export(
    *,
    form: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_key: str | None = None,
) -> Export:
    """Write down that a session is exported, or else everything of a person; return which it is.

    Everything is all that is stored under the scope: archived, expired and half-imported sessions
    too, and purged ones until they are deleted. Raises NotFound, BadInput.
    """
    scope = person_for(by, scope)
    if session_key is None:
        return _begin(Session.objects.of_scopes(*spaces_of(scope)), scope, form, by, reason)
    session = get_session(session_key=session_key, by=by, scope=scope)
    return _begin(Session.objects.filter(pk=session.pk), scope, form, by, reason, session)


def begin_export_of_all(*, form: str, by: Actor, reason: str) -> Export:
    """Write down that all sessions of all people are exported. Raises BadInput.

    Raises TypeError where a person asks: that is a mistake of the calling code.
    """
    if by.kind in ("user", "visitor"):
        raise TypeError(f"{by.kind}s reach only their own sessions")
    return _begin(Session.objects.all(), "", form, by, reason)


def _begin(
    sessions: SessionQuerySet,
    scope: str,
    form: str,
    by: Actor,
    reason: str,
    session: Session | None = None,
) -> Export:
    check_reason(reason)

    def work() -> Export:
        rows = Sum(F("last_seq") - F("stored_from") + 1, default=0)
        export = Export(
            sessions=sessions,
            form=form,
            session_count=sessions.count(),
            message_count=sessions.aggregate(rows=rows)["rows"],
        )
        if session is not None:
            record(session, "export", by, reason, messages=export.message_count, form=form)
        else:
            counts = {"sessions": export.session_count, "messages": export.message_count}
            record_person(scope, "export", by, reason, **counts, form=form)
        return export

    return durably(work, is_repeatable=False)


abegin_export = in_pool(begin_export)
abegin_export_of_all = in_pool(begin_export_of_all)
