"""The views of visitors, who have no account."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth import get_user_model
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import services
from chatmemory.access import rates, visitors
from chatmemory.api.authentication import SessionLogin, account_logins, network_of_request
from chatmemory.api.base import PublicView, View
from chatmemory.api.own_data import receipt
from chatmemory.api.requests import ADOPT, NEW_VISITOR
from chatmemory.conf import settings
from chatmemory.errors import Conflict, Forbidden, NotFound, Unauthenticated
from chatmemory.models import Visitor
from chatmemory.rendering.text import first_words
from chatmemory.services import Actor
from chatmemory.services.audit.entries import BY_OWNER

NEEDS_HTTPS = "Visitors need HTTPS. If a proxy provides it, set Django's SECURE_PROXY_SSL_HEADER."

MAX_WORDS_CHARS = 100


class VisitorList(PublicView):
    """Creates visitors, before their first message: no page view stores anything."""

    def get_authenticators(self) -> list[BaseAuthentication]:
        return account_logins()

    def post(self, request: Request) -> Response:
        """Return the visitor of the cookie, or create one and set the cookie: 201.

        A visitor of an embed is always a new one, and the answer contains the secret.
        """
        embed = self.body(NEW_VISITOR).embed
        if isinstance(request.user, get_user_model()):
            raise Conflict("You are signed in, so you are no visitor.")
        if not settings.ALLOW_ANONYMOUS:
            raise Unauthenticated
        if not embed:
            SessionLogin().enforce_csrf(request)
        known = None if embed else _visitor_of(request)
        if known is not None:
            rates.check_writes(known)
            ends_at = Visitor.objects.values_list("ends_at", flat=True).get(digest=known.id)
            return Response(fields(known, ends_at))
        is_local = visitors.is_development(request.get_host(), is_secure=request.is_secure())
        if not request.is_secure() and not is_local:
            raise Forbidden(NEEDS_HTTPS)  # a browser would drop the cookie, and create others
        new = services.create_visitor(
            network=network_of_request(request),
            embed=embed,
            origin=request.headers.get("Origin", ""),
        )
        if embed:
            return Response(fields(new.actor, new.ends_at, new.token), 201)
        response = Response(fields(new.actor, new.ends_at), 201)
        visitors.set_cookie(response, new.token, is_local=is_local)
        return response


def fields(visitor: Actor, ends_at: datetime, token: str | None = None) -> dict[str, object]:
    """Return the answer about a visitor."""
    return {"visitor": visitor.id, "ends_at": ends_at.isoformat(), "token": token}


def _visitor_of(request: Request) -> Actor | None:
    """Return the visitor of the cookie; None if it is missing, unknown or has ended."""
    token = visitors.token_of(request._request)  # noqa: SLF001  # Django's own request
    try:
        return None if token is None else services.authenticate_visitor(token=token).actor
    except Unauthenticated:
        return None


class Adoption(View):
    """Moves the sessions of the browser's visitor to the user who signed in."""

    def get(self, request: Request) -> Response:
        """List them: on a shared computer they may be another person's."""
        token = visitors.token_of(request._request)  # noqa: SLF001  # Django's own request
        is_user = self.visitor is None
        offer = services.offer_adoption(by=self.actor, token=token) if token and is_user else None
        if offer is None:
            return Response({"visitor": None, "sessions": [], "done": False})
        listed = [
            {
                "key": session.key,
                "title": session.title,
                "text": first_words(session.text, MAX_WORDS_CHARS),
                "last_message_at": session.last_message_at and session.last_message_at.isoformat(),
            }
            for session in offer.sessions
        ]
        found = {"visitor": offer.visitor.id, "sessions": listed, "done": offer.is_done}
        return Response(found)

    def post(self, request: Request) -> Response:
        """Move them; the body names the visitor whose sessions the person has seen."""
        digest = self.body(ADOPT).visitor
        if self.visitor is not None:
            raise Conflict("Sign in first.")
        visitor = _visitor_of(request)
        adopted = Visitor.objects.filter(digest=digest, adopted_by=self.actor.owner)
        # Without the credential only again: the answer to the first request may be lost.
        if not adopted.exists() and (visitor is None or visitor.id != digest):
            raise NotFound("This browser has no such visitor. List the sessions again.")
        keys = services.adopt_visitor(by=self.actor, visitor=Actor.known_visitor(digest))
        response = Response({"keys": keys})
        visitors.forget_cookie(response)
        return response


class OwnVisitor(View):
    """The visitor who makes the request."""

    def delete(self, request: Request) -> Response:
        """Erase all data of the visitor, and end the visitor; sessions on hold stay.

        Not by SELF_SERVICE: an operator cannot find the person behind a visitor.
        """
        if self.visitor is None:
            raise NotFound("You are no visitor.")
        erased = services.erase_person(by=self.actor, reason=BY_OWNER)
        response = Response(receipt(erased))
        visitors.forget_cookie(response)
        return response
