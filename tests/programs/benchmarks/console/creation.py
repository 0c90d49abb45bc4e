"""Create the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

from django.db import connection

from chatmemory.models import database_now
from chatmemory.services.audit.seals import seal_audit
from chatmemory.statistics.roll_up import roll_up_statistics
from tests.programs.benchmarks.console import audit, plan, rows
from tests.programs.benchmarks.console.sizes import Size


def create(size: Size, report: Callable[[str], object]) -> None:
    """Add users, sessions with all that belongs to them, and audit entries. PostgreSQL only."""
    now = database_now(connection)
    steps: dict[str, Callable[[], object]] = {
        "users": partial(rows.add_users, size),
        "users of the plan": partial(plan.number_users, rows.USER_PREFIX),
        "plan": partial(plan.make_plan, size, now),
        "sessions": partial(rows.add_sessions, now),
        "messages": rows.add_messages,
        "turns": partial(rows.add_turns, now),
        "feedback": rows.add_feedback,
        "tags and notes": rows.add_labels,
        "job": partial(rows.add_job, now),
        "audit": partial(audit.add_audit, size, now),
        "end of the plan": plan.drop_plan,
    }
    if not connection.in_atomic_block:
        steps |= {"seals": seal_audit, "statistics": roll_up_statistics, "vacuum": _vacuum}
    for name, step in steps.items():
        started = perf_counter()
        step()
        report(f"{name}: {perf_counter() - started:.1f} s\n")


def _vacuum() -> None:
    """Update the statistics of the planner and the visibility maps, as autovacuum does later."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
