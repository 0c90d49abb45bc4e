"""The question to a user who was a visitor: should the earlier chats move to the account?"""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from chatmemory import services
from chatmemory.access import visitors
from chatmemory.conf import settings
from chatmemory.pages.listing import title_of
from chatmemory.services import Actor
from chatmemory.services.adoption import AdoptionOffer

DECLINED = "chatmemory_declined"
"""In Django's session: the visitor whose chats the user did not take over."""

MAX_LISTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What the page shows of an offer."""

    visitor: str
    titles: list[str]
    more: int
    """How many chats are not listed."""
    is_done: bool


def adoption_of(request: HttpRequest, by: Actor) -> Adoption | None:
    """Return what the page shows; None if there is nothing to ask, or the user has declined."""
    if by.real is not None or has_declined(request):
        return None
    offer = _offer_of(request, by)
    if offer is None or not (offer.sessions or offer.is_done):
        return None
    titles = [title_of(each.title, each.text) for each in offer.sessions]
    return Adoption(
        visitor=offer.visitor.id,
        titles=[title or _("New chat") for title in titles[:MAX_LISTED]],
        more=max(0, len(titles) - MAX_LISTED),
        is_done=offer.is_done,
    )


def answer_adoption(request: HttpRequest, by: Actor) -> None:
    """Move the chats that the user has seen, or remember that the user declined.

    Does nothing if the browser has another visitor by now. Raises Conflict, MemoryUnavailable.
    """
    digest = _visitor_of(request)
    if digest is None or request.POST.get("visitor") != digest:
        return
    if "move" not in request.POST:
        request.session[DECLINED] = digest
    elif (offer := _offer_of(request, by)) is not None:
        services.adopt_visitor(by=by, visitor=offer.visitor)


def forget_adopted(response: HttpResponse, offer: Adoption | None) -> HttpResponse:
    """Remove the cookie of a visitor whose chats were moved, so that the note is shown once."""
    if offer is not None and offer.is_done:
        visitors.forget_cookie(response)
    return response


def has_declined(request: HttpRequest) -> bool:
    """Whether the user has declined the chats of this browser's visitor since the login."""
    digest = _visitor_of(request)
    return digest is not None and getattr(request, "session", {}).get(DECLINED) == digest


def _visitor_of(request: HttpRequest) -> str | None:
    """Return the digest of the credential of this browser, which may be unknown."""
    token = visitors.token_of(request)
    return None if token is None else visitors.digest_of(token)


def _offer_of(request: HttpRequest, by: Actor) -> AdoptionOffer | None:
    token = visitors.token_of(request)
    if token is None or not settings.ALLOW_ANONYMOUS:
        return None
    return services.offer_adoption(by=by, token=token)
