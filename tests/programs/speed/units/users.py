"""Users who stream 50 pieces a second each, from one server, or from two that share Redis."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial

from tests.programs.speed.cases import Case, Plan, Scale, Unit
from tests.programs.speed.responder import SLOW, SLOW_SECONDS
from tests.programs.speed.socket_cases import SocketCase
from tests.programs.speed.sockets import OurTalk, PlainTalk, Talk
from tests.programs.speed.texts import USER_CHARS


class Ideal(Case):
    """The time that the pieces take, if nothing else does."""

    has_cpu = False

    def call(self) -> float:
        return SLOW_SECONDS

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        return []


class Users(SocketCase):
    """In each call every user has a turn; its time is the median of the turns."""

    def user_count(self) -> int:
        return self.setup.scale.users

    def parts(self) -> int:
        return self.user_count()

    def call(self) -> float:
        return statistics.median(self.loop.run(self._wave()))

    async def _wave(self) -> list[float]:
        count = len(self.talks)
        # Spread over the length of a turn, as independent users are.
        delays = [SLOW_SECONDS * n / count for n in range(count)]
        turns = [self._turn(*pair) for pair in zip(self.talks, delays, strict=True)]
        return list(await asyncio.gather(*turns))

    async def _turn(self, talk: Talk, delay: float) -> float:
        await asyncio.sleep(delay)
        begin = time.perf_counter()
        await talk.turn(f"{SLOW} {len(talk.sent)} ".ljust(USER_CHARS, "x"))
        return time.perf_counter() - begin

    def count(self) -> Mapping[str, int]:
        return {}


def _plans(scale: Scale) -> list[Plan]:
    plans = [
        Plan(name="ideal", make=Ideal),
        Plan(name="plain", make=partial(Users, talk=PlainTalk), baseline="ideal"),
        Plan(name="chatmemory", make=partial(Users, talk=OurTalk), baseline="ideal"),
    ]
    if scale.redis:
        env = {"CHATMEMORY_BENCH_REDIS": scale.redis}
        make = partial(Users, talk=OurTalk, servers=2)
        plans.append(Plan(name="chatmemory, 2 servers", make=make, baseline="ideal", env=env))
    return plans


UNIT = Unit(
    title="Users who stream 50 pieces a second each: the median turn, CPU per turn.",
    plans=_plans,
    calls=2,
    warmups=1,
    repeats_baseline=False,
)
