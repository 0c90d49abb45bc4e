"""What an optional app registers: its effect, repeated and contradicting registrations, errors."""

from __future__ import annotations

import logging
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from io import StringIO

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import TextChoices
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.checks.values import check_settings
from chatmemory.conf import Setting, Settings, register_settings
from chatmemory.live import sweep
from chatmemory.live.hub import hub
from chatmemory.live.sweep import register_sweep
from chatmemory.management import roles
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    Feedback,
    Maintenance,
    Message,
    Session,
    SessionTag,
    Turn,
)
from chatmemory.services.audit import actions
from chatmemory.services.audit.actions import register_audit_action
from chatmemory.services.audit.entries import record
from chatmemory.services.health import facts
from chatmemory.services.maintenance import tasks
from chatmemory.services.maintenance.records import recorded
from chatmemory.services.removal import deletions
from chatmemory.services.removal.deletions import DeletionCounter, register_counter
from chatmemory.services.removal.vacuum import Vacuumed, vacuum, vacuum_session
from tests.admin.visits import operator
from tests.extension import calls
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.servers import wait_for

pytestmark = [pytest.mark.django_db, pytest.mark.database]

HEALTH = "/admin/chatmemory/maintenance/"


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """Restore what the tests register, and without other optional apps."""
    monkeypatch.setattr(tasks, "_schedules", dict(tasks._schedules))
    monkeypatch.setattr(roles, "_added", deepcopy(roles._added))
    monkeypatch.setattr(facts, "_facts", {})
    monkeypatch.setattr(actions, "_actions", dict(actions._actions))
    monkeypatch.setattr(deletions, "_counters", {})
    for called in (calls.dust, calls.counted, calls.prepared):
        called.clear()


@pytest.fixture
def install(settings):
    """Return a function that loads the app as Django does, also again."""

    def load():
        with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "tests.extension"]):
            pass

    load()
    return load


class Other(TextChoices):
    VACUUM = "vacuum", "another vacuum"
    SWEEP = "sweep", "another sweep"


def rows_of_health():
    return {row[-1]: row for row in operator("view_health").get(HEALTH).context["tables"][0].rows}


def test_health_shows_a_registered_task_with_its_interval_and_command(install):
    with recorded(calls.Task.SWEEP) as outcome:
        outcome.counts = {"rooms": 3}
    label, state, interval, *_, result, command = rows_of_health()["extension_sweep"]
    assert (label, state, interval) == ("sweep the floor", "good", "every 2 days")
    assert (result, command) == ("rooms 3", "extension_sweep")


def test_a_task_that_is_not_registered_is_not_recorded():
    with (
        pytest.raises(LookupError, match="Unknown maintenance task 'sweep'"),
        recorded(calls.Task.SWEEP),
    ):
        raise AssertionError("must not run")
    assert not Maintenance.objects.exists()


@pytest.mark.parametrize("task", Other)
def test_two_tasks_cannot_have_the_same_code(install, task):
    with pytest.raises(ValueError, match=f"Another maintenance task has the code '{task.value}'"):
        tasks.register_task(task, days=2, command="extension_sweep")


def test_a_task_cannot_have_two_intervals(install):
    with pytest.raises(ValueError, match="Another maintenance task"):
        tasks.register_task(calls.Task.SWEEP, days=3, command="extension_sweep")


AUDIT = "/admin/chatmemory/auditentry/"


def test_the_audit_shows_a_registered_action_and_filters_by_it(install):
    install()  # again
    session = make_session()
    record(session, calls.Recorded.SWEEP, BY, "spring")
    record(session, AuditAction.HOLD, BY, "")
    page = operator("view_audit", "view_session").get(AUDIT, {"action_is": "extension_sweep"})
    assert [entry.action for entry in page.context["cl"].result_list] == ["extension_sweep"]
    assert page.content.decode().count("Floor swept") == 2  # the row, and the filter


def test_the_audit_records_only_registered_actions():
    with pytest.raises(LookupError, match="Unknown action 'extension_sweep'"):
        record(make_session(), calls.Recorded.SWEEP, BY, "")
    assert not AuditEntry.objects.exists()


class WrongAction(TextChoices):
    TAKEN = "hold", "Held by another app"
    LONG = "x" * 33, "Too long"


