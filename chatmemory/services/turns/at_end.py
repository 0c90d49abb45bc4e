"""Code of other apps at the end of a turn, in the transaction that stores the end.

A graph's checkpoints, for example, are stored together with the reply that they belong to, or not
at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.db import transaction

from chatmemory.database.faults import is_transient, write_connection
from chatmemory.errors import MemoryUnavailable, TurnEndError
from chatmemory.services.derived.writing import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingTurn:
    """A turn that its run ends now."""

    seen: Seen
    """The session before the run read its window, for `chatmemory.derived.store`."""
    turn: str
    """The client_id of the turn."""
    user_seq: int
    """The seq of the user's message; the turn's rows follow it."""
    status: str
    """`complete`, `failed` or `interrupted`."""
    left: Mapping[str, Any] = field(default_factory=dict)
    """What the responder left with `chatmemory.derived.leave`, and others with `Asking.left`."""


Receiver = Callable[[EndingTurn], object]

_receivers: dict[Receiver, str] = {}


def at_turn_end(receiver: Receiver, *, left: str = "") -> Receiver:
    """Call a function at the end of each turn that its own run ends, in the same transaction.

    The session is locked, and the turn's last row is stored. If the function raises, all of that is
    rolled back, and the turn ends as failed with the code `turn_end_error` and no function called;
    the next turn starts as usual. A turn that is ended from outside, since its process died or its
    session was cleared, ends without a call. It is called again if the transaction is repeated.
    Register it in the `ready()` of an app; it can be used as a decorator. A repeated registration
    changes nothing. With `left`, only turns in which the responder left a value with a name that
    begins so are concerned. Raises TypeError for an async function.
    """
    if iscoroutinefunction(receiver):
        raise TypeError("A function of at_turn_end runs in a transaction, so it cannot be async.")
    _receivers.setdefault(receiver, left)
    return receiver


def receivers_of(ending: EndingTurn) -> list[Receiver]:
    """Return the functions to call; without one, a turn's end needs no transaction for them."""
    names = ("", *ending.left)
    return [call for call, left in _receivers.items() if any(n.startswith(left) for n in names)]


def call_receivers(ending: EndingTurn) -> None:
    """Call all functions in the order of their registration. Raises TurnEndError.

    A transient error of the database, such as a lost connection, is raised as it is: the caller
    repeats the transaction.
    """
    for receiver in receivers_of(ending):
        try:
            _call(receiver, ending)
        except BaseException as error:  # includes SystemExit, which would end the run's task
            # A service that the function calls raises MemoryUnavailable for any database error.
            is_ours = isinstance(error, MemoryUnavailable)
            if is_transient(error.__cause__ if is_ours else error):
                raise
            raise TurnEndError from error


def _call(receiver: Receiver, ending: EndingTurn) -> None:
    """Call a function in a savepoint. Raises RuntimeError if it leaves the transaction unusable."""
    connection = write_connection()
    with transaction.atomic(using=connection.alias):
        blocks = list(connection.atomic_blocks)
        receiver(ending)
        opened = connection.atomic_blocks[len(blocks) :]
        problem = RuntimeError("A function of at_turn_end left a transaction open or unusable.")
        for block in reversed(opened):
            block.__exit__(RuntimeError, problem, None)
        if opened or connection.needs_rollback or connection.atomic_blocks != blocks:
            raise problem
