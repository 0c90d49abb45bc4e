"""Charts as SVG, made on the server: shapes with classes, without inline styles and scripts.

A chart is stretched to its place, so its texts are outside of it. Its data is in its table too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.translation import gettext as _

from chatmemory.admin.reports.tables import Table, shown

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

WIDTH, HEIGHT = 1_000, 100
"""The coordinates of a chart."""
GAP = 0.2
"""The share of a day's width that is empty beside its bar."""


@dataclass(frozen=True, slots=True)
class Series:
    """The values of a chart, one for each day; its class defines the color."""

    label: Label
    css: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle. The numbers are texts, since templates localize others."""

    css: str
    x: str
    y: str
    width: str
    height: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A path through the values of days; a day without a value interrupts it."""

    css: str
    path: str
    dots: Sequence[tuple[str, str, str]]
    """The path, the class and the title of a mark at each value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of a period, with its legend and its table."""

    table: Table
    description: str
    series: Sequence[Series]
    top: str
    """The value at the upper edge."""
    first: str
    last: str
    bars: Sequence[Bar] = ()
    lines: Sequence[Line] = ()
    view_box: str = f"0 0 {WIDTH} {HEIGHT}"


def bar_chart(table: Table, days: Sequence[date], series: Sequence[Series]) -> Chart:
    """Return a chart with a stack of bars for each day."""
    totals = [sum(one.values[n] or 0 for one in series) for n in range(len(days))]
    top = _nice(max(totals, default=0))
    width = WIDTH / max(1, len(days))
    bars = []
    for n, day in enumerate(days):
        below = 0.0
        for one in series:
            value = one.values[n] or 0
            below += value
            if value:
                bars.append(
                    Bar(
                        css=one.css,
                        x=_number_text(n * width + width * GAP / 2),
                        y=_number_text(HEIGHT - HEIGHT * below / top),
                        width=_number_text(width * (1 - GAP)),
                        height=_number_text(HEIGHT * value / top),
                        title=_title(day, one, value, ""),
                    )
                )
    return _chart(table, days, series, shown(top), bars=bars)


def line_chart(table: Table, days: Sequence[date], series: Sequence[Series]) -> Chart:
    """Return a chart with a line for each series, of milliseconds."""
    values = [value for one in series for value in one.values if value is not None]
    top = _nice(max(values, default=0))
    width = WIDTH / max(1, len(days))
    lines = []
    for one in series:
        points = [
            None
            if value is None
            else (_number_text((n + 0.5) * width), _number_text(HEIGHT * (1 - value / top)))
            for n, value in enumerate(one.values)
        ]
        dots = [
            # A line of no length with round ends is a dot that keeps its shape when stretched.
            (f"M{x} {y}h0", one.css, _title(day, one, value, "ms"))
            for day, value, (x, y) in _known(days, one.values, points)
        ]
        lines.append(Line(css=one.css, path=_path(points), dots=dots))
    return _chart(table, days, series, shown(top, "ms"), lines=lines)


def _known(
    days: Sequence[date],
    values: Sequence[float | None],
    points: Sequence[tuple[str, str] | None],
) -> list[tuple[date, float, tuple[str, str]]]:
    rows = zip(days, values, points, strict=True)
    return [(day, value, point) for day, value, point in rows if value is not None and point]


def _chart(
    table: Table,
    days: Sequence[date],
    series: Sequence[Series],
    top: str,
    *,
    bars: Sequence[Bar] = (),
    lines: Sequence[Line] = (),
) -> Chart:
    first, last = (date_format(day, "SHORT_DATE_FORMAT") for day in (days[0], days[-1]))
    description = _("{series}, by day from {first} to {last}; the highest value is {top}.")
    names = ", ".join(str(one.label) for one in series)
    return Chart(
        table=table,
        description=format_html(description, series=names, first=first, last=last, top=top),
        series=series,
        top=top,
        first=first,
        last=last,
        bars=bars,
        lines=lines,
    )


def _path(points: Sequence[tuple[str, str] | None]) -> str:
    parts, command = [], "M"
    for point in points:
        if point is None:
            command = "M"
            continue
        parts.append(f"{command}{point[0]} {point[1]}")
        command = "L"
    return " ".join(parts)


def _title(day: date, series: Series, value: float, unit: str) -> str:
    return f"{date_format(day, 'SHORT_DATE_FORMAT')}: {series.label} {shown(value, unit)}"


def _nice(highest: float) -> float:
    """Return a round number that is not less."""
    power = 10 ** max(0, math.ceil(math.log10(highest)) - 1) if highest > 1 else 1
    return next(factor * power for factor in (1, 2, 3, 4, 5, 6, 8, 10) if factor * power >= highest)


def _number_text(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
