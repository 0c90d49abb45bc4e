"""Runs that stall beyond their lease, and continue while the next turn runs elsewhere."""

from __future__ import annotations

import asyncio
import json
import sys

from asgiref.sync import sync_to_async as db

from chatmemory.models import Turn
from tests.programs.torture.checker import Violation
from tests.programs.torture.planted import CALLS, STALLED, STALLS
from tests.programs.torture.talker import Talker, close_all, talkers
from tests.programs.torture.world import LEASE, Figure, Outcome, World
from tests.servers import Server

WORDS = 30
"""Length of the reply during which the stalled run continues."""
TAKEN_OVER = 12 * LEASE
"""Seconds in which another server ends the turn, unless the stalled run holds its lock."""
STALL = "stalled"


class NoStallFound(Exception):
    """No stall lay between a start and its model call."""


async def zombie(world: World, rounds: int, *, last: int | None = None) -> Outcome:
    """Stop a server before each statement of a run; another server runs the next turn.

    Raises NoStallFound if no stall could show that the model gets the text of another turn.
    """
    if not world.servers:
        await world.start(2)
    stalled, other = world.servers[:2]
    (world.folder / STALLS).mkdir(exist_ok=True)
    [talker] = await talkers(world, 1, lambda: stalled)
    between = 0
    for _ in range(rounds):
        for statement in range(1, (last or sys.maxsize) + 1):
            is_between = await _stall_at(statement, world, talker, stalled, other)
            if is_between is None:
                break
            between += is_between
    await world.settle()
    await close_all([talker])
    if not between:
        raise NoStallFound
    found = await world.check(faults={STALL: rounds * (last or 4)})
    calls = _calls(world, talker.key)
    mistaken = [
        Violation("mistaken", talker.key, f"the model was given {text!r} for {turn}")
        for turn, text in calls
        if not text.endswith(turn)
    ]
    figures = [
        Figure("stalls", world.history.faults()[STALL]),
        Figure("stalls between a start and its model call", between),
        Figure("model calls", len(calls), at_least=1),
        Figure("model calls with another turn's text", len(mistaken), at_most=0),
    ]
    return Outcome([*found, *mistaken], figures)


async def _stall_at(
    statement: int, world: World, talker: Talker, stalled: Server, other: Server
) -> bool | None:
    """Stall a run before this statement; None if it has fewer.

    Returns whether the run had started and not called the model, and another server ended its turn.
    """
    file, sign = world.folder / STALLS / str(statement), world.folder / STALLED
    file.touch()
    talker.choose = lambda: stalled
    talker.drop_socket()
    asking = asyncio.ensure_future(talker.ask("count 3"))
    while not sign.exists():
        if asking.done():
            file.unlink()
            return None
        await asyncio.sleep(0.01)
    sign.unlink()
    world.fault(STALL)
    answering = None
    turn = talker.current
    is_called = turn in dict(_calls(world, talker.key))
    is_between = not is_called and await db(_is_started)(turn)
    try:
        talker.choose = lambda: other
        talker.drop_socket()
        await asyncio.wait({asking}, timeout=TAKEN_OVER)
        if asking.done():
            answering = await talker.begin(f"count {WORDS}")
    finally:
        world.resume(stalled)
    await asking
    if answering is not None:
        await answering
    return is_between and answering is not None


def _is_started(turn: str) -> bool:
    return Turn.objects.filter(client_id=turn, started_at__isnull=False).exists()


def _calls(world: World, key: str) -> list[tuple[str, str]]:
    """Return the turn and the last message of each model call in this session, on any server."""
    files = world.folder.glob(f"{CALLS}.*")
    lines = [line for file in files for line in file.read_text().splitlines()]
    calls = [(call["turn"], call["text"]) for call in map(json.loads, lines)]
    return [call for call in calls if call[0].startswith(f"{key}.")]
