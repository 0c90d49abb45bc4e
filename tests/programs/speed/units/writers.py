"""Several processes that append to one session, and to sessions of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.programs.speed.cases import Plan, Scale, Setup, Unit
from tests.programs.speed.database_cases import Append, BaselineAppend
from tests.programs.speed.texts import batches_of, find_faults


def own_session(setup: Setup) -> Setup:
    """Give the process a session of its own."""
    return replace(setup, key=f"{setup.key} {setup.index}")


def faults_of_all(setup: Setup, calls: Sequence[int]) -> list[str]:
    """Check the own sessions of all processes."""
    shared = setup.key.removesuffix(f" {setup.index}")
    found: list[str] = []
    for index, count in enumerate(calls):
        found += find_faults(f"{shared} {index}", batches_of([0] * index + [count]))
    return found


class BaselineAlone(BaselineAppend):
    """F on own sessions."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(own_session(setup))

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        return faults_of_all(self.setup, calls)


class AppendAlone(Append):
    """Our append on own sessions."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(own_session(setup))

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        return faults_of_all(self.setup, calls)


def plans(scale: Scale) -> list[Plan]:
    """Return our cases and their baselines."""
    count = scale.writers
    return [
        Plan(name="F, one session", make=BaselineAppend, processes=count),
        Plan(name="append, one session", make=Append, processes=count, baseline="F, one session"),
        Plan(name="F, own sessions", make=BaselineAlone, processes=count),
        Plan(
            name="append, own sessions",
            make=AppendAlone,
            processes=count,
            baseline="F, own sessions",
        ),
    ]


UNIT = Unit(
    title="Several writing processes. The time of an append is that of all processes / appends.",
    plans=plans,
    calls=20,
)
