"""An append of two messages on SQLite, whatever the database of the run is."""

from __future__ import annotations

from tests.programs.speed.cases import Plan, Scale, Unit
from tests.programs.speed.database_cases import Append, BaselineAppend
from tests.programs.speed.databases import SQLITE_FULL, SQLITE_NORMAL


def plans(_: Scale) -> list[Plan]:
    """Return append and baseline for both values of `PRAGMA synchronous`."""
    found: list[Plan] = []
    for mode, database in (("FULL", SQLITE_FULL), ("NORMAL", SQLITE_NORMAL)):
        raw = f"raw, {mode}"
        found += [
            Plan(name=raw, make=BaselineAppend, database=database),
            Plan(name=f"append, {mode}", make=Append, baseline=raw, database=database),
        ]
    return found


UNIT = Unit(
    title="SQLite (WAL): append of two. Raw: two statements in a transaction of sqlite3.",
    plans=plans,
)
