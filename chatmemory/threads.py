"""Threads that keep no process from its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """An executor whose calls end with the process.

    Python waits at its end for those of a `ThreadPoolExecutor`, however long they hang. It is one
    because an event loop takes no other as its default.
    """

    def __init__(self, max_workers: int, *, name: str) -> None:
        super().__init__(max_workers)
        self._most = max_workers
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._begun: list[threading.Thread] = []
        self._is_over = False
        self._changing = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # for who waits for it, not for the thread
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._changing:
            if self._is_over:
                raise RuntimeError("it was shut down")
            self._calls.put(call)
            if not self._idle.acquire(blocking=False) and len(self._begun) < self._most:
                name = f"{self._name}_{len(self._begun)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._begun.append(thread)
                thread.start()
        return future

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # what it returned may be large

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._calls.get_nowait()
        except Empty:
            self._idle.release()
            return self._calls.get()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and end the threads; those that were taken are done before."""
        with self._changing:
            self._is_over = True
            for _ in self._begun:
                self._calls.put(None)
        if wait:
            self.join()

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the threads, which only `shutdown` ends."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for thread in self._begun:
            left: Any = None if deadline is None else max(0.0, deadline - time.monotonic())
            thread.join(left)
