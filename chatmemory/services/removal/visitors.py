"""Visitors who end: their credentials, tickets and rows."""

from __future__ import annotations

from django.db.models import F, Q, Value
from django.db.models.functions import Concat

from chatmemory.access.actors import all_scopes_of, visitor_of
from chatmemory.database.after_commit import announce_visitor_ended
from chatmemory.database.locks import lock_visitor, locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import NotFound
from chatmemory.models import DatabaseNow, Session, Ticket, Visitor
from chatmemory.services.derived.removal import delete_person_rows

BATCH = 500


def of_ended_visitors() -> Q:
    """Match the sessions of visitors who have ended, unless a turn runs or waits."""
    scopes = Visitor.objects.ended().values_list(Concat(Value("visitor:"), F("digest")))
    return Q(scope__in=scopes, running__isnull=True, waiting=0)


@retried(is_repeatable=True)
def end_visitor(scope: str) -> None:
    """End a visitor, so that no further session is opened; nothing for another person."""
    digest = visitor_of(scope)
    if digest is None:
        return
    with locked_transaction():
        try:
            visitor = lock_visitor(digest)
        except NotFound:
            return
        Visitor.objects.current().filter(pk=visitor.pk).update(ends_at=DatabaseNow())
        announce_visitor_ended(scope)


@retried(is_repeatable=True)
def forget_person_rows(scope: str) -> None:
    """Delete the tickets of a person, and the rows of the visitors who are the person.

    A visitor with a session on hold stays, so that the session expires after the hold.
    """
    digest = visitor_of(scope)
    with locked_transaction():
        Visitor.objects.filter(adopted_by=scope).delete()
        if digest is not None and not _has_sessions(scope):
            Visitor.objects.filter(digest=digest).delete()
        Ticket.objects.filter(owner=scope).delete()


def delete_ended_visitors() -> None:
    """Delete the rows of ended visitors who have no session. Raises MemoryUnavailable."""
    after = 0
    while batch := _ended_after(after):
        for _, digest in batch:
            _delete_ended(digest)
        after = batch[-1][0]


@retried(is_repeatable=True)
def _ended_after(pk: int) -> list[tuple[int, str]]:
    found = Visitor.objects.ended().filter(pk__gt=pk).order_by("pk")
    return list(found.values_list("pk", "digest")[:BATCH])


@retried(is_repeatable=True)
def _delete_ended(digest: str) -> None:
    with locked_transaction():
        try:
            visitor = lock_visitor(digest)
        except NotFound:
            return
        if not Session.objects.filter(scope=visitor.scope).exists():
            delete_person_rows(visitor.scope)
            visitor.delete()


def _has_sessions(scope: str) -> bool:
    return Session.objects.of_scopes(*all_scopes_of(scope)).exists()
