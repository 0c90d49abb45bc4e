"""Time limits of the app that no setting changes, replaced in the servers of tests."""

from __future__ import annotations

import json
import os
from importlib import import_module

SHORT = {
    "chatmemory.consumers.chat.HELLO_SECONDS": 2.0,
    "chatmemory.consumers.chat.SEND_SECONDS": 3.0,
    "chatmemory.consumers.chat.ANSWER_SECONDS": 1.0,
    "chatmemory.consumers.credit.SILENCE_SECONDS": 1.5,
    "chatmemory.consumers.credit.PONG_SECONDS": 3.0,
}
"""For sockets; a database that stalls for 8 s exceeds each."""


def apply_limits() -> None:
    """Set the limits that `LIMITS` in the environment gives, as JSON, by full name."""
    for path, seconds in json.loads(os.environ.get("LIMITS", "{}")).items():
        module_name, _, limit = path.rpartition(".")
        module = import_module(module_name)
        assert hasattr(module, limit), f"{module_name} has no {limit}"
        setattr(module, limit, seconds)
