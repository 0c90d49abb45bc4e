"""The tables of the page of health: maintenance and storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatmemory.admin.reports.tables import Column, Table, shown
from chatmemory.services.health.storage import TableSize
from chatmemory.services.maintenance.due import MaintenanceState, TaskState


def maintenance(state: MaintenanceState) -> Table:
    """Return when each task last ran, and what is overdue."""
    columns = [
        Column(_("Task")),
        Column(_("State")),
        Column(_("How often")),
        Column(_("Last start")),
        Column(_("Duration"), "ms"),
        Column(_("Last success")),
        Column(_("Result")),
        Column(_("Command")),
    ]
    rows = [_task_row(task) for task in state.tasks]
    marked = {n for n, task in enumerate(state.tasks) if task.is_overdue or task.is_ok is False}
    return Table(
        name="maintenance",
        title=_("Maintenance"),
        columns=columns,
        rows=rows,
        marked=marked,
    )


def _task_row(task: TaskState) -> tuple[Any, ...]:
    milliseconds = None if task.seconds is None else round(task.seconds * 1000)
    return (
        task.schedule.task.label,
        _state_text(task),
        _interval(task.schedule.days),
        task.started_at,
        milliseconds,
        task.succeeded_at,
        ", ".join(f"{name} {_shown_setting(value)}" for name, value in task.counts.items()),
        task.schedule.command,
    )


def _interval(days: int) -> str:
    every = ngettext("every %(days)s day", "every %(days)s days", days)
    return _("daily") if days == 1 else every % {"days": days}


def _shown_setting(value: object) -> str:
    return shown(value) if isinstance(value, int) else str(value)


def _state_text(task: TaskState) -> str:
    if task.started_at is None:
        return _("never ran")
    if task.ended_at is None:
        return _("runs, or its process died")
    if not task.is_ok:
        return _("ended with problems")
    return _("overdue") if task.is_overdue else _("good")


def storage(sizes: Sequence[TableSize]) -> Table:
    """Return the sizes of the tables."""
    columns = [
        Column(_("Table")),
        Column(_("Size"), "bytes"),
        Column(_("Its indexes"), "bytes"),
        Column(_("Rows, estimated"), "count"),
    ]
    rows: list[tuple[Any, ...]] = [
        (size.table, size.size_bytes, size.index_bytes, size.rows) for size in sizes
    ]
    return Table(name="storage", title=_("Storage"), columns=columns, rows=rows)