@pytest.mark.parametrize("action", WrongAction)
def test_an_action_needs_a_code_of_its_own_that_fits(action):
    with pytest.raises(ValueError, match=r"Another audit action has|is longer than 32"):
        register_audit_action(action)
    with pytest.raises(LookupError):
        record(make_session(), action, BY, "")


def test_a_registered_action_is_no_migration(install):
    call_command("makemigrations", "chatmemory", check=True, dry_run=True, stdout=StringIO())


def test_health_shows_a_registered_fact(install):
    calls.dust.append(7)
    page = operator("view_health").get(HEALTH)
    assert "Dust" in page.content.decode()
    fact = page.context["facts"][-1]
    assert (fact.label, fact.value, fact.is_bad, fact.advice) == ("Dust", "7", True, "Sweep.")


def test_a_fact_that_raises_is_marked_and_hides_no_other(install, caplog):
    page = operator("view_health").get(HEALTH)
    *others, fact = page.context["facts"]
    assert (page.status_code, fact.value, fact.is_bad) == (200, "cannot be read", True)
    assert {"Database", "Turns that wait now"} <= {other.label for other in others}
    assert "a fact of Health cannot be read: builtins.IndexError" in caplog.text


def test_two_facts_cannot_have_the_same_code(install):
    with pytest.raises(ValueError, match="Another fact has the code 'extension'"):
        facts.register_fact("extension", label="Dust", read=lambda: calls.read_dust())


def test_a_role_gets_the_permission_of_another_app(install):
    call_command("chatmemory_roles", stdout=StringIO())
    group = Group.objects.get(name="Chat auditor")
    assert group.permissions.filter(content_type__app_label="auth", codename="view_user").exists()


def test_a_permission_that_does_not_exist_creates_no_group(install):
    Permission.objects.filter(codename="view_user").delete()
    with pytest.raises(CommandError, match="Run migrate first"):
        call_command("chatmemory_roles", stdout=StringIO())
    assert not Group.objects.exists()


def test_a_permission_that_a_role_has_already_changes_nothing(install, monkeypatch):
    monkeypatch.setattr(roles, "_added", defaultdict(list))
    before = roles.roles()
    roles.extend_role("Chat auditor", "chatmemory.view_audit")
    assert roles.roles() == before


def test_an_unknown_role_cannot_be_extended():
    with pytest.raises(LookupError, match="Unknown role 'Chat boss'; the roles are Chat support,"):
        roles.extend_role("Chat boss", "auth.view_user")


def test_an_app_that_is_loaded_again_registers_nothing_else(install):
    def registered():
        return [tasks.schedules(), facts.registered_facts(), deletions._counters, roles.roles()]

    before = deepcopy(registered()[2]), [len(found) for found in registered()]
    install()
    assert (registered()[2], [len(found) for found in registered()]) == before
    assert roles.roles()["Chat auditor"].count("auth.view_user") == 1


def fill(**columns):
    """Store a session with two messages, a turn and its feedback."""
    session = make_session(**columns)
    at = {"session_key": session.key, "scope": session.scope, "by": BY}
    services.append_messages(**at, messages=make_messages("a", "b"))
    Turn.objects.create(session=session, client_id="t", status="complete", user_seq=1, epoch=1)
    Feedback.objects.create(session=session, turn="t", user_seq=1, value=1)
    return session


def erase(session):
    services.erase_person(scope=session.scope, by=BY, reason="asked")


def purge_and_vacuum(session):
    services.purge_session(**TALK, reason="")
    with override_settings(CHATMEMORY={"UNDO_DAYS": 0}):
        assert vacuum() == Vacuumed(sessions=1, messages=2, turns=1)


@pytest.mark.parametrize("delete", [erase, purge_and_vacuum])
def test_rows_are_counted_before_they_are_deleted(install, delete):
    delete(fill())
    total = {kind: sum(one[kind] for one in calls.counted) for kind in calls.counted[0]}
    assert total == {"turns": 1, "messages": 2, "feedback": 1, "sessions": 1}
    assert not Session.objects.exists()


def test_a_counter_prepares_before_a_vacuum(install):
    def progress(done, total):
        pass

    vacuum(dry_run=True)
    assert calls.prepared == []
    vacuum(progress=progress)
    assert calls.prepared == [progress]


