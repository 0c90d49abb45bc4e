"""Probes: questions of monitors, which must not hang and not load the database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from django.db import DatabaseError, InterfaceError

from chatmemory.database.pool import release_connections, threads
from chatmemory.database.threads import DaemonExecutor
from chatmemory.errors import MemoryUnavailable
from chatmemory.logs import log_error

logger = logging.getLogger(__name__)

T = TypeVar("T")

CACHE_SECONDS = 1.0
"""How long the result of most probes is used again."""
WAIT_SECONDS = 2.0
"""How long a request waits for a probe."""
HANG_SECONDS = 10.0
"""After this time a probe that has not ended is given up for another one."""
MAX_HANGING = 4
"""The number of probes that may hang, each in its thread; then no more begin."""


class Probe(Generic[T]):
    """Calls a function at most once in some seconds, whatever the number of requests.

    The function runs in a thread, and a request waits only for a limited time.
    """

    def __init__(self, function: Callable[[], T], *, seconds: float = CACHE_SECONDS) -> None:
        """`seconds` is how long a result is used again."""
        self._seconds = seconds
        self._function = function
        self._threads = DaemonExecutor(MAX_HANGING, name="chatmemory-health")
        self._lock = threading.Lock()
        self._calls: list[Future[T | None]] = []
        """The current call, which is the last, and earlier ones that hang."""
        self._begun_at = 0.0

    def result(self) -> T | None:
        """Return the function's result; None if it fails or is late."""
        return threads().elsewhere(self._result_in_time, inline=self._call)

    def _result_in_time(self) -> T | None:
        with self._lock:
            now = time.monotonic()
            if self._is_due(now - self._begun_at):
                self._begun_at = now
                self._calls = [call for call in self._calls if not call.done()]
                self._calls.append(self._threads.submit(self._call_in_thread))
            call, wait = self._calls[-1], self._begun_at + WAIT_SECONDS - now
        try:
            return call.result(max(0.0, wait))
        except TimeoutError:
            return None

    def _is_due(self, age_seconds: float) -> bool:
        if not self._calls:
            return True
        if self._calls[-1].done():
            return age_seconds >= self._seconds
        return age_seconds >= HANG_SECONDS and len(self._calls) < MAX_HANGING

    def _call_in_thread(self) -> T | None:
        try:
            return self._call()
        finally:
            release_connections()

    def _call(self) -> T | None:
        try:
            return self._function()
        except MemoryUnavailable:
            return None
        except (DatabaseError, InterfaceError) as error:  # such as a missing migration
            log_error(logger, "the health of the database cannot be read", error=error)
            return None
