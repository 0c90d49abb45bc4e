"""Tables of numbers: the same rows for the page, for the charts and for CSV."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any

from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _

from chatmemory.admin.text import ago, visible
from chatmemory.formats.people import escape_formulas

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its header, and whether its numbers are counts, milliseconds or bytes."""

    label: Label
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as people read it."""

    text: str
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of values below their columns."""

    name: str
    """In the address and the file name of its CSV."""
    title: Label
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    marked: Collection[int] = ()
    """The indexes of rows that need attention."""
    note: Label = ""

    @property
    def headers(self) -> list[Cell]:
        """Return the headers; those of numbers are at their side."""
        return [Cell(str(column.label), bool(column.unit)) for column in self.columns]

    def cells(self) -> Iterator[tuple[bool, list[Cell]]]:
        """Yield the rows for the page, and whether they need attention."""
        for index, row in enumerate(self.rows):
            yield (
                index in self.marked,
                [
                    Cell(shown(value, column.unit), bool(column.unit))
                    for value, column in zip(row, self.columns, strict=True)
                ],
            )

    def as_csv(self) -> str:
        """Return the table for spreadsheets; numbers have no separators."""
        file = StringIO()
        writer = csv.writer(file)
        writer.writerow([_column_header(column) for column in self.columns])
        writer.writerows([[_csv_cell(value) for value in row] for row in self.rows])
        return file.getvalue()


def shown(value: Any, unit: str = "") -> str:
    """Return a value as text in the language of the operator; of a time, its age."""
    match value:
        case None:
            return NOTHING
        case bool():
            return _("yes") if value else _("no")
        case int() | float():
            return _shown_number(value, unit)
        case datetime() if timezone.is_aware(value):
            return ago(value)
        case datetime():
            return date_format(value, "SHORT_DATETIME_FORMAT")
        case date():
            return date_format(value, "SHORT_DATE_FORMAT")
    return visible(str(value)) or NOTHING


def _shown_number(value: float, unit: str) -> str:
    if unit == "bytes":
        return filesizeformat(value)
    if unit == "ms" and value < 1000:
        return _("%(ms)s ms") % {"ms": round(value)}
    if unit == "ms":
        return _("%(seconds)s s") % {"seconds": number_format(value / 1000, 1)}
    return number_format(value, force_grouping=True)


def _column_header(column: Column) -> str:
    suffix = {"ms": " (ms)", "bytes": " (bytes)"}.get(column.unit, "")
    return f"{column.label}{suffix}"


def _csv_cell(value: Any) -> str | int | float:
    match value:
        case None:
            return ""
        case int() | float():
            return value
        case date():
            return value.isoformat()
    return escape_formulas(str(value))
