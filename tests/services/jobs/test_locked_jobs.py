"""Jobs whose rows a paused process has locked: no other process waits for them without a limit."""

from __future__ import annotations

import pytest
from django.db import connection

from chatmemory.errors import MemoryUnavailable
from chatmemory.models import DatabaseNow, Job
from chatmemory.services.jobs.claims import claim_job, release_job
from chatmemory.services.jobs.run import cancel_job, run_next, run_slice
from tests.factories import BY, make_session
from tests.locking import locked
from tests.services.jobs.ordering import finish, order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _short_waits(settings):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks no rows")
    settings.CHATMEMORY = {"LOCK_TIMEOUT": 0.2}


def test_a_locked_job_delays_no_other_job():
    make_session("a")
    stuck, other = order("hold"), order("archive")
    with locked(stuck):
        assert claim_job(owner="a", job_pk=stuck.pk) is None
        assert run_next(owner="a")
        other.refresh_from_db()
        assert other.status == "complete"
        with pytest.raises(MemoryUnavailable):
            cancel_job(job_pk=stuck.pk, by=BY)
    assert finish(stuck).done == 1


def test_a_locked_job_is_continued_after_its_lease():
    make_session("a")
    job = order("hold")
    for give_up in (run_slice, release_job):
        claim = claim_job(owner="a")
        assert claim is not None
        with locked(Job.objects.get()), pytest.raises(MemoryUnavailable):
            give_up(claim)
        assert claim_job(owner="b") is None
        Job.objects.update(lease_until=DatabaseNow())
    assert finish(job).done == 1


def test_a_locked_item_is_left_to_the_process_that_holds_it():
    make_session("a")
    job = order("hold")
    claim = claim_job(owner="a")
    assert claim is not None
    with locked(job.items.get()), pytest.raises(MemoryUnavailable):
        run_slice(claim)
    assert job.items.get().outcome == ""
    Job.objects.update(lease_until=DatabaseNow())
    assert finish(job).done == 1
