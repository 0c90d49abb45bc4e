"""Signals, each sent after the commit of what it tells of, in the thread that committed.

All carry `session_pk`. Receivers must be quick; an exception in one is logged and stops nobody.
"""

from __future__ import annotations

from django.dispatch import Signal

session_changed = Signal()
"""The session has news: rows, a new floor, a turn's state. A hint to look."""

turn_waiting = Signal()
"""A turn waits for somebody to run it. Also `client_id`."""

stop_requested = Signal()
"""A running turn shall stop. Also `turn_pk`."""

turn_finished = Signal()
"""A turn ended. Also `client_id`, `status`, `error`."""

save_failed = Signal()
"""A LangChain history could not store messages. Also `ref`, `error`; not after a commit, and
`session_pk` is None."""
