"""Kill points: at a step of a turn that a file names, the process ends as by `kill -9`."""

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
"""The kill points of docs/torture.md, in the order in which a turn comes to them."""


def folder() -> Path | None:
    """Where the files are that switch faults on; none in a process that is not tortured."""
    name = os.environ.get("TORTURE", "")
    return Path(name) if name else None


def reach(step: str) -> None:
    """Say that this process has come to a step of a turn. It may be its last word."""
    place = folder()
    if place is None or not (place / "kill" / step).exists():
        return
    try:  # of two processes that come here at once, one dies
        (place / "kill" / step).rename(place / f"killed.{os.getpid()}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
