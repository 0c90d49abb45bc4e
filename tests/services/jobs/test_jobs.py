"""Jobs: filling, claims, slices, permissions, cancellation, undo, erasure, vacuum."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Count, Q
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory import services
from chatmemory.database.locks import locked_transaction
from chatmemory.errors import Conflict, NotFound
from chatmemory.models import AuditEntry, Job, JobItem, Session
from chatmemory.services import SERVER, Actor
from chatmemory.services.jobs import actions, run
from chatmemory.services.jobs import perform as performing
from chatmemory.services.jobs.claims import claim_job, claim_of, release_job
from chatmemory.services.jobs.create import Order, is_undoable, undo_job
from chatmemory.services.jobs.run import cancel_job, run_next, run_slice
from chatmemory.services.removal.vacuum import vacuum
from tests.factories import BY, make_session, make_user
from tests.locking import thread, waits_for_a_lock
from tests.servers import DEADLINE, wait_for
from tests.services.jobs.ordering import ORDER, act, finish, make_talks, order, outcomes, undo

pytestmark = [pytest.mark.django_db, pytest.mark.database]

OVERDUE = timedelta(seconds=60)


def expire_lease():
    Job.objects.update(lease_until=timezone.now() - OVERDUE)


def test_a_job_is_for_the_selected_sessions_and_no_later_ones():
    make_talks(3)
    job = order("hold", Session.objects.filter(key__in=["talk-0", "talk-2"]))
    make_session("talk-9")
    assert (finish(job).total, job.done) == (2, 2)
    held = Session.objects.filter(held_at__isnull=False).values_list("key", flat=True)
    assert set(held) == {"talk-0", "talk-2"}


def test_a_queryset_of_any_form_is_copied_once_for_each_session():
    """As a host's queryset: with a join that repeats rows, an annotation and an order."""
    for talk in make_talks(2):
        talk.tags.create(tag="a")
        talk.tags.create(tag="b")
    joined = Session.objects.filter(tags__tag__in=["a", "b"])
    annotated = joined.annotate(number=Count("turns")).filter(~Q(title="%s%%")).order_by("-title")
    assert order("hold", joined).total == order("hold", annotated).total == 2


def test_a_job_without_sessions_is_refused():
    with pytest.raises(NotFound):
        order("hold")
    assert not Job.objects.exists()


def test_the_fill_is_one_statement_for_any_number_of_sessions():
    make_talks(3)
    few = statements(order, "hold")
    for number in range(30):
        make_session(f"more-{number}")
    assert statements(order, "hold") == few
    assert Job.objects.latest("pk").total == 33


def statements(function, *args):
    with CaptureQueriesContext(connection) as queries:
        function(*args)
    return len(queries)


def test_a_job_is_claimed_once():
    make_talks(1)
    order("hold")
    claim = claim_job(owner="a")
    assert claim is not None
    assert claim_job(owner="b") is None
    assert (Job.objects.get().status, Job.objects.get().lease_owner) == ("running", "a")
    release_job(claim)
    assert claim_job(owner="b") is not None


def test_an_overdue_job_is_claimed_and_its_former_process_counts_nothing(monkeypatch):
    make_talks(4)
    order("hold")
    paused = claim_job(owner="paused")
    save = run._save_counts

    def save_late(executed, position):
        monkeypatch.undo()
        expire_lease()
        finish(Job.objects.get())  # another process
        return save(executed, position)

    monkeypatch.setattr(run, "_save_counts", save_late)
    assert run_slice(paused)
    job = Job.objects.get()
    assert (job.status, job.done, job.skipped) == ("complete", 4, {})
    assert AuditEntry.objects.filter(action="hold").count() == 4


def test_a_process_without_its_claim_does_not_act_on_a_completed_item(monkeypatch):
    """Its action was under way while another process completed the item."""
    make_talks(2)
    order("clear")
    claim = claim_job(owner="paused")
    assert claim is not None
    act_once = actions.ACTIONS["clear"].service

    def act_late(target):
        entry = act_once(target)
        item = JobItem.objects.filter(session_pk=target.session.pk)
        item.update(**JobItem.end_columns("done", entry_pk=0))
        return entry

    late = actions.Action(permission="clear_history", service=act_late)
    monkeypatch.setattr(performing, "ACTIONS", {"clear": late})
    run_slice(claim)
    # The transactions of the actions were rolled back, and so were these completions.
    assert set(Session.objects.values_list("first_seq", flat=True)) == {1}
    assert not AuditEntry.objects.exists()


