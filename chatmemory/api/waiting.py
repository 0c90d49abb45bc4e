"""Requests that wait for the end of a turn."""

from __future__ import annotations

import time

from chatmemory.database.pool import release_connections
from chatmemory.errors import NotFound
from chatmemory.live.runner import runner
from chatmemory.live.waits import waits
from chatmemory.models import Turn
from chatmemory.services import Admitted
from chatmemory.services.turns import recovery

FIRST_POLL_SECONDS = 0.1
MAX_POLL_SECONDS = 1.0
"""The first and the longest pause before a waiting request rereads a turn that another process
runs. A commit of this process wakes the request earlier."""


def turn_of(admitted: Admitted) -> Turn:
    """Read the turn. Raises NotFound if it was erased meanwhile."""
    turn = Turn.objects.filter(session=admitted.session_pk, client_id=admitted.turn).first()
    if turn is None:
        raise NotFound
    return turn


def wait_for_turn(admitted: Admitted, seconds: float) -> Turn:
    """Return the turn when it has ended, or after `seconds`. Holds no connection while it waits.

    Raises NotFound if it was erased meanwhile.
    """
    deadline = time.monotonic() + seconds
    pause = FIRST_POLL_SECONDS
    with waits.change_of(admitted.session_pk) as change:
        while True:
            change.clear()
            turn = turn_of(admitted)
            left = deadline - time.monotonic()
            if turn.ended_at or left < 0:
                return turn
            if _advance(admitted.session_pk):
                continue
            release_connections()
            is_changed = change.wait(min(pause, left))
            pause = FIRST_POLL_SECONDS if is_changed else min(2 * pause, MAX_POLL_SECONDS)


def _advance(session_pk: int) -> bool:
    """End the run of a dead process and start the next waiting turn; return whether one started."""
    if Turn.objects.filter(session=session_pk).overdue().exists():
        recovery.recover_overdue_turn(session_pk)
    return runner.begin(session_pk) is not None
