"""The shutdown sequence of a process: its turns end, its sockets close, then it exits.

No guarantee depends on it: the sweeps of other processes end the turns of a killed process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from queue import SimpleQueue
from types import FrameType
from typing import Any

from asgiref.sync import async_to_sync

from chatmemory.conf import settings
from chatmemory.database.after_commit import is_everything_delivered
from chatmemory.live.hub import hub
from chatmemory.live.runner import runner
from chatmemory.logs import log_error

logger = logging.getLogger(__name__)

BYE_SECONDS = 2.0
"""Time limit for the sockets to close."""
HINT_SECONDS = 0.5
"""Time limit for the last notifications to other processes and the last signals to the host."""
EXIT_SECONDS = 10.0
"""If the process cannot end, as while the database hangs, it exits this long after `DRAIN`."""
LIFESPAN_SECONDS = 5.0
"""The longest time between the signal and the end of the lifespan; Hypercorn takes 3 s."""
POLL_SECONDS = 0.02
RESEND_SECONDS = 0.5
"""The pause before the signal is sent again."""
MAX_SIGNALS = 20
"""How often the signal is sent to the main thread."""

Handler = Callable[[int, FrameType | None], Any]


class Drain:
    """Runs before the handler of a signal, and calls that handler at the end.

    Calls `exit_process` if the process has not exited `exit_seconds` after `DRAIN`.
    """

    def __init__(
        self,
        exit_process: Callable[[int], object] = os._exit,
        *,
        exit_seconds: float = EXIT_SECONDS,
    ) -> None:
        self._exit_process = exit_process
        self._exit_seconds = exit_seconds
        self._handlers: dict[int, Handler | int] = {}
        # Its put is reentrant, so a signal handler may call it.
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._has_begun = False
        self._is_resent = False

    def watch(self, signum: int) -> None:
        """Drain at this signal from now on. Does nothing outside the main thread."""
        if signum in self._handlers or threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signum)
        if handler is None or handler == signal.SIG_IGN:
            return  # a handler of C code cannot be called; an ignored signal stays ignored
        if not self._handlers:
            threading.Thread(target=self._wait, name="chatmemory-drain", daemon=True).start()
        self._handlers[signum] = handler
        signal.signal(signum, self._on_signal)

    def watch_from_view(self, signum: int) -> None:
        """Call `watch` in the main thread, which runs the event loop of an ASGI server's view."""

        async def watch() -> None:
            self.watch(signum)

        if signum not in self._handlers:
            async_to_sync(watch)()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Start to drain; at a second signal, such as `_resend`'s, call the old handler.

        The server's event loop runs in this thread, so this method must not wait.
        """
        if not self._has_begun:
            self._has_begun = True
            self._signals.put(signum)
            return
        self._is_resent = True
        handler = self._handlers[signum]
        if callable(handler):
            handler(signum, frame)
        else:
            signal.signal(signum, handler)
            signal.raise_signal(signum)

    def _wait(self) -> None:
        signum = self._signals.get()
        deadline = time.monotonic() + settings.DRAIN + self._exit_seconds
        is_complete = False
        try:
            is_complete = asyncio.run(_drain())
        except Exception as error:
            log_error(logger, "the drain failed; the process exits without it", error=error)
        self._resend(signum)
        if not is_complete:
            self._exit_at(deadline, signum)

    def _resend(self, signum: int) -> None:
        """Send the signal again, so that the main thread calls the old handler."""
        for _ in range(MAX_SIGNALS):
            if self._is_resent:
                return
            # pthread_kill, not os.kill: a signal that another thread receives does not wake up the
            # event loop of the main thread. Repeated, because a signal that arrives just before
            # that thread sleeps is handled only when it wakes up.
            signal.pthread_kill(threading.main_thread().ident or 0, signum)
            time.sleep(RESEND_SECONDS)

    async def lifespan(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Drain at the end of the ASGI lifespan, for servers whose signals `watch` cannot chain.

        Does nothing after a signal, whose drain runs or has ended.
        """
        await receive()  # lifespan.startup
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        if not self._has_begun:
            self._has_begun = True
            seconds = settings.DRAIN + self._exit_seconds - LIFESPAN_SECONDS
            deadline = time.monotonic() + seconds
            if not await _drain():
                arguments = (deadline, signal.SIGTERM)
                threading.Thread(target=self._exit_at, args=arguments, daemon=True).start()
        await send({"type": "lifespan.shutdown.complete"})

    def _exit_at(self, deadline: float, signum: int) -> None:
        """Exit if the process still runs at the deadline.

        While the database hangs, servers wait for their requests, and Python waits for Django's
        threads.
        """
        time.sleep(max(0.0, deadline - time.monotonic()))
        logger.warning("The process did not end in time and exits now.")
        self._exit_process(128 + signum)


async def _drain() -> bool:
    """End turns, then close sockets; return whether the database stored everything.

    Takes at most `DRAIN` and 7.5 s.
    """
    logger.info("shutting down: running turns have %s s", settings.DRAIN)
    is_complete = await runner.drain(settings.DRAIN)
    hub.close_for_restart("shutting_down")
    await _wait_until(lambda: hub.has_no_sockets, BYE_SECONDS)
    # A socket may have claimed a turn just before the drain began.
    is_complete = is_complete and await runner.release_claims()
    await _wait_until(lambda: hub.is_everything_sent and is_everything_delivered(), HINT_SECONDS)
    return is_complete


async def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110  # set by other threads
        await asyncio.sleep(POLL_SECONDS)


drain = Drain()
"""The drain of this process."""
