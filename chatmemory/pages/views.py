"""The chat pages. They render stored messages; live changes come over the socket."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Concatenate, ParamSpec

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.db.models import F, OuterRef, Q, Subquery
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from chatmemory import codec, services
from chatmemory.access import logins, rates
from chatmemory.conf import settings as chat_settings
from chatmemory.errors import (
    BadInput,
    ChatMemoryError,
    Forbidden,
    MemoryUnavailable,
    NotFound,
    RateLimited,
    Unauthenticated,
)
from chatmemory.models import Message, SessionQuerySet, StoredMessage
from chatmemory.rendering.rows import RowRenderer, is_markdown
from chatmemory.rendering.text import first_words, visible
from chatmemory.services import Actor

SOCKET_PATH = "/ws/chat/"
"""The prefix of the websocket route; a session's key and a slash follow."""

POLICY = (
    "default-src 'self'; script-src 'self'; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; connect-src 'self'"
)
PAGE_ROWS = 50
RENDERED_ROWS = 100
"""Maximum rows that one response of rendered replies covers."""

MAX_TEXT_CHARS = 30_000
"""The page truncates longer messages, with a link to the whole message."""

SESSIONS_PER_PAGE = 40

STATUS = {
    BadInput: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    RateLimited: 429,
    MemoryUnavailable: 503,
}

FAILURES = {
    "model_error": gettext_lazy("The model failed."),
    "model_unavailable": gettext_lazy("The model can't be reached."),
    "model_timeout": gettext_lazy("The model took too long."),
    "model_rate_limited": gettext_lazy(
        "The model received too many requests. Try again in a moment."
    ),
    "model_access_denied": gettext_lazy("The model denied access. An operator has to fix this."),
    "model_not_found": gettext_lazy(
        "The configured model does not exist. An operator has to fix this."
    ),
    "context_too_long": gettext_lazy("The conversation is too long for the model."),
    "blocked": gettext_lazy("The model refused to answer."),
    "no_checkpointer": gettext_lazy(
        "The model asked a question, but this chat does not support questions."
    ),
}
"""The text for each error code of a reply; chat-words.js has a copy, which a test compares."""

NOT_FOUND = gettext_lazy("This chat or message does not exist.")

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEntry:
    """A session, as the list shows it."""

    key: str
    title: str
    at: datetime | None


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


def with_policy(
    view: Callable[Concatenate[HttpRequest, P], HttpResponseBase],
) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Send a Content-Security-Policy that allows only scripts from files of this site."""

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        response.headers.setdefault("Content-Security-Policy", policy())
        return response

    return inner


def policy() -> str:
    """Return the Content-Security-Policy, with the origins of allowed images."""
    sources = " ".join(("'self'", *chat_settings.IMAGE_ORIGINS))
    return f"{POLICY}; img-src {sources}" if chat_settings.IMAGE_ORIGINS else POLICY


def page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Require a login and a safe method, show our errors as a page, and forbid caching."""

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except ChatMemoryError as error:
            status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
            problem = NOT_FOUND if isinstance(error, NotFound) else error
            response = render(
                request, "chatmemory/problem.html", {"problem": problem}, status=status
            )
            if isinstance(error, RateLimited):
                response["Retry-After"] = str(math.ceil(error.retry_after))
            return response

    guarded = login_required(require_safe(inner))
    return transaction.non_atomic_requests(cache_control(no_store=True)(with_policy(guarded)))


@page
def session_list(request: HttpRequest) -> HttpResponse:
    """List the user's sessions, the last active first."""
    number = _number(request, "page", 1) or 1
    start = (number - 1) * SESSIONS_PER_PAGE
    stop = start + SESSIONS_PER_PAGE
    found = session_entries(services.sessions_of(_actor(request)), start, stop + 1)
    older = number + 1 if len(found) > SESSIONS_PER_PAGE else None
    context = {"sessions": found[:SESSIONS_PER_PAGE], "newer": number - 1, "older": older}
    return render(request, "chatmemory/sessions.html", context)


@page
def new_session(request: HttpRequest) -> HttpResponse:
    """Redirect to the page of a new key; the first message creates the session."""
    return redirect("chatmemory:session", key=uuid.uuid4())


