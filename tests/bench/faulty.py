"""A unit whose case loses each fourth message, to see that the benchmark finds that."""

from __future__ import annotations

from chatmemory.bench.cases import Plan, Unit
from chatmemory.bench.database_cases import Append, FloorAppend


class Forgetful(Append):
    def call(self) -> None:
        if self.number % 4 == 3:
            self.next_batch()
        else:
            super().call()


UNIT = Unit(
    title="Loses messages.",
    plans=lambda _: [
        Plan(name="F", make=FloorAppend),
        Plan(name="forgetful", make=Forgetful, floor="F"),
    ],
    calls=2,
)
