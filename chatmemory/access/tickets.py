"""Tickets: secrets that a user or visitor can exchange once for a login.

They are rows, so that they work across processes without a shared cache: of two concurrent attempts
to use a ticket, only one deletes its row.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from datetime import timedelta

from django.contrib.auth import get_user_model

from chatmemory.access.actors import Actor, check_own_name, is_person, owner_of, visitor_of
from chatmemory.access.logins import Login, is_valid, proofs_of, visitor_login
from chatmemory.database.locks import delete_without_waiting, locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import RateLimited, Unauthenticated
from chatmemory.models import DatabaseNow, Ticket, Visitor, on_primary

TICKET_SECONDS = 30
"""The lifetime of a ticket."""

MAX_TICKETS = 10
"""The number of unused tickets that a user may have."""

MAX_DELETED = 100
"""The number of expired tickets that one call deletes."""


def issue_ticket(*, by: Actor, key: str | None = None, credential: str | None = None) -> str:
    """Return a secret with which a person can open one websocket in the next 30 seconds.

    `key` and `credential` belong to the user's current login (see `Login`): the socket ends with
    that login. A visitor has neither. Only a digest of the secret is stored.
    Raises Unauthenticated, Impersonated, RateLimited, MemoryUnavailable.
    """
    if not is_person(by.owner):
        raise TypeError("issue_ticket needs an actor of kind user or visitor")
    check_own_name(by)  # a ticket names only its person, and may outlive the impersonation
    ticket = secrets.token_urlsafe(32)
    _store_ticket(ticket, owner=by.owner, key=key, credential=credential)
    return ticket


@retried(is_repeatable=True)
def _store_ticket(ticket: str, *, owner: str, key: str | None, credential: str | None) -> None:
    proof = proofs_of({owner}).get(owner)
    if proof is None:
        raise Unauthenticated
    expired = Ticket.objects.filter(expires_at__lte=DatabaseNow())
    delete_without_waiting(expired, at_most=MAX_DELETED)
    unused = Ticket.objects.filter(owner=owner, expires_at__gt=DatabaseNow())
    # Counted without a lock: concurrent calls may exceed the limit by a few, which harms nothing.
    if unused.count() >= MAX_TICKETS:
        message = f"You have {MAX_TICKETS} unused tickets. Use one, or wait until they expire."
        raise RateLimited(message, retry_after=TICKET_SECONDS)
    with locked_transaction():
        # Not `create`: a retry after a lost connection may find the row committed.
        Ticket.objects.get_or_create(
            digest=_secret_digest(ticket),
            defaults={
                "owner": owner,
                "proof": _secret_digest(proof),
                "login": _encrypted(ticket, json.dumps([key, credential]).encode()).hex(),
                "expires_at": DatabaseNow() + timedelta(seconds=TICKET_SECONDS),
            },
        )


@retried(is_repeatable=True)
def use_ticket(*, ticket: str, network: str = "", origin: str = "") -> Login:
    """Consume a ticket; return the login of the person it was issued to.

    `network` is the client's, for limits on visitors: see `network_of`. A visitor of an embed
    must come from one of its origins.

    If the connection to the database is lost meanwhile, the ticket may be lost too. Raises
    MemoryUnavailable; and Unauthenticated if the ticket is unknown, used or expired, if the login
    that issued it has ended, if the user is inactive or has another password, or for a visitor of
    an embed that does not have this origin.
    """
    found = Ticket.objects.filter(digest=_secret_digest(ticket), expires_at__gt=DatabaseNow())
    row = found.first()
    if row is None:
        raise Unauthenticated
    # The DELETE decides: both of two concurrent calls may read the row, but only one deletes it.
    with locked_transaction():
        deleted, _ = found.delete()
    if not deleted:
        raise Unauthenticated
    key, credential = json.loads(_encrypted(ticket, bytes.fromhex(row.login)))
    for login in _logins_of(row.owner, key, credential, network, origin):
        if _secret_digest(login.proof) == row.proof and is_valid(login):
            return login
    raise Unauthenticated


def _logins_of(
    owner: str, key: str | None, credential: str | None, network: str, origin: str
) -> Iterator[Login]:
    digest, pk = visitor_of(owner), owner_of(owner)
    if digest is not None:
        actor = Actor.known_visitor(digest)
        for visitor in Visitor.objects.filter(digest=digest):
            yield visitor_login(actor, visitor.embed, network=network, origin=origin)
    for user in on_primary(get_user_model()).filter(pk__in=[pk] if pk is not None else []):
        yield Login.of(user, key, credential)


def _encrypted(ticket: str, data: bytes) -> bytes:
    """Encrypt or decrypt data with a ticket, so that the database alone reveals no session key.

    A stream cipher. Its key, the ticket, has 256 random bits and encrypts only once.
    """
    stream = hashlib.shake_256(b"chatmemory.ticket" + ticket.encode()).digest(len(data))
    return bytes(byte ^ mask for byte, mask in zip(data, stream, strict=True))


def _secret_digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


aissue_ticket = in_pool(issue_ticket)
ause_ticket = in_pool(use_ticket)
