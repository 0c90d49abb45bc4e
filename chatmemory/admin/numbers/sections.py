"""The tables of the dashboard, and the charts of those that have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from chatmemory.admin.numbers.charts import Chart, Series, bar_chart, line_chart
from chatmemory.admin.numbers.tables import Column, Table
from chatmemory.models import Turn
from chatmemory.services.numbers.figures import Numbers, Times
from chatmemory.services.numbers.storage import TableSize

STATUSES = {
    Turn.Status.COMPLETE: "good",
    Turn.Status.INTERRUPTED: "weak",
    Turn.Status.CANCELLED: "quiet",
    Turn.Status.FAILED: "bad",
}
"""The class of each status, from the bottom of a bar to its top."""


def charts(numbers: Numbers) -> list[Chart]:
    """Return the charts of a period, in the order of the page."""
    return [
        _activity(numbers, "messages"),
        _activity(numbers, "sessions"),
        _outcomes(numbers),
        _times(numbers, "first_text"),
        _times(numbers, "duration"),
        _feedback(numbers),
    ]


def tables(numbers: Numbers) -> list[Table]:
    """Return the tables of a period that have no chart."""
    return [_models(numbers), _failures(numbers)]


def _activity(numbers: Numbers, column: str) -> Chart:
    title = {"messages": _("Messages stored"), "sessions": _("Sessions created")}[column]
    values = [getattr(day, column) for day in numbers.days]
    return _daily_bars(column, title, numbers, [Series(title, "good", values)])


def _outcomes(numbers: Numbers) -> Chart:
    series = [
        Series(status.label, css, [day.by_status[status.value] for day in numbers.days])
        for status, css in STATUSES.items()
    ]
    return _daily_bars("turns", _("Turns by outcome"), numbers, series)


def _feedback(numbers: Numbers) -> Chart:
    series = [
        Series(_("good"), "good", [day.good for day in numbers.days]),
        Series(_("bad"), "bad", [day.bad for day in numbers.days]),
    ]
    return _daily_bars("feedback", _("Feedback"), numbers, series)


def _daily_bars(name: str, title: str, numbers: Numbers, series: Sequence[Series]) -> Chart:
    days = [day.day for day in numbers.days]
    columns = [Column(_("Day")), *(Column(one.label, "count") for one in series)]
    rows = [(day, *(one.values[n] for one in series)) for n, day in enumerate(days)]
    return bar_chart(Table(name=name, title=title, columns=columns, rows=rows), days, series)


def _times(numbers: Numbers, column: str) -> Chart:
    titles = {
        "first_text": (_("Time to the first text"), _("From the start of the run.")),
        "duration": (_("Time to the end"), _("From the start of the run.")),
    }
    title, note = titles[column]
    days = [day.day for day in numbers.days]
    times: list[Times] = [getattr(day, column) for day in numbers.days]
    series = [
        Series(_("median"), "good", [one.median for one in times]),
        Series(_("95 % of turns"), "weak", [one.p95 for one in times]),
    ]
    columns = [Column(_("Day")), *(Column(one.label, "ms") for one in series)]
    rows = [(day, one.median, one.p95) for day, one in zip(days, times, strict=True)]
    name = column.replace("_", "-")
    table = Table(name=name, title=title, columns=columns, rows=rows, note=note)
    return line_chart(table, days, series)


def _models(numbers: Numbers) -> Table:
    columns = [
        Column(_("Model")),
        Column(_("Turns"), "count"),
        Column(_("Tokens in"), "count"),
        Column(_("Tokens out"), "count"),
        Column(_("First text, median"), "ms"),
        Column(_("First text, 95 %"), "ms"),
        Column(_("End, median"), "ms"),
        Column(_("End, 95 %"), "ms"),
    ]
    rows = [
        (
            model.model or _("not reported"),
            model.turns,
            model.tokens_in,
            model.tokens_out,
            model.first_text.median,
            model.first_text.p95,
            model.duration.median,
            model.duration.p95,
        )
        for model in numbers.models
    ]
    note = _("Tokens as the models report them, of all messages of a turn.")
    return Table(name="models", title=_("Tokens by model"), columns=columns, rows=rows, note=note)


def _failures(numbers: Numbers) -> Table:
    columns = [Column(_("Code")), Column(_("Turns"), "count")]
    return Table(
        name="failures", title=_("Failures by code"), columns=columns, rows=numbers.failures
    )


def storage(sizes: Sequence[TableSize]) -> Table:
    """Return the sizes of the tables."""
    columns = [
        Column(_("Table")),
        Column(_("Size"), "bytes"),
        Column(_("Of it indexes"), "bytes"),
        Column(_("Rows, estimated"), "count"),
    ]
    rows: list[tuple[Any, ...]] = [
        (size.table, size.size_bytes, size.index_bytes, size.rows) for size in sizes
    ]
    return Table(name="storage", title=_("Storage"), columns=columns, rows=rows)
