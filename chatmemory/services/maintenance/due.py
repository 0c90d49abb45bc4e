"""Which maintenance is due, and which is overdue: not done although it was due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chatmemory.models import DatabaseNow, Maintenance
from chatmemory.services.maintenance.tasks import Schedule, schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """When a task last ran, its result, and whether it is due or overdue."""

    schedule: Schedule
    started_at: datetime | None = None
    ended_at: datetime | None = None
    succeeded_at: datetime | None = None
    is_ok: bool | None = None
    """None if it never ran, runs now, or its process died."""
    counts: Mapping[str, Any]
    is_due: bool = True
    """Whether `chatmemory_maintain` runs it now."""
    is_overdue: bool = True
    """Whether Health marks it, since no run has succeeded for too long."""

    @property
    def seconds(self) -> float | None:
        """The duration of the last run, if it ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceState:
    """The state of all tasks."""

    tasks: list[TaskState]

    @property
    def is_overdue(self) -> bool:
        return any(task.is_overdue for task in self.tasks)

    @property
    def has_problems(self) -> bool:
        return any(task.is_ok is False for task in self.tasks)


def read_maintenance() -> MaintenanceState:
    """Return the state of all tasks, in one statement."""
    rows = {row.name: row for row in Maintenance.objects.annotate(now=DatabaseNow())}
    return MaintenanceState(
        tasks=[_task_state(schedule, rows.get(schedule.task.value)) for schedule in schedules()]
    )


def _task_state(schedule: Schedule, row: Any) -> TaskState:
    if row is None:
        return TaskState(schedule=schedule, counts={})
    age = None if row.succeeded_at is None else row.now - row.succeeded_at
    return TaskState(
        schedule=schedule,
        started_at=row.started_at,
        ended_at=row.ended_at,
        succeeded_at=row.succeeded_at,
        is_ok=row.is_ok,
        counts=row.counts,
        is_due=age is None or age >= schedule.due_after,
        is_overdue=age is None or age > schedule.overdue_after,
    )
