"""The keeper: a thread that supervises the runs of a process.

It renews their leases and finds stops, lost fences and timeouts. It ends a run with the text that
the run has produced and does not wait for the responder, which may block the runner's loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import DatabaseError, InterfaceError, close_old_connections
from django.db.models import QuerySet

from chatmemory.conf import settings
from chatmemory.database.faults import discard_connection_after
from chatmemory.database.statements import CompiledSelect
from chatmemory.errors import ModelTimeout
from chatmemory.live.run import FAILED, INTERRUPTED, Run, store_end_durably
from chatmemory.logs import log_error
from chatmemory.services.turns import progress
from chatmemory.services.turns.claims import (
    TURN_IDENTITY,
    Claim,
    claim_values,
    compiled_claimed_turns,
)

logger = logging.getLogger(__name__)

KEEPER_SECONDS = 1.0
"""The pause between two checks."""
KEEPER_BATCH = 8
"""Turns in one statement, a power of two. psycopg converts a statement of more than 50 parameters
or 4,096 characters again at each call, which takes longer than several short statements."""
END_THREAD = "chatmemory-end"
"""The name of the threads that store the ends of runs."""
JOIN_SECONDS = 5.0
"""How long `stop` waits for the thread, which may wait for the database."""


def _claimed_rows(count: int) -> QuerySet[Any, Any]:
    turns = compiled_claimed_turns(count)
    rows: QuerySet[Any, Any] = turns.values(*TURN_IDENTITY, "stop_requested_at")
    return rows


_CLAIMED = CompiledSelect(_claimed_rows)


class Keeper:
    """Checks the runs every `seconds`, and immediately after `wake` or `check_now`."""

    def __init__(
        self,
        runs: Mapping[Claim, Run],
        *,
        probe_loop: Callable[[], None],
        on_end: Callable[[Run], None],
        seconds: float = KEEPER_SECONDS,
    ) -> None:
        """`probe_loop` is called at each check, `on_end` after the keeper has ended a run."""
        self._runs = runs
        self._probe_loop = probe_loop
        self._on_end = on_end
        self.seconds = seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_due = threading.Event()

    def wake(self) -> None:
        """Start the thread if needed, and check immediately."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run_keeper, name="chatmemory-keeper", daemon=True
                )
                self._thread.start()
        self.check_now()

    def check_now(self) -> None:
        self._is_due.set()

    def stop(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self.check_now()
            thread.join(JOIN_SECONDS)

    def _run_keeper(self) -> None:
        while self._thread is threading.current_thread():
            # A third of a lease, so that a lease survives one failed check.
            self._is_due.wait(min(self.seconds, settings.LEASE / 3) if self._runs else None)
            self._is_due.clear()  # before the check: a call during it causes another
            self._probe_loop()
            close_old_connections()  # they may be too old since the last run
            try:
                self._supervise(list(self._runs.values()))
            except (DatabaseError, InterfaceError) as error:
                logger.warning("the keeper cannot reach the database: %s", type(error).__name__)
                discard_connection_after(error)
            except Exception as error:  # without the keeper, all leases of the process would expire
                message = "the keeper failed; it retries in %s s"
                log_error(logger, message, self.seconds, error=error)
            finally:
                close_old_connections()

    def _supervise(self, runs: list[Run]) -> None:
        started = [run for run in runs if run.is_started]
        for first in range(0, len(started), KEEPER_BATCH):
            self._supervise_batch(started[first : first + KEEPER_BATCH])

    def _supervise_batch(self, runs: Sequence[Run]) -> None:
        claims = [run.claim for run in runs]
        progress.renew_leases(claims=claims)
        count, identities = claim_values(claims)
        found = {
            tuple(row[name] for name in TURN_IDENTITY): row["stop_requested_at"] is not None
            for row in _CLAIMED.rows(count, **identities)
        }
        for run in runs:
            if (is_stopped := found.get(run.claim.turn_identity)) is None:
                self._drop(run)
            elif is_stopped:
                self._end_run(run, INTERRUPTED, "")
            elif time.monotonic() - run.began_at > settings.TURN_TIMEOUT:
                self._end_run(run, FAILED, ModelTimeout.code)

    def _drop(self, run: Run) -> None:
        """Cancel a run whose turn another process ended. It can store nothing: Note [Fence]."""
        if run.claim_end():
            run.cancel()
            self._on_end(run)

    def _end_run(self, run: Run, status: str, error: str) -> None:
        """End a run with its partial text, without waiting for its task."""
        if run.claim_end():
            run.cancel()
            # A thread for each end: the wait for a session's lock must not delay other leases.
            threading.Thread(
                target=self._store_end, args=(run, status, error), name=END_THREAD, daemon=True
            ).start()

    def _store_end(self, run: Run, status: str, error: str) -> None:
        try:
            store_end_durably(run, status, error)
        except Exception as problem:
            message = "the end of turn %s is not stored; a sweep will end it"
            log_error(logger, message, run.claim.client_id, error=problem)
        finally:
            close_old_connections()
            self._on_end(run)
