"""The bases of the filters of the admin lists: a choice, and an input."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.text import visible

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

    Label = str | _StrPromise


MAX_TEXT_CHARS = 200


class ChoiceFilter(admin.SimpleListFilter):
    """A filter whose choices are named conditions."""

    conditions: ClassVar[dict[str, tuple[Label, Q]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Label]]:
        return [(name, label) for name, (label, _condition) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        name = self.value()
        return queryset.filter(self.conditions[name][1]) if name in self.conditions else queryset


class TextFilter(admin.ListFilter):
    """A filter with an input field. A text without a meaning selects no row."""

    template = "admin/chatmemory/text_filter.html"
    parameter_name: ClassVar[str]
    input_type: ClassVar[str] = "text"
    input_mode: ClassVar[str] = "text"

    def __init__(
        self,
        request: HttpRequest,
        params: dict[str, list[str]],
        model: type[Model],
        model_admin: admin.ModelAdmin,
    ) -> None:
        super().__init__(request, params, model, model_admin)
        given = params.pop(self.parameter_name, [])
        self.text = given[-1].strip()[:MAX_TEXT_CHARS] if given else ""

    def condition(self, text: str) -> Q | None:
        """Return what the text selects; None if it has no meaning."""
        raise NotImplementedError

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [self.parameter_name]

    def value(self) -> str:
        return self.text

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if not self.text:
            return queryset
        # PostgreSQL refuses a parameter with a null character.
        condition = self.condition(self.text) if self.text.isprintable() else None
        return queryset.none() if condition is None else queryset.filter(condition)

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the other parameters of the list, which the form keeps."""
        others = changelist.get_filters_params()
        kept = [
            (name, value)
            for name, values in others.items()
            if name != self.parameter_name
            for value in values
        ]
        query = changelist.query
        yield {
            "kept": [*kept, *([("q", query)] if query else [])],
            "without": changelist.get_query_string(remove=[self.parameter_name]),
            "selected": bool(self.text),
            "display": visible(self.text),
        }


class DayFilter(TextFilter):
    """By a bound of the day of creation, in UTC."""

    input_type = "date"
    days_added: ClassVar[int]
    lookup: ClassVar[str]

    def condition(self, text: str) -> Q | None:
        try:
            day = date.fromisoformat(text) + timedelta(days=self.days_added)
        except (ValueError, OverflowError):
            return None
        return Q(**{self.lookup: datetime(day.year, day.month, day.day, tzinfo=UTC)})


class FromFilter(DayFilter):
    """The first day."""

    title = _("created from (UTC)")
    parameter_name = "from"
    days_added = 0
    lookup = "created_at__gte"


class UntilFilter(DayFilter):
    """The last day."""

    title = _("created until (UTC)")
    parameter_name = "until"
    days_added = 1
    lookup = "created_at__lt"
