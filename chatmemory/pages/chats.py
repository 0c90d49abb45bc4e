"""The list of chats, and what a person can do with a chat in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import conditional_page

from chatmemory import codec, services
from chatmemory.errors import NotFound
from chatmemory.pages.adoption import adoption_of, answer_adoption, forget_adopted
from chatmemory.pages.base import Done, action, guarded, number, page, reader, writer
from chatmemory.pages.listing import (
    CHATS_PER_PAGE,
    MAX_CHATS,
    Chat,
    chats_of,
    list_chats,
    title_of,
)
from chatmemory.services import Actor, Removed
from chatmemory.services.audit.entries import BY_OWNER

REMOVED_PER_PAGE = 50
MAX_QUERY_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedChat:
    """A deleted chat, as its list shows it."""

    undo: int
    title: str
    messages: int
    at: datetime
    until: datetime


@page
@conditional_page  # for `part`, which a page requests again
def chat_list(request: HttpRequest, *, archived: bool = False) -> HttpResponse:
    """List the chats; with `part` only the list itself, without the page around it.

    `shown` is the number of chats that the list has now, so that it does not become shorter.
    """
    actor = reader(request)
    text = codec.storable(request.GET.get("title", "").replace("\0", "")).strip()[:MAX_QUERY_CHARS]
    cursor = request.GET.get("cursor") or None
    shown = number(request, "shown", 0) or 0
    limit = min(max(shown, CHATS_PER_PAGE), MAX_CHATS)
    found = list_chats(actor, archived=archived, text=text, cursor=cursor, limit=limit)
    context = {
        "list": found,
        "text": text,
        "cursor": cursor,
        "is_archive": archived,
        "tab": "archived" if archived else "all",
    }
    if "part" in request.GET:
        return render(request, "chatmemory/_chats.html", context)
    offer = adoption_of(request, actor)
    context |= {"undo": undo_of(request, actor), "adoption": offer, "person": actor}
    return forget_adopted(render(request, "chatmemory/sessions.html", context), offer)


@csrf_protect
@guarded
def adoption(request: HttpRequest) -> HttpResponse:
    """Accept the answer to the question about earlier chats."""
    if request.method == "POST":  # a GET follows if the user had to sign in first
        answer_adoption(request, writer(request))
    return redirect("chatmemory:chat")


@page
def removed_list(request: HttpRequest) -> HttpResponse:
    """List the deleted chats that the person can restore, the last one first."""
    before = number(request, "before", None)
    found = services.list_removed(by=reader(request), before=before, limit=REMOVED_PER_PAGE + 1)
    chats = [_removed_chat(removed) for removed in found[:REMOVED_PER_PAGE]]
    older = chats[-1].undo if len(found) > REMOVED_PER_PAGE else None
    return render(request, "chatmemory/removed.html", {"chats": chats, "older": older})


@page
def options(request: HttpRequest, key: str) -> HttpResponse:
    """Show what the menu of a chat offers, for browsers without JavaScript."""
    return render(request, "chatmemory/options.html", {"chat": _chat(key, reader(request))})


@action
def rename(request: HttpRequest, key: str) -> Done:
    """Set the title; without one, lists show the first words."""
    actor = writer(request)
    given = request.POST.get("title", "").strip()
    title = "" if codec.is_blank(given) else given
    where = codec.key_of_address(key)
    [chat] = chats_of([services.update_session(session_key=where, by=actor, title=title)])
    return Done(to=_list_of(chat), fields={"title": chat.title or _("New chat")})


@action
def pin(request: HttpRequest, key: str, *, pinned: bool) -> Done:
    """Pin or unpin a chat."""
    actor = writer(request)
    services.update_session(session_key=codec.key_of_address(key), by=actor, pinned=pinned)
    return Done(to=reverse("chatmemory:all"))


@action
def archive(request: HttpRequest, key: str) -> Done:
    """Close a chat for new messages."""
    actor = writer(request)
    services.archive_session(session_key=codec.key_of_address(key), by=actor, reason=BY_OWNER)
    return Done(to=reverse("chatmemory:all"))


@action
def unarchive(request: HttpRequest, key: str) -> Done:
    """Open an archived chat for new messages."""
    actor = writer(request)
    services.unarchive_session(session_key=codec.key_of_address(key), by=actor, reason=BY_OWNER)
    return Done(to=reverse("chatmemory:archived"))


@action
def delete(request: HttpRequest, key: str) -> Done:
    """Purge a chat; the next page offers to undo that."""
    actor = writer(request)
    entry = services.purge_session(session_key=codec.key_of_address(key), by=actor, reason=BY_OWNER)
    fields: dict[str, object] = {
        "undo": reverse("chatmemory:restore", args=[entry.pk]),
        "next": f"{reverse('chatmemory:new')}?undo={entry.pk}",
    }
    return Done(to=f"{reverse('chatmemory:all')}?undo={entry.pk}", fields=fields)


@action
def restore(request: HttpRequest, undo: int) -> Done:
    """Restore a deleted chat."""
    actor = writer(request)
    entry = services.restore_session(entry_pk=undo, by=actor, reason=BY_OWNER)
    session = services.sessions_of(actor).filter(pk=entry.session_pk or 0).first()
    if session is None:
        raise NotFound  # purged again
    page_url = reverse("chatmemory:session", args=[session.key])
    return Done(to=page_url, fields={"page": page_url})


def undo_of(request: HttpRequest, actor: Actor) -> int | None:
    """Return the purge in the address of the page, while the person can undo it."""
    entry_pk = number(request, "undo", None)
    if entry_pk is None:
        return None
    try:
        plan = services.preview_restore(entry_pk=entry_pk, by=actor)
    except NotFound:
        return None
    return entry_pk if plan.refusal is None else None


def _chat(key: str, actor: Actor) -> Chat:
    session = services.get_session(session_key=codec.key_of_address(key), by=actor)
    [chat] = chats_of([session])
    return chat


def _list_of(chat: Chat) -> str:
    return reverse("chatmemory:archived" if chat.is_archived else "chatmemory:all")


def _removed_chat(removed: Removed) -> RemovedChat:
    return RemovedChat(
        undo=removed.entry_pk,
        title=title_of(removed.title, removed.text),
        messages=removed.messages,
        at=removed.removed_at,
        until=removed.until,
    )
