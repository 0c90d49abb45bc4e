"""Run units of the benchmark, and return what they have shown."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from itertools import count
from pathlib import Path

from django.db.backends.base.base import BaseDatabaseWrapper

from tests.programs.speed import machine
from tests.programs.speed.cases import BenchError, Plan, Scale, Unit
from tests.programs.speed.databases import Databases
from tests.programs.speed.interleave import Process, run_unit
from tests.programs.speed.report import Run, unit_figures
from tests.programs.speed.units import UNITS

COMPARE = "compare"
COMPARE_MODULE = "tests.programs.peers.speed"
"""The comparison with other stores."""


def modules_of(names: Sequence[str], *, compare: bool = False) -> dict[str, str]:
    """Return the modules of these units, in the order of `UNITS`. Raises BenchError."""
    if unknown := [name for name in names if name not in UNITS]:
        raise BenchError(f"Unknown unit: {', '.join(unknown)}. Units: {', '.join(UNITS)}.")
    modules = {name: module for name, module in UNITS.items() if name in names}
    return {**modules, COMPARE: COMPARE_MODULE} if compare else modules


def run(
    modules: Mapping[str, str],
    *,
    live: BaseDatabaseWrapper,
    database: str,
    folder: Path,
    rounds: int,
    scale: Scale,
    seed: int,
    report: Callable[[str], None],
) -> Run:
    """Measure units in a database that is created for them, and dropped.

    `live` is the project's connection; only the server and login of its settings are used. SQLite
    files and logs are stored in `folder`. `report` is called with the name of each unit when it
    begins. Raises BenchError.
    """
    units: dict[str, Unit] = {name: import_module(path).UNIT for name, path in modules.items()}
    shuffle = random.Random(seed)  # noqa: S311  # no secret
    numbers = count()
    with tempfile.TemporaryDirectory(dir=folder, prefix="chatmemory_bench_") as place:
        databases = Databases(
            live.settings_dict, vendor=live.vendor, name=database, folder=Path(place)
        )
        if COMPARE in modules and databases.vendor != "postgresql":
            raise BenchError("--compare needs PostgreSQL, which other stores use too.")
        for unit in units.values():
            unit.plans(scale)  # a unit that cannot run is refused before the others run

        def start(module: str) -> Callable[[Plan, int], Process]:
            def started(plan: Plan, index: int) -> Process:
                arguments = [module, plan.name, str(index), json.dumps(asdict(scale))]
                env = {**databases.environment(plan.database), **plan.env}
                log = Path(place) / f"{next(numbers)}.log"
                return Process([*plan.command, *arguments], env, log)

            return started

        try:
            machine_facts = {
                "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                "processor": machine.processor(),
                **machine.versions(),
                **databases.facts(),
                "fdatasync here": f"{machine.sync_seconds(Path(place)) * 1e6:,.0f} µs",
                "load before": machine.load(),
            }
            figures = {}
            for name, unit in units.items():
                report(name)
                results = run_unit(
                    unit, scale=scale, rounds=rounds, start=start(modules[name]), shuffle=shuffle
                )
                figures[name] = unit_figures(unit.title, results)
            machine_facts["load after"] = machine.load()
        finally:
            databases.drop()
    return {"machine": machine_facts, "rounds": rounds, "seed": seed, "units": figures}
