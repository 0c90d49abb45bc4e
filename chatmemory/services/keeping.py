"""Hold and archive: what may not be removed, and what takes no more messages."""

from __future__ import annotations

from typing import Any

from django.db.models import F

from chatmemory.models import AuditEntry, DatabaseNow, Session
from chatmemory.services.actors import Actor
from chatmemory.services.audit import check_reason, record
from chatmemory.services.faults import durably
from chatmemory.services.floor import cancel_waiting
from chatmemory.services.locks import lock_any, unit
from chatmemory.services.news import tell
from chatmemory.services.pool import address_lane, in_pool


def hold_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """See that nothing removes anything of a session; None if it is on hold already.

    Neither a person nor age nor the vacuum does, until it is released. With a `session_pk` it is
    that session, though it be expired or purged. Raises BadInput, NotFound, MemoryUnavailable.
    """
    return _set("hold", "held_at", DatabaseNow(), session_key, by, reason, scope, session_pk)


def release_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """End a hold; None if there is none. All else is as in `hold_session`."""
    return _set("release", "held_at", None, session_key, by, reason, scope, session_pk)


def archive_session(
    *, session_key: str, by: Actor, reason: str, scope: str | None = None
) -> AuditEntry | None:
    """See that a session takes no more messages; None if it is archived already.

    A running turn goes on to its end, waiting ones are cancelled.
    Raises BadInput, NotFound, MemoryUnavailable.
    """
    return _set("archive", "archived_at", DatabaseNow(), session_key, by, reason, scope)


def unarchive_session(
    *, session_key: str, by: Actor, reason: str, scope: str | None = None
) -> AuditEntry | None:
    """Let a session take messages again; None if it does. Raises as `archive_session`."""
    return _set("unarchive", "archived_at", None, session_key, by, reason, scope)


def _set(
    action: str,
    column: str,
    value: Any,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    check_reason(reason)

    def work() -> AuditEntry | None:
        with unit():
            session = lock_any(session_key, by, scope, session_pk)
            if (getattr(session, column) is None) == (value is None):
                return None
            if action == "archive":
                cancel_waiting(session)
            Session.objects.filter(pk=session.pk).update(
                **{column: value, "revision": F("revision") + 1}
            )
            tell(session.pk)
            return record(session, action, by, reason)

    return durably(work, is_repeatable=True)


ahold_session = in_pool(hold_session, lane=address_lane)
arelease_session = in_pool(release_session, lane=address_lane)
aarchive_session = in_pool(archive_session, lane=address_lane)
aunarchive_session = in_pool(unarchive_session, lane=address_lane)
