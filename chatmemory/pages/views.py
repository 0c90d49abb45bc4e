"""The chat pages. They render stored messages; live changes come over the socket."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import get_script_prefix, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatmemory import codec, services
from chatmemory.conf import settings as chat_settings
from chatmemory.errors import NotFound
from chatmemory.models import StoredMessage
from chatmemory.pages.adoption import adoption_of, forget_adopted
from chatmemory.pages.base import number, page, reader
from chatmemory.pages.chats import undo_of
from chatmemory.pages.console import console_links
from chatmemory.pages.listing import chats_of, list_chats
from chatmemory.pages.steps import MAX_TEXT_CHARS, RowSteps, steps_of_rows, whole_text
from chatmemory.rendering.rows import RowRenderer, is_markdown
from chatmemory.rendering.text import visible
from chatmemory.services.audit.readings import record_view
from chatmemory.services.sessions import read_superseded

PAGE_ROWS = 50
RENDERED_ROWS = 100
"""Maximum rows that one response of rendered replies covers."""


FAILURES = {
    "model_error": gettext_lazy("The model failed."),
    "responder_error": gettext_lazy("The bot failed. An operator has to fix this."),
    "instructions_failed": gettext_lazy("The bot failed. An operator has to fix this."),
    "turn_end_error": gettext_lazy("The bot failed. An operator has to fix this."),
    "model_unavailable": gettext_lazy("The model is not available. Try again in a moment."),
    "model_timeout": gettext_lazy("The model took too long."),
    "model_rate_limited": gettext_lazy(
        "The model received too many requests. Try again in a moment."
    ),
    "model_access_denied": gettext_lazy("The model denied access. An operator has to fix this."),
    "model_not_found": gettext_lazy(
        "The configured model does not exist. An operator has to fix this."
    ),
    "context_too_long": gettext_lazy(
        "Too long for the model. Shorten your message, or start a new chat."
    ),
    "blocked": gettext_lazy("A content filter stopped the reply. Change your message."),
    "no_checkpointer": gettext_lazy(
        "The model asked a question, but this chat does not support questions."
    ),
}
"""The text for each error code of a reply; chat-words.js has a copy, which a test compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEntry:
    """A message, as the page shows it."""

    seq: int
    revision: int
    role: str
    html: SafeString | None
    text: str
    is_cut: bool
    status: str
    error: str
    redacted: bool
    quarantined: bool
    at: datetime
    steps: RowSteps


@page
def new_session(request: HttpRequest) -> HttpResponse:
    """Redirect to the page of a new key; the first message creates the session.

    An address with a search or a page of the list, which was here, leads to the list.
    """
    if not {"title", "cursor"}.isdisjoint(request.GET):
        return redirect(f"{reverse('chatmemory:all')}?{request.GET.urlencode()}")
    address = reverse("chatmemory:session", args=[uuid.uuid4()])
    undo = number(request, "undo", None)  # of the chat that was deleted before
    return redirect(address if undo is None else f"{address}?undo={undo}")


