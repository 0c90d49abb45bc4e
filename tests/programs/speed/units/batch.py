"""An append of 100 messages."""

from __future__ import annotations

from tests.programs.speed.cases import Plan, Unit
from tests.programs.speed.database_cases import Append, BaselineAppend


class BaselineBatch(BaselineAppend):
    """One statement with an array per column."""

    size = 100


class AppendBatch(Append):
    """Our append."""

    size = 100


UNIT = Unit(
    title="Append of 100 messages. Raw: one hand-written statement with arrays.",
    plans=lambda _: [
        Plan(name="raw", make=BaselineBatch),
        Plan(name="append", make=AppendBatch, baseline="raw"),
    ],
    calls=5,
)
