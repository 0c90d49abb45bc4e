"""An append of two messages on SQLite, whatever the database of the run is."""

from __future__ import annotations

from chatmemory.bench.cases import Plan, Scale, Unit
from chatmemory.bench.database_cases import Append, FloorAppend
from chatmemory.bench.databases import SQLITE_FULL, SQLITE_NORMAL


def plans(_: Scale) -> list[Plan]:
    """Return append and floor for both values of `PRAGMA synchronous`."""
    found: list[Plan] = []
    for mode, database in (("FULL", SQLITE_FULL), ("NORMAL", SQLITE_NORMAL)):
        raw = f"raw, {mode}"
        found += [
            Plan(name=raw, make=FloorAppend, database=database),
            Plan(name=f"append, {mode}", make=Append, floor=raw, database=database),
        ]
    return found


UNIT = Unit(
    title="SQLite (WAL): append of two. Raw: two statements in a transaction of sqlite3.",
    plans=plans,
)
