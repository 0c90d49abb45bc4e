"""A unit whose case loses each fourth message, to see that the benchmark finds that."""

from __future__ import annotations

from tests.programs.speed.cases import Plan, Unit
from tests.programs.speed.database_cases import Append, BaselineAppend


class Forgetful(Append):
    def call(self) -> None:
        if self.number % 4 == 3:
            self.next_batch()
        else:
            super().call()


UNIT = Unit(
    title="Loses messages.",
    plans=lambda _: [
        Plan(name="F", make=BaselineAppend),
        Plan(name="forgetful", make=Forgetful, baseline="F"),
    ],
    calls=2,
)
