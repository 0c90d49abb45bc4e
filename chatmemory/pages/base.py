"""The base of the pages: policy, login, errors as a page or as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.urls import get_script_prefix, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import cache_control
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST, require_safe

from chatmemory.access import logins, rates
from chatmemory.access.visits import check_gate, person_of, visit_of_request
from chatmemory.csp import with_policy
from chatmemory.errors import (
    BadInput,
    Busy,
    ChatMemoryError,
    Conflict,
    Forbidden,
    Held,
    MemoryUnavailable,
    NotFound,
    RateLimited,
    Refused,
    Unauthenticated,
)
from chatmemory.services import Actor

PROBLEMS = {
    BadInput: (400, gettext_lazy("The address of this page is not valid.")),
    Unauthenticated: (401, gettext_lazy("You are signed out.")),
    Forbidden: (403, gettext_lazy("You do not have permission to chat here.")),
    Refused: (403, gettext_lazy("You do not have permission to do this.")),
    NotFound: (404, gettext_lazy("This chat or message does not exist.")),
    Conflict: (409, gettext_lazy("This has changed meanwhile. Go back, and try again.")),
    Held: (409, gettext_lazy("This chat is on hold, so it can't be renamed or deleted.")),
    Busy: (409, gettext_lazy("A reply is in progress. Try again when it has ended.")),
    RateLimited: (429, gettext_lazy("Too many requests. Try again in a moment.")),
    MemoryUnavailable: (
        503,
        gettext_lazy("The memory is unavailable. Try again in a moment."),
    ),
    ChatMemoryError: (500, gettext_lazy("An internal error occurred.")),
}
"""The HTTP status and the text for each kind of error."""

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]
Guarded = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of an action."""

    to: str
    """The address of the page that a browser without JavaScript shows next."""
    fields: dict[str, object] = field(default_factory=dict)
    """The answer to a script."""


def page(view: View[P]) -> Guarded[P]:
    """Require a safe method, and what all pages require."""
    return guarded(require_safe(view))


def guarded(view: View[P]) -> Guarded[P]:
    """Require a login, show our errors as a page, and forbid caching."""

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except ChatMemoryError as error:
            return _problem_page(request, error, _problem_of(error)[1])

    return _private(login_required(inner))


def submission(view: Callable[Concatenate[HttpRequest, P], HttpResponseBase]) -> Guarded[P]:
    """Require a login, POST and the CSRF token; answer our errors as a page, or as JSON."""

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not (request.user.is_authenticated or _is_script(request)):
            return redirect_to_login(reverse("chatmemory:chat"))  # a redirect repeats no POST
        try:
            return view(request, *args, **kwargs)
        except ChatMemoryError as error:
            return _problem_page(request, error, _text_of_action(error))

    return _private(csrf_protect(require_POST(inner)))


def action(view: Callable[Concatenate[HttpRequest, P], Done]) -> Guarded[P]:
    """Make a submission of a change, which redirects, or answers a script."""

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        done = view(request, *args, **kwargs)
        return JsonResponse(done.fields) if _is_script(request) else redirect(done.to)

    return submission(inner)


def reader(request: HttpRequest) -> Actor:
    """Return the user who reads. Raises Unauthenticated, Forbidden, RateLimited."""
    actor = _actor(request)
    rates.check_reads(actor)
    return actor


def writer(request: HttpRequest) -> Actor:
    """Return the user who writes. Raises Unauthenticated, Forbidden, RateLimited."""
    actor = _actor(request)
    rates.check_writes(actor)
    return actor


def number(request: HttpRequest, name: str, default: int | None) -> int | None:
    """Return an integer of the query string. Raises BadInput."""
    value = request.GET.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise BadInput(f"{name} must be an integer of at least 0.", field=name)
    return int(value)


def _actor(request: HttpRequest) -> Actor:
    if not isinstance(request.user, get_user_model()):
        raise Unauthenticated
    by = Actor.user(request.user)
    visit = visit_of_request(request, kind="page", by=by, user=request.user)
    check_gate(visit)
    actor = person_of(visit)
    logins.check_reach(actor)
    return actor


def _private(view: Guarded[P]) -> Guarded[P]:
    return transaction.non_atomic_requests(cache_control(no_store=True)(with_policy(view)))


def _is_script(request: HttpRequest) -> bool:
    """Whether JavaScript sent the request; a browser's form accepts HTML."""
    return not request.accepts("text/html")


def _problem_page(request: HttpRequest, error: ChatMemoryError, text: str) -> HttpResponse:
    status = _problem_of(error)[0]
    response: HttpResponse
    if _is_script(request):
        response = JsonResponse({"code": error.code, "message": text}, status=status)
    else:
        context = {"problem": text, **_ways_out(error)}
        response = render(request, "chatmemory/problem.html", context, status=status)
    if isinstance(error, RateLimited):
        response["Retry-After"] = str(math.ceil(error.retry_after))
    return response


def _ways_out(error: ChatMemoryError) -> dict[str, str | None]:
    """Return the addresses that the page of an error offers.

    The gate refuses the list of chats too. The home page of the host may be the chat itself.
    """
    is_shut_out = isinstance(error, Refused) and error.is_final
    home = get_script_prefix()
    needs_site = is_shut_out or isinstance(error, Forbidden)
    return {
        "chats": None if is_shut_out else reverse("chatmemory:all"),
        "site": home if needs_site and home != reverse("chatmemory:chat") else None,
    }


def _problem_of(error: ChatMemoryError) -> tuple[int, str]:
    status, text = next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    return status, str(error if isinstance(error, Refused) else text)


def _text_of_action(error: ChatMemoryError) -> str:
    match error:
        case BadInput(code="too_many"):
            return _("You can pin up to %(limit)s chats. Unpin one first.") % vars(error)
        case BadInput(field="title"):
            return _("A title has up to 200 characters.")
        case Conflict():
            return _(
                "This chat was restored before or deleted permanently, or its address is used."
            )
        case Forbidden():
            return _("You do not have permission to do this.")
    return _problem_of(error)[1]
