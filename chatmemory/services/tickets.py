"""Tickets: issued to who is signed in, and used once.

A row is what holds over several processes and without a shared cache: of two who use a ticket at
once, only one deletes it.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from django.contrib.auth import get_user_model

from chatmemory.errors import RateLimited, Unauthenticated
from chatmemory.models import DatabaseNow, Ticket
from chatmemory.services.actors import Actor
from chatmemory.services.faults import durably
from chatmemory.services.pool import in_pool
from chatmemory.services.rights import Login, proofs_of

TICKET_SECONDS = 30
MAX_TICKETS = 10
"""Tickets that one person may have unused."""


def issue_ticket(*, by: Actor) -> str:
    """A text with which this user can open one websocket in the next 30 seconds.

    Only its digest is stored. Raises Unauthenticated, RateLimited, MemoryUnavailable.
    """
    if by.kind != "user":
        raise TypeError("only users are given tickets")
    ticket = secrets.token_urlsafe(32)

    def work() -> None:
        proof = proofs_of({by.id}).get(by.id)
        if proof is None:
            raise Unauthenticated
        Ticket.objects.filter(expires_at__lte=DatabaseNow()).delete()
        if Ticket.objects.filter(user_pk=by.id).count() >= MAX_TICKETS:
            raise RateLimited("Use the tickets that you have.", retry_after=TICKET_SECONDS)
        Ticket.objects.get_or_create(
            digest=_digest(ticket),
            defaults={
                "user_pk": by.id,
                "proof": _digest(proof),
                "expires_at": DatabaseNow() + timedelta(seconds=TICKET_SECONDS),
            },
        )

    durably(work, is_repeatable=True)
    return ticket


def use_ticket(*, ticket: str) -> Login:
    """Let in who was given this ticket; it is worth nothing from now on.

    If the database was lost in the middle, it may be used up without use. Raises Unauthenticated
    if it is unknown, used, expired, of a user who is not active or whose password is another since,
    and MemoryUnavailable.
    """

    def work() -> Login:
        found = Ticket.objects.filter(digest=_digest(ticket), expires_at__gt=DatabaseNow())
        row = found.first()
        if row is None or not found.delete()[0]:
            raise Unauthenticated
        users = get_user_model()._default_manager.filter(pk=row.user_pk, is_active=True)
        for user in users:
            login = Login.of(user)
            if _digest(login.proof) == row.proof:
                return login
        raise Unauthenticated

    return durably(work, is_repeatable=True)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


aissue_ticket = in_pool(issue_ticket)
ause_ticket = in_pool(use_ticket)