def test_two_counters_cannot_have_the_same_code(install):
    counter = deletions._counters["extension"]
    with pytest.raises(ValueError, match="Another counter has the code 'extension'"):
        register_counter("extension", replace(counter, count=lambda _: None))


def fail(*_args):
    raise RuntimeError("secret text")


@pytest.mark.parametrize("delete", [erase, purge_and_vacuum])
def test_a_counter_that_raises_prevents_no_deletion_and_no_other_counter(caplog, delete):
    register_counter("broken", DeletionCounter(count=fail, prepare=fail))
    register_counter("extension", DeletionCounter(count=calls.count, prepare=calls.prepare))
    delete(fill())
    assert not Session.objects.exists() | Message.stored.exists() | Turn.objects.exists()
    assert sum(one["messages"] for one in calls.counted) == 2
    assert "rows are deleted that broken did not count: builtins.RuntimeError" in caplog.text
    assert "secret text" not in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.parametrize("delete", [erase, purge_and_vacuum])
def test_what_a_counter_wrote_before_it_raised_is_rolled_back(delete):
    other = make_session("other")

    def write_and_fail(_deletion):
        SessionTag.objects.create(session=other, tag="counted")
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")

    register_counter("broken", DeletionCounter(count=write_and_fail, prepare=fail))
    owner = {"owner": make_user()} if delete is erase else {}
    delete(fill(**owner))
    assert (Session.objects.get(), SessionTag.objects.count()) == (other, 0)


def test_an_error_that_has_ended_the_transaction_is_raised():
    """As of MariaDB after a deadlock: the transaction, with its savepoint, does not exist."""

    def end_savepoint(_deletion):
        with connection.cursor() as cursor:
            cursor.execute(f"RELEASE SAVEPOINT {connection.ops.quote_name(savepoint())}")
        fail()

    def savepoint():
        return connection.savepoint_ids[-1]

    session = fill()
    services.trim_session(**TALK, keep_last=0, reason="")
    register_counter("broken", DeletionCounter(count=end_savepoint, prepare=fail))
    with override_settings(CHATMEMORY={"UNDO_DAYS": 0}), pytest.raises(RuntimeError):
        vacuum_session(session.pk)
    assert Message.stored.count() == 2


def test_without_a_counter_a_deletion_opens_no_savepoint():
    def cost(**columns):
        session = fill(**columns)
        at = {"session_key": session.key, "scope": session.scope, "by": BY}
        services.trim_session(**at, keep_last=0, reason="")
        with (
            override_settings(CHATMEMORY={"UNDO_DAYS": 0}),
            CaptureQueriesContext(connection) as queries,
        ):
            assert vacuum_session(session.pk)[0].messages == 2
        return len(queries)

    without = cost(key="one")
    register_counter("idle", DeletionCounter(count=lambda _: None, prepare=fail))
    assert cost(key="two") == without + 2


class OwnSettings(Settings):
    DUST_DAYS = Setting(3)


def test_settings_of_an_app_are_keys_of_the_one_dictionary(monkeypatch):
    monkeypatch.setattr(Settings, "DUST_DAYS", OwnSettings.DUST_DAYS, raising=False)
    register_settings(OwnSettings)
    register_settings(OwnSettings)
    assert OwnSettings().DUST_DAYS == 3
    with override_settings(CHATMEMORY={"DUST_DAYS": 5}):
        assert OwnSettings().DUST_DAYS == 5
        assert not [found for found in check_settings(None) if found.id == "chatmemory.W001"]


def test_two_settings_cannot_have_one_name():
    with pytest.raises(ValueError, match="'LEASE'"):
        register_settings(type("Other", (Settings,), {"LEASE": Setting(1)}))


@pytest.mark.django_db(transaction=True)
def test_a_sweep_of_an_app_repeats_and_its_failure_makes_no_sweep_old(monkeypatch, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DB_THREADS": 1}
    monkeypatch.setattr(sweep, "_tasks", [])
    calls.swept.clear()
    register_sweep(calls.sweep_dust)
    register_sweep(calls.sweep_dust)
    assert sweep._tasks == [calls.sweep_dust]
    monkeypatch.setattr(hub.sweep, "seconds", 0.01)
    hub.start_sweeps()
    try:
        wait_for(lambda: len(calls.swept) > 2, "the app's sweep does not repeat")
        assert "sweep_dust" not in hub.sweep._succeeded_at
    finally:
        hub.shut_down()
