"""An append of 100 messages."""

from __future__ import annotations

from chatmemory.bench.cases import Plan, Unit
from chatmemory.bench.database_cases import Append, FloorAppend


class FloorBatch(FloorAppend):
    """One statement with an array per column."""

    size = 100


class AppendBatch(Append):
    """Our append."""

    size = 100


UNIT = Unit(
    title="Append of 100 messages. Raw: one hand-written statement with arrays.",
    plans=lambda _: [
        Plan(name="raw", make=FloorBatch),
        Plan(name="append", make=AppendBatch, floor="raw"),
    ],
    calls=5,
)
