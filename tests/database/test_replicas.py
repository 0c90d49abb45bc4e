"""With a router that sends reads to a replica, the app still reads from its write database."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connections
from django.test import override_settings
from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]  # not in the stubs

from chatmemory import services
from chatmemory.access import logins
from chatmemory.access.logins import Login
from chatmemory.checks.project import check_routers
from chatmemory.formats.people import write_markdown
from chatmemory.formats.reading import read_sessions
from chatmemory.live import run, sweep
from chatmemory.live.credit import Credit, CreditLimits
from chatmemory.live.feed import Feed
from chatmemory.models import Message, Session, Turn, installed_models
from chatmemory.models.managers import PrimaryManager
from chatmemory.services import Actor, user_scope
from chatmemory.services.audit import readings
from chatmemory.services.audit.seals import seal_audit, verify_audit
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.retention.retention import expire_sessions
from chatmemory.services.turns import claims, progress, recovery
from chatmemory.services.turns.versions import list_versions
from tests.factories import make_messages, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]


class ReadsFromReplica:
    """The router in the documentation of Django."""

    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return "default"


class WritesSessionsElsewhere:
    def db_for_write(self, model, **hints):
        return "replica" if model is Session else None


class WritesUsersElsewhere:
    def db_for_write(self, model, **hints):
        return "replica" if model is User else None


@contextmanager
def replica(router=ReadsFromReplica):
    """Add a second database. Django's test case fails the test at the first connection to it."""
    connections.databases["replica"] = connections["default"].settings_dict
    assert connections["replica"].alias == "replica"
    try:
        with override_settings(DATABASE_ROUTERS=[f"{router.__module__}.{router.__name__}"]):
            yield
    finally:
        del connections["replica"]
        del connections.databases["replica"]


def frames(feed):
    async def read():
        return [frame async for frame in feed.frames(Credit(CreditLimits()))]

    return async_to_sync(read)()


@pytest.mark.regression
def test_a_turn_reads_nothing_from_a_replica():
    ann = make_user("ann")
    talk = {"session_key": "talk", "by": Actor.user(ann)}
    with replica():
        services.open_session(**talk, instructions="Be brief.")
        services.append_messages(**talk, messages=make_messages("old question", "old answer"))
        claim = services.admit_turn(**talk, client_id="c1", content="new", owner="p1").claim
        progress.start_turn(claim=claim)
        request = run.read_request(claim=claim, left={})
        assert request.messages[-1]["content"] == "new"
        services.admit_turn(**talk, client_id="c2", content="newer")
        progress.save_partial(claim=claim, text="So", step=0)
        reply = {"role": "assistant", "content": "So."}
        progress.finish_turn(claim=claim, status="complete", message=reply)
        assert claims.claim_next(session_pk=claim.session_pk, owner="p1").client_id == "c2"
        services.stop_turn(**talk, turn="c2")
        assert list_versions(**talk, seq=3)
        assert [row.seq for row in services.read_page(**talk).rows] == [1, 2, 3, 4, 5]


@pytest.mark.regression
def test_no_service_for_operators_reads_from_a_replica():
    ann = make_user("ann")
    talk = {"session_key": "talk", "by": Actor.user(ann)}
    with replica():
        services.append_messages(**talk, messages=make_messages("a", "b", "c", "d"), create=True)
        entry = services.trim_session(**talk, keep_last=2, reason="")
        session = services.get_session(**talk)
        services.preview_trim(session, keep_last=1)
        services.preview_removal(session)
        services.restore_session(
            entry_pk=entry.pk, by=Actor.server("x"), scope=session.scope, reason=""
        )
        services.redact_message(**talk, seq=1, reason="")
        operator = Actor.operator(ann)
        services.tag_session(
            session_key="talk", scope=session.scope, tag="kept", by=operator, reason=""
        )
        services.add_note(session_key="talk", scope=session.scope, text="a", by=operator)
        readings.record_reading(session=session, by=operator, from_seq=1, to_seq=2)
        readings.record_reading(session=session, by=operator, from_seq=3, to_seq=4)
        readings.close_readings()
        list(check_integrity())
        assert "".join(*map(write_markdown, read_sessions(Session.objects.all())))
        recovery.recover_all_overdue_turns()
        expire_sessions()
        seal_audit()
        list(verify_audit())
        services.purge_session(**talk, reason="")
        vacuum()
        services.erase_person(by=Actor.server("x"), scope=user_scope(ann), reason="")


@pytest.mark.regression
def test_rights_are_not_read_from_a_replica(client):
    ann = make_user("ann")
    client.force_login(ann)
    login = Login.of(ann, client.session.session_key)
    with replica():
        logins.check_login(login)
        ticket = services.issue_ticket(by=Actor.user(ann), key=login.key)
        assert services.use_ticket(ticket=ticket).actor.id == str(ann.pk)


@pytest.mark.regression
def test_sockets_and_sweep_read_nothing_from_a_replica(settings):
    settings.CHATMEMORY = {"DB_THREADS": 0}
    ann = make_user("ann")
    talk = {"session_key": "talk", "by": Actor.user(ann)}
    with replica():
        services.append_messages(**talk, messages=make_messages("a", "b"), create=True)
        assert '"message"' in str(frames(Feed(services.get_session(**talk), None)))
        services.admit_turn(**talk, client_id="c1", content="hi")
        sweep._recover_turns()
        assert Session.objects.heads([services.get_session(**talk).pk])


def test_a_related_row_is_not_read_from_a_replica():
    ann = make_user("ann")
    talk = {"session_key": "talk", "by": Actor.user(ann)}
    with replica():
        services.admit_turn(**talk, client_id="c1", content="hi", owner="p1", create=True)
        turn = Turn.objects.get()
        assert turn.session.turns.get() == turn
        assert Message.objects.get().session.messages.count() == 1
        turn.refresh_from_db()


def test_these_tests_cannot_connect_to_their_replica():
    with replica(), pytest.raises(DatabaseOperationForbidden):
        Session.objects.using("replica").exists()


def test_a_caller_can_name_the_replica():
    with replica():
        assert Session.objects.using("replica").db == "replica"
        assert Message.objects.using("replica").db == "replica"


@pytest.mark.regression
@pytest.mark.parametrize("model", [*installed_models()])
def test_every_model_reads_from_its_write_database(model):
    managers = [model._base_manager, *model._meta.managers]
    assert all(isinstance(manager, PrimaryManager) for manager in managers)


@pytest.mark.regression
@pytest.mark.parametrize("router", [WritesSessionsElsewhere, WritesUsersElsewhere])
def test_models_that_are_written_to_two_databases_are_an_error(router):
    with replica(router):
        [found] = check_routers(None)
    assert found.id == "chatmemory.E013"
    assert "default" in found.msg
    assert "replica" in found.msg
