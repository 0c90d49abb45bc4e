"""A small state of a session, which its responder keeps from turn to turn.

Importing this module does not import LangGraph.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from chatmemory import codec
from chatmemory.access.addresses import check_length
from chatmemory.codec import check_value
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.derived import EndingTurn, leave, store
from chatmemory.errors import BadInput
from chatmemory.langgraph.models import MAX_ID_CHARS, SessionState
from chatmemory.models import Session
from chatmemory.models.derived import DerivedQuerySet, all_rows

__all__ = ["State", "aread_state", "keep_state", "read_state"]

MAX_STATE_BYTES = 65_536
"""Maximum length of a state as JSON, in UTF-8."""

LEFT = "chatmemory.langgraph."
"""How the names begin of what is left for the end of a turn. Each value has `low` and `store`."""


@dataclass(frozen=True, slots=True)
class State:
    """What `read_state` returns."""

    value: Any
    """As it was kept, after a round trip through JSON."""
    seq: int
    """The last message from which it was made."""


@retried(is_repeatable=True)
def read_state(session: Session, name: str) -> State | None:
    """Return a state; None if there is none, or one of its messages was removed or edited."""
    return newest_of(SessionState.visible(session).filter(name=name))


def newest_of(states: DerivedQuerySet) -> State | None:
    """Return the newest of these states; None if there is none."""
    for value, seq in states.order_by("-pk").values_list("value", "high")[:1]:
        return State(json.loads(value), seq)
    return None


def keep_state(session: Session, name: str, value: object, *, seq: int | None = None) -> None:
    """Replace a state at the end of the running turn. For code that a responder calls.

    `session` is that of the responder, as it was at the start of the run. `seq` is the last message
    from which the state was made, by default the user's. Nothing is stored if a message was changed
    or hidden during the run, or if the process dies.
    Raises BadInput for what JSON or `MAX_STATE_BYTES` does not allow, RuntimeError outside a run.
    """
    check_length("name", name, 1, MAX_ID_CHARS)
    check_value(name, "name")
    high = session.last_seq if seq is None else seq
    if not session.first_seq <= high <= session.last_seq:
        message = f"seq must be between {session.first_seq} and {session.last_seq}, not {high}."
        raise BadInput(message, code="bad_number", field="seq")
    kept = KeptState(name=name, value=value_text(value), low=session.first_seq, high=high)
    leave(f"{LEFT}state.{name}", kept)


def value_text(value: object) -> str:
    """Return the JSON of a state. Raises BadInput if it is too long, or JSON has no such value."""
    try:
        text = codec.dump_json(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        message = f"value must be JSON: {error}."
        raise BadInput(message, code="bad_json", field="value") from error
    if size > MAX_STATE_BYTES:
        message = f"value is longer than {MAX_STATE_BYTES} bytes as JSON."
        raise BadInput(message, code="too_large", field="value", limit=MAX_STATE_BYTES)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """A state that is stored at the end of its turn."""

    name: str
    value: str
    low: int
    high: int

    def store(self, ending: EndingTurn, low: int) -> None:
        """Replace the state of this name, unless a message was changed since the run began."""
        row = SessionState(name=self.name, value=self.value, low=low, high=self.high)
        if store(ending.seen, [row]):
            of_name = all_rows(SessionState).filter(session=row.session_id, name=self.name)
            of_name.exclude(pk=row.pk).delete()


def store_left(ending: EndingTurn) -> None:
    """Store what the responder has left for us. Registered with `at_turn_end`."""
    left = [value for name, value in ending.left.items() if name.startswith(LEFT)]
    low = min(value.low for value in left)  # each may contain words of what the run has read
    for value in left:
        value.store(ending, low)


aread_state = in_pool(read_state)