def test_a_process_without_its_claim_leaves_the_job_to_its_successor(monkeypatch):
    make_talks(3)
    order("hold")
    paused = claim_job(owner="paused")
    assert paused is not None
    save = run._save_counts

    def save_late(executed, position):
        expire_lease()
        assert claim_job(owner="successor")
        return save(executed, position)

    monkeypatch.setattr(run, "_save_counts", save_late)
    assert run_slice(paused, seconds=0)
    job = Job.objects.get()
    assert (job.lease_owner, job.done, job.status) == ("successor", 0, "running")


def test_a_process_that_dies_before_the_mark_has_changed_nothing(monkeypatch):
    make_talks(2)
    job = order("clear")
    claim = claim_job(owner="killed")
    assert claim is not None

    def die(*args):
        raise SystemExit

    monkeypatch.setattr(run, "_mark_done", die)
    with pytest.raises(SystemExit):
        run_slice(claim)
    assert set(Session.objects.values_list("first_seq", flat=True)) == {1}
    assert not AuditEntry.objects.exists()
    monkeypatch.undo()
    expire_lease()
    assert (finish(job).done, job.skipped) == (2, {})


def test_the_smallest_job_is_next():
    make_talks(3)
    order("hold")
    small = order("tag", Session.objects.filter(key="talk-1"), tag="a")
    claim = claim_job(owner="a")
    assert claim is not None
    assert claim.job_pk == small.pk


@pytest.mark.slow
def test_a_slice_ends_after_its_time_and_the_next_one_continues():
    make_talks(run.CHUNK + 2)
    job = order("hold")
    slices = 0
    while claim := claim_job(owner="a"):
        slices += 1
        is_over = run_slice(claim, seconds=0)
        job.refresh_from_db()
        assert job.done == JobItem.objects.filter(outcome="done").count()
        assert is_over == (job.status == "complete")
    assert slices == run.CHUNK + 2
    assert (job.status, job.done, job.left) == ("complete", run.CHUNK + 2, 0)


def test_run_next_states_whether_a_job_waited():
    assert not run_next(owner="a")
    make_talks(1)
    order("hold")
    assert run_next(owner="a")
    assert Job.objects.get().status == "complete"


def test_a_job_for_an_owner_is_claimed_from_the_beginning():
    make_talks(1)
    job = order("hold", order=Order(by=BY, reason="", owner="request"))
    assert claim_job(owner="b") is None
    assert run_slice(claim_of(job))
    assert Job.objects.get().done == 1


def test_a_cancelled_job_keeps_what_it_has_done():
    make_talks(3)
    job = order("purge")
    claim = claim_job(owner="a")
    assert claim is not None
    run_slice(claim, seconds=0)
    assert cancel_job(job_pk=job.pk, by=BY)
    job.refresh_from_db()
    assert (job.status, job.done, job.total) == ("cancelled", 1, 3)
    assert job.cancelled_by == BY.label
    assert outcomes(job) == ["done"]
    assert not cancel_job(job_pk=job.pk, by=BY)
    assert claim_job(owner="a") is None
    assert finish(undo(job)).done == 1


@pytest.mark.slow
def test_a_process_stops_at_a_cancellation(monkeypatch):
    make_talks(run.CHUNK + 3)
    job = order("hold")
    claim = claim_job(owner="a")
    assert claim is not None
    save = run._save_counts

    def cancel_first(executed, position):
        assert cancel_job(job_pk=job.pk, by=BY)
        assert Job.objects.get().status == "running"
        return save(executed, position)

    monkeypatch.setattr(run, "_save_counts", cancel_first)
    assert run_slice(claim, seconds=DEADLINE)
    job.refresh_from_db()
    assert (job.status, job.done) == ("cancelled", run.CHUNK)


def test_a_cancellation_counts_what_a_killed_process_has_done():
    make_talks(3)
    job = order("hold")
    claim = claim_job(owner="killed")
    assert claim is not None
    executed = run._find_job(claim)
    assert executed is not None
    first = executed.items().order_by("session_pk").first()
    run._perform_item(executed, first)  # and no `_save_counts`
    expire_lease()
    assert cancel_job(job_pk=job.pk, by=BY)
    job.refresh_from_db()
    assert (job.status, job.done) == ("cancelled", 1)


