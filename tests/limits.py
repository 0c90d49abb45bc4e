"""Limits of sockets that no setting changes, replaced in the servers of tests."""

from __future__ import annotations

import json
import os

from chatmemory.consumers.limits import SocketLimits

SHORT = {
    "hello_seconds": 2.0,
    "send_seconds": 3.0,
    "answer_seconds": 1.0,
    "silence_seconds": 1.5,
    "pong_seconds": 3.0,
}
"""Fields of `SocketLimits`; a database that stalls for 8 s exceeds each."""


def apply_limits() -> None:
    """Set the limits that `LIMITS` in the environment contains, as JSON. Django must be set up."""
    from chatmemory.consumers import ChatConsumer

    ChatConsumer.limits = SocketLimits(**json.loads(os.environ.get("LIMITS", "{}")))
