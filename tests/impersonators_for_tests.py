"""Functions for the setting IMPERSONATOR, and a middleware that impersonates as packages do."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse

from chatmemory.services import Visit

IMPERSONATE = "_impersonate"
"""The key under which django-impersonate stores whose pages are shown. The login stays."""
HIJACK = "hijack_history"
"""The key under which django-hijack stores who logged in as the user of the session."""


class ImpersonateMiddleware:
    """Replaces the user of a request, as that of django-impersonate does."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        pk = request.session.get(IMPERSONATE)
        if pk is not None:
            request.user = User.objects.get(pk=pk)
        return self._get_response(request)


def of_impersonate(visit: Visit) -> tuple[AbstractBaseUser, AbstractBaseUser] | None:
    """Return the user of the login, and the one whose pages are shown."""
    pk = visit.session.get(IMPERSONATE)
    if pk is None:
        return None
    return User.objects.get(pk=visit.session[SESSION_KEY]), User.objects.get(pk=pk)


def of_hijack(visit: Visit) -> AbstractBaseUser | None:
    """Return the user who began."""
    history = visit.session.get(HIJACK)
    return User.objects.get(pk=history[0]) if history else None


def wrong(visit: Visit) -> str:
    """Return no user."""
    return "root"
