"""Credentials of visitors: create them, and find the visitor of one.

A credential has 256 random bits of the server and is stored as a digest, so it can be neither
guessed nor read from the database. A value that the server did not make identifies no one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings as django_settings
from django.http.request import HttpRequest, split_domain_port, validate_host
from django.http.response import HttpResponseBase

from chatmemory.access import embeds, rates
from chatmemory.access.actors import Actor
from chatmemory.access.logins import Login, check_reach, visitor_login
from chatmemory.conf import settings
from chatmemory.database.faults import write_connection
from chatmemory.database.locks import lock_visitor, locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import Forbidden, NotFound, Unauthenticated
from chatmemory.models import DatabaseNow, DatabaseToday, Visitor, database_now

COOKIE = "__Host-chatmemory"
"""The cookie of a credential. Browsers accept this prefix only with Secure, without Domain and over
HTTPS, so no other host, not even a subdomain, can set it."""

LOCAL_COOKIE = "chatmemory-visitor"
"""The cookie of a development server, which has no HTTPS: see `is_development`."""

LOCAL_HOSTS = [".localhost", "127.0.0.1", "[::1]"]
"""Django allows these hosts while DEBUG is on and ALLOWED_HOSTS is empty."""

MAX_SHOWN_CHARS = 200
"""Of an origin in an error."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVisitor:
    """A visitor who was just created."""

    token: str
    """The credential, which is not stored."""
    actor: Actor
    ends_at: datetime
    """When it ends without another request."""


def create_visitor(*, network: str = "", embed: str = "", origin: str = "") -> NewVisitor:
    """Create a visitor. `network` is the client's network, for limits per network.

    A visitor of an embed must come from one of its origins, now and at each later use.
    Raises Unauthenticated without ALLOW_ANONYMOUS, Forbidden, RateLimited, MemoryUnavailable.
    """
    if not settings.ALLOW_ANONYMOUS:
        raise Unauthenticated
    if embed and not embeds.has_origin(embed, origin):
        raise Forbidden(f"EMBEDS has no {embed!r} with the origin {origin[:MAX_SHOWN_CHARS]!r}.")
    token = secrets.token_urlsafe(32)
    actor = Actor.visitor(token)
    check_reach(actor)
    rates.check_new_visitor(network, embed)
    return NewVisitor(token=token, actor=actor, ends_at=_store_visitor(actor.id, embed))


@retried(is_repeatable=True)
def _store_visitor(digest: str, embed: str) -> datetime:
    days = min(_days(embed), settings.VISITOR_MAX_DAYS)
    with locked_transaction():
        # Not `create`: a retry after a lost connection may find the row committed.
        Visitor.objects.get_or_create(
            digest=digest,
            defaults={"embed": embed, "ends_at": DatabaseNow() + timedelta(days=days)},
        )
    return Visitor.objects.get(digest=digest).ends_at


def _days(embed: str) -> int:
    return settings.EMBED_DAYS if embed else settings.VISITOR_DAYS


def authenticate_visitor(*, token: str, network: str = "", origin: str = "") -> Login:
    """Return the login of a credential, and move its end once a day.

    Raises Unauthenticated for an unknown, ended or adopted one, or if it belongs to an embed that
    does not have this origin; MemoryUnavailable.
    """
    if not settings.ALLOW_ANONYMOUS or not _TOKEN.fullmatch(token):
        raise Unauthenticated
    actor = Actor.visitor(token)
    embed = _use(actor.id, origin)
    return visitor_login(actor, embed, network=network, origin=origin)


@retried(is_repeatable=True)
def _use(digest: str, origin: str) -> str:
    """Return the embed of a current visitor, and move the end."""
    found = Visitor.objects.current().filter(digest=digest).annotate(today=DatabaseToday())
    for pk, embed, created_at, seen_day, today in found.values_list(
        "pk", "embed", "created_at", "seen_day", "today"
    ):
        if embed and not embeds.has_origin(embed, origin):
            break
        if seen_day < today:
            _slide(pk, embed, created_at)
        return str(embed)
    raise Unauthenticated


def _slide(pk: int, embed: str, created_at: datetime) -> None:
    now = database_now(write_connection())
    last = created_at + timedelta(days=settings.VISITOR_MAX_DAYS)
    ends_at = min(now + timedelta(days=_days(embed)), last)
    # Only a current one: an adoption or an erasure may have ended it since.
    Visitor.objects.current().filter(pk=pk).update(seen_day=now.date(), ends_at=ends_at)


def lock_current_visitor(digest: str, by: Actor) -> None:
    """Lock a visitor, who must not have ended or been adopted. Needs a transaction.

    Without the lock, a message that is stored during an adoption or an erasure would open a session
    that belongs to no one. Raises Unauthenticated if the visitor calls, else NotFound.
    """
    error = Unauthenticated if by.kind == "visitor" else NotFound
    try:
        visitor = lock_visitor(digest)
    except NotFound:
        raise error from None
    if not Visitor.objects.current().filter(pk=visitor.pk).exists():
        raise error


def token_in(cookies: Mapping[str, str], *, host: str, is_secure: bool) -> str | None:
    """Return the credential in a request's cookies, or None."""
    token = cookies.get(COOKIE)
    if token is None and is_development(host, is_secure=is_secure):
        token = cookies.get(LOCAL_COOKIE)
    return token


def token_of(request: HttpRequest) -> str | None:
    """Return the credential in the cookies of a request, or None."""
    return token_in(request.COOKIES, host=request.get_host(), is_secure=request.is_secure())


def set_cookie(response: HttpResponseBase, token: str, *, is_local: bool) -> None:
    """Set the cookie of a visitor; on a development server, one that needs no HTTPS."""
    response.set_cookie(
        LOCAL_COOKIE if is_local else COOKIE,
        token,
        max_age=timedelta(days=settings.VISITOR_MAX_DAYS),
        path="/",
        secure=not is_local,
        httponly=True,
        samesite="Lax",
    )


def forget_cookie(response: HttpResponseBase) -> None:
    """Delete the cookie of a visitor."""
    # Browsers ignore the deletion of a cookie with the prefix `__Host-` if it is not Secure.
    response.set_cookie(COOKIE, max_age=0, path="/", secure=True, samesite="Lax")
    response.delete_cookie(LOCAL_COOKIE)


def is_development(host: str, *, is_secure: bool) -> bool:
    """Whether this is a request to a development server: DEBUG, loopback, and no HTTPS."""
    domain, _port = split_domain_port(host)
    is_local = bool(domain) and validate_host(domain, LOCAL_HOSTS)
    return django_settings.DEBUG and not is_secure and is_local


def digest_of(token: str) -> str:
    """Return the digest of a credential."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


acreate_visitor = in_pool(create_visitor)
aauthenticate_visitor = in_pool(authenticate_visitor)
