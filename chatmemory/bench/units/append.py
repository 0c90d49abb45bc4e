"""An append of two messages: 200 and 600 characters."""

from __future__ import annotations

from chatmemory.bench.cases import Plan, Unit
from chatmemory.bench.database_cases import Append, FloorAppend

UNIT = Unit(
    title="Append of two messages. F: one hand-written, prepared statement.",
    plans=lambda _: [Plan(name="F", make=FloorAppend), Plan(name="append", make=Append, floor="F")],
)
