"""A whole turn without a model: admission, start, finish."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from chatmemory.models import Session, Turn
from chatmemory.services.turns.admission import admit_turn
from chatmemory.services.turns.progress import finish_turn, start_turn
from tests.programs.speed.cases import BenchError, Plan, Unit
from tests.programs.speed.database_cases import BaselineAppend, DatabaseCase

OWNER = "bench"


class WholeTurn(DatabaseCase):
    """Our turn."""

    def call(self) -> None:
        user, reply = self.next_batch()
        admitted = admit_turn(
            **self.address,
            client_id=uuid.uuid4().hex,
            content=user,
            owner=OWNER,
        )
        claim = admitted.claim
        if claim is None or not start_turn(claim=claim):
            raise BenchError("A turn was admitted, but did not start.")
        finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": reply})

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        session = Session.objects.get(key=self.setup.key)
        complete = Turn.objects.filter(session=session, status=Turn.Status.COMPLETE).count()
        faults = super().find_faults(calls)
        if complete != sum(calls) or session.running is not None or session.waiting:
            faults.append(f"{complete} of {sum(calls)} turns are complete")
        return faults


UNIT = Unit(
    title="Whole turn: admission, start, finish. F: one append of its two messages.",
    plans=lambda _: [
        Plan(name="F", make=BaselineAppend),
        Plan(name="turn", make=WholeTurn, baseline="F"),
    ],
)
