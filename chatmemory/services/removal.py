"""Trim, clear, purge: what is removed is below the floor; the rows stay until a vacuum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from django.db.models import F

from chatmemory.errors import NotFound
from chatmemory.models import AuditEntry, Session
from chatmemory.services.actors import Actor, scope_for
from chatmemory.services.audit import check_reason
from chatmemory.services.cuts import UNKNOWN, Cut, check_cut, find_older, floor_after
from chatmemory.services.faults import durably
from chatmemory.services.floor import check_held, mark_removed, move_epoch, move_floor
from chatmemory.services.locks import lock, lock_stored, unit
from chatmemory.services.pool import address_lane, in_pool

EXPIRED = "expired"
"""The reason of a purge because the session's end had come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a removal would do now."""

    messages: int
    """How many it hides."""
    waiting: int = 0
    """How many waiting turns it cancels."""
    ends_run: bool = False
    """Whether it ends a reply that is being written."""
    partial_chars: int = 0
    """Length of the text of that reply, as it was last saved."""
    is_held: bool
    """The session is on hold: it would be refused."""


def trim_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
    **cut: Unpack[Cut],
) -> AuditEntry | None:
    """Hide the oldest messages; return what went, None if nothing did.

    The cut is one of `keep_last` (messages), `keep_turns`, `keep_tokens`, `before` (an aware
    time) and `before_seq`. It is never made inside a turn, nor into one that runs, so a few more
    may stay. With a `session_pk` it is not done to a newer session under the same key.
    A missing session is NotFound, not None: an operator must not take a wrong key for success.
    Raises BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_cut(cut)
    check_reason(reason)

    def work() -> AuditEntry | None:
        older = UNKNOWN
        if "before" in cut:
            for found in Session.objects.at(scope_for(by, scope), session_key):
                older = find_older(found, cut)
        with unit():
            session = lock(session_key, by, scope, session_pk)
            check_held(session)
            floor = floor_after(session, cut, older)
            if floor == session.first_seq:
                return None
            return move_floor(session, floor, "trim", by, reason)

    return durably(work, is_repeatable=False)


def clear_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry:
    """Hide all messages; whoever began to write before this can't write any more.

    A running turn ends as interrupted without a row, waiting ones are cancelled. `session_pk` is
    as in `trim_session`. Raises BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_reason(reason)

    def work() -> AuditEntry:
        with unit():
            session = lock(session_key, by, scope, session_pk)
            check_held(session)
            ended = move_epoch(session)
            return move_floor(session, session.last_seq + 1, "clear", by, reason, ended)

    return durably(work, is_repeatable=False)


def purge_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry:
    """Remove the session and all its messages; its key is free immediately.

    Nothing that started before can reach a new session under the same key. With a `session_pk`
    an expired session can be purged too, and never a newer one under the same key.
    Raises BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_reason(reason)

    def work() -> AuditEntry:
        with unit():
            if session_pk is None:
                session = lock(session_key, by, scope)
            else:
                session = lock_stored(session_pk, by, scope)
                if session.key != session_key or session.removed_at is not None:
                    raise NotFound
            check_held(session)
            return purge(session, by, reason)

    return durably(work, is_repeatable=False)


def preview_trim(session: Session, **cut: Unpack[Cut]) -> Preview:
    """What a trim would hide now. Raises BadInput."""
    check_cut(cut)
    messages = floor_after(session, cut) - session.first_seq
    return Preview(messages=messages, is_held=session.held_at is not None)


def preview_removal(session: Session) -> Preview:
    """What a clear or a purge would hide and end now. Raises MemoryUnavailable."""
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
    """Purge the expired session that still has this address, if one has. Needs a unit."""
    expired = Session.objects.expired().filter(scope=scope, key=key)
    if expired.update(fence=F("fence")):
        purge(expired.get(), Actor.server("expiry"), EXPIRED)


def purge(session: Session, by: Actor, reason: str) -> AuditEntry:
    """Remove the session. Needs the lock."""
    ended = move_epoch(session)
    mark_removed(session)
    return move_floor(session, session.last_seq + 1, "purge", by, reason, ended)


apreview_removal = in_pool(preview_removal)
apreview_trim = in_pool(preview_trim)
atrim_session = in_pool(trim_session, lane=address_lane)
aclear_session = in_pool(clear_session, lane=address_lane)
apurge_session = in_pool(purge_session, lane=address_lane)
