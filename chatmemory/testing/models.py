"""What stands for a language model: one whose thinking a test decides."""

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
"""How long it waits for what is done while it thinks: a store may let that wait for the reply."""

GIVES_UP_SECONDS = 1.5
"""How long a turn is waited for while the backend is away; a store may go on trying for longer."""

DEADLINE_SECONDS = 60.0


def reply_to(text: str) -> str:
    """What it answers."""
    return f"re: {text}"


class Thinking:
    """A model that answers, and what is done by others while it thinks."""

    def __init__(self, store: Store, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.given: list[list[str]] = []
        """What it was given, newest last."""
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
        """Wait for what was done meanwhile; raises what it raised."""
        if self._done is None:
            raise AssertionError("the model was not asked")
        self._done.result(DEADLINE_SECONDS)


def echo(given: Sequence[str]) -> str:
    """Answer at once."""
    return reply_to(given[-1])


def ponder(given: Sequence[str]) -> str:
    """Answer after a moment."""
    time.sleep(PONDERING_SECONDS)
    return reply_to(given[-1])


def told(given: Sequence[str]) -> str:
    """Say all that it was given."""
    return " | ".join(given)


def die(given: Sequence[str]) -> str:
    """Take the process with it, after a while."""
    time.sleep(DYING_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


BY_NAME = {model.__name__: model for model in (echo, ponder, told, die)}