@page
def session(request: HttpRequest, key: str) -> HttpResponse:
    """Show the newest messages of a session, without superseded ones.

    A new key shows an empty session, which the first message creates; staff who may view the
    conversation of another person under the key get a link to it.
    """
    actor = reader(request)
    rows: list[MessageEntry] = []
    has_older, is_new = False, False
    try:
        found = services.read_page(session_key=codec.key_of_address(key), by=actor, limit=PAGE_ROWS)
    except NotFound:
        if links := console_links(request, key):
            return render(request, "chatmemory/foreign.html", {"links": links})
        if not codec.is_new_key(key):
            raise
        is_new = True
    else:
        has_older = bool(found.rows) and found.rows[0].seq > found.head.first_seq
        replaced = read_superseded(head=found.head)
        current_rows = [
            row for row in found.rows if not any(a <= row.seq <= b for a, b in replaced)
        ]
        rows = message_entries(current_rows, RowRenderer(found.head), running=found.head.running)
        if actor.real is not None:
            record_view(found, actor.real)
    listed = list_chats(actor)
    current = next(
        (chat for group in listed.groups for chat in group.chats if chat.key == key), None
    )
    is_listed = current is not None
    if not is_listed and not is_new:
        own = services.sessions_of(actor).filter(key=key)
        current = next(iter(chats_of(list(own))), None)
    offer = adoption_of(request, actor) if is_new else None
    context = {
        "key": key,
        "title": current.title if current else "",
        "current": current,
        "is_new": is_new,
        "is_listed": is_listed,
        "is_at_message": "at" in request.GET,
        "has_older": has_older,
        "rows": rows,
        "has_steps": any(row.steps for row in rows),
        "list": listed,
        "undo": undo_of(request, actor),
        "adoption": offer,
        "suggestions": chat_settings.SUGGESTIONS,
        "socket": f"{socket_path()}{key}/",
        "person": actor,
        "details": settings.DEBUG or getattr(request.user, "is_staff", False),
    }
    return forget_adopted(render(request, "chatmemory/session.html", context), offer)


@page
def rendered(request: HttpRequest, key: str) -> HttpResponse:
    """Return the stored replies between two seqs as HTML.

    `upto` is the last seq that the response covers. Its limits may end it before the last row.
    """
    after, before = number(request, "after", 0), number(request, "before", None)
    actor = reader(request)
    found = services.read_page(
        session_key=codec.key_of_address(key), by=actor, after=after, limit=RENDERED_ROWS
    )
    if actor.real is not None:
        record_view(found, actor.real)
    renderer = RowRenderer(found.head)
    messages: list[dict[str, object]] = []
    upto = after
    for row in found.rows:
        if before is not None and row.seq >= before:
            break
        if is_markdown(row):
            html = renderer.html_of(row)
            if html is None:
                break
            messages.append({"seq": row.seq, "revision": row.revision, "html": html})
        upto = row.seq
    return JsonResponse({"messages": messages, "upto": upto})


@page
def message(request: HttpRequest, key: str, seq: int) -> HttpResponse:
    """Return one message as plain text, with its reasoning and its tool calls."""
    if not 1 <= seq <= codec.MAX_SAFE_INTEGER:
        raise NotFound
    actor = reader(request)
    found = services.read_page(
        session_key=codec.key_of_address(key), by=actor, after=seq - 1, limit=1
    )
    if not found.rows or found.rows[0].seq != seq:
        raise NotFound
    if actor.real is not None:
        record_view(found, actor.real)
    response = HttpResponse(whole_text(found.rows[0]), content_type="text/plain; charset=utf-8")
    response["X-Content-Type-Options"] = "nosniff"
    return response


def socket_path() -> str:
    """Return the path of the sockets, with the URL prefix; a session's key and a slash follow."""
    return f"{get_script_prefix()}ws/chat/"


def message_entries(
    rows: Sequence[StoredMessage], renderer: RowRenderer, *, running: str | None
) -> list[MessageEntry]:
    """Convert rows for the page; renders Markdown up to the limits, the rest is plain text.

    Without the rows that are shown as the result of a tool call.
    """
    steps = steps_of_rows(rows, running=running, person=renderer.person)
    return [
        MessageEntry(
            seq=row.seq,
            revision=row.revision,
            role=row.role,
            html=renderer.html_of(row) if is_markdown(row) else None,
            text=visible(row.text[:MAX_TEXT_CHARS]),
            is_cut=len(row.text) > MAX_TEXT_CHARS,
            status=row.status,
            error=failure_text(row.error),
            redacted=row.redacted,
            quarantined=row.is_unreadable,
            at=row.created_at,
            steps=steps[row.seq],
        )
        for row in rows
        if row.seq in steps
    ]


def failure_text(code: str) -> str:
    """Return the text for an error code; a general text for a host's own code, "" for none."""
    return str(FAILURES.get(code) or _("The reply failed.")) if code else ""
