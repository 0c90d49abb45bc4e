"""`chatmemory_maintain` does what is due, once, also with two hosts and after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.db.models import F

from chatmemory import services
from chatmemory.management.commands import chatmemory_maintain
from chatmemory.models import DatabaseNow, Maintenance, Message, Session
from chatmemory.services.maintenance import lease
from chatmemory.services.maintenance.lease import only_here
from tests.factories import BY, make_messages, make_session
from tests.locking import concurrently
from tests.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

COMMANDS = ("expire", "vacuum", "audit_verify", "check", "statistics")
ROOT = Path(__file__).resolve().parent.parent.parent


def maintain(**options: Any) -> dict[str, str]:
    """Call the command; return the state of each of the others."""
    return {line["command"].partition("_")[2]: line["state"] for line in lines(**options)}


def lines(**options: Any) -> list[dict[str, Any]]:
    output = StringIO()
    call_command("chatmemory_maintain", json=True, stdout=output, **options)
    return [json.loads(line) for line in output.getvalue().splitlines()]


def pass_time(**ago: float) -> None:
    tasks = Maintenance.objects.exclude(name="maintain")
    tasks.update(succeeded_at=F("succeeded_at") - timedelta(**ago))


def make_remains() -> None:
    """Store an expired session, and one whose messages the vacuum deletes."""
    for name in ("old", "gone"):
        make_session(name)
        at: dict[str, Any] = {"session_key": name, "by": BY, "scope": "server"}
        services.append_messages(**at, messages=make_messages("a", "b"))
    services.clear_session(**at, reason="")
    Session.objects.filter(key="old").update(expires_at=DatabaseNow() - timedelta(days=1))


def is_maintained() -> bool:
    """Whether each task has succeeded, and done its work."""
    tasks = Maintenance.objects.exclude(name="maintain")
    is_empty = not Session.objects.filter(key="old") and not Message.stored.exists()
    return is_empty and {task.is_ok for task in tasks} == {True}


@pytest.fixture(autouse=True)
def no_undo(settings: Any) -> None:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}


def test_each_command_runs_when_its_task_is_due():
    make_remains()
    first = maintain()
    # The vacuum also verifies and seals the audit, and counts the daily figures.
    assert first == {
        "expire": "done",
        "vacuum": "done",
        "audit_verify": "not_due",
        "check": "done",
        "statistics": "not_due",
        "search": "done",
    }
    assert is_maintained()
    assert set(maintain().values()) == {"not_due"}
    pass_time(hours=21)
    assert set(maintain().values()) == {"not_due"}
    pass_time(hours=2)  # a nightly run that begins an hour earlier
    assert maintain() == {**first, "check": "not_due"}
    pass_time(days=7)
    assert maintain() == first


def test_with_a_head_file_the_audit_is_verified_each_time(tmp_path):
    file = tmp_path / "head"
    file.touch()
    make_remains()
    assert [maintain(head_file=str(file))["audit_verify"] for _ in range(2)] == ["done"] * 2
    assert file.read_text().startswith("2:")
    file.unlink()
    with pytest.raises(CommandError, match="chatmemory_audit_verify"):
        maintain(head_file=str(file))


def test_a_dry_run_only_names_what_is_due():
    assert set(maintain(dry_run=True).values()) == {"due"}
    assert not Maintenance.objects.exists()


def test_a_command_that_fails_stops_no_other(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RETENTION": [{"max_age": -1}]}
    output = StringIO()
    with pytest.raises(CommandError, match=r"^Failed: chatmemory_expire\."):
        call_command("chatmemory_maintain", json=True, stdout=output)
    states = {line["command"]: line for line in map(json.loads, output.getvalue().splitlines())}
    assert states["chatmemory_expire"]["state"] == "failed"
    assert "an age must be above 0" in states["chatmemory_expire"]["output"]
    assert states["chatmemory_vacuum"]["state"] == states["chatmemory_check"]["state"] == "done"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RETENTION": []}
    assert maintain()["expire"] == "done"


def test_an_unexpected_error_is_logged_and_stops_no_other(monkeypatch, caplog):
    def call(name: str, **options: Any) -> None:
        if name == "chatmemory_vacuum":
            raise LookupError("secret")
        call_command(name, **options)

    monkeypatch.setattr(chatmemory_maintain, "call_command", call)
    output = StringIO()
    with pytest.raises(CommandError, match="chatmemory_vacuum"):
        call_command("chatmemory_maintain", stdout=output)
    assert "chatmemory_vacuum: failed\n  LookupError; the log has the details." in output.getvalue()
    assert "chatmemory_check: done" in output.getvalue()
    assert "secret" not in output.getvalue() + caplog.text


def test_a_database_error_before_a_command_stops_no_other(monkeypatch):
    faults, read = [OperationalError()], chatmemory_maintain.read_maintenance

    def fail_after_the_first() -> Any:
        if faults and Maintenance.objects.filter(name="expire", is_ok=True).exists():
            raise faults.pop()
        return read()

    monkeypatch.setattr(chatmemory_maintain, "read_maintenance", fail_after_the_first)
    output = StringIO()
    with pytest.raises(CommandError, match=r"^Failed: chatmemory_vacuum\."):
        call_command("chatmemory_maintain", json=True, stdout=output)
    states = {
        line["command"]: line["state"]
        for line in map(json.loads, output.getvalue().split("\n")[:-1])
    }
    assert states["chatmemory_vacuum"] == "failed"
    assert states["chatmemory_audit_verify"] == states["chatmemory_check"] == "done"


def test_while_one_process_works_another_does_nothing():
    with only_here() as is_here:
        assert is_here()
        assert lines()[0]["state"] == "elsewhere"
    assert maintain()["expire"] == "done"


def test_of_simultaneous_calls_one_does_the_work(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    make_remains()
    # A call that begins after the end of another one finds nothing due.
    states = [[line["state"] for line in found] for found in concurrently(*[lines] * 4)]
    assert sum("done" in found for found in states) == 1
    assert is_maintained()


def test_the_lease_is_renewed_and_expires_with_its_process(monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    row = Maintenance.objects.filter(name="maintain")
    with only_here():
        row.update(started_at=DatabaseNow() - timedelta(hours=1))
        young = row.filter(started_at__gt=DatabaseNow() - 2 * lease.LEASE)
        wait_for(young.exists, "the lease is not renewed")
    # As a process leaves it that was killed.
    row.update(started_at=DatabaseNow(), ended_at=None, counts={"owner": "dead"})
    with only_here() as is_here:
        assert not is_here()
    row.update(started_at=DatabaseNow() - 2 * lease.LEASE)
    with only_here() as is_here:
        assert is_here()


def test_a_process_that_loses_the_lease_begins_no_other_task(monkeypatch):
    """As after a pause: another process has claimed the expired lease."""
    row = Maintenance.objects.filter(name="maintain")

    def call(name: str, **options: Any) -> None:
        call_command(name, **options)
        row.update(started_at=DatabaseNow(), counts={"owner": "another"})

    monkeypatch.setattr(chatmemory_maintain, "call_command", call)
    done, elsewhere = lines()
    assert (done["command"], done["state"]) == ("chatmemory_expire", "done")
    assert elsewhere == {"state": "elsewhere"}
    assert not Maintenance.objects.filter(name="vacuum").exists()
    assert row.get().counts == {"owner": "another"}  # which still has it
    assert row.get().ended_at is None


def test_a_lease_that_expired_unclaimed_is_renewed_before_the_next_task(monkeypatch):
    row = Maintenance.objects.filter(name="maintain")

    def call(name: str, **options: Any) -> None:
        call_command(name, **options)
        row.update(started_at=DatabaseNow() - 2 * lease.LEASE)

    monkeypatch.setattr(chatmemory_maintain, "call_command", call)
    assert "elsewhere" not in maintain().values()


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("name", COMMANDS)
def test_after_a_kill_in_a_command_the_next_run_completes_it(live_database_env, name, count):
    make_remains()
    process = subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, "-m", "tests.maintaining", f"chatmemory_{name}", str(count)],
        env={**os.environ, **live_database_env},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    is_reached = any(line.startswith("in ") for line in process.stdout)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    is_called = name not in ("audit_verify", "statistics")  # the vacuum does their tasks
    assert is_reached is is_called
    if is_called:
        assert lines()[0]["state"] == "elsewhere"
    Maintenance.objects.filter(name="maintain").update(started_at=DatabaseNow() - 2 * lease.LEASE)
    maintain()
    assert is_maintained()
