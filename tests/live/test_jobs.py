"""Jobs in processes: notified or found by sweep, killed, paused and continued, each item once."""

from __future__ import annotations

import signal

import pytest
from django.db import connection

from chatmemory.live.hub import hub
from chatmemory.live.runner import runner
from chatmemory.models import AuditEntry, DatabaseNow, Job, JobItem, Session
from chatmemory.services.jobs import run
from chatmemory.services.jobs.claims import claim_job, release_job
from tests.factories import make_session
from tests.servers import live_process, start_job_runner, wait_for
from tests.services.jobs.ordering import order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

live = live_process
start_runner = start_job_runner
MANY = 400


def make_sessions(count):
    for number in range(count):
        make_session(f"s{number}")


def done_count():
    return JobItem.objects.filter(outcome=JobItem.DONE).count()


def ended(job):
    """Wait until the job has ended, and return it."""
    has_ended = Job.objects.exclude(status__in=Job.ACTIVE_STATUSES).filter(pk=job.pk).exists
    wait_for(has_ended, "the job does not end", progress=done_count)
    return Job.objects.get(pk=job.pk)


def wait_until_done(count):
    wait_for(lambda: done_count() >= count, "the job makes no progress", progress=done_count)


def test_a_serving_process_executes_a_job_as_soon_as_it_is_committed(live):
    runner.enable()
    make_sessions(3)
    assert ended(order("hold")).done == 3


def test_a_released_job_is_continued(live):
    """As after a request that executed the first slice."""
    make_sessions(2)
    order("hold")
    claim = claim_job(owner="request")
    assert claim is not None
    runner.enable()
    release_job(claim)
    assert ended(Job.objects.get()).done == 2


def test_a_sweep_finds_a_job_without_a_notification(live, monkeypatch):
    make_sessions(2)
    order("hold")  # before this process serves, as in a process that dies after the commit
    monkeypatch.setattr(hub.sweep, "seconds", 0.2)
    runner.enable()
    assert ended(Job.objects.get()).done == 2


def test_a_sweep_continues_a_job_whose_lease_expired(live, monkeypatch):
    make_sessions(2)
    order("hold")
    assert claim_job(owner="killed")
    monkeypatch.setattr(hub.sweep, "seconds", 0.2)
    runner.enable()
    Job.objects.update(lease_until=DatabaseNow())
    assert ended(Job.objects.get()).done == 2


def test_the_thread_survives_an_error(live, monkeypatch):
    monkeypatch.setattr(hub.sweep, "seconds", 0.2)
    make_sessions(1)
    perform, failed = run._perform_until, []

    def fail_once(*args):
        if not failed:
            failed.append(True)
            Job.objects.update(lease_until=DatabaseNow())
            raise RuntimeError
        return perform(*args)

    monkeypatch.setattr(run, "_perform_until", fail_once)
    runner.enable()
    assert ended(order("hold")).done == 1
    assert failed


def test_a_draining_process_leaves_jobs_to_others(live):
    make_sessions(1)
    runner.enable()
    runner._is_draining = True
    order("hold")
    runner.run_jobs()
    assert runner.jobs._thread is None


def assert_each_item_is_counted_once(job):
    assert (job.status, job.done + job.skipped_count) == ("complete", MANY)
    assert job.done == done_count()
    entries = AuditEntry.objects.filter(action="clear").values_list("session_pk", flat=True)
    assert len(entries) == len(set(entries)) == job.done
    # A clear changes the epoch, so a session that was cleared twice would be counted as changed.
    assert set(job.skipped) <= {"unavailable"}


@pytest.mark.long
def test_a_killed_job_is_continued_without_repeating_an_item(start_runner):
    make_sessions(MANY)
    job = order("clear")
    killed = 0
    for part in (MANY // 5, MANY // 2):
        process = start_runner()
        wait_until_done(part)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += Job.objects.get().is_active
    assert killed >= 1
    start_runner()
    job = ended(job)
    assert_each_item_is_counted_once(job)
    assert job.skipped == {}


@pytest.mark.long
def test_a_paused_process_and_its_successor_act_once_on_each_item(start_runner):
    if connection.vendor == "sqlite":
        pytest.skip("a paused writer locks the whole file")
    make_sessions(MANY)
    job = order("clear")
    paused = start_runner()
    wait_until_done(MANY // 5)
    paused.send_signal(signal.SIGSTOP)
    fence = Job.objects.get().fence
    start_runner()
    wait_for(lambda: Job.objects.get().fence > fence, "no process takes the job over")
    paused.send_signal(signal.SIGCONT)
    assert_each_item_is_counted_once(ended(job))
    assert Session.objects.count() == MANY
