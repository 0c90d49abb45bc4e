"""A turn over a websocket: 20 pieces, sent without a pause."""

from __future__ import annotations

from functools import partial

from tests.programs.speed.cases import Plan, Unit
from tests.programs.speed.socket_cases import TurnSteps
from tests.programs.speed.sockets import OurTalk, PlainTalk, Talk

UNIT = Unit(
    title="Turn over a websocket, CPU of the server. Plain: two transactions of the ORM a turn.",
    plans=lambda _: [
        Plan(name="plain", make=partial(TurnSteps, talk=PlainTalk)),
        Plan(name="chatmemory", make=partial(TurnSteps, talk=OurTalk), baseline="plain"),
        Plan(name="no database", make=partial(TurnSteps, talk=Talk), baseline="plain"),
    ],
)
