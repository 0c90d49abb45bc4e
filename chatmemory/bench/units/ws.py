"""A turn over a websocket: 20 pieces, sent without a pause."""

from __future__ import annotations

from functools import partial

from chatmemory.bench.cases import Plan, Unit
from chatmemory.bench.socket_cases import TurnSteps
from chatmemory.bench.sockets import OurTalk, PlainTalk, Talk

UNIT = Unit(
    title="Turn over a websocket, CPU of the server. Plain: two transactions of the ORM a turn.",
    plans=lambda _: [
        Plan(name="plain", make=partial(TurnSteps, talk=PlainTalk)),
        Plan(name="chatmemory", make=partial(TurnSteps, talk=OurTalk), floor="plain"),
        Plan(name="no database", make=partial(TurnSteps, talk=Talk), floor="plain"),
    ],
)
