"""Rows that an app makes from messages, and that the core removes with them.

See docs/howto/own-tables.md.

An app defines models with `DerivedRow`, `DerivedFileRow` or `DerivedPersonRow`, stores their rows
with `store`, and has no code for removals. `register` is for a table of the host that belongs to a
conversation. `at_turn_end` stores rows together with the reply from which they were made;
`before_question` adds messages to the model's input.
"""

from __future__ import annotations

from chatmemory.models.derived import DerivedFileRow, DerivedPersonRow, DerivedRow, register
from chatmemory.services.derived.writing import Seen, asee, astore, see, store
from chatmemory.services.turns.at_end import EndingTurn, at_turn_end
from chatmemory.services.turns.context import READS_OTHERS, Asking, before_question
from chatmemory.services.turns.run_context import leave

__all__ = [
    "READS_OTHERS",
    "Asking",
    "DerivedFileRow",
    "DerivedPersonRow",
    "DerivedRow",
    "EndingTurn",
    "Seen",
    "asee",
    "astore",
    "at_turn_end",
    "before_question",
    "leave",
    "register",
    "see",
    "store",
]
