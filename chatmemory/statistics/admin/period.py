"""The period that the operator selects: some days up to today, or from one day to another."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

LENGTHS = (7, 30, 90)
DEFAULT_DAYS = 30
MAX_DAYS = 366


@dataclass(frozen=True, slots=True)
class Period:
    """The days from `first` to `last`, both included."""

    first: date
    last: date
    days: int | None = None
    """The number of days up to today, if the operator selected that."""

    @property
    def query(self) -> str:
        """The query string that selects this period."""
        if self.days is not None:
            return urlencode({"days": self.days})
        return urlencode({"first": self.first.isoformat(), "last": self.last.isoformat()})


def last_days(days: int) -> Period:
    """Return the period of this many days up to today, in UTC."""
    today = datetime.now(UTC).date()
    return Period(today - timedelta(days=days - 1), today, days)


def _day_field(label: Any) -> forms.DateField:
    widget = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    return forms.DateField(label=label, widget=widget, input_formats=["%Y-%m-%d"])


class PeriodForm(forms.Form):
    """The first and the last day of a period."""

    first = _day_field(_("From"))
    last = _day_field(_("To"))

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        first, last = cleaned.get("first"), cleaned.get("last")
        if first is not None and last is not None:
            days = (last - first).days + 1
            if days < 1:
                raise ValidationError(_("The first day is after the last one."), "order")
            if days > MAX_DAYS:
                message = _("A period has at most %(max)s days, not %(days)s.")
                raise ValidationError(message, "too_long", {"max": MAX_DAYS, "days": days})
        return cleaned


def read_period(request: HttpRequest) -> tuple[Period, PeriodForm]:
    """Return the period in the query, else the default, and the form that shows it or its errors.

    A number of days that is not offered selects the default.
    """
    query = request.GET
    if "first" in query or "last" in query:
        form = PeriodForm(query)
        if form.is_valid():
            given = form.cleaned_data
            return Period(given["first"], given["last"]), form
        return last_days(DEFAULT_DAYS), form
    lengths = {str(days): days for days in LENGTHS}
    period = last_days(lengths.get(query.get("days", ""), DEFAULT_DAYS))
    return period, PeriodForm(initial={"first": period.first, "last": period.last})
