"""Kill points: the process kills itself at a step of a turn for which a file exists."""

from __future__ import annotations

import os
import signal
from pathlib import Path

STEPS = (
    "before_commit",
    "before_ack",
    "before_start",
    "in_stream",
    "before_finish",
    "before_poke",
    "before_shown",
)
"""The kill points of docs/reasons/torture.md, in the order in which a turn reaches them."""


def folder() -> Path | None:
    """Return the folder of the files that switch faults on; None outside of torture tests."""
    name = os.environ.get("TORTURE", "")
    return Path(name) if name else None


def reach(step: str) -> None:
    """Mark a step of a turn as reached; kill the process if its file exists."""
    place = folder()
    if place is None or not (place / "kill" / step).exists():
        return
    try:  # the rename succeeds in only one of several processes
        (place / "kill" / step).rename(place / f"killed.{os.getpid()}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
