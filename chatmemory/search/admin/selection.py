"""The conversations that a search reads: those of the list with its filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.utils.translation import gettext as _

from chatmemory.access.actors import user_scope
from chatmemory.admin.choices import ChoiceFilter, DayFilter
from chatmemory.admin.jobs.selection import DecidesBySession, list_of, permitted
from chatmemory.admin.people.finding import Person, is_person, visible_person
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sessions.filters import OwnerFilter
from chatmemory.admin.text import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The conversations that an operator searches."""

    sessions: Any
    """Those that are neither purged nor expired, and that the operator may read; None if the site
    decides about each of too many."""
    filters: str
    """The filters of the list, as a query string."""
    is_selective: bool
    """Whether a person or a filter is chosen."""
    texts: list[str]
    """The chosen filters for operators, without the person."""
    codes: str
    """The chosen filters for the audit. Only codes and days have values: others may have words."""
    person: Person | None
    """The person whose conversations they are, if it is one."""


def select(model_admin: ReadOnlyAdmin, request: HttpRequest) -> Selection:
    """Return the conversations that the query of a request selects. Raises Http404."""
    changelist = list_of(model_admin, request, request.GET)
    try:
        found = permitted(
            model_admin, request, changelist.queryset.active(), "view", "view_transcript"
        )
    except DecidesBySession:
        found = None
    owner = next((one.text for one in _chosen(changelist) if isinstance(one, OwnerFilter)), "")
    person = _person_of(model_admin, request, owner)
    return Selection(
        sessions=found,
        filters=request.GET.urlencode(),
        is_selective=changelist.is_selective,
        texts=[*_texts(changelist, person)],
        codes=", ".join(_codes(changelist)),
        person=person,
    )


def _chosen(changelist: Any) -> list[Any]:
    """Return the filters that have a value in the query."""
    specs = changelist.filter_specs
    return [one for one in specs if any(map(changelist.params.get, one.expected_parameters()))]


def _texts(changelist: Any, person: Person | None) -> Iterator[str]:
    if changelist.query:
        yield f"{_('Search')}: {visible(changelist.query)}"
    of_person = f"{OwnerFilter.title}: "
    for text, _url in changelist.chips():
        if person is None or not text.startswith(of_person):
            yield text


def _codes(changelist: Any) -> Iterator[str]:
    if changelist.query:
        yield "q"
    for spec in _chosen(changelist):
        names = ",".join(spec.expected_parameters())
        yield f"{names}={spec.value()}" if _is_code(spec) else names


def _is_code(spec: Any) -> bool:
    """Return whether the value of a filter is one of its codes, or a day."""
    if isinstance(spec, DayFilter):
        return spec.condition(spec.value()) is not None
    return isinstance(spec, ChoiceFilter) and spec.value() in spec.conditions


def _person_of(model_admin: ReadOnlyAdmin, request: HttpRequest, owner: str) -> Person | None:
    """Return the person that the filter by owner means, if the operator may know or named it."""
    scope = owner if is_person(owner) else _scope_of_username(owner)
    if not scope:
        return None
    found = visible_person(model_admin, request, scope)
    # Otherwise a username that belongs to no visible person would disclose its primary key.
    return found if found.label != scope or owner == scope else None


def _scope_of_username(name: str) -> str:
    users = get_user_model()
    found = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first() if name else None
    return "" if found is None else user_scope(found)
