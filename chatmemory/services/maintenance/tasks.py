"""The maintenance tasks: how often each is due, and the command that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db.models import TextChoices

from chatmemory.models import Maintenance

TOLERANCE: Final = timedelta(hours=2)
"""How much later a run may end than the last one before the task is overdue, and how much earlier
`chatmemory_maintain` repeats it."""

LEASE_NAME: Final = "maintain"
"""The name of the row with the lease of `chatmemory_maintain`."""

Task = Maintenance.Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How often a task is due, and what runs it."""

    task: TextChoices
    days: int
    command: str

    @property
    def overdue_after(self) -> timedelta:
        """The time after a success until the task is overdue."""
        return timedelta(days=self.days) + TOLERANCE

    @property
    def due_after(self) -> timedelta:
        """The time after a success until the task is due, and `chatmemory_maintain` runs it again.

        A little shorter, so that a nightly run that begins earlier than the last one skips nothing.
        """
        return timedelta(days=self.days) - TOLERANCE


_schedules: dict[str, Schedule] = {}


def register_task(task: TextChoices, *, days: int, command: str) -> None:
    """Let Health show a task of an optional app, and `chatmemory_maintain` run its command.

    Call it in `ready()`; a repeated call changes nothing.

    Raises ValueError if another task has the same code, and for the code `maintain`.
    """
    if task.value == LEASE_NAME:
        raise ValueError(f"A maintenance task cannot have the code {LEASE_NAME!r}.")
    schedule = Schedule(task=task, days=days, command=command)
    known = _schedules.setdefault(task.value, schedule)
    if known.task is not task or known != schedule:
        raise ValueError(f"Another maintenance task has the code {task.value!r}.")


def schedules() -> list[Schedule]:
    """Return the schedules of all tasks, those of the core first."""
    return list(_schedules.values())


def check_registered(task: TextChoices) -> None:
    """Raise LookupError for a task that Health would not show."""
    if task.value not in _schedules:
        raise LookupError(f"Unknown maintenance task {task.value!r}: register_task() adds it.")


register_task(Task.EXPIRE, days=1, command="chatmemory_expire")
register_task(Task.VACUUM, days=1, command="chatmemory_vacuum")
register_task(Task.VERIFY, days=1, command="chatmemory_audit_verify")
register_task(Task.SEAL, days=1, command="chatmemory_audit_verify")
register_task(Task.CHECK, days=7, command="chatmemory_check")