def operator_order(*rights):
    user = make_user("olga", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    return Order(by=Actor.operator(user), reason="spam", permissions=rights)


@pytest.mark.parametrize(
    "change",
    [
        lambda user: user.user_permissions.clear(),
        lambda user: User.objects.update(is_active=False),
        lambda user: User.objects.update(is_staff=False),
        lambda user: User.objects.all().delete(),
    ],
    ids=["permission", "inactive", "no staff", "deleted"],
)
def test_a_job_fails_when_its_operator_loses_the_permission(change):
    make_talks(3)
    job = order("purge", order=operator_order("purge_history"))
    claim = claim_job(owner="a")
    assert claim is not None
    assert not run_slice(claim, seconds=0)
    change(User.objects.get())
    assert finish(job).status == "failed"
    assert (job.error, job.done, outcomes(job)) == ("forbidden", 1, ["done"])
    refusal = AuditEntry.objects.get(action="refused")
    assert (refusal.actor_label, refusal.reason) == ("olga", "purge_history")


@pytest.mark.regression
def test_a_job_stops_within_ten_sessions_when_its_operator_loses_the_permission(monkeypatch):
    make_talks(30, messages=1)
    job = order("hold", order=operator_order("hold_session"))
    hold = actions.ACTIONS["hold"]

    def revoke_at_the_twelfth(target):
        if AuditEntry.objects.filter(action="hold").count() == 11:
            User.objects.get().user_permissions.clear()
        return hold.service(target)

    monkeypatch.setitem(actions.ACTIONS, "hold", replace(hold, service=revoke_at_the_twelfth))
    claim = claim_job(owner="a")
    assert claim is not None
    assert run_slice(claim, seconds=DEADLINE)
    job.refresh_from_db()
    assert (job.status, job.error, job.done) == ("failed", "forbidden", 20)
    assert Session.objects.filter(held_at__isnull=False).count() == 20


@pytest.mark.parametrize("is_active", [True, False])
def test_an_operator_without_stored_permissions_needs_an_active_account(is_active):
    """As under a host that grants the permission in `has_…_permission`."""
    make_talks(1)
    job = order("purge", order=operator_order())
    User.objects.update(is_active=is_active)
    finish(job)
    assert (job.status, job.done) == (("complete", 1) if is_active else ("failed", 0))
    refused = AuditEntry.objects.filter(action="refused").values_list("reason", flat=True)
    assert list(refused) == ([] if is_active else ["purge_history"])


def test_a_job_of_a_permitted_operator_is_completed():
    make_talks(2)
    assert finish(order("purge", order=operator_order("view_session", "purge_history"))).done == 2


def test_a_damaged_session_does_not_stop_the_job(monkeypatch):
    first, _ = make_talks(2)
    act_once = actions.ACTIONS["hold"].service

    def fail(target):
        assert target.session.pk != first.pk
        return act_once(target)

    damaged = actions.Action(permission="hold_session", service=fail)
    monkeypatch.setattr(performing, "ACTIONS", {"hold": damaged})
    assert act("hold").skipped == {"internal": 1}
    assert Session.objects.filter(held_at__isnull=False).count() == 1


def test_a_job_is_undone_once():
    make_talks(1)
    job = act("hold")
    undo(job)
    with pytest.raises(Conflict):
        undo(job)


def test_an_undo_that_was_cancelled_can_be_repeated():
    make_talks(1)
    job = act("hold")
    assert cancel_job(job_pk=undo(job).pk, by=BY)
    assert finish(undo(job)).done == 1


def test_the_rest_of_a_job_can_be_undone_by_another_operator():
    """If the first one may act only on a part of the sessions."""
    make_talks(3)
    job = act("hold")
    assert undo_job(job=job, sessions=Session.objects.filter(key="talk-1"), order=ORDER).total == 1
    assert undo(job).total == 2
    with pytest.raises(Conflict):
        undo(job)


@pytest.mark.parametrize("action", ["restore", "stop", "end"])
def test_some_jobs_cannot_be_undone(action):
    make_talks(1)
    act("purge")
    job = act(action)
    with pytest.raises(Conflict):
        undo(job)


def test_an_active_or_old_job_cannot_be_undone():
    make_talks(2)
    with pytest.raises(Conflict):
        undo(order("hold"))
    job = act("tag", tag="a")
    Job.objects.filter(pk=job.pk).update(ended_at=timezone.now() - timedelta(days=31))
    with pytest.raises(Conflict):
        undo(job)


def test_an_undo_reaches_only_the_sessions_of_its_queryset():
    make_talks(2)
    job = act("hold")
    only = Session.objects.filter(key="talk-1")
    undone = finish(undo_job(job=job, sessions=only, order=ORDER))
    assert undone.total == 1
    assert Session.objects.get(held_at__isnull=True).key == "talk-1"


def test_an_erasure_leaves_no_address_in_a_waiting_item():
    ann = make_user("ann")
    make_session("secret", owner=ann)
    make_session("other")
    job = order("hold")
    services.erase_person(by=BY, scope=services.user_scope(ann), reason="asked")
    [erased, other] = JobItem.objects.order_by("session_pk")
    assert (erased.scope, erased.key, erased.outcome) == ("", "", "erased")
    assert (other.scope, other.key, other.outcome) == (SERVER, "other", "")
    assert (finish(job).done, job.skipped) == (1, {"erased": 1})


def texts_of_jobs():
    return list(Job.objects.order_by("pk").values_list("reason", "params"))


@pytest.mark.regression
def test_an_erasure_empties_the_texts_of_jobs_of_the_persons_sessions():
    ann = make_user("ann")
    make_session("anns", owner=ann)
    make_session("other")
    tagged = act("tag", tag="ann is ill")
    act("tag", Session.objects.filter(key="other"), tag="spam")
    assert is_undoable(tagged)
    services.erase_person(by=BY, scope=services.user_scope(ann), reason="asked")
    assert texts_of_jobs() == [("", {}), ("spam", {"tag": "spam"})]
    tagged.refresh_from_db()
    assert not is_undoable(tagged)


@pytest.mark.regression
def test_a_job_that_runs_during_an_erasure_empties_its_texts_at_its_end():
    ann = make_user("ann")
    make_session("anns", owner=ann)
    make_session("other")
    job = order("tag", tag="ann is ill")
    claim = claim_job(owner="a")
    assert claim is not None
    assert not run_slice(claim, seconds=0)
    services.erase_person(by=BY, scope=services.user_scope(ann), reason="asked")
    assert texts_of_jobs() == [("spam", {"tag": "ann is ill"})]
    assert finish(job).done == 2
    assert texts_of_jobs() == [("", {})]


@pytest.mark.django_db(transaction=True)
def test_a_job_that_ends_while_an_erasure_commits_empties_its_texts(postgresql):
    """The erasure waits for the row of the job; without that, neither sees the other."""
    ann = make_user("ann")
    make_session("first", owner=ann)
    make_session("second")
    order("tag", tag="ann is ill")
    first = claim_job(owner="a")
    assert first is not None
    assert not run_slice(first, seconds=0)
    claim = claim_job(owner="a")
    assert claim is not None
    with thread() as in_thread:
        with locked_transaction():
            assert run_slice(claim)
            of_ann = {"by": BY, "scope": services.user_scope(ann), "reason": "asked"}
            erasing = in_thread(services.erase_person, **of_ann)
            wait_for(waits_for_a_lock, "the erasure does not wait for the job")
        assert erasing.result(DEADLINE).sessions == 1
    assert texts_of_jobs() == [("", {})]


def test_the_vacuum_deletes_jobs_after_the_time_for_an_undo():
    make_talks(3)
    old, recent, waiting = act("hold"), act("tag", tag="a"), order("release")
    Job.objects.filter(pk=old.pk).update(ended_at=timezone.now() - timedelta(days=31))
    vacuum(dry_run=True)
    assert Job.objects.count() == 3
    vacuum(chunk=2)
    assert set(Job.objects.all()) == {recent, waiting}
    assert JobItem.objects.count() == 6


def test_a_slice_needs_no_more_statements_than_the_services_and_a_mark():
    """Each item: the lock of its session, the service, and the mark, in one transaction."""
    talks = make_talks(12)
    few = statements(act, "hold", Session.objects.filter(pk__lt=talks[2].pk))
    more = statements(act, "hold", Session.objects.filter(pk__gte=talks[2].pk))
    one = statements(hold, make_session("alone"))
    # Begin, lock, mark and commit; the lock is two statements on SQLite.
    assert 8 * one < more - few <= 8 * (one + 5)


def hold(session):
    where = {"session_key": session.key, "scope": session.scope, "session_pk": session.pk}
    assert services.hold_session(by=BY, reason="", **where)