@page
def session(request: HttpRequest, key: str) -> HttpResponse:
    """Show the newest messages of a session, without superseded ones.

    A new key shows an empty session, which the first message creates.
    """
    actor = _actor(request)
    sessions = services.sessions_of(actor)
    rows: list[MessageEntry] = []
    archived, has_older, is_new = False, False, False
    try:
        found = services.read_page(session_key=codec.key_of_address(key), by=actor, limit=PAGE_ROWS)
    except NotFound:
        if not codec.is_new_key(key):
            raise
        is_new = True
    else:
        archived = found.head.archived_at is not None
        has_older = bool(found.rows) and found.rows[0].seq > found.head.first_seq
        replaced = services.read_superseded(head=found.head)
        current_rows = [
            row for row in found.rows if not any(a <= row.seq <= b for a, b in replaced)
        ]
        rows = message_entries(current_rows, RowRenderer(found.head))
    own_entries = session_entries(sessions.filter(key=key), 0, 1, with_empty=True)
    current = next(iter(own_entries), None)
    title = current.title if current else ""
    entries = session_entries(sessions, 0, SESSIONS_PER_PAGE)
    others = [other for other in entries if other.key != key]
    context = {
        "key": key,
        "title": title,
        "is_new": is_new,
        "archived": archived,
        "has_older": has_older,
        "rows": rows,
        "others": others,
        "current": current if rows else None,
        "suggestions": chat_settings.SUGGESTIONS,
        "socket": f"{SOCKET_PATH}{key}/",
        "details": settings.DEBUG or getattr(request.user, "is_staff", False),
    }
    return render(request, "chatmemory/session.html", context)


@page
def rendered(request: HttpRequest, key: str) -> HttpResponse:
    """Return the stored replies between two seqs as HTML.

    `upto` is the last seq that the response covers. Its limits may end it before the last row.
    """
    after, before = _number(request, "after", 0), _number(request, "before", None)
    found = services.read_page(
        session_key=codec.key_of_address(key), by=_actor(request), after=after, limit=RENDERED_ROWS
    )
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
    """Return the stored text of one message as plain text."""
    if not 1 <= seq <= codec.MAX_SAFE_INTEGER:
        raise NotFound
    found = services.read_page(
        session_key=codec.key_of_address(key), by=_actor(request), after=seq - 1, limit=1
    ).rows
    if not found or found[0].seq != seq:
        raise NotFound
    response = HttpResponse(found[0].text, content_type="text/plain; charset=utf-8")
    response["X-Content-Type-Options"] = "nosniff"
    return response


def session_entries(
    sessions: SessionQuerySet, start: int, stop: int, *, with_empty: bool = False
) -> list[SessionEntry]:
    """Return a slice of the sessions, the last active first, titled by their first user message.

    Without `with_empty`, skips sessions without messages, waiting turns and title.
    """
    user_messages = Message.stored.filter(
        session=OuterRef("pk"), seq__gte=OuterRef("first_seq"), role=Message.Role.USER
    ).in_order()
    if not with_empty:
        # Server code can create sessions whose key cannot be part of a URL.
        sessions = sessions.exclude(key__regex=codec.NOT_IN_KEYS).filter(
            Q(last_seq__gte=F("first_seq")) | Q(waiting__gt=0) | ~Q(title="")
        )
    found = sessions.most_recent_first().values_list(
        "key",
        "title",
        Subquery(user_messages.values(start=Left("text", 200))[:1]),
        "last_message_at",
    )
    return [
        SessionEntry(key=key, title=visible(title or first_words(text or "")), at=at)
        for key, title, text, at in found[start:stop]
    ]


def message_entries(rows: Iterable[StoredMessage], renderer: RowRenderer) -> list[MessageEntry]:
    """Convert rows for the page; renders Markdown up to the limits, the rest is plain text."""
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
        )
        for row in rows
    ]


def failure_text(code: str) -> str:
    """Return the text for an error code; a general text for a host's own code, "" for none."""
    return str(FAILURES.get(code) or _("The reply failed.")) if code else ""


def _actor(request: HttpRequest) -> Actor:
    if not isinstance(request.user, get_user_model()):
        raise Unauthenticated
    actor = Actor.user(request.user)
    logins.check_reach(actor)
    rates.check_reads(actor)
    return actor


def _number(request: HttpRequest, name: str, default: int | None) -> int | None:
    value = request.GET.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise BadInput(f"{name} must be an integer of at least 0.", field=name)
    return int(value)
