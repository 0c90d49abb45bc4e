"""The page on which a person exports or deletes all of their own chats."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from chatmemory import formats, services
from chatmemory.access import logins
from chatmemory.conf import settings
from chatmemory.errors import BadInput
from chatmemory.pages.base import page, reader, submission, writer
from chatmemory.pages.listing import chats_of
from chatmemory.services import Actor, Erased
from chatmemory.services.audit.entries import BY_OWNER

FORMATS = ("json", "markdown")


@page
def own_data(request: HttpRequest) -> HttpResponse:
    """State what is stored about the person, and offer what `SELF_SERVICE` allows."""
    return _own_data_page(request, reader(request))


@submission
def export(request: HttpRequest) -> StreamingHttpResponse:
    """Return all chats of the person as a file."""
    actor = writer(request)
    logins.check_self_service("export")
    format = request.POST.get("format", FORMATS[0])
    if format not in FORMATS:
        raise BadInput(f"format must be {' or '.join(FORMATS)}.", field="format")
    exported = services.begin_export(format=f"own-{format}", by=actor, reason=BY_OWNER)
    return formats.download(exported, request)


@submission
def erase(request: HttpRequest) -> HttpResponse:
    """Delete all chats of the person permanently, if the name of the user confirms it."""
    actor = writer(request)
    logins.check_self_service("erase")
    if _words(request.POST.get("confirm", "")) != _shown_name(request):
        return _own_data_page(request, actor, problem=_("This is not your username."), status=400)
    erased = services.erase_person(by=actor, reason=BY_OWNER)
    context = {"erased": erased, "held": _held_chats(erased, actor)}
    return render(request, "chatmemory/erased.html", context)


def _own_data_page(
    request: HttpRequest, actor: Actor, *, problem: str = "", status: int = 200
) -> HttpResponse:
    stored = services.preview_erasure(by=actor)
    context = {
        "stored": stored,
        "held": _held_chats(stored, actor),
        "actions": settings.SELF_SERVICE,
        "username": _shown_name(request),
        "problem": problem,
    }
    return render(request, "chatmemory/own_data.html", context, status=status)


def _shown_name(request: HttpRequest) -> str:
    # With a login by e-mail, the person may not know the username. A user without a name has it.
    return _words(str(request.user)) or request.user.get_username()


def _words(text: str) -> str:
    return " ".join(text.split())  # as a browser shows it


def _held_chats(erased: Erased, actor: Actor) -> list[str]:
    """Return the titles of the chats on hold, without deleted ones."""
    held = services.sessions_of(actor).filter(pk__in=erased.held)
    return [chat.title for chat in chats_of(list(held.most_recent_first()))]
