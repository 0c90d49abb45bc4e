"""`python -m tests.programs.speed.worker UNIT CASE INDEX SCALE`: a process that runs a case."""

from __future__ import annotations

import json
import sys
from importlib import import_module

import django
from django.db import connection

from tests.programs.speed.cases import Scale, Setup
from tests.programs.speed.databases import require_own
from tests.programs.speed.interleave import AGAIN, serve


def main(module: str, name: str, index: str, scale: str) -> None:
    """Run the case `name` of the unit in `module`."""
    django.setup()
    require_own(connection)
    sizes = Scale(**json.loads(scale))
    unit = import_module(module).UNIT
    planned = name.removesuffix(f" {AGAIN}")
    plan = next(plan for plan in unit.plans(sizes) if plan.name == planned)
    key = f"{module.rpartition('.')[2]} {name}"
    serve(plan.make(Setup(key=key, index=int(index), scale=sizes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
