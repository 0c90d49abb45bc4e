"""The context of a run, by which code that its responder calls can recognize its session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from chatmemory.services.turns.claims import Claim


@dataclass(slots=True)
class _RunningSession:
    """The address of the session in which a run is active, for the code that the run calls."""

    scope: str
    key: str
    is_over: bool = False


_run_of: ContextVar[_RunningSession | None] = ContextVar("chatmemory_run_of", default=None)


@contextmanager
def run_context(claim: Claim) -> Iterator[None]:
    """Make `is_in_run` true for the claim's session in this context and copies of it."""
    run = _RunningSession(claim.scope, claim.key)
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
