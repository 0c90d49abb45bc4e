"""Whether the app works, for monitors and for people: without content and without persons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chatmemory.services.health.probes import Probe
from chatmemory.services.integrity.tables import wrong_tables
from chatmemory.services.turns.stuck import StuckTurns, count_stuck_turns

MAX_SWEEP_AGE_SECONDS = 60.0
"""A process sweeps every few seconds."""
TABLES_SECONDS = 60.0
"""How long the comparison of the tables is used again: it reads each of them."""


class Sweep(Protocol):
    """The sweep of this process."""

    @property
    def age_seconds(self) -> float | None: ...


class Process(Protocol):
    """What this process knows about itself."""

    @property
    def sweep(self) -> Sweep: ...

    def is_layer_reachable(self) -> bool | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of the database, the channel layer and the turns, as this process sees it."""

    turns: StuckTurns | None
    """None if the database does not answer."""
    is_layer_reachable: bool
    wrong_tables: list[str] | None
    """The tables that do not fit the models; None if that is unknown."""
    sweep_age: float | None
    """Seconds since the last sweep of this process; None if it does not sweep."""

    @property
    def is_sweeping(self) -> bool:
        return self.sweep_age is None or self.sweep_age <= MAX_SWEEP_AGE_SECONDS

    @property
    def is_ok(self) -> bool:
        has_stuck = self.turns is None or bool(self.turns.overdue or self.turns.unclaimed)
        is_wrong = has_stuck or bool(self.wrong_tables)
        return not is_wrong and self.is_layer_reachable and self.is_sweeping


class _Here:
    """This process, which the receivers set: services know neither hub nor runner."""

    process: Process | None = None


here = _Here()


def _is_layer_reachable() -> bool:
    return here.process is None or here.process.is_layer_reachable() is not False


stuck_turns = Probe(count_stuck_turns)
layer = Probe(_is_layer_reachable)
tables = Probe(wrong_tables, seconds=TABLES_SECONDS)


def read_health() -> Health:
    """Return the state of the app. Waits at most for `WAIT_SECONDS` of each probe."""
    return Health(
        turns=stuck_turns.result(),
        is_layer_reachable=bool(layer.result()),
        wrong_tables=tables.result(),
        sweep_age=None if here.process is None else here.process.sweep.age_seconds,
    )
