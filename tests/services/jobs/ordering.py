"""Jobs for tests: order one, and execute it to its end."""

from __future__ import annotations

from typing import Any

from chatmemory import services
from chatmemory.models import Job, JobItem, Session
from chatmemory.services import Actor
from chatmemory.services.jobs.claims import claim_job
from chatmemory.services.jobs.create import Order as Order
from chatmemory.services.jobs.create import create_job, undo_job
from chatmemory.services.jobs.run import run_slice
from tests.factories import BY, make_messages, make_session

OLGA = Actor("command", "7", "olga")
ORDER = Order(by=OLGA, reason="spam")


def make_talks(count: int, messages: int = 4, **columns: Any) -> list[Session]:
    """Store this many sessions of the server with messages."""
    for number in range(count):
        make_session(f"talk-{number}", **columns)
        texts = make_messages(*(f"text {n}" for n in range(messages)))
        services.append_messages(
            session_key=f"talk-{number}", scope=services.SERVER, by=BY, messages=texts
        )
    return list(Session.objects.order_by("pk"))


def order(action: str, sessions: Any = None, order: Order = ORDER, **params: Any) -> Job:
    """Store a job, by default for all sessions."""
    found = Session.objects.all() if sessions is None else sessions
    return create_job(action=action, sessions=found, order=order, params=params)


def undo(job: Job, order: Order = ORDER) -> Job:
    job.refresh_from_db()
    return undo_job(job=job, sessions=Session.objects.all(), order=order)


def finish(job: Job) -> Job:
    """Execute a job to its end, and return it."""
    while claim := claim_job(owner="test", job_pk=job.pk):
        run_slice(claim)
    job.refresh_from_db()
    return job


def act(action: str, sessions: Any = None, **params: Any) -> Job:
    """Order a job and execute it to its end."""
    return finish(order(action, sessions, **params))


def outcomes(job: Job) -> list[str]:
    """Return the outcomes of a job's items, in the order of their sessions."""
    items = JobItem.objects.filter(job=job).order_by("session_pk")
    return list(items.values_list("outcome", flat=True))
