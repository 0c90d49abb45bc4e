"""Turns that make no progress, for monitors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from chatmemory.database.retries import retried
from chatmemory.models import Turn, TurnQuerySet

STUCK_AGE = timedelta(minutes=1)
"""Sweeps end overdue turns and claim waiting ones within seconds; after this time none does."""

MAX_COUNTED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckTurns:
    """Counts of turns without progress for over a minute, each at most 1,000."""

    overdue: int
    """Running turns of dead processes that no process ends."""
    unclaimed: int
    """Waiting turns that could start, but no process claims them."""


@retried(is_repeatable=True)
def count_stuck_turns() -> StuckTurns:
    """Count the turns that make no progress, because no process sweeps or runs turns.

    Reads only turns that run or wait. A waiting turn of a user who has a running one does not
    count, since `TURNS_PER_USER` may hold it back. Raises MemoryUnavailable.
    """
    return StuckTurns(
        overdue=_count_turns(Turn.objects.long_overdue(STUCK_AGE)),
        unclaimed=_count_turns(Turn.objects.unclaimed(STUCK_AGE)),
    )


def _count_turns(turns: TurnQuerySet) -> int:
    return len(turns.order_by().values_list("pk")[:MAX_COUNTED])
