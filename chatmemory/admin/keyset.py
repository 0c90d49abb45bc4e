"""Lists without offsets: a page begins after a row, so the last one costs what the first does."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections
from django.db.models import Model, Q
from django.http import HttpRequest
from django.utils.translation import gettext as _

from chatmemory.admin.text import grouped

MAX_COUNTED = 10_000
"""A list counts at most this many rows, since a count of a large table is slow."""

AFTER = "after"
BEFORE = "before"

_MAX_CURSOR_CHARS = 500


class MoreThan(int):
    """A number of rows of which only a lower bound is known."""

    def __str__(self) -> str:
        return _("more than %(number)s") % {"number": grouped(int(self))}


class KeysetChangeList(ChangeList):
    """A list with links to newer and older rows, in the order of the ModelAdmin alone.

    The columns of the order must be fields of the model, the last of them the primary key.
    """

    model_admin: Any
    newer_url: str | None = None
    older_url: str | None = None

    def get_filters_params(self, params: Any = None) -> Any:
        found = super().get_filters_params(params)
        return {name: value for name, value in found.items() if name not in (AFTER, BEFORE)}

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> str:
        # Another filter has another first page.
        return super().get_query_string(new_params, [*(remove or ()), AFTER, BEFORE])

    def get_ordering(self, request: HttpRequest, queryset: Any) -> Any:
        return [str(name) for name in self.model_admin.get_ordering(request) or ("-pk",)]

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows of the page, and one more to know whether there is another page."""
        ordering = self.get_ordering(request, self.queryset)
        after, before = (self._position(request, name, ordering) for name in (AFTER, BEFORE))
        is_backward = before is not None and after is None
        rows = self._read_rows(
            after or before, reversed_order(ordering) if is_backward else ordering
        )
        is_more = len(rows) > self.list_per_page
        rows = rows[: self.list_per_page]
        if is_backward:
            rows.reverse()
        has_newer = is_more if is_backward else after is not None
        has_older = before is not None if is_backward else is_more
        if rows and has_newer:
            self.newer_url = self._url(BEFORE, rows[0], ordering)
        if rows and has_older:
            self.older_url = self._url(AFTER, rows[-1], ordering)
        self.result_list: Any = [
            row for row in rows if self.model_admin.permits(request, "view", obj=row)
        ]
        self._set_count(is_whole=not (has_newer or has_older))

    def _read_rows(
        self, position: Mapping[str, Any] | None, ordering: Sequence[str]
    ) -> list[Model]:
        rows = self.queryset.order_by(*ordering)
        if position is not None:
            rows = rows.filter(beyond(ordering, position, self.queryset.db))
        return list(rows[: self.list_per_page + 1])

    def _set_count(self, *, is_whole: bool) -> None:
        """Set what Django's templates read."""
        if is_whole or self.model_admin.decides_by_row("view"):
            count = len(self.result_list)  # not of rows that the host may refuse
        else:
            count = self.queryset.order_by()[: MAX_COUNTED + 1].count()
        self.result_count = MoreThan(MAX_COUNTED) if count > MAX_COUNTED else count
        self.count_text = grouped(count) if count <= MAX_COUNTED else str(self.result_count)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.result_list)
        self.can_show_all = False
        self.multi_page = False  # Django's numbered pages are offsets
        self.paginator: Any = None

    def _position(
        self, request: HttpRequest, name: str, ordering: Sequence[str]
    ) -> dict[str, Any] | None:
        """Return the values of the row at which the page begins; None for the first page."""
        given = request.GET.get(name, "")[:_MAX_CURSOR_CHARS]
        try:
            values = json.loads(base64.urlsafe_b64decode(given.encode()))
            columns = [column_of(name) for name in ordering]
            fields = [self._field(column) for column in columns]
            return {
                column: _bindable(field.to_python(value))
                for column, field, value in zip(columns, fields, values, strict=True)
            }
        except (ValueError, TypeError, OverflowError, ValidationError, RecursionError):
            return None

    def _field(self, column: str) -> Any:
        return self.opts.pk if column == "pk" else self.opts.get_field(column)

    def _url(self, name: str, row: Model, ordering: Sequence[str]) -> str:
        values = [getattr(row, column_of(column)) for column in ordering]
        text = json.dumps(values, cls=_Exact)
        cursor = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{self.get_query_string()}&{name}={cursor}"


def list_without_rows(model_admin: Any, request: HttpRequest) -> Any:
    """Return the list of a request for its queryset and order, without reading a row."""
    base = model_admin.get_changelist(request)
    unread: Any = type("Unread", (base,), {"get_results": lambda *_: None})
    reader = copy(model_admin)
    reader.get_changelist = lambda *_: unread
    return reader.get_changelist_instance(request)


def _bindable(value: Any) -> Any:
    """Return a value that every database accepts. Raises ValueError, OverflowError."""
    if isinstance(value, str) and b"\0" in value.encode():
        raise ValueError
    is_aware = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(UTC) if is_aware else value


class _Exact(DjangoJSONEncoder):
    """Keeps the microseconds of a time."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if hasattr(o, "isoformat") else super().default(o)


def column_of(name: str) -> str:
    """Return the column of an entry of an order."""
    return name.removeprefix("-")


def reversed_order(ordering: Sequence[str]) -> list[str]:
    """Return the opposite order."""
    return [name[1:] if name.startswith("-") else f"-{name}" for name in ordering]


def beyond(ordering: Sequence[str], position: Mapping[str, Any], alias: str) -> Q:
    """Match the rows that follow a row with these values in this order."""
    nulls_last = bool(connections[alias].features.nulls_order_largest)
    found, equal = Q(pk__in=()), Q()
    for name in ordering:
        column, value = column_of(name), position[column_of(name)]
        is_descending = name.startswith("-")
        follows = _follows(column, value, is_descending, nulls_last is not is_descending)
        found |= equal & follows
        equal &= Q(**{f"{column}__isnull": True} if value is None else {column: value})
    first = column_of(ordering[0])
    if (value := position[first]) is None:
        return found
    # Implied by the rest. With it, an index on the first column bounds the search.
    bound = f"{first}__{'lte' if ordering[0].startswith('-') else 'gte'}"
    return found & Q(**{bound: value})


def _follows(column: str, value: object, is_descending: bool, nulls_follow: bool) -> Q:
    """Match the rows whose column follows a value, with NULL first or last."""
    is_null = Q(**{f"{column}__isnull": True})
    if value is None:
        return Q(pk__in=()) if nulls_follow else ~is_null
    follows = Q(**{f"{column}__{'lt' if is_descending else 'gt'}": value})
    return follows | is_null if nulls_follow else follows
