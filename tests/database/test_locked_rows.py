"""A locked row delays its own session and nothing else."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from chatmemory import services
from chatmemory.access.tickets import MAX_DELETED, MAX_TICKETS
from chatmemory.errors import MemoryUnavailable
from chatmemory.live.runner import runner
from chatmemory.models import AuditAction, Ticket, Turn
from chatmemory.services import Actor
from chatmemory.services.audit.entries import record
from chatmemory.services.audit.seals import seal_audit
from chatmemory.services.turns import progress, recovery
from tests import responders_for_tests
from tests.factories import make_session, make_user
from tests.locking import locked, second_connection
from tests.servers import own_threads, wait_for

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database,
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks no rows"),
]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def ann(transactional_db):
    return make_user("ann")


def run(user, key, owner="p1", client_id="c1"):
    """Admit and start a turn; return its claim."""
    make_session(key, owner=user)
    admitted = services.admit_turn(
        session_key=key, client_id=client_id, content="hi", by=Actor.user(user), owner=owner
    )
    assert progress.start_turn(claim=admitted.claim)
    return admitted.claim


def turn_of(claim):
    return Turn.objects.get(pk=claim.turn_pk)


@pytest.fixture
def live(settings, monkeypatch):
    """Let this process run turns, with short times."""
    settings.CHATMEMORY = {"RESPONDER": "tests.responders_for_tests.slow"}
    monkeypatch.setattr(runner.keeper, "seconds", 0.1)
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.2)
    with own_threads():
        yield
    responders_for_tests.GO.set()


@pytest.mark.slow
@pytest.mark.regression
def test_the_keeper_renews_all_leases_except_that_of_a_locked_turn(ann, live):
    runner.enable()
    for key in ("a", "b", "c"):
        make_session(key, owner=ann)
        at = {"session_key": key, "by": Actor.user(ann), "client_id": key}
        runner.launch(services.admit_turn(**at, content="hi", owner=runner.owner).claim)
    wait_for(lambda: Turn.objects.filter(started_at__isnull=False).count() == 3, "not started")
    with locked(Turn.objects.get(client_id="a")):
        before = Turn.objects.get(client_id="b").lease_until
        others = Turn.objects.filter(client_id__in=["b", "c"], status="running")
        # A renewal that had begun before the lock is older.
        renewed = others.filter(lease_until__gt=before + timedelta(seconds=1))
        wait_for(lambda: renewed.count() == 2, "they are not renewed beside the locked turn")


@pytest.mark.regression
def test_without_skip_locked_only_the_locked_lease_is_not_renewed(ann, monkeypatch):
    monkeypatch.setattr(connection.features, "has_select_for_update_skip_locked", False)
    claims = [run(ann, key) for key in ("a", "b", "c")]
    Turn.objects.update(lease_until=LONG_AGO)
    with locked(turn_of(claims[1])):
        progress.renew_leases(claims=claims)
        assert [turn_of(claim).lease_until > LONG_AGO for claim in claims] == [True, False, True]


def test_only_started_runs_of_their_owner_are_renewed(ann):
    started = run(ann, "a")
    make_session("b", owner=ann)
    claimed = services.admit_turn(
        session_key="b", client_id="c1", content="hi", by=Actor.user(ann), owner="p1"
    ).claim
    Turn.objects.update(lease_until=LONG_AGO)
    claims = [started, claimed]
    progress.renew_leases(claims=[replace(claim, owner="p2") for claim in claims])
    assert Turn.objects.overdue().count() == 2
    progress.renew_leases(claims=claims)
    assert Turn.objects.overdue().get() == turn_of(claimed)


@pytest.mark.regression
@pytest.mark.parametrize("write", ["start", "save", "stop", "finish"])
def test_a_write_to_a_locked_turn_ends_after_the_lock_timeout(ann, settings, write):
    settings.CHATMEMORY = {"LOCK_TIMEOUT": 1}
    make_session(owner=ann)
    talk = {"session_key": "talk", "by": Actor.user(ann)}
    claim = services.admit_turn(**talk, client_id="c1", content="hi", owner="p1").claim
    calls = {
        "start": lambda: progress.start_turn(claim=claim),
        "save": lambda: progress.save_partial(claim=claim, text="So far", step=0),
        "stop": lambda: services.stop_turn(**talk, turn="c1"),
        "finish": lambda: progress.finish_turn(
            claim=claim, status="complete", message={"role": "assistant", "content": "So."}
        ),
    }
    with locked(turn_of(claim)), pytest.raises(MemoryUnavailable):  # not after 20 s or more
        calls[write]()
    assert calls[write]()


@pytest.mark.regression
@pytest.mark.parametrize("table", ["session", "turn"])
def test_a_sweep_skips_locked_rows(ann, settings, table):
    settings.CHATMEMORY = {"LOCK_TIMEOUT": 20, "TURNS_PER_USER": None}
    claims = [run(ann, key) for key in "abcd"]
    Turn.objects.update(lease_until=LONG_AGO)
    rows = [turn_of(claim) for claim in claims[1:]]
    with locked(*(rows if table == "turn" else [turn.session for turn in rows])):
        ended = recovery.recover_all_overdue_turns()  # with a wait, the locks end first, after 20 s
        assert (ended.interrupted, ended.failed) == (1, 3)
    assert recovery.recover_all_overdue_turns().interrupted == 3


def expired_tickets(number):
    """Store tickets that have expired, with as many users."""
    rows = [
        Ticket(digest=str(n), owner=f"user:gone {n}", proof="", login="", expires_at=LONG_AGO)
        for n in range(number)
    ]
    Ticket.objects.bulk_create(rows)
    return Ticket.objects.order_by("pk")


@pytest.mark.regression
def test_a_locked_expired_ticket_delays_no_other_ticket(ann, settings):
    settings.CHATMEMORY = {"LOCK_TIMEOUT": 20}
    locked_ticket = expired_tickets(3)[1]
    began = time.monotonic()
    with locked(locked_ticket):
        ticket = services.issue_ticket(by=Actor.user(ann))
        assert services.use_ticket(ticket=ticket).actor.id == str(ann.pk)
    assert time.monotonic() - began < 10  # with a wait, the lock ends first, after 20 s
    assert list(Ticket.objects.all()) == [locked_ticket]


def test_without_skip_locked_a_ticket_is_issued_and_expired_ones_stay(ann, monkeypatch):
    monkeypatch.setattr(connection.features, "has_select_for_update_skip_locked", False)
    locked_ticket = expired_tickets(3)[1]
    with locked(locked_ticket):
        assert services.issue_ticket(by=Actor.user(ann))
    assert Ticket.objects.filter(expires_at=LONG_AGO).count() == 3


@pytest.mark.regression
def test_a_locked_ticket_can_be_used_later(ann, settings):
    settings.CHATMEMORY = {"LOCK_TIMEOUT": 1}
    ticket = services.issue_ticket(by=Actor.user(ann))
    with locked(Ticket.objects.get()), pytest.raises(MemoryUnavailable):  # not after 20 s or more
        services.use_ticket(ticket=ticket)
    assert services.use_ticket(ticket=ticket)


def test_one_issue_deletes_a_bounded_number_of_expired_tickets(ann):
    expired_tickets(MAX_DELETED + 5)
    services.issue_ticket(by=Actor.user(ann))
    assert Ticket.objects.filter(expires_at=LONG_AGO).count() == 5


def test_expired_tickets_do_not_count_as_unused(ann):
    Ticket.objects.bulk_create(
        Ticket(digest=str(n), owner=f"user:{ann.pk}", proof="", login="", expires_at=LONG_AGO)
        for n in range(MAX_TICKETS)
    )
    with locked(*Ticket.objects.all()):
        assert services.issue_ticket(by=Actor.user(ann))


@contextmanager
def uncommitted_seal(number):
    """Let another connection insert a seal with this number without a commit."""
    with second_connection() as other, other.cursor() as cursor:
        other.set_autocommit(False)
        if other.vendor == "postgresql":
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '20s'")
        cursor.execute(
            "INSERT INTO chatmemory_auditseal (number, entry_pk, digest, created_at) "
            "VALUES (%s, 0, '', now())",
            [number],
        )
        try:
            yield
        finally:
            other.rollback()


@pytest.mark.regression
def test_sealing_ends_after_the_lock_timeout_while_another_seal_is_uncommitted(ann, settings):
    settings.CHATMEMORY = {"LOCK_TIMEOUT": 1}
    record(make_session(owner=ann), AuditAction.HOLD, Actor.server("test"), "")
    with uncommitted_seal(1), pytest.raises(MemoryUnavailable):  # not after 20 s or more
        seal_audit()
    assert seal_audit() == 1
