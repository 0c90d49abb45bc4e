"""The chat pages. The page shows what is stored; all that is live comes over the socket."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Concatenate, ParamSpec

from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser
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
from chatmemory.pages.rendering import first_words, has_markup, markdown, visible
from chatmemory.services import Actor

SOCKET_PATH = "/ws/chat/"
"""Where the websocket route is mounted; a session's key and a slash follow."""

POLICY = (
    "default-src 'self'; script-src 'self'; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; connect-src 'self'"
)
PAGE_ROWS = 50
RENDERED_ROWS = 100
RENDERED_CHARS = 100_000
RENDERED_SECONDS = 2.0
"""How much Markdown one answer renders, and how much CPU time it spends on that; the rest is shown
as plain text, or asked for again."""

SHOWN_CHARS = 30_000
"""Longer messages are cut on the page, with a link to the whole."""

LISTED = 40
"""Sessions on one page of the list."""

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
    "model_rate_limited": gettext_lazy("The model gets too many requests; try again in a moment."),
    "model_access_denied": gettext_lazy("The model denies access; an operator has to fix it."),
    "model_not_found": gettext_lazy("The provider has no such model; an operator has to fix it."),
    "context_too_long": gettext_lazy("The conversation is too long for the model."),
    "blocked": gettext_lazy("The model refused to answer."),
    "no_checkpointer": gettext_lazy("The model can't ask you anything here."),
}
"""Why a reply failed, by code; chat-words.js has the same."""

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A session in the list."""

    key: str
    title: str
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A message on the page."""

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
    """Send a Content-Security-Policy: only files of this site run, and no inline code."""

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return inner


def page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """What all views here share: who may see them, and how an error of ours is shown."""

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except ChatMemoryError as error:
            status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
            answer = render(request, "chatmemory/problem.html", {"problem": error}, status=status)
            if isinstance(error, RateLimited):
                answer["Retry-After"] = str(math.ceil(error.retry_after))
            return answer

    guarded = login_required(require_safe(inner))
    return transaction.non_atomic_requests(cache_control(no_store=True)(with_policy(guarded)))


@page
def session_list(request: HttpRequest) -> HttpResponse:
    """Own sessions, the last active first."""
    number = _number(request, "page", 1) or 1
    start = (number - 1) * LISTED
    found = listed(services.sessions_of(_actor(request)), start, start + LISTED + 1)
    more = number + 1 if len(found) > LISTED else None
    context = {"sessions": found[:LISTED], "newer": number - 1, "older": more}
    return render(request, "chatmemory/sessions.html", context)


@page
def new_session(request: HttpRequest) -> HttpResponse:
    """An address for a new session; the socket makes the session."""
    return redirect("chatmemory:session", key=uuid.uuid4())


@page
def session(request: HttpRequest, key: str) -> HttpResponse:
    """A session with its newest messages, but those that an edit or a second answer superseded.

    A new key of ours opens an empty one.
    """
    actor = _actor(request)
    sessions = services.sessions_of(actor)
    rows: list[StoredMessage] = []
    archived, has_older, is_new = False, False, False
    try:
        found = services.read_page(session_key=codec.key_of_address(key), by=actor, limit=PAGE_ROWS)
    except NotFound:
        if not codec.is_new_key(key):
            raise
        is_new = True  # the socket makes the session
    else:
        archived = found.head.archived
        has_older = bool(found.rows) and found.rows[0].seq > found.head.first_seq
        replaced = services.read_superseded(head=found.head)
        rows = [row for row in found.rows if not any(a <= row.seq <= b for a, b in replaced)]
    current = next(iter(listed(sessions.filter(key=key), 0, 1, every=True)), None)
    title = current.title if current else ""
    others = [other for other in listed(sessions, 0, LISTED) if other.key != key]
    context = {
        "key": key,
        "title": title,
        "is_new": is_new,
        "archived": archived,
        "has_older": has_older,
        "rows": shown(rows),
        "others": others,
        "current": current if rows else None,
        "socket": f"{SOCKET_PATH}{key}/",
        "details": settings.DEBUG or getattr(request.user, "is_staff", False),
    }
    return render(request, "chatmemory/session.html", context)


