"""Messages that other apps add to the model's input, such as what left the window."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chatmemory.logs import log_error
from chatmemory.models import Session

logger = logging.getLogger(__name__)

Left = dict[str, Any]

READS_OTHERS: Final = "chatmemory.reads_others"
"""A name in `Asking.left`: the messages have words of other sessions, whose removal there reaches
no row that is made from this turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A turn whose input is read."""

    session: Session
    turn: str
    """The client_id of the turn."""
    question: Mapping[str, object]
    """The user's message, the last one of the window."""
    window_from: int
    """The seq of the oldest message of the window."""
    left: Left = field(default_factory=dict)
    """Values for the end of the turn, as those of `leave`."""


Function = Callable[[Asking], Sequence[dict[str, object]]]

_functions: dict[Function, None] = {}


def before_question(function: Function) -> Function:
    """Call a function before each run; add the plain messages that it returns before the question.

    They are not stored, and count in no limit of the window. The function may query the database,
    and should take at most half a second, since the reply waits for it. If it raises, the turn runs
    without its messages. Register it in the `ready()` of an app; it can be used as a decorator. A
    repeated registration changes nothing.
    """
    _functions.setdefault(function)
    return function


def messages_before(
    session: Session, turn: str, left: Left, question: Mapping[str, object], window_from: int
) -> list[dict[str, object]]:
    """Return the messages of all functions, in the order of their registration."""
    asking = Asking(
        session=session, turn=turn, question=question, window_from=window_from, left=left
    )
    found: list[dict[str, object]] = []
    for function in _functions:
        try:
            found += function(asking)
        except Exception as error:  # the code of another app can raise any
            log_error(logger, "turn %s: a function of before_question failed", turn, error=error)
    return found
