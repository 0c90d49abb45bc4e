"""Deleted accounts: the confirmation lists the sessions, and the audit names the actor."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin as django_admin
from django.contrib.auth import logout
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session as LoginSession
from django.db import transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils import timezone

from chatmemory import services
from chatmemory.admin import ChatMemoryUserAdminMixin
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import Actor, append_messages
from chatmemory.services.retention import accounts
from chatmemory.services.retention.retention import expire_sessions
from tests.access.test_logins import ProxyUser
from tests.factories import make_messages, make_session, make_user
from tests.test_checks import found

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
regression = pytest.mark.regression

USERS = "/admin/auth/user/"


@pytest.fixture
def olga():
    return make_user("olga", is_staff=True)


@pytest.fixture
def admin(olga):
    """A client with the login of an operator who may delete users."""
    rights = Permission.objects.filter(codename__in=("view_user", "delete_user"))
    olga.user_permissions.set(rights)
    client = Client()
    client.force_login(olga)
    return client


@pytest.fixture
def ann():
    user = make_user("ann")
    for key in ("talk", "more"):
        append_messages(
            session_key=key, by=Actor.user(user), messages=make_messages("a", "b"), create=True
        )
    make_session("kept", owner=user, held_at=timezone.now())
    return user


@pytest.fixture
def inline(settings):
    """Remove sessions before the request ends."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DB_THREADS": 0}


def actions(*columns: str) -> list[tuple[Any, ...]]:
    return list(AuditEntry.objects.order_by("pk").values_list(*columns))


def delete_one(client: Client, user: Any) -> Any:
    return client.post(f"{USERS}{user.pk}/delete/", {"post": "yes"})


def delete_selected(client: Client, user: Any) -> Any:
    action = {"action": "delete_selected", "_selected_action": [user.pk], "post": "yes"}
    return client.post(USERS, action)


@regression
@pytest.mark.parametrize("model", [LoginSession, Message, Turn])
def test_rows_of_other_models_are_deleted_in_one_statement(ann, model, django_assert_num_queries):
    end = timezone.now()
    logins = (LoginSession(session_key=f"{n}", expire_date=end) for n in range(2_000))
    LoginSession.objects.bulk_create(logins)
    services.admit_turn(session_key="talk", by=Actor.user(ann), client_id="c", content="hi")
    with transaction.atomic(), django_assert_num_queries(1):
        assert model._base_manager.all().delete()[0]


@regression
@pytest.mark.parametrize("delete", [delete_one, delete_selected])
def test_the_confirmation_lists_the_sessions(admin, ann, delete):
    held = Session.objects.get(key="kept")
    if delete is delete_one:
        page = admin.get(f"{USERS}{ann.pk}/delete/").content.decode()
    else:
        action = {"action": "delete_selected", "_selected_action": [ann.pk]}
        page = admin.post(USERS, action).content.decode()
    assert "restorable for 30 days): 2" in page
    assert "kept because of a hold: 1" in page
    assert f"Conversation {held.pk}: 0 messages" in page
    for session in Session.objects.exclude(pk=held.pk):
        assert f"Conversation {session.pk}: 2 messages" in page
    assert "Conversations: 2" in page


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [("erase", "erase permanently: 2"), ("keep", "Conversations kept: 2")],
)
def test_the_confirmation_states_what_the_setting_does(admin, ann, settings, policy, sentence):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": policy}
    assert sentence in admin.get(f"{USERS}{ann.pk}/delete/").content.decode()


def test_the_confirmation_names_a_hundred_sessions(admin, monkeypatch):
    monkeypatch.setattr("chatmemory.admin.users.MAX_LISTED", 2)
    ann = make_user("ann")
    pks = [make_session(f"{n}", owner=ann).pk for n in range(5)]
    page = admin.get(f"{USERS}{ann.pk}/delete/").content.decode()
    assert "And 3 more" in page
    assert f"Conversation {pks[1]}:" in page
    assert f"Conversation {pks[2]}:" not in page


def test_a_user_without_sessions_is_confirmed_as_usual(admin):
    bob = make_user("bob")
    assert "Conversations" not in admin.get(f"{USERS}{bob.pk}/delete/").content.decode()
    delete_one(admin, bob)
    assert not AuditEntry.objects.exists()


@regression
@pytest.mark.parametrize("delete", [delete_one, delete_selected])
@pytest.mark.parametrize("policy", ["purge", "erase"])
def test_the_audit_names_the_operator(admin, olga, ann, inline, settings, delete, policy):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": policy}
    held = Session.objects.get(key="kept").pk
    assert delete(admin, ann).status_code == 302
    assert not User.objects.filter(username="ann").exists()
    assert {row[0] for row in actions("action")} >= {"user_deleted", policy}
    assert set(actions("actor_kind", "actor_id", "actor_label")) == {
        ("operator", str(olga.pk), "olga")
    }
    entry = AuditEntry.objects.get(action="user_deleted")
    assert entry.counts == {"sessions": 3, "held": [held]}


