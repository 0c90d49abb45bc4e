"""Lets a process that serves run waiting turns before its first request or socket."""

from __future__ import annotations

import os
import threading

from chatmemory.database.pool import threads
from chatmemory.live.runner import runner

START_SECONDS = 2.0
"""Longer than from the import of the application to the fork of its processes."""


class Standby:
    """Enables the runner soon after `start`; if the process forks before, then in its children.

    A server that imports the application before it forks, as gunicorn with `--preload`, serves only
    in its children.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None
        self._is_inherited = False

    def start(self) -> None:
        threads().in_background(self._start_timer)

    def _start_timer(self) -> None:
        self._timer = threading.Timer(START_SECONDS, self._enable)
        self._timer.daemon = True
        self._timer.start()

    def _enable(self) -> None:
        self._timer = None
        runner.enable()

    def _before_fork(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._is_inherited = None, True

    def _in_child(self) -> None:
        runner.rename()
        if self._is_inherited:
            self.start()


standby = Standby()
"""The standby of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=standby._before_fork, after_in_child=standby._in_child)  # noqa: SLF001
