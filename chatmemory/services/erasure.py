"""Erasure: everything of a person, at once and for good."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.db.models import F

from chatmemory.errors import NotFound
from chatmemory.models import AuditEntry, Session, Turn
from chatmemory.services.actors import Actor, scope_for, spaces_of
from chatmemory.services.audit import check_reason, is_erased, record, record_person
from chatmemory.services.faults import durably
from chatmemory.services.floor import mark_removed, move_epoch
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.news import tell
from chatmemory.services.pool import in_pool
from chatmemory.services.vacuum import Vacuumed, vacuum_session
from chatmemory.services.walk import walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure deleted, or would delete."""

    sessions: int
    messages: int
    turns: int
    held: list[int]
    """The primary keys of sessions on hold, which stay."""
    entry: AuditEntry | None = field(default=None)
    """The receipt in the audit."""


def erase_person(*, by: Actor, reason: str, scope: str | None = None) -> Erased:
    """Delete all sessions of a person, with titles, messages and turns, for good.

    Expired sessions go too, half-imported ones, and what could still be restored. A session on
    hold stays, and the receipt lists it. Running turns end. If the call is cut short,
    call it again; what was begun goes at the next vacuum in any case.
    Raises BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    person = scope_for(by, scope)
    gone = Vacuumed()
    held = []
    for session_pk in walk(Session.objects.of_scopes(*spaces_of(person))):
        erased = _erase(session_pk, by, reason)
        if erased is None:
            held.append(session_pk)
        else:
            gone += erased

    def receipt() -> AuditEntry:
        return record_person(
            person,
            "erase",
            by,
            reason,
            sessions=gone.sessions,
            messages=gone.messages,
            turns=gone.turns,
            held=len(held),
        )

    return Erased(
        sessions=gone.sessions,
        messages=gone.messages,
        turns=gone.turns,
        held=held,
        entry=durably(receipt, is_repeatable=False),
    )


def preview_erasure(*, by: Actor, scope: str | None = None) -> Erased:
    """What an erasure would delete now."""
    person = scope_for(by, scope)

    def work() -> Erased:
        sessions = messages = turns = 0
        held = []
        found = Session.objects.of_scopes(*spaces_of(person))
        columns = found.values_list("pk", "held_at", F("last_seq") - F("stored_from") + 1)
        for session_pk, held_at, rows in columns.order_by("pk").iterator():
            if held_at is not None:
                held.append(session_pk)
                continue
            sessions += 1
            messages += rows
        turns = Turn.objects.filter(session__in=found.filter(held_at__isnull=True)).count()
        return Erased(sessions=sessions, messages=messages, turns=turns, held=held)

    return durably(work, is_repeatable=True)


def begin_erasure(session: Session, by: Actor, reason: str) -> None:
    """Hide a session for good; the vacuum deletes it without delay. Needs the lock."""
    move_epoch(session)
    if session.removed_at is None:
        mark_removed(session)
    record(
        session,
        "erase",
        by,
        reason,
        from_seq=session.stored_from,
        to_seq=session.last_seq,
        messages=session.last_seq - session.stored_from + 1,
    )
    Session.objects.filter(pk=session.pk).update(
        first_seq=F("last_seq") + 1,
        revision=F("revision") + 1,
        title="",
        instructions="",
        metadata={},
        owner=None,
    )
    tell(session.pk)


def _erase(session_pk: int, by: Actor, reason: str) -> Vacuumed | None:
    """What was deleted of a session; None if it is on hold."""

    def begin() -> bool:
        with unit():
            session = lock_pk(session_pk)
            if session.held_at is not None:
                return False
            if not is_erased(session_pk):
                begin_erasure(session, by, reason)
            return True

    try:
        if not durably(begin, is_repeatable=True):
            return None
    except NotFound:
        return Vacuumed()
    gone, is_more = vacuum_session(session_pk)
    while is_more:
        done, is_more = vacuum_session(session_pk)
        gone += done
    return gone


aerase_person = in_pool(erase_person)
apreview_erasure = in_pool(preview_erasure)
