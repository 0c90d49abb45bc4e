"""The plans: each causes one kind of fault."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.torture.plans.crowds import isolation, readers, storm, stuck
from tests.torture.plans.dying import kill, pause, rolling, unfenced
from tests.torture.plans.greedy import greedy
from tests.torture.plans.links import commits, loss, redis
from tests.torture.plans.locks import locks
from tests.torture.plans.restores import restore
from tests.torture.plans.slow import slow
from tests.torture.plans.zombies import zombie
from tests.torture.world import Outcome, World

Plan = Callable[[World, int], Coroutine[Any, Any, Outcome]]

PLANS: dict[str, Plan] = {
    "kill": kill,
    "pause": pause,
    "unfenced": unfenced,
    "rolling": rolling,
    "commits": commits,
    "redis": redis,
    "loss": loss,
    "readers": readers,
    "storm": storm,
    "isolation": isolation,
    "stuck": stuck,
    "greedy": greedy,
    "restore": restore,
    "zombie": zombie,
    "slow": slow,
    "locks": locks,
}
"""The plans by name. A plan's number is how often it repeats its fault."""
