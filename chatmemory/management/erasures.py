"""Past erasures in words, for the commands that list them."""

from __future__ import annotations

from datetime import datetime

from chatmemory.management.counting import counted
from chatmemory.services.erasure.past_erasures import KnownErasure


def erasure_sentence(erasure: KnownErasure) -> str:
    """Return when, by whom and why an erasure was begun or completed, and what it deleted."""
    if not erasure.by:
        return (
            f"{_time(erasure.begun_at)}: on the erasure list, without a receipt in this database; "
            "run chatmemory_restored to repeat it"
        )
    if erasure.completed_at is None:
        return f"{_time(erasure.begun_at)}: begun by {erasure.by}, not completed; run it again"
    kept = f", {counted(len(erasure.held), 'conversation')} on hold kept" if erasure.held else ""
    return (
        f"{_time(erasure.completed_at)}: erased by {erasure.by}: "
        f"{counted(erasure.sessions, 'conversation')}, "
        f"{counted(erasure.messages, 'message')}{kept} "
        f"(receipt {erasure.entry_pk}: {erasure.reason})"
    )


def _time(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
