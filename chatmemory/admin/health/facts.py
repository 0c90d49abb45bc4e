"""The present state: health and queue, and what optional apps add."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.utils.translation import gettext as _

from chatmemory.admin.reports.tables import shown
from chatmemory.admin.text import duration
from chatmemory.services.health.facts import RegisteredFact, registered_facts
from chatmemory.services.health.queue import Queue
from chatmemory.services.health.state import Health
from chatmemory.services.integrity.tables import REMEDY


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the present state."""

    label: str
    value: str
    is_bad: bool = False
    advice: str = ""


def facts(health: Health, queue: Queue) -> list[Fact]:
    """Return the present state, the lines of `GET health/` first."""
    return [*_health_facts(health), *_queue_facts(queue), *map(_other, registered_facts())]


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
    waiting, seconds = shown(queue.waiting), queue.oldest_seconds
    if seconds is not None:
        oldest = _("the oldest for %(time)s") % {"time": duration(timedelta(seconds=seconds))}
        waiting = f"{waiting}, {oldest}"
    return [
        Fact(_("Turns that run now"), shown(queue.running)),
        Fact(_("Turns that wait now"), waiting),
    ]


def _other(fact: RegisteredFact) -> Fact:
    found = fact.value()
    return Fact(str(fact.label), shown(found.value), found.is_bad, found.advice)
