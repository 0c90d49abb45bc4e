"""Trim, clear, purge: what is removed is below the floor; the rows stay until a vacuum."""

from __future__ import annotations

from typing import Any

from django.db.models import F
from django.db.models.functions import Coalesce

from chatmemory.errors import BadInput, Held
from chatmemory.models import AuditEntry, DatabaseNow, Message, Session, Turn
from chatmemory.services.actors import Actor
from chatmemory.services.audit import record
from chatmemory.services.faults import durably
from chatmemory.services.locks import bounded_wait, lock, unit
from chatmemory.services.news import tell, tell_finished
from chatmemory.services.pool import address_lane, in_pool

LIVE = (Turn.Status.WAITING, Turn.Status.RUNNING)


def trim_session(
    *,
    session_key: str,
    keep_last: int,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Hide all but the last `keep_last` messages; return what went, None if nothing did.

    Never cuts inside a turn, nor into one that runs, so it may keep a few more. With a
    `session_pk` it is not done to a newer session under the same key.
    Raises NotFound, Held, BadInput.
    """
    _check_keep(keep_last)

    def work() -> AuditEntry | None:
        with unit():
            session = lock(session_key, by, scope, session_pk)
            _check_held(session)
            floor = _floor_for(session, keep_last)
            if floor == session.first_seq:
                return None
            return _move_floor(session, floor, "trim", by, reason)

    return durably(work, is_repeatable=False)


def preview_trim(session: Session, keep_last: int) -> int:
    """How many messages a trim would hide now. Raises BadInput."""
    _check_keep(keep_last)
    return _floor_for(session, keep_last) - session.first_seq


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
    as in `trim_session`. Raises NotFound, Held.
    """

    def work() -> AuditEntry:
        with unit():
            session = lock(session_key, by, scope, session_pk)
            _check_held(session)
            _move_epoch(session)
            return _move_floor(session, session.last_seq + 1, "clear", by, reason)

    return durably(work, is_repeatable=False)


def purge_session(
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry:
    """Remove the session and all its messages; its key is free at once.

    Nothing that was begun for it can reach a new session under the same key. `session_pk` is as
    in `trim_session`. Raises NotFound, Held.
    """

    def work() -> AuditEntry:
        with unit():
            session = lock(session_key, by, scope, session_pk)
            _check_held(session)
            return _purge(session, by, reason)

    return durably(work, is_repeatable=False)


def purge_expired(scope: str, key: str) -> None:
    """Purge the expired session that still has this address, if one has. Needs a transaction."""
    expired = Session.objects.expired().filter(scope=scope, key=key)
    with bounded_wait():
        found = expired.update(fence=F("fence"))
    if found:
        _purge(expired.get(), Actor.server("expiry"), "expired")


def _purge(session: Session, by: Actor, reason: str) -> AuditEntry:
    _move_epoch(session)
    session.removed_scope, session.scope = session.scope, f"removed:{session.pk}"
    Session.objects.filter(pk=session.pk).update(
        removed_scope=session.removed_scope, scope=session.scope, removed_at=DatabaseNow()
    )
    return _move_floor(session, session.last_seq + 1, "purge", by, reason)


def _check_held(session: Session) -> None:
    if session.held_at is not None:
        raise Held


def _check_keep(keep_last: int) -> None:
    if keep_last < 0:
        raise BadInput("Keep none or more messages.", field="keep_last", limit=0)


def _floor_for(session: Session, keep_last: int) -> int:
    """The number at which a trim would put the floor: that of a turn's first row."""
    floor = session.last_seq - keep_last + 1
    if floor <= session.first_seq:
        return session.first_seq
    if floor > session.last_seq and session.running is None:
        return floor
    begun = Message.stored.filter(
        session=session, role=Message.Role.USER, seq__range=(session.first_seq, floor)
    ).order_by("-seq")
    running = session.turns.filter(client_id=session.running, user_seq__isnull=False).values_list(
        "user_seq", flat=True
    )
    # A run may store rows of a user too: the turn begins with its own user's row.
    begin = begun.values_list(Coalesce("turn", "seq"), flat=True).first()
    starts = [seq for seq in (begin, *running) if seq]
    return min(starts, default=session.first_seq)


def _move_floor(session: Session, floor: int, action: str, by: Actor, reason: str) -> AuditEntry:
    """Hide what is below `floor`. Needs the lock."""
    entry = record(
        session,
        action,
        by,
        reason,
        from_seq=session.first_seq,
        to_seq=floor - 1,
        messages=floor - session.first_seq,
    )
    session.first_seq = floor
    Session.objects.filter(pk=session.pk).update(first_seq=floor, revision=F("revision") + 1)
    tell(session.pk)
    return entry


def _move_epoch(session: Session) -> None:
    """Fence off who began before: the running turn ends, the waiting ones too. Needs the lock."""
    ended: dict[str, Any] = {
        "ended_at": DatabaseNow(),
        "asked": "",
        "partial": "",
        "lease_owner": "",
        "lease_until": None,
        "fence": F("fence") + 1,
    }
    turns = session.turns.filter(status__in=LIVE)
    for client_id, status in turns.values_list("client_id", "status"):
        was_running = status == Turn.Status.RUNNING
        status = Turn.Status.INTERRUPTED if was_running else Turn.Status.CANCELLED
        turns.filter(client_id=client_id).update(status=status, **ended)
        tell_finished(session.pk, client_id, status, "")
    Session.objects.filter(pk=session.pk).update(
        epoch=F("epoch") + 1, fence=F("fence") + 1, running=None, waiting=0
    )


apreview_trim = in_pool(preview_trim)
atrim_session = in_pool(trim_session, lane=address_lane)
aclear_session = in_pool(clear_session, lane=address_lane)
apurge_session = in_pool(purge_session, lane=address_lane)
