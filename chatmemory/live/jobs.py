"""The executor of jobs: a thread that executes their slices, see Note [Jobs]."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import close_old_connections

from chatmemory.database.pool import release_connections
from chatmemory.errors import MemoryUnavailable
from chatmemory.logs import log_error
from chatmemory.services.jobs.run import run_next

logger = logging.getLogger(__name__)

JOIN_SECONDS = 3.0
"""How long `stop` waits for the thread. A slice takes longer than a second if a row is locked."""


class JobExecutor:
    """Executes jobs until none waits, then sleeps until `wake`. Any thread may call its methods."""

    def __init__(self, owner: Callable[[], str]) -> None:
        """`owner` returns the name of the process for the leases."""
        self._owner = owner
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_due = threading.Event()

    def wake(self) -> None:
        """Look for jobs now; start the thread if needed."""
        with self._lock:
            self._is_due.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run_jobs, name="chatmemory-jobs", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """End the thread after the current slice, so that other processes can continue the job."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._is_due.set()
        if thread is not None:
            thread.join(JOIN_SECONDS)

    def _is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def _run_jobs(self) -> None:
        while self._is_current():
            self._is_due.wait()
            self._is_due.clear()  # before the search: a call during it causes another
            try:
                while self._is_current() and run_next(owner=self._owner()):
                    close_old_connections()
            except MemoryUnavailable:
                logger.warning("a job is interrupted; it continues when its lease has expired")
            except Exception as error:  # a sweep wakes this thread again
                log_error(logger, "a job is interrupted by an error", error=error)
            finally:
                release_connections()
