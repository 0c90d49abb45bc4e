"""Purge many sessions by one job while others write, with a runner that is killed halfway."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.db import connections

from chatmemory import services
from chatmemory.models import AuditEntry, Job, JobItem, Session, SessionQuerySet
from chatmemory.services import Actor
from chatmemory.services.jobs.create import Order, create_job

BY = Actor("command", "1", "console-measure")
WRITERS = 2
WRITER_PAUSE_SECONDS = 0.05
ALONE_SECONDS = 20
POLL_SECONDS = 1.0


def purge(count: int, report: Callable[[str], None]) -> bool:
    """Purge this many sessions, and print what it cost; return whether all counts are right."""
    chosen = _oldest(count)
    expected = chosen.count()
    alone = _alone()
    entries = AuditEntry.objects.filter(action="purge").count()
    order = Order(by=BY, reason="console benchmark")
    job = create_job(action="purge", sessions=chosen, order=order, params={})
    begin = time.monotonic()
    with _writing() as beside:
        memory = _run_to_the_end(job, report)
    seconds = time.monotonic() - begin
    job.refresh_from_db()
    written = AuditEntry.objects.filter(action="purge").count() - entries
    report(f"{job.done} of {expected} purged in {seconds:.0f} s; {dict(job.skipped)} skipped\n")
    report(f"audit entries of purges: {written}\n")
    report(f"resident memory of the runners, MiB: {min(memory):.0f} to {max(memory):.0f}\n")
    report(f"appends of others, alone: {_quantiles(alone)}\n")
    report(f"appends of others, beside: {_quantiles(beside)}\n")
    done = job.items.filter(outcome=JobItem.DONE).count()
    is_whole = job.done + job.skipped_count == job.total == expected
    return is_whole and job.done == done == written and job.status == Job.Status.COMPLETE


def _oldest(count: int) -> SessionQuerySet:
    active = Session.objects.active()
    last = active.order_by("pk").values_list("pk", flat=True)[count - 1]
    return active.filter(pk__lte=last)


def _run_to_the_end(job: Job, report: Callable[[str], None]) -> Sequence[float]:
    """Execute the job by one runner, killed after a third, and another; return their memory."""
    memory = []
    runner = _start_runner()
    is_killed = False
    try:
        while job.is_active:
            time.sleep(POLL_SECONDS)
            job.refresh_from_db()
            memory.append(_resident_mib(runner.pid))
            if not is_killed and job.counted >= job.total / 3:
                runner.kill()
                runner.wait()
                report(f"runner killed after {job.counted} items\n")
                runner, is_killed = _start_runner(), True
    finally:
        runner.kill()
        runner.wait()
    return memory


def _start_runner() -> subprocess.Popen[bytes]:
    command = [sys.executable, "manage.py", "chatmemory_runner"]
    return subprocess.Popen(  # noqa: S603  # our own command line
        command, cwd=settings.BASE_DIR, stdout=subprocess.DEVNULL
    )


def _resident_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20


def _alone() -> list[float]:
    with _writing() as times:
        time.sleep(ALONE_SECONDS)
    return times


@contextmanager
def _writing() -> Iterator[list[float]]:
    """Append to new sessions from several threads; collect the milliseconds of each append."""
    times: list[float] = []
    stop = threading.Event()
    threads = [threading.Thread(target=_append_until, args=(stop, times)) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield times
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _append_until(stop: threading.Event, times: list[float]) -> None:
    key = Session.objects.create(scope=services.SERVER, key=f"console-writer-{uuid4()}").key
    while not stop.wait(WRITER_PAUSE_SECONDS):
        begin = time.perf_counter()
        services.append_messages(
            session_key=key,
            scope=services.SERVER,
            by=BY,
            messages=[{"role": "user", "content": "hello"}],
        )
        times.append((time.perf_counter() - begin) * 1000)
    connections.close_all()


def _quantiles(times: Sequence[float]) -> str:
    ordered = sorted(times)
    shown = {name: ordered[int(part * (len(ordered) - 1))] for name, part in _SHOWN.items()}
    values = ", ".join(f"{name} {value:.1f}" for name, value in shown.items())
    return f"{len(ordered)} appends, ms: {values}"


_SHOWN = {"median": 0.5, "p95": 0.95, "p99": 0.99, "most": 1.0}
