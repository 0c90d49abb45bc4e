"""An event loop in its own thread.

The hub and the runner each have one, so neither a server's busy loop nor a responder that blocks
delays the other. The drain has none: a signal handler starts it, and must not wait for a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar

from chatmemory.logs import log_error, watch_loop
from chatmemory.startup import are_threads_patched

# Note [Timeouts]
#
# Deadlines use `asyncio.timeout`, not `asyncio.wait_for`. Before Python 3.12 `wait_for` swallows a
# cancellation that arrives together with its result (bpo-37658), and the task would never end.

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOP_SECONDS = 2.0
"""How long `stop` waits for tasks that it does not cancel, such as database calls."""
JOIN_SECONDS = 5.0
"""How long `stop` waits for the thread, which a responder may block."""


class LoopThread:
    """Starts a thread and its loop at the first use, and new ones at the first use after `stop`.

    Where threads are patched it has no loop: `call` does nothing, and `submit` must not be called.
    """

    def __init__(
        self,
        name: str,
        *,
        background: Callable[[], Iterable[Coroutine[Any, Any, None]]] = tuple,
        executor: Callable[[], ThreadPoolExecutor] | None = None,
    ) -> None:
        """`background` creates the loop's first tasks, `executor` its default executor."""
        self._name = name
        self._background = background
        self._executor = executor
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_started(self) -> bool:
        """Whether the loop was started."""
        return self._loop is not None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop; start it if needed."""
        assert not are_threads_patched()  # noqa: S101  # see `call`
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                if self._executor is not None:
                    self._loop.set_default_executor(self._executor())
                self._thread = threading.Thread(
                    target=self._run_loop, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop, without waiting. Any thread may call this."""
        if not are_threads_patched():
            self.loop().call_soon_threadsafe(function, *args)

    def call_if_started(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, if the loop was started and has not ended."""
        loop = self._loop  # read once: `stop` may remove it in another thread
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop until `stop` cancels it. Any thread may call this."""
        # In an empty context: in a view's context asgiref would call sync code on the view's
        # thread, which may wait for this coroutine.
        return Context().run(asyncio.run_coroutine_threadsafe, self._tracked(work), self.loop())

    def stop(self) -> None:
        """Cancel the submitted and background tasks, then end the loop and its thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(JOIN_SECONDS)

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        watch_loop(loop, logger)
        for work in self._background():
            loop.create_task(self._tracked(work))
        # Run at least once: a stop that came first is in the loop, and would end the cleanup below.
        is_over = False
        while not is_over:
            try:
                loop.run_forever()
            except BaseException as error:  # a SystemExit of one task must not end the others
                message = "a task ended the loop of %s; the loop continues"
                log_error(logger, message, self._name, error=error)
            is_over = self._loop is not loop  # `stop` was called
        try:
            loop.run_until_complete(self._cancel_tasks(loop))
        except BaseException as error:
            log_error(logger, "a task ended the loop of %s", self._name, error=error)
        loop.close()

    async def _cancel_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        for task in tuple(self._tasks):
            if task.get_loop() is loop:
                task.cancel()
        # Cancelling a database call would not stop its thread: Note [Threads and loops].
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            _, unfinished = await asyncio.wait(others, timeout=STOP_SECONDS)
            for task in unfinished:
                task.cancel()
            await asyncio.sleep(0)
