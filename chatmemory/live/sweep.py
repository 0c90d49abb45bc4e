"""The sweep: finds changes without notifications, because any notification may be lost.

So may signals after a commit: Note [Delivery after commit].
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chatmemory.access.gates import arefusals
from chatmemory.access.logins import aallowed_logins, acurrent_logins
from chatmemory.conf import settings
from chatmemory.database.faults import is_unavailable
from chatmemory.database.pool import in_pool, threads
from chatmemory.errors import MemoryUnavailable
from chatmemory.live.sockets import Socket, Sockets, close_others
from chatmemory.live.texts import Texts
from chatmemory.logs import log_error
from chatmemory.models import Head, Job, Session, Turn
from chatmemory.services.turns import recovery
from chatmemory.services.turns.fairness import sessions_to_sweep

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
"""The longest pause between two sweeps."""
LEASE_END_SPREAD = 0.2
"""A process sweeps at most this many seconds after a lease has expired."""
MAX_SWEPT_TURNS = 100

_tasks: list[Callable[[], float]] = []


def register_sweep(task: Callable[[], float]) -> None:
    """Call a function of an optional app repeatedly in each process that sweeps.

    It runs on a pool thread, so it may take a second at most, and returns the seconds to its next
    call. Its failure is logged, and counts for no age that Health shows. Call it in `ready()`, with
    a function at the top level of a module; a repeated call changes nothing.
    """
    if task not in _tasks:
        _tasks.append(task)


class Sweep:
    """Checks heads, logins, turns and jobs in loops, so a slow query of one delays no other."""

    def __init__(
        self,
        sockets: Sockets,
        texts: Texts,
        run_waiting: Callable[[int], None],
        request_text: Callable[[int], None],
        run_jobs: Callable[[], None],
        *,
        seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._sockets = sockets
        self._texts = texts
        self._run_waiting = run_waiting
        self._request_text = request_text
        self._run_jobs = run_jobs
        self.seconds = seconds
        self.clear()

    def clear(self) -> None:
        """Drop all state. The caller has stopped the loops."""
        self.is_enabled = False
        self._succeeded_at: dict[str, float] = {}
        self._heads: dict[int, Head | None] = {}
        self._skipped_turns = 0
        """How many overdue turns the last sweeps could not end."""
        self._are_turns_due = asyncio.Event()

    def enable(self) -> None:
        """Let the loops sweep. A repeated call does nothing."""
        if not self.is_enabled:
            names = (sweep.__name__ for sweep, _ in self._sweeps())
            self._succeeded_at = dict.fromkeys(names, time.monotonic())
            self.is_enabled = True

    @property
    def age_seconds(self) -> float | None:
        """The time since the last success of the loop that is late most; None without sweeps."""
        return threads().elsewhere(self._seconds_since_success, inline=lambda: None)

    def _seconds_since_success(self) -> float | None:
        times = list(self._succeeded_at.values())  # a shutdown clears it
        return time.monotonic() - min(times) if times and self.is_enabled else None

    def forget(self, session_pk: int) -> None:
        self._heads.pop(session_pk, None)

    def request_turns(self) -> None:
        """Sweep the turns now; only in the loop's thread."""
        self._are_turns_due.set()

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        tasks = [(in_pool(task), asyncio.Event()) for task in _tasks]
        return [self._repeat(sweep, is_due) for sweep, is_due in [*self._sweeps(), *tasks]]

    def _sweeps(self) -> list[tuple[Callable[[], Awaitable[float]], asyncio.Event]]:
        """Return each sweep, and what requests it before its time."""
        return [
            (self._sweep_heads, asyncio.Event()),
            (self._sweep_logins, asyncio.Event()),
            (self._sweep_turns, self._are_turns_due),
            (self._sweep_jobs, asyncio.Event()),
        ]

    async def _repeat(self, sweep: Callable[[], Awaitable[float]], is_due: asyncio.Event) -> None:
        """Repeat a sweep after the seconds that it returned, or as soon as `is_due` is set."""
        pause = 0.0
        while True:
            # Note [Timeouts]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await is_due.wait()
            is_due.clear()
            pause = self.seconds
            if self.is_enabled:
                pause = await threads().elsewhere(partial(self._try, sweep), inline=self._skip)

    async def _try(self, sweep: Callable[[], Awaitable[float]]) -> float:
        """Sweep, and return the seconds to the next one."""
        try:
            pause = await sweep()
            if sweep.__name__ in self._succeeded_at:
                self._succeeded_at[sweep.__name__] = time.monotonic()
        except Exception as error:
            pause = self.seconds
            if isinstance(error, MemoryUnavailable) or is_unavailable(error):
                logger.warning("a sweep failed: the database is unavailable")
            else:
                log_error(logger, "a sweep failed; the next is in %s s", pause, error=error)
        return pause

    async def _skip(self) -> float:
        """Do nothing: the hub's thread does not see the rows of the test."""
        return self.seconds

    async def _sweep_heads(self) -> float:
        """Notify the sockets of changed sessions, drop old mirrors, and request missing texts."""
        asked = self._sockets.session_pks()
        heads = await _aheads(asked)
        # Not sessions that were joined meanwhile: without a head they would count as removed.
        for session_pk in {*asked}.intersection(self._sockets.session_pks()):
            head = heads.get(session_pk)
            if session_pk not in self._heads or self._heads[session_pk] != head:
                self._heads[session_pk] = head
                self._sockets.notify(session_pk)
        self._texts.drop_ended_mirrors(heads)
        # A lost request or answer is noticed at the next piece of text, but a run may produce none.
        for session_pk in self._texts.missing(heads.values()):
            self._request_text(session_pk)
        return self.seconds

    async def _sweep_logins(self) -> float:
        """Close the sockets whose login has ended.

        If the database cannot be read, they stay open: each write checks its login itself.
        """
        sockets = self._sockets.all()
        current = await acurrent_logins({socket.login for socket in sockets})
        close_others(sockets, current)
        # Last: an error of the host's function then keeps open only the sockets it decides about.
        close_others(sockets, await aallowed_logins(current))
        await self._sweep_visits([socket for socket in sockets if socket.login.visit is not None])
        return self.seconds

    async def _sweep_visits(self, sockets: Sequence[Socket]) -> None:
        """Close the sockets that the function of GATE does not let in any more."""
        if not sockets:
            return
        found = await arefusals([socket.login for socket in sockets])
        for socket, error in zip(sockets, found, strict=True):
            if error is not None:
                socket.close_refused(error)

    async def _sweep_turns(self) -> float:
        """End overdue turns, and claim waiting ones."""
        turns = await _arecover_turns(self._skipped_turns)
        self._skipped_turns = turns.skipped
        for session_pk in turns.waiting:
            self._run_waiting(session_pk)
        # At most a lease, so that no lease begins and expires between two sweeps.
        pause = min(self.seconds, settings.LEASE)
        if turns.lease_ends_in is not None:
            # Random, so that the processes do not recover the same turns simultaneously.
            spread = random.uniform(0.02, LEASE_END_SPREAD)  # noqa: S311  # no secret
            pause = min(pause, turns.lease_ends_in + spread)
        return pause

    async def _sweep_jobs(self) -> float:
        """Execute the jobs of processes that died, and jobs whose notification is lost."""
        if await _ais_job_waiting():
            self._run_jobs()
        return self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    waiting: Collection[int]
    """Sessions with a waiting turn."""
    lease_ends_in: float | None
    """Seconds, which the database computes. See Note [Database clock]."""
    skipped: int
    """Overdue turns to skip at the next sweep."""


def _recover_turns(skip: int = 0) -> _Turns:
    """End overdue turns, at most `MAX_SWEPT_TURNS`; return which turns wait.

    The first `skip` overdue turns, which could not be ended before, come last.
    """
    # Read first: a lease that ends meanwhile is either overdue below, or known for the next sweep.
    lease_ends_in = Turn.objects.seconds_to_lease_end()
    ended = recovery.recover_all_overdue_turns(limit=MAX_SWEPT_TURNS, skip=skip)
    return _Turns(
        waiting=sessions_to_sweep(limit=MAX_SWEPT_TURNS),
        lease_ends_in=lease_ends_in,
        skipped=0 if ended.is_all else skip + ended.failed,
    )


def _is_job_waiting() -> bool:
    return Job.objects.claimable().exists()


_aheads = in_pool(Session.objects.heads)
_arecover_turns = in_pool(_recover_turns)
_ais_job_waiting = in_pool(_is_job_waiting)
