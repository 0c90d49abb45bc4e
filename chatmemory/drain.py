"""The end of a process in order: its turns end, its sockets are sent away, then it goes.

Nothing rests on it. What a killed process leaves behind is ended by the sweeps of others.
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
from chatmemory.hub import hub
from chatmemory.logs import log_error
from chatmemory.runner import runner
from chatmemory.services.news import has_told_all

logger = logging.getLogger(__name__)

BYE_SECONDS = 2.0
"""How long sockets may take to close."""
HINT_SECONDS = 0.5
"""How long the last hints to other processes may take, and the last signals to the host."""
EXIT_SECONDS = 10.0
"""How long after `DRAIN` a process exits that the database keeps from exiting."""
LIFESPAN_SECONDS = 5.0
"""How long a server may take from the signal to the end of the lifespan; Hypercorn takes 3 s."""
LOOK_SECONDS = 0.02
AGAIN_SECONDS = 0.5
TRIES = 20
"""How often the signal is sent again, for one that the main thread does not notice."""

Handler = Callable[[int, FrameType | None], Any]


class Drain:
    """Runs before the handler of a signal, and calls it at the end.

    A process that has not exited `EXIT_SECONDS` after `DRAIN` is ended by `exit_process`.
    """

    def __init__(self, exit_process: Callable[[int], object] = os._exit) -> None:
        self._exit_process = exit_process
        self._handlers: dict[int, Handler | int] = {}
        # What a handler may use: no lock of it can be held by the code that was interrupted.
        self._asked: SimpleQueue[int] = SimpleQueue()
        self._has_begun = False
        self._is_handed_over = False

    def watch(self, signum: int) -> None:
        """Drain at this signal from now on. Only the main thread can see to that."""
        if signum in self._handlers or threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signum)
        if handler is None or handler == signal.SIG_IGN:
            return  # set by C code, which can't be called; or nobody listens
        if not self._handlers:
            threading.Thread(target=self._wait, name="chatmemory-drain", daemon=True).start()
        self._handlers[signum] = handler
        signal.signal(signum, self._on_signal)

    def watch_from_view(self, signum: int) -> None:
        """Do the same from a thread of an ASGI server's view: its event loop is in the main one."""

        async def watch() -> None:
            self.watch(signum)

        if signum not in self._handlers:
            async_to_sync(watch)()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Begin to drain; at the second signal, also our own at the end, let the process go.

        The server's event loop lives in this thread, so nothing is waited for here.
        """
        if not self._has_begun:
            self._has_begun = True
            self._asked.put(signum)
            return
        self._is_handed_over = True
        handler = self._handlers[signum]
        if callable(handler):
            handler(signum, frame)
        else:
            signal.signal(signum, handler)
            signal.raise_signal(signum)

    def _wait(self) -> None:
        signum = self._asked.get()
        deadline = time.monotonic() + settings.DRAIN + EXIT_SECONDS
        is_complete = False
        try:
            is_complete = asyncio.run(_drain())
        except Exception as error:
            log_error(logger, "the drain failed; the process exits without it", error=error)
        self._hand_over(signum)
        if not is_complete:
            self._exit_at(deadline, signum)

    def _hand_over(self, signum: int) -> None:
        """Call the old handler, in the main thread."""
        for _ in range(TRIES):
            if self._is_handed_over:
                return
            # To the main thread, whose event loop would sleep on if another took it. And again: one
            # that comes just before the thread falls asleep is handled when it wakes up.
            signal.pthread_kill(threading.main_thread().ident or 0, signum)
            time.sleep(AGAIN_SECONDS)

    async def lifespan(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Drain at the end of the ASGI lifespan, for servers whose signals `watch` cannot chain.

        Does nothing where a signal has started to drain before.
        """
        await receive()  # lifespan.startup
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        if not self._has_begun:
            self._has_begun = True
            deadline = time.monotonic() + settings.DRAIN + EXIT_SECONDS - LIFESPAN_SECONDS
            if not await _drain():
                arguments = (deadline, signal.SIGTERM)
                threading.Thread(target=self._exit_at, args=arguments, daemon=True).start()
        await send({"type": "lifespan.shutdown.complete"})

    def _exit_at(self, deadline: float, signum: int) -> None:
        """Exit if the process still runs then.

        Servers wait for their requests, and Python for the threads of Django: while the database
        hangs, neither ends.
        """
        time.sleep(max(0.0, deadline - time.monotonic()))
        logger.warning("The process did not end in time; it exits without waiting for anything.")
        self._exit_process(128 + signum)


async def _drain() -> bool:
    """End turns and sockets in order; return whether the database stored everything.

    Takes at most `DRAIN` and 7.5 s.
    """
    logger.info("this process ends: its turns have %s s", settings.DRAIN)
    is_complete = await runner.drain(settings.DRAIN)
    hub.retire("shutting_down")
    await _until(lambda: hub.is_empty, BYE_SECONDS)
    # A socket may have claimed a turn while the drain began.
    is_complete = is_complete and await runner.give_back()
    await _until(lambda: hub.has_told_all and has_told_all(), HINT_SECONDS)
    return is_complete


async def _until(is_so: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:  # noqa: ASYNC110  # set by other threads
        await asyncio.sleep(LOOK_SECONDS)


drain = Drain()
"""This process's."""
