"""An executor whose threads do not delay the end of the process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")

Call = tuple[Future[Any], Callable[[], None]]


# At exit Python waits without a limit for the threads of a `ThreadPoolExecutor`, so that a hanging
# database would keep the process alive. It is still the base class, since an event loop accepts no
# other class as its default executor. All of its methods that use threads are replaced.
class DaemonExecutor(ThreadPoolExecutor):
    """An executor with daemon threads, which the exit of the process ends.

    A forked process starts with an empty executor.
    """

    def __init__(self, max_workers: int, *, name: str) -> None:
        super().__init__(max_workers)
        self._max_threads = max_workers
        self._name = name
        self._is_shut_down = False
        self.reset()
        _executors.add(self)

    def reset(self) -> None:
        """Forget all calls and threads: after a fork they exist only in the parent process."""
        # The queue and the lock are new too: a thread of the parent may have held their locks.
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._own_threads: list[threading.Thread] = []
        self._unfinished = 0
        """Calls that wait or run."""
        self._state_lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call for a thread and return its future.

        Raises RuntimeError after `shutdown`, or if the system refuses the first thread.
        """
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                self._count_done()
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # also SystemExit: the caller gets it, the thread stays
                self._count_done()
                future.set_exception(error)
            else:
                # Before the result: a caller that waits for it may submit its next call to this
                # thread, without the start of another one.
                self._count_done()
                future.set_result(result)

        with self._state_lock:
            if self._is_shut_down:
                raise RuntimeError("This executor was shut down.")
            # Only if all threads are busy, since each has a connection to the database.
            if self._unfinished >= len(self._own_threads) < self._max_threads:
                self._start_thread()
            self._unfinished += 1
            # Under the lock: no thread would run a call that follows the None of `shutdown`.
            self._calls.put((future, call))
        return future

    def _start_thread(self) -> None:
        name = f"{self._name}_{len(self._own_threads)}"
        thread = threading.Thread(target=self._run_calls, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system refuses more threads; the next call retries
            if not self._own_threads:
                raise
        else:
            self._own_threads.append(thread)

    def _count_done(self) -> None:
        with self._state_lock:
            self._unfinished -= 1

    def _run_calls(self) -> None:
        while (queued := self._calls.get()) is not None:
            _, call = queued
            call()
            del queued, call  # they hold the result, which may be large, until the next call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, and end the threads after the queued calls.

        With `cancel_futures` the calls that have not begun are cancelled.
        """
        with self._state_lock:
            self._is_shut_down = True
            waiting = list(self._pop_waiting()) if cancel_futures else []
            for _ in self._own_threads:
                self._calls.put(None)  # each thread takes one, and ends
        for future in waiting:
            future.cancel()
        if wait:
            self.join()

    def _pop_waiting(self) -> Iterator[Future[Any]]:
        """Remove the calls that no thread has begun; yield their futures."""
        with suppress(Empty):
            while True:
                if (queued := self._calls.get_nowait()) is not None:
                    yield queued[0]

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the threads to end after `shutdown`."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for thread in self._own_threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


_executors: WeakSet[DaemonExecutor] = WeakSet()


def _reset() -> None:
    for executor in list(_executors):
        executor.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
