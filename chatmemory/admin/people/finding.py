"""Find the persons that an operator names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.admin import ModelAdmin
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.http import HttpRequest

from chatmemory.access.actors import (
    SERVER,
    all_scopes_of,
    check_person,
    owner_of,
    person_of,
    user_scope,
)
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.text import visible
from chatmemory.errors import BadInput
from chatmemory.models import Session

MAX_FOUND = 20
"""The search lists at most this many persons."""
MAX_SEARCH_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The owner of a scope."""

    scope: str
    label: str
    """The username, or a short form of the scope."""


def find_people(model_admin: ReadOnlyAdmin, request: HttpRequest, text: str) -> list[Person]:
    """Return the persons that a username, e-mail address, scope, or session's key means.

    A person without sessions in the operator's queryset is found only by the scope, or if the
    operator may view users.
    """
    term = text.strip()[:MAX_SEARCH_CHARS]
    if not term.isprintable() or not term:  # PostgreSQL refuses a null character
        return []
    if is_person(term):
        return [visible_person(model_admin, request, term)]
    users = search_users(model_admin, request, term)
    found = {user_scope(user): person(user_scope(user), user) for user in users[:MAX_FOUND]}
    for scope in _scopes_of_key(model_admin, request, term):
        found.setdefault(scope, person(scope))
    if not model_admin.decides_by_row("view"):
        return list(found.values())
    # The host may refuse all sessions of a person, whose name is then not the operator's to know.
    return [one for one in found.values() if one == visible_person(model_admin, request, one.scope)]


def is_person(scope: str) -> bool:
    """Return whether this is the scope of a user, a visitor or the server."""
    try:
        check_person(scope)
    except BadInput:
        return False
    return True


def person(scope: str, user: Any = None) -> Person:
    """Return the owner of a scope, with the username of an existing user."""
    pk = owner_of(scope)
    if user is None and pk is not None:
        user = get_user_model()._default_manager.filter(pk=pk).first()
    if user is not None:
        return Person(scope=scope, label=visible(user.get_username()))
    # A visitor's scope is 64 hex digits, of which eight tell it apart.
    return Person(scope=scope, label=scope if scope == SERVER or pk else scope[:16])


def visible_person(model_admin: ReadOnlyAdmin, request: HttpRequest, scope: str) -> Person:
    """Return the owner of a scope, with the username only if the operator may know it.

    That is: if the operator can view one of the person's sessions, or the user.
    """
    pk = owner_of(scope)
    if pk is None:
        return person(scope)
    sessions: Any = model_admin.get_queryset(request)
    own = sessions.of_scopes(*all_scopes_of(scope)).select_related("owner").order_by("-pk")
    rows = own.defer("instructions", "metadata")
    if (seen := model_admin.first_visible(request, rows)) is not None:
        return person(scope, seen.owner if str(seen.owner_id) == pk else None)
    listed = _listed_users(model_admin, request)
    user = None if listed is None else listed[1].filter(pk=pk).first()
    return Person(scope=scope, label=scope) if user is None else person(scope, user)


def _listed_users(
    model_admin: ReadOnlyAdmin, request: HttpRequest
) -> tuple[ModelAdmin, QuerySet[Any]] | None:
    """Return the ModelAdmin of users with its queryset, if the operator may view users."""
    model, site = get_user_model(), model_admin.admin_site
    user_admin = site.get_model_admin(model) if site.is_registered(model) else None
    if user_admin is None or not user_admin.has_view_permission(request):
        return None
    return user_admin, user_admin.get_queryset(request)


def searches_users(model_admin: ReadOnlyAdmin, request: HttpRequest) -> bool:
    """Return whether the operator may view users, so that all of them are searched."""
    return _listed_users(model_admin, request) is not None


def search_users(model_admin: ReadOnlyAdmin, request: HttpRequest, term: str) -> QuerySet[Any]:
    """Search as the list of users does; without that list, by the start of the username."""
    model = get_user_model()
    if listed := _listed_users(model_admin, request):
        user_admin, users = listed
        if user_admin.get_search_fields(request):
            users, is_doubled = user_admin.get_search_results(request, users, term)
            return users.distinct() if is_doubled else users
    else:
        sessions = model_admin.get_queryset(request).order_by()
        users = model._default_manager.filter(pk__in=sessions.values("owner"))
    return users.filter(**{f"{model.USERNAME_FIELD}__istartswith": term})


def _scopes_of_key(
    model_admin: ReadOnlyAdmin, request: HttpRequest, session_key: str
) -> Iterator[str]:
    sessions: QuerySet[Session] = model_admin.get_queryset(request).filter(key=session_key)
    for session in sessions.order_by("pk")[:MAX_FOUND]:
        scope = person_of(session.removed_scope or session.scope)
        if is_person(scope):
            yield scope
