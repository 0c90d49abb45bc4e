"""The preset views above the list of sessions, with the number of sessions in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db.models import IntegerField, Subquery
from django.http import HttpRequest, QueryDict
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.jobs.selection import filtered
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.text import grouped
from chatmemory.models import Session

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

MAX_COUNTED = 1_000
"""A view counts at most this many sessions."""

PRESETS: Sequence[tuple[Label, str]] = (
    (_("All"), ""),
    (_("Replying now"), "state=running"),
    (_("Failed 24 h"), "turns=failed_day"),
    (_("Failed 7 days"), "turns=failed_week"),
    (_("Rated bad 7 days"), "feedback=bad_week"),
    (_("On hold"), "state=held"),
    (_("Archived"), "state=archived"),
    (_("Purged"), "state=purged"),
    (_("Empty"), "active=never"),
)
"""The filters of each view. Each needs an index, since every list counts all views."""


class _Count(Subquery):
    template = "(SELECT COUNT(*) FROM (%(subquery)s) found)"
    output_field = IntegerField()
    empty_result_set_value = 0


def presets_of(changelist: Any, request: HttpRequest) -> list[tuple[Label, str, str]]:
    """Return label, filters and count of each view whose filters the list has.

    The counts are read in one statement. They are empty if the host decides about each session.
    """
    known = {name for spec in changelist.filter_specs for name in spec.expected_parameters()}
    offered = [(label, query) for label, query in PRESETS if QueryDict(query).keys() <= known]
    if changelist.model_admin.decides_by_row("view"):
        return [(label, query, "") for label, query in offered]
    counts = [_count(changelist.model_admin, request, query) for _label, query in offered]
    rows = Session.objects.using(changelist.queryset.db).order_by().values_list(*counts)[:1]
    found = next(iter(rows), [0] * len(offered))
    return [(*preset, _text(number)) for preset, number in zip(offered, found, strict=True)]


def _count(model_admin: ReadOnlyAdmin, request: HttpRequest, query: str) -> _Count:
    rows = filtered(model_admin, request, QueryDict(query))
    # Without a filter, by the index of the order: all of the oldest sessions may have expired.
    ordering = () if query else model_admin.get_ordering(request)[:1]
    return _Count(rows.order_by(*ordering).values("pk")[: MAX_COUNTED + 1])


def _text(number: int) -> str:
    return grouped(number) if number <= MAX_COUNTED else f"{grouped(MAX_COUNTED)}+"
