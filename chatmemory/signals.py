"""Signals, each sent after the commit of what it tells of.

They are sent by the thread that committed, but what sockets and runs commit on a thread apart:
only `session_changed`, `turn_waiting` and `stop_requested`, whose receivers must be quick, are
always told at once. All carry `session_pk`, none what was said. An exception in a receiver is
logged, without its text, and stops no other receiver.
"""

from __future__ import annotations

import logging
from typing import Any

from django import dispatch

from chatmemory.logs import log_error

logger = logging.getLogger(__name__)


class Signal(dispatch.Signal):
    """A signal that logs the errors of receivers without their texts."""

    def _log_robust_failure(self, receiver: Any, err: Exception) -> None:
        # Called by Django's send_robust, whose own logs the text.
        name = getattr(receiver, "__qualname__", type(receiver).__qualname__)
        log_error(logger, "the receiver %s failed", name, error=err)


session_changed = Signal()
"""The session has news: rows, a new floor, a turn's state. A hint to look."""

messages_appended = Signal()
"""Rows were stored. Also `first_seq`, `last_seq`, `roles` (one for each row, in order), and `turn`,
the number of the user's row that they belong to, or None. Not for imports."""

turn_waiting = Signal()
"""A turn waits for somebody to run it. Also `client_id`. The same turn may be told of again."""

turn_started = Signal()
"""The run of a turn begins. Also `client_id`."""

stop_requested = Signal()
"""A running turn shall stop. Also `turn_pk`."""

turn_finished = Signal()
"""A turn ended. Also `client_id`; `status`; `error`, a code or empty; `model`, or empty;
`input_tokens` and `output_tokens`, as the model counted them, or None; `waited_seconds` from its
admission to the begin of its run and `seconds` from there to its end, or None if it never ran."""

history_removed = Signal()
"""Messages can't be read any more. Also `action` (trim, clear, purge, redact, erase) and
`messages`, how many."""

act_recorded = Signal()
"""An entry of the audit was written: the same, and any other act. Also `action`; `actor`, the kind
of who did it; `messages`, how many it is about. `session_pk` is None for an act on all sessions of
a person, or on all."""

save_failed = Signal()
"""A LangChain history could not store messages. Also `ref`, `error`; not after a commit, and
`session_pk` is None."""
