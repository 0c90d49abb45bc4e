"""Tickets: issued to a signed-in user, and used once.

Rows work across processes without a shared cache: of two attempts to use a ticket, only one deletes
its row.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import timedelta

from django.contrib.auth import get_user_model

from chatmemory.errors import RateLimited, Unauthenticated
from chatmemory.models import DatabaseNow, Ticket, on_primary
from chatmemory.services.actors import Actor
from chatmemory.services.faults import durably
from chatmemory.services.locks import delete_without_waiting, unit
from chatmemory.services.pool import in_pool
from chatmemory.services.rights import Login, proofs_of, valid_logins

TICKET_SECONDS = 30
MAX_TICKETS = 10
"""Tickets that one person may have unused."""

MAX_DELETED = 100
"""Expired tickets that one call deletes."""


def issue_ticket(*, by: Actor, key: str | None = None, credential: str | None = None) -> str:
    """Return a secret with which this user can open one websocket in the next 30 seconds.

    `key` and `credential` are those of the login that asks for it (see `Login`): the socket ends
    with that login. Only a digest of the secret is stored.
    Raises Unauthenticated, RateLimited, MemoryUnavailable.
    """
    if by.kind != "user":
        raise TypeError("only users are given tickets")
    ticket = secrets.token_urlsafe(32)

    def work() -> None:
        proof = proofs_of({by.id}).get(by.id)
        if proof is None:
            raise Unauthenticated
        delete_without_waiting(
            Ticket.objects.filter(expires_at__lte=DatabaseNow()), at_most=MAX_DELETED
        )
        unused = Ticket.objects.filter(user_pk=by.id, expires_at__gt=DatabaseNow())
        if unused.count() >= MAX_TICKETS:
            raise RateLimited("Use the tickets that you have.", retry_after=TICKET_SECONDS)
        with unit():
            Ticket.objects.get_or_create(
                digest=_digest(ticket),
                defaults={
                    "user_pk": by.id,
                    "proof": _digest(proof),
                    "login": _encrypted(ticket, json.dumps([key, credential]).encode()).hex(),
                    "expires_at": DatabaseNow() + timedelta(seconds=TICKET_SECONDS),
                },
            )

    durably(work, is_repeatable=True)
    return ticket


def use_ticket(*, ticket: str) -> Login:
    """Consume a ticket; return the login of the person it was issued to.

    If the connection to the database breaks meanwhile, the ticket may be lost. Raises
    Unauthenticated if it is unknown, used or expired, if the login that issued it has ended, or
    if the user is inactive or has another password; and MemoryUnavailable.
    """

    def work() -> Login:
        found = Ticket.objects.filter(digest=_digest(ticket), expires_at__gt=DatabaseNow())
        row = found.first()
        if row is None:
            raise Unauthenticated
        with unit():
            deleted, _ = found.delete()
        if not deleted:
            raise Unauthenticated
        key, credential = json.loads(_encrypted(ticket, bytes.fromhex(row.login)))
        for user in on_primary(get_user_model()).filter(pk=row.user_pk):
            login = Login.of(user, key, credential)
            if _digest(login.proof) == row.proof and login in valid_logins({login}):
                return login
        raise Unauthenticated

    return durably(work, is_repeatable=True)


def _encrypted(ticket: str, data: bytes) -> bytes:
    """Encrypt or decrypt data with a ticket, so that the database alone reveals no session key.

    A stream cipher. Its key, the ticket, has 256 random bits and encrypts only once.
    """
    stream = hashlib.shake_256(b"chatmemory.ticket" + ticket.encode()).digest(len(data))
    return bytes(byte ^ mask for byte, mask in zip(data, stream, strict=True))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


aissue_ticket = in_pool(issue_ticket)
ause_ticket = in_pool(use_ticket)
