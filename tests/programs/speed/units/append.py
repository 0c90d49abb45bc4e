"""An append of two messages: 200 and 600 characters."""

from __future__ import annotations

from tests.programs.speed.cases import Plan, Unit
from tests.programs.speed.database_cases import Append, BaselineAppend

UNIT = Unit(
    title="Append of two messages. F: one hand-written, prepared statement.",
    plans=lambda _: [
        Plan(name="F", make=BaselineAppend),
        Plan(name="append", make=Append, baseline="F"),
    ],
)
