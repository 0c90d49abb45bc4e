"""Records of maintenance: each task stores when it ran, and its result."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from chatmemory import services
from chatmemory.errors import MemoryUnavailable
from chatmemory.models import AuditEntry, Maintenance, Session
from chatmemory.services.audit.seals import seal_audit, verify_audit
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.retention.retention import expire_sessions
from tests.factories import TALK, make_messages, make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def record(name: str) -> Maintenance:
    return Maintenance.objects.get(name=name)


@pytest.mark.parametrize(
    ("name", "run", "counts"),
    [
        ("expire", expire_sessions, {"sessions": 0, "messages": 0, "left": 0}),
        ("vacuum", vacuum, {"sessions": 0, "messages": 0, "turns": 0, "emptied": 0, "left": 0}),
        ("seal", seal_audit, {"entries": 1}),
        ("verify", lambda: list(verify_audit()), {"findings": 0}),
        ("check", lambda: list(check_integrity()), {"findings": 0}),
    ],
)
def test_a_task_records_its_run(name, run, counts):
    make_session()
    services.archive_session(**TALK, reason="done")
    for _ in range(2):
        run()
    found = record(name)
    assert (found.is_ok, found.counts) == (
        True,
        counts | ({"entries": 0} if name == "seal" else {}),
    )
    assert found.started_at <= found.ended_at <= found.succeeded_at


def test_what_changes_or_reads_only_a_part_is_no_run():
    make_session()
    expire_sessions(dry_run=True)
    vacuum(dry_run=True)
    list(check_integrity(scope="server"))
    list(check_integrity(session_pk=Session.objects.get().pk))
    assert not Maintenance.objects.exists()


def test_findings_are_no_success():
    make_session()
    services.append_messages(**TALK, messages=make_messages("a"))
    list(check_integrity())
    succeeded_at = record("check").succeeded_at
    Session.objects.update(waiting=2)
    assert list(check_integrity())
    found = record("check")
    assert (found.is_ok, found.succeeded_at) == (False, succeeded_at)
    assert found.counts["findings"] >= 1
    assert found.ended_at > succeeded_at
    list(check_integrity(repair_by=TALK["by"]))
    assert record("check").is_ok is True


def test_a_changed_audit_is_no_success():
    make_session()
    services.archive_session(**TALK, reason="done")
    seal_audit()
    AuditEntry.objects.update(reason="other")
    assert list(verify_audit())
    assert (record("verify").is_ok, record("verify").succeeded_at) == (False, None)


def broken(table: str) -> Any:
    """Return a wrapper that fails each statement on this table."""

    def fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if table in sql:
            raise OperationalError("broken")
        return execute(sql, params, many, context)

    return connection.execute_wrapper(fail)


def test_an_error_in_a_callers_transaction_is_raised_without_a_record():
    with broken("chatmemory_session"), pytest.raises(MemoryUnavailable), transaction.atomic():
        expire_sessions()
    assert not Maintenance.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_error_is_recorded_by_its_code():
    make_session()
    with broken("chatmemory_session"), pytest.raises(MemoryUnavailable):
        expire_sessions()
    found = record("expire")
    assert (found.is_ok, found.counts) == (False, {"error": "unavailable"})


@pytest.mark.django_db(transaction=True)
def test_a_record_that_cannot_be_stored_stops_no_task():
    make_session()
    with broken("chatmemory_maintenance"):
        assert expire_sessions().left == 0
        assert list(check_integrity()) == []
    assert not Maintenance.objects.exists()
