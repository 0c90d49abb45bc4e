"""The present state: health, queue and maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from chatmemory.admin.numbers.tables import Column, Table, shown
from chatmemory.services.health.state import Health
from chatmemory.services.integrity.tables import REMEDY
from chatmemory.services.numbers.due import MaintenanceState, TaskState
from chatmemory.services.numbers.maintenance import Task
from chatmemory.services.numbers.queue import Queue

COMMANDS = {
    Task.EXPIRE: "chatmemory_expire",
    Task.VACUUM: "chatmemory_vacuum",
    Task.VERIFY: "chatmemory_audit_verify",
    Task.SEAL: "chatmemory_audit_verify",
    Task.NUMBERS: "chatmemory_numbers",
    Task.CHECK: "chatmemory_check",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the present state."""

    label: str
    value: str
    is_bad: bool = False
    hint: str = ""


def facts(health: Health, queue: Queue, state: MaintenanceState) -> list[Fact]:
    """Return the present state, the lines of `GET health/` first."""
    return [*_health_facts(health), *_queue_facts(queue), _counted(state)]


def _health_facts(health: Health) -> list[Fact]:
    turns = health.turns
    yes, no = _("works"), _("does not answer")
    found = [
        Fact(_("Database"), yes if turns else no, turns is None),
        Fact(
            _("Channel layer"),
            yes if health.is_layer_reachable else no,
            not health.is_layer_reachable,
            _("Without it, live updates from other processes are late."),
        ),
        _sweep(health),
        *(Fact(_("Tables"), sentence, True, REMEDY) for sentence in health.wrong_tables or ()),
    ]
    if turns is not None:
        overdue = _(
            "Runs of dead processes. A process that serves sockets or runs turns ends them."
        )
        unclaimed = _("Waiting turns that could start. Is a process running that runs turns?")
        found += [
            Fact(_("Stuck turns that run"), shown(turns.overdue), turns.overdue > 0, overdue),
            Fact(
                _("Stuck turns that wait"), shown(turns.unclaimed), turns.unclaimed > 0, unclaimed
            ),
        ]
    return found


def _sweep(health: Health) -> Fact:
    label = _("Last sweep of this process")
    if health.sweep_age is None:
        return Fact(label, _("This process does not sweep"))
    ago = _("%(seconds)s s ago") % {"seconds": shown(round(health.sweep_age, 1))}
    return Fact(label, ago, not health.is_sweeping)


def _queue_facts(queue: Queue) -> list[Fact]:
    oldest = "" if queue.oldest_seconds is None else shown(queue.oldest_seconds * 1000, "ms")
    since = _("the oldest for %(time)s") % {"time": oldest} if oldest else ""
    waiting = ", ".join(filter(None, (shown(queue.waiting), since)))
    return [
        Fact(_("Turns that run now"), shown(queue.running)),
        Fact(_("Turns that wait now"), waiting),
    ]


def _counted(state: MaintenanceState) -> Fact:
    value = _("never") if state.counted_until is None else shown(state.counted_until)
    return Fact(_("Daily numbers up to"), value, state.counted_until is None)


def maintenance(state: MaintenanceState) -> Table:
    """Return when each task last ran, and what is due."""
    columns = [
        Column(_("Task")),
        Column(_("State")),
        Column(_("Last start")),
        Column(_("Duration"), "ms"),
        Column(_("Last success")),
        Column(_("Result")),
        Column(_("Command")),
    ]
    rows = [_row(task) for task in state.tasks]
    marked = {n for n, task in enumerate(state.tasks) if task.is_due or task.is_ok is False}
    note = _("Expire, vacuum, verify, seal and the daily numbers are due daily, check weekly.")
    return Table(
        name="maintenance",
        title=_("Maintenance"),
        columns=columns,
        rows=rows,
        marked=marked,
        note=note,
    )


def _row(task: TaskState) -> tuple[Any, ...]:
    milliseconds = None if task.seconds is None else round(task.seconds * 1000)
    return (
        task.task.label,
        _state(task),
        task.started_at,
        milliseconds,
        task.succeeded_at,
        ", ".join(f"{name} {_shown(value)}" for name, value in task.counts.items()),
        COMMANDS[task.task],
    )


def _shown(value: object) -> str:
    return shown(value) if isinstance(value, int) else str(value)


def _state(task: TaskState) -> str:
    if task.started_at is None:
        return _("never ran")
    if task.ended_at is None:
        return _("runs, or its process died")
    if not task.is_ok:
        return _("ended with problems")
    return _("due") if task.is_due else _("good")
