"""The context of a run, by which code that its responder calls can recognize its session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from chatmemory.services.turns.claims import Claim


@dataclass(slots=True)
class _RunningSession:
    """The address of the session in which a run is active, for the code that the run calls."""

    scope: str
    key: str
    left: dict[str, Any]
    is_over: bool = False


_run_of: ContextVar[_RunningSession | None] = ContextVar("chatmemory_run_of", default=None)


@contextmanager
def run_context(claim: Claim, left: dict[str, Any]) -> Iterator[None]:
    """Make `is_in_run` true for the claim's session in this context and copies of it.

    `leave` adds to `left`.
    """
    run = _RunningSession(claim.scope, claim.key, left)
    token = _run_of.set(run)
    try:
        yield
    finally:
        run.is_over = True  # a task that outlives the run has a copy of the context
        _run_of.reset(token)


def is_in_run(scope: str, key: str) -> bool:
    """Return whether the responder of this session's running turn calls this code."""
    run = _run_of.get()
    return run is not None and not run.is_over and (run.scope, run.key) == (scope, key)


def leave(name: str, value: object) -> None:
    """Leave a value for the end of the running turn, as `EndingTurn.left`; the last one counts.

    For code that a responder calls. Raises RuntimeError outside a run.
    """
    run = _run_of.get()
    if run is None or run.is_over:
        raise RuntimeError("Only code that a responder calls can leave a value.")
    run.left[name] = value
