"""What a unit of the benchmark consists of. Imports no Django, so other stores can use it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class BenchError(Exception):
    """The benchmark cannot run, or a process of it failed."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The sizes of a run."""

    users: int = 100
    writers: int = 8
    history: int = 1_000
    """Messages of the session that `load` reads."""
    long_history: int = 10_000
    """Messages of the long session in `growth`."""
    small_rows: int = 50_000
    large_rows: int = 500_000
    """Messages in the two databases of `growth`."""
    redis: str = ""
    """A Redis server: `users` also measures two servers whose channel layer it is."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a process knows of its case."""

    key: str
    """The key of its session, the same in all processes of the case."""
    index: int
    """The number of this process, from 0."""
    scale: Scale


class Case:
    """One way to do the work of a unit, in one process or in several."""

    has_cpu = True
    """Whether its CPU means something."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def prepare(self) -> None:
        """Create what the calls need. Processes are prepared one after another, 0 first."""

    def call(self) -> float | None:
        """Do the work once. May return the seconds that count, instead of the whole duration."""
        raise NotImplementedError

    def parts(self) -> int:
        """Return how many pieces of work a call does; CPU is per piece."""
        return 1

    def server_pids(self) -> Sequence[int]:
        """Return the processes whose CPU counts, if it is not this one."""
        return ()

    def backend_pids(self) -> Sequence[int]:
        """Return the processes of the database that work for this case."""
        return ()

    def count(self) -> Mapping[str, int]:
        """Return statements, characters, parameters and compilations of one call."""
        return {}

    def steps(self) -> Mapping[str, float]:
        """Return the CPU seconds of each step of a call."""
        return {}

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        """Return what is wrong with the results; `calls` is the number of calls by process."""
        raise NotImplementedError

    def close(self) -> None:
        """Release all resources."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A case and where it runs."""

    name: str
    make: Callable[[Setup], Case] = Case
    baseline: str | None = None
    """The case of the same unit that it is compared with."""
    database: str = "default"
    processes: int = 1
    command: Sequence[str] = (sys.executable, "-m", "tests.programs.speed.worker")
    env: Mapping[str, str] = field(default_factory=dict)
    """More variables of the environment."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Cases that are measured together."""

    title: str
    plans: Callable[[Scale], Sequence[Plan]]
    calls: int = 10
    """Calls in a slice."""
    warmups: int = 2
    """Slices before the first round; the first statements are not prepared yet."""
    repeats_baseline: bool = True
    """Whether the first case also runs against itself, which shows the noise."""
