"""The turns that wait or run now."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Min

from chatmemory.models import DatabaseNow, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The turns that wait or run now, and the age of the oldest waiting one in seconds."""

    running: int
    waiting: int
    oldest_seconds: float | None


def read_queue() -> Queue:
    """Count the turns that wait or run, in one statement on the index of live turns."""
    live = (
        Turn.objects.undeferred()
        .filter(status__in=Turn.ACTIVE_STATUSES)
        .order_by()
        .values("status")
    )
    rows = live.annotate(number=Count("pk"), oldest=Min("created_at"), now=DatabaseNow())
    counts = {row["status"]: row for row in rows}
    waiting = counts.get(Turn.Status.WAITING.value)
    running = counts.get(Turn.Status.RUNNING.value)
    return Queue(
        running=running["number"] if running else 0,
        waiting=waiting["number"] if waiting else 0,
        oldest_seconds=(waiting["now"] - waiting["oldest"]).total_seconds() if waiting else None,
    )
