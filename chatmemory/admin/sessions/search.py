"""The search of the list of sessions: one indexed condition for each kind of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Q
from django.http import HttpRequest

from chatmemory.access.actors import all_scopes_of, user_scope
from chatmemory.admin.people.finding import is_person, search_users
from chatmemory.admin.privacy import are_titles_readable
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.text import number_of
from chatmemory.models import Session

MAX_SEARCH_CHARS = 256
MAX_OWNERS = 50
"""A search finds the sessions of at most this many users."""


def conditions(model_admin: ReadOnlyAdmin, request: HttpRequest, term: str) -> Iterator[Q]:
    """Yield what the term may mean: a key, a title, a primary key, a scope, or an owner.

    Each condition has an index of its own: one condition with OR would read the whole table.
    """
    yield Q(key__startswith=term)
    if are_titles_readable():
        yield Q(title__istartswith=term)
    if (pk := number_of(term)) is not None:
        yield Q(pk=pk)
    if is_person(term):
        yield Q(scope__in=all_scopes_of(term))
        yield Q(removed_scope=term)
    users = search_users(model_admin, request, term)[:MAX_OWNERS]
    scopes = [user_scope(user) for user in users.only(get_user_model()._meta.pk.name)]
    if scopes:
        yield Q(scope__in=scopes)
        yield Q(removed_scope__in=scopes)


def matching(queryset: Any, found: Iterable[Q]) -> Any:
    """Select the sessions that one of the conditions matches, by a union of their primary keys."""
    parts = [Session.objects.filter(condition).order_by().values("pk") for condition in found]
    if not parts:
        return queryset.none()
    first, *others = parts
    return queryset.filter(pk__in=first.union(*others) if others else first)
