"""The plans: each causes one kind of fault."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.programs.torture.plans.crowds import isolation, readers, storm, stuck
from tests.programs.torture.plans.dying import kill, pause, rolling, unfenced
from tests.programs.torture.plans.failovers import failover
from tests.programs.torture.plans.greedy import greedy
from tests.programs.torture.plans.layers import sentinel, shard
from tests.programs.torture.plans.links import commits, loss, redis
from tests.programs.torture.plans.locks import locks
from tests.programs.torture.plans.restores import restore
from tests.programs.torture.plans.slow import slow
from tests.programs.torture.plans.streams import streams
from tests.programs.torture.plans.upgrades import upgrade
from tests.programs.torture.plans.zombies import zombie
from tests.programs.torture.world import Outcome, World

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
    "streams": streams,
    "storm": storm,
    "isolation": isolation,
    "stuck": stuck,
    "greedy": greedy,
    "restore": restore,
    "zombie": zombie,
    "slow": slow,
    "locks": locks,
    "failover": failover,
    "upgrade": upgrade,
    "shard": shard,
    "sentinel": sentinel,
}
"""The plans by name. A plan's number is how often it repeats its fault."""