@regression
def test_the_sessions_are_removed_on_another_thread(admin, ann, monkeypatch):
    forgets = accounts.forget_person
    threads = []
    is_done = threading.Event()

    def forget(*, scope: str) -> None:
        threads.append(threading.current_thread().name)
        forgets(scope=scope)
        is_done.set()

    monkeypatch.setattr("chatmemory.services.retention.accounts.forget_person", forget)
    delete_one(admin, ann)
    assert is_done.wait(30)
    assert threads[0].startswith("chatmemory-db")
    assert AuditEntry.objects.filter(action="purge").count() == 2


@regression
def test_sessions_left_by_a_crash_are_removed_as_the_operator(admin, ann, inline, monkeypatch):
    monkeypatch.setattr(
        "chatmemory.services.retention.accounts.in_batches", lambda _sessions: 1 / 0
    )
    delete_one(admin, ann)
    monkeypatch.undo()
    assert not AuditEntry.objects.filter(action="purge").exists()
    expire_sessions()
    purges = AuditEntry.objects.filter(action="purge").values_list("actor_label", "reason")
    assert list(purges) == [("olga", "owner deleted")] * 2


@regression
def test_a_deletion_that_is_rolled_back_leaves_no_entry(ann, olga):
    with transaction.atomic(), services.deleting_users(by=Actor.operator(olga)):
        ann.delete()
        transaction.set_rollback(True)
    assert not AuditEntry.objects.exists()
    assert Session.objects.filter(removed_at=None).count() == 3


def test_a_host_can_name_the_actor_who_deletes_a_user(ann):
    by = Actor.user(ann)
    with services.deleting_users(by=by):
        ann.delete()
    assert set(actions("actor_kind", "actor_id")) == {("user", by.id)}
    assert Session.objects.filter(removed_at=None).get().key == "kept"


def delete_account(request, name):
    """The view of a host that deletes an account, after the logout from the own one."""
    user = request.user if name == request.user.get_username() else User.objects.get(username=name)
    if user == request.user:
        logout(request)
    user.delete()
    return HttpResponse()


urlpatterns = [path("delete/<name>/", delete_account)]


@pytest.fixture
def middleware(settings):
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "chatmemory.middleware.user_deletions"]


@regression
@pytest.mark.parametrize("browser", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("name", "named"),
    [("olga", ("operator", "olga")), ("ann", ("user", "ann")), ("", ("server", "retention"))],
)
def test_the_middleware_names_the_user_who_deletes_an_account(
    olga, ann, middleware, browser, name, named
):
    client = browser()
    if name:
        client.force_login(User.objects.get(username=name))
    delete = async_to_sync(client.get) if browser is AsyncClient else client.get
    assert delete("/delete/ann/").status_code == 200
    assert set(actions("actor_kind", "actor_label")) == {named}
    assert {action for (action,) in actions("action")} == {"user_deleted", "purge"}


def test_the_sessions_of_a_user_deleted_through_a_proxy_are_removed(ann):
    ProxyUser.objects.get(pk=ann.pk).delete()
    assert [action for (action,) in actions("action")] == ["user_deleted", "purge", "purge"]


def test_a_background_failure_is_logged_by_its_class(admin, ann, monkeypatch, caplog):
    logged = threading.Event()
    monkeypatch.setattr(caplog.handler, "emit", lambda _record: logged.set())
    monkeypatch.setattr(
        "chatmemory.services.retention.accounts.in_batches", lambda _sessions: 1 / 0
    )
    with caplog.at_level("ERROR", "chatmemory.database.pool"):
        delete_one(admin, ann)
        assert logged.wait(30)


@regression
def test_a_check_warns_of_a_user_admin_without_the_mixin():
    assert "chatmemory.W014" not in found(deploy=True)
    ours = django_admin.site.get_model_admin(User)
    assert isinstance(ours, ChatMemoryUserAdminMixin)
    django_admin.site.unregister(User)
    try:
        assert "chatmemory.W014" not in found(deploy=True)
        django_admin.site.register(User, UserAdmin)
        text = found(deploy=True)["chatmemory.W014"]
        assert "ChatMemoryUserAdminMixin" in text
        assert "of the admin site 'admin'" in text
        assert "chatmemory.W014" not in found()  # each command would print it
    finally:
        if django_admin.site.is_registered(User):
            django_admin.site.unregister(User)
        django_admin.site.register(User, type(ours))
