"""The tables of the page, and the charts of some."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext as _

from chatmemory.admin.reports.tables import Column, Table
from chatmemory.models import Turn
from chatmemory.statistics.admin.charts import Chart, Series, bar_chart, line_chart
from chatmemory.statistics.figures import Figures, Times

STATUSES = {
    Turn.Status.COMPLETE: "good",
    Turn.Status.INTERRUPTED: "weak",
    Turn.Status.CANCELLED: "quiet",
    Turn.Status.FAILED: "bad",
}
"""The class of each status, from the bottom of a bar to its top."""


def charts(figures: Figures) -> list[Chart]:
    """Return the charts of a period, in the order of the page."""
    return [
        _activity(figures, "messages"),
        _activity(figures, "sessions"),
        _outcomes(figures),
        _times_chart(figures, "first_text"),
        _times_chart(figures, "duration"),
        _feedback_chart(figures),
    ]


def tables(figures: Figures) -> list[Table]:
    """Return the tables of a period that have no chart."""
    return [_models_table(figures), _failures(figures)]


def _activity(figures: Figures, column: str) -> Chart:
    title = {"messages": _("Messages stored"), "sessions": _("Conversations created")}[column]
    values = [getattr(day, column) for day in figures.days]
    return _daily_bars(column, title, figures, [Series(title, "good", values)])


def _outcomes(figures: Figures) -> Chart:
    series = [
        Series(status.label, css, [day.by_status[status.value] for day in figures.days])
        for status, css in STATUSES.items()
    ]
    return _daily_bars("turns", _("Turns by outcome"), figures, series)


def _feedback_chart(figures: Figures) -> Chart:
    series = [
        Series(_("good"), "good", [day.good for day in figures.days]),
        Series(_("bad"), "bad", [day.bad for day in figures.days]),
    ]
    return _daily_bars("feedback", _("Feedback"), figures, series)


def _daily_bars(name: str, title: str, figures: Figures, series: Sequence[Series]) -> Chart:
    days = [day.day for day in figures.days]
    columns = [Column(_("Day")), *(Column(one.label, "count") for one in series)]
    rows = [(day, *(one.values[n] for one in series)) for n, day in enumerate(days)]
    return bar_chart(Table(name=name, title=title, columns=columns, rows=rows), days, series)


def _times_chart(figures: Figures, column: str) -> Chart:
    titles = {
        "first_text": (_("Time to the first text"), _("From the start of the run.")),
        "duration": (_("Time to the end"), _("From the start of the run.")),
    }
    title, note = titles[column]
    days = [day.day for day in figures.days]
    times: list[Times] = [getattr(day, column) for day in figures.days]
    series = [
        Series(_("median"), "good", [one.median for one in times]),
        Series(_("95 % of turns"), "weak", [one.p95 for one in times]),
    ]
    columns = [Column(_("Day")), *(Column(one.label, "ms") for one in series)]
    rows = [(day, one.median, one.p95) for day, one in zip(days, times, strict=True)]
    name = column.replace("_", "-")
    table = Table(name=name, title=title, columns=columns, rows=rows, note=note)
    return line_chart(table, days, series)


def _models_table(figures: Figures) -> Table:
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
        for model in figures.models
    ]
    note = _("Tokens as the models report them, of all messages of a turn.")
    return Table(name="models", title=_("Tokens by model"), columns=columns, rows=rows, note=note)


def _failures(figures: Figures) -> Table:
    columns = [Column(_("Code")), Column(_("Turns"), "count")]
    return Table(
        name="failures", title=_("Failures by code"), columns=columns, rows=figures.failures
    )
