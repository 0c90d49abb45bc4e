"""Fake language models; a test controls what happens while they think."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from chatmemory.testing.stores import Store, in_thread

PONDERING_SECONDS = 0.03
DYING_SECONDS = 0.3
PATIENCE_SECONDS = 0.8
"""Maximum wait for concurrent work: a store may block that work until the reply."""

OUTAGE_PATIENCE_SECONDS = 1.5
"""Maximum wait for a turn during an outage; a store may continue to retry."""

DEADLINE_SECONDS = 60.0


def reply_to(text: str) -> str:
    """Return the reply of all fake models except `recite`."""
    return f"re: {text}"


class Thinking:
    """A model that runs `meanwhile` in another thread at its first call."""

    def __init__(self, store: Store, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.given: list[list[str]] = []
        """The texts of each call, newest last."""
        self._store = store
        self._meanwhile = meanwhile
        self._done: Future[object] | None = None

    def __call__(self, given: Sequence[str]) -> str:
        self.given.append(list(given))
        if self._done is None:
            self._done = in_thread(self._store, self._meanwhile)
            wait([self._done], PATIENCE_SECONDS)
        return reply_to(given[-1])

    def end(self) -> None:
        """Wait until `meanwhile` ends; raise its exception."""
        if self._done is None:
            raise AssertionError("The model was not called.")
        self._done.result(DEADLINE_SECONDS)


def echo(given: Sequence[str]) -> str:
    """Answer immediately."""
    return reply_to(given[-1])


def ponder(given: Sequence[str]) -> str:
    """Answer after a moment."""
    time.sleep(PONDERING_SECONDS)
    return reply_to(given[-1])


def recite(given: Sequence[str]) -> str:
    """Answer with all given texts."""
    return " | ".join(given)


def die(given: Sequence[str]) -> str:
    """Kill the process after a moment."""
    time.sleep(DYING_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


BY_NAME = {model.__name__: model for model in (echo, ponder, recite, die)}
