"""The sessions that a request selects: by primary key, or all that match the filters of the list.

Both are within the queryset of the ModelAdmin, so a host's limits hold.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import SuspiciousOperation
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, QueryDict

from chatmemory.admin.keyset import list_without_rows
from chatmemory.admin.privacy import names_of
from chatmemory.admin.readonly import LIST_FILTERS, ReadOnlyAdmin
from chatmemory.admin.text import number_of
from chatmemory.models import Session

MAX_LISTED = 100
"""Sessions that a preview lists."""
MAX_NAMED = 200
"""Sessions that an address can name; Django's list selects at most as many on one page."""
ALL = "all"
"""The parameter for all sessions that match the other parameters."""
_OTHERS = (ALL, "session", "entry", "before_seq", "back", "p")
"""Parameters that are no filters."""


class DecidesBySession(Exception):
    """The site's ModelAdmin decides about each session, so not all can be selected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The selected sessions that the operator may act on."""

    sessions: QuerySet[Session]
    listed: list[Session]
    """The first `MAX_LISTED`."""
    is_listed: bool
    """Whether these are all."""
    filters: str
    """The filters of the list from which the operator came, as a query string."""

    @property
    def only(self) -> Session | None:
        """The selected session, if it is one."""
        return self.listed[0] if len(self.listed) == 1 else None

    @property
    def name(self) -> str:
        """What the operator calls the selected session, if it is one."""
        return self.only.title if self.only else ""

    @property
    def pks(self) -> list[int]:
        return [session.pk for session in self.listed]


def select(model_admin: ReadOnlyAdmin, request: HttpRequest, *names: str) -> Selection:
    """Return the sessions that a request selects, for an operator with these permissions.

    Raises Http404 if there are none, DecidesBySession.
    """
    is_all = request.GET.get(ALL) == "1"
    filters = _filters(request) if is_all else QueryDict(request.GET.get(LIST_FILTERS, ""))
    sessions = filtered(model_admin, request, filters) if is_all else named(model_admin, request)
    limit = MAX_LISTED + 1 if is_all else MAX_NAMED
    shown = sessions.select_related("owner").defer("instructions", "metadata")
    found = list(shown[:limit])
    permitted = [s for s in found if model_admin.permits(request, *names, obj=s)]
    if not permitted:
        raise Http404
    listed = permitted[:MAX_LISTED]
    called = names_of(model_admin, request, listed)
    for session in listed:
        session.title = called[session.pk]
    is_whole = not is_all or len(found) <= MAX_LISTED
    if not is_whole and model_admin.decides_by_row(*names):
        raise DecidesBySession
    pks = [session.pk for session in permitted]
    return Selection(
        sessions=model_admin.get_queryset(request).filter(pk__in=pks) if is_whole else sessions,
        listed=listed,
        is_listed=is_whole and len(pks) <= MAX_LISTED,
        filters=filters.urlencode(),
    )


def named(model_admin: ReadOnlyAdmin, request: HttpRequest) -> QuerySet[Session]:
    """Return the sessions that `?session=` names, by primary key."""
    values = request.GET.getlist("session")
    pks = [pk for pk in map(number_of, values) if pk is not None]
    return model_admin.get_queryset(request).filter(pk__in=pks[:MAX_NAMED]).order_by("pk")


def _filters(request: HttpRequest) -> QueryDict:
    """Return the filters of the list in the address."""
    filters = request.GET.copy()
    for name in _OTHERS:
        filters.pop(name, None)
    return filters


def filtered(
    model_admin: ReadOnlyAdmin, request: HttpRequest, filters: QueryDict
) -> QuerySet[Session]:
    """Return all sessions that the list shows for these filters. Raises Http404."""
    found: QuerySet[Session] = list_of(model_admin, request, filters).queryset
    return found


def list_of(model_admin: ReadOnlyAdmin, request: HttpRequest, filters: QueryDict) -> Any:
    """Return the list for these filters, without its rows. Raises Http404."""
    listing = copy(request)
    listing.GET = filters  # type: ignore[assignment]  # the list reads its filters from here
    try:
        return list_without_rows(model_admin, listing)
    except (IncorrectLookupParameters, SuspiciousOperation):
        raise Http404 from None


def permitted(
    model_admin: ReadOnlyAdmin, request: HttpRequest, sessions: QuerySet[Session], *names: str
) -> QuerySet[Session]:
    """Return the sessions among these for which the operator has the permissions.

    Raises DecidesBySession if the site decides about each of more than `MAX_NAMED`.
    """
    if not model_admin.decides_by_row(*names):
        return sessions
    found = list(sessions.defer("instructions", "metadata")[: MAX_NAMED + 1])
    if len(found) > MAX_NAMED:
        raise DecidesBySession
    pks = [session.pk for session in found if model_admin.permits(request, *names, obj=session)]
    return sessions.filter(pk__in=pks)
