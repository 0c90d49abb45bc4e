"""Threads that keep no process from its end."""

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


class DaemonExecutor(ThreadPoolExecutor):
    """An executor whose calls end with the process.

    Python waits at its end for those of a `ThreadPoolExecutor`, however long they hang. It is one
    because an event loop takes no other as its default. A forked process begins with none of the
    calls and threads.
    """

    def __init__(self, max_workers: int, *, name: str) -> None:
        super().__init__(max_workers)
        self._most = max_workers
        self._name = name
        self._is_over = False
        self.begin_anew()
        _executors.add(self)

    def begin_anew(self) -> None:
        """Forget all calls and threads, as a forked process must: it has no part of them."""
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._begun: list[threading.Thread] = []
        self._undone = 0
        """Calls that wait or are at work; a thread is missing where there are more than threads."""
        self._changing = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call it on a thread.

        Raises RuntimeError after `shutdown`, and where the system gives no thread and none runs.
        """
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                self._count_done()
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # for who waits for it, not for the thread
                self._count_done()
                future.set_exception(error)
            else:
                self._count_done()  # who waits may submit the next one, to this thread
                future.set_result(result)

        with self._changing:
            if self._is_over:
                raise RuntimeError("it was shut down")
            if self._undone >= len(self._begun) < self._most:
                self._begin_one()
            self._undone += 1
            self._calls.put((future, call))
        return future

    def _begin_one(self) -> None:
        name = f"{self._name}_{len(self._begun)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more; the next call tries again
            if not self._begun:
                raise
        else:
            self._begun.append(thread)

    def _count_done(self) -> None:
        with self._changing:
            self._undone -= 1

    def _work(self) -> None:
        while (taken := self._calls.get()) is not None:
            taken[1]()
            del taken  # what it returned may be large

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and end the threads; those that were taken are done before, or
        cancelled if they have not begun."""
        with self._changing:
            self._is_over = True
            waiting = list(self._waiting()) if cancel_futures else []
            for _ in self._begun:
                self._calls.put(None)
        for future in waiting:
            future.cancel()
        if wait:
            self.join()

    def _waiting(self) -> Iterator[Future[Any]]:
        """Take out what no thread has begun."""
        with suppress(Empty):
            while True:
                if (taken := self._calls.get_nowait()) is not None:
                    yield taken[0]

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the threads, which only `shutdown` ends."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for thread in self._begun:
            left: Any = None if deadline is None else max(0.0, deadline - time.monotonic())
            thread.join(left)


_executors: WeakSet[DaemonExecutor] = WeakSet()


def _begin_anew() -> None:
    for executor in list(_executors):
        executor.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
