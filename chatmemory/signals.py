"""Signals, each sent after the commit of the change that it announces.

The committing thread sends them. For commits of sockets and runs a separate thread does, except
for `session_changed`, `turn_waiting` and `stop_requested`: these are always sent immediately, so
their receivers must be quick. All carry `session_pk`. None carries content, except for the error of
`responder_failed`. An exception in a receiver is logged without its text, and does not stop other
receivers.
"""

from __future__ import annotations

import logging
from typing import Any

from django import dispatch

from chatmemory.logs import log_error

logger = logging.getLogger(__name__)


class Signal(dispatch.Signal):
    """Logs exceptions of receivers without their texts."""

    def _log_robust_failure(self, receiver: Any, err: Exception) -> None:
        # Overrides the method that send_robust calls, since Django's own logs the text.
        name = getattr(receiver, "__qualname__", type(receiver).__qualname__)
        log_error(logger, "the receiver %s failed", name, error=err)


session_changed = Signal()
"""A session changed: its rows, its floor or the state of a turn. Receivers read it again."""

messages_appended = Signal()
"""Rows were stored. Sent with `first_seq`, `last_seq`, `roles` (one for each row, in order), and
`turn`, the seq of the user's row that they belong to, or None. Not sent for imports."""

turn_waiting = Signal()
"""A turn waits for a runner. Sent with `client_id`. May be sent repeatedly for one turn."""

turn_started = Signal()
"""The run of a turn started. Sent with `client_id`."""

stop_requested = Signal()
"""A running turn must stop. Sent with `turn_pk`."""

turn_finished = Signal()
"""A turn ended. Sent with `client_id`; `status`; `error`, a code or empty; `model`, or empty;
`input_tokens` and `output_tokens`, reported by the model, or None; `waited_seconds` from admission
to the start of its run and `seconds` from start to end, or None if it never ran."""

history_removed = Signal()
"""Messages were removed. Sent with `action` (trim, clear, purge, redact, erase) and `messages`,
their number."""

action_recorded = Signal()
"""An audit entry was written, for a removal or any other action. Sent with `action`; `actor`,
the kind of actor; `messages`, their number. `session_pk` is None for an action on all sessions of a
person, or on all."""

save_failed = Signal()
"""A LangChain history could not store messages. Sent with `ref` and `error`. Sent without a
commit; `session_pk` is None."""

responder_failed = Signal()
"""A responder raised an error. Sent with `client_id` and `error`, the exception, whose text and
local variables may contain messages and keys. Sent without a commit, before the turn ends."""