@page
def rendered(request: HttpRequest, key: str) -> HttpResponse:
    """The Markdown of finished replies between two numbers, as HTML.

    `upto` is the last row that was looked at: an answer has its limits.
    """
    after, before = _number(request, "after", 0), _number(request, "before", None)
    rows = services.read_page(
        session_key=codec.key_of_address(key), by=_actor(request), after=after, limit=RENDERED_ROWS
    ).rows
    messages: list[dict[str, object]] = []
    upto, left, until = after, RENDERED_CHARS, time.thread_time() + RENDERED_SECONDS
    for row in rows:
        if before is not None and row.seq >= before:
            break
        if is_rendered(row):
            left -= len(row.text)
            if left < 0 or (messages and time.thread_time() > until):
                break
            messages.append({"seq": row.seq, "revision": row.revision, "html": markdown(row.text)})
        upto = row.seq
    return JsonResponse({"messages": messages, "upto": upto})


@page
def message(request: HttpRequest, key: str, seq: int) -> HttpResponse:
    """The whole text of one message, as it is stored."""
    if not 1 <= seq <= codec.MAX_SAFE_INTEGER:
        raise NotFound
    found = services.read_page(
        session_key=codec.key_of_address(key), by=_actor(request), after=seq - 1, limit=1
    ).rows
    if not found or found[0].seq != seq:
        raise NotFound
    answer = HttpResponse(found[0].text, content_type="text/plain; charset=utf-8")
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def listed(
    sessions: SessionQuerySet, start: int, stop: int, *, every: bool = False
) -> list[Listed]:
    """Some of these sessions with their titles; without `every`, only those that have something."""
    said = Message.stored.filter(
        session=OuterRef("pk"), seq__gte=OuterRef("first_seq"), role=Message.Role.USER
    ).in_order()
    if not every:
        # Code may give a session a key that no address can hold.
        sessions = sessions.exclude(key__regex=codec.NOT_IN_KEYS).filter(
            Q(last_seq__gte=F("first_seq")) | Q(waiting__gt=0) | ~Q(title="")
        )
    found = sessions.most_recent_first().values_list(
        "key", "title", Subquery(said.values(start=Left("text", 200))[:1]), "last_message_at"
    )
    return [
        Listed(key=key, title=visible(title or first_words(text or "")), at=at)
        for key, title, text, at in found[start:stop]
    ]


def shown(rows: Iterable[StoredMessage]) -> list[Shown]:
    """The messages as the page shows them."""
    left, until = RENDERED_CHARS, time.thread_time() + RENDERED_SECONDS
    result = []
    for row in rows:
        html = None
        if is_rendered(row) and len(row.text) <= left and time.thread_time() <= until:
            left -= len(row.text)
            html = markdown(row.text)
        result.append(
            Shown(
                seq=row.seq,
                revision=row.revision,
                role=row.role,
                html=html,
                text=visible(row.text[:SHOWN_CHARS]),
                is_cut=len(row.text) > SHOWN_CHARS,
                status=row.status,
                error=reason(row.error),
                redacted=row.redacted,
                quarantined=row.is_unreadable,
                at=row.created_at,
            )
        )
    return result


def is_rendered(row: StoredMessage) -> bool:
    """Whether the row is shown as Markdown."""
    return row.role == Message.Role.ASSISTANT and has_markup(row.text)


def reason(code: str) -> str:
    """Why a reply failed, in words; a host's own code has none."""
    return str(FAILURES.get(code) or _("The reply failed.")) if code else ""


def _actor(request: HttpRequest) -> Actor:
    if not isinstance(request.user, AbstractBaseUser):
        raise Unauthenticated
    actor = Actor.user(request.user)
    services.check_reach(actor)
    services.check_reads(actor)
    return actor


def _number(request: HttpRequest, name: str, default: int | None) -> int | None:
    value = request.GET.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise BadInput(f"{name} must be a whole number.", field=name)
    return int(value)
