"""The end of a login closes its sockets immediately, in all processes."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.contrib.auth.models import User, UserManager
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.base_session import BaseSessionManager
from django.contrib.sessions.models import Session as DjangoSession
from django.db import transaction
from django.test import Client as Browser

from chatmemory.access import logins
from chatmemory.errors import Unauthenticated
from chatmemory.live.hub import Hub
from chatmemory.live.layer import RUNNERS
from chatmemory.live.texts import SessionRef
from chatmemory.services import Login
from tests.factories import make_session
from tests.layers import FakeSocket
from tests.servers import Tab, connected, eventually, own_threads, sign_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann(transactional_db, settings, monkeypatch):
    # No sweep here: the signal alone must close the sockets.
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60)
    settings.CHATMEMORY = {"RESPONDER": "tests.responders_for_tests.echo", "LEASE": 600}
    with own_threads():
        person = sign_in()
        make_session(owner=person.user)
        yield person


@pytest.fixture
def bob(ann):
    person = sign_in()
    make_session(owner=person.user)
    return person


class ProxyUser(User):
    class Meta:
        proxy = True
        app_label = "tests"


class Present(UserManager):
    absent: ClassVar[set[str]] = set()

    def get_queryset(self):
        return super().get_queryset().exclude(username__in=self.absent)


class OwnStore(SessionStore):
    is_closed = False

    def _get_session_from_db(self):
        return None if self.is_closed else super()._get_session_from_db()


class Guest(User):
    objects = Present()

    class Meta:
        proxy = True
        app_label = "tests"


def log_out(person):
    browser = Browser()
    browser.cookies[django_settings.SESSION_COOKIE_NAME] = person.cookie
    browser.logout()


def disable(person, model=User):
    user = model.objects.get(pk=person.user.pk)
    user.is_active = False
    user.save()


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        log_out,
        disable,
        lambda person: disable(person, ProxyUser),
        lambda person: person.user.delete(),
    ],
    ids=["logged out", "disabled", "disabled by a proxy", "deleted"],
)
async def test_the_end_of_a_login_closes_its_sockets_in_all_processes(ann, bob, wire, end):
    other_process = Hub(sweep_seconds=60)
    other_process.serve()
    ears = [FakeSocket(Login.of(one.user, one.cookie)) for one in (ann, bob)]
    for ear in ears:
        other_process.join(SessionRef(7, 11), ear)
    await eventually(lambda: len(wire.groups.get(RUNNERS, ())) == 1)
    async with connected(tab := Tab(ann), other := Tab(bob)):
        await db(end)(ann)
        bye, code = await tab.closed()
        assert (bye["reason"], bye["reconnect"], code) == ("unauthenticated", False, 4401)
        await eventually(lambda: ears[0].is_closed)
        assert (await other.send("hi"))["type"] == "ok"
    assert not ears[1].is_closed
    assert ann.cookie not in str(wire.events)
    await db(other_process.shut_down)()


async def test_a_logout_keeps_the_sockets_of_another_browser_open(ann):
    second = await db(sign_in)(ann.user)
    async with connected(tab := Tab(ann), other := Tab(second)):
        await db(log_out)(ann)
        assert (await tab.closed())[1] == 4401
        assert (await other.send("hi"))["type"] == "ok"


async def test_a_change_of_an_active_user_closes_no_socket(ann):
    async with connected(tab := Tab(ann)):
        await db(ann.user.save)()
        assert (await tab.send("hi"))["type"] == "ok"
        await tab.idle(2)


async def test_a_change_that_is_rolled_back_closes_no_socket(ann):

    def disable_and_roll_back():
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            disable(ann)
            raise ZeroDivisionError

    async with connected(tab := Tab(ann)):
        await db(disable_and_roll_back)()
        assert (await tab.send("hi"))["type"] == "ok"
        await tab.idle(2)


@pytest.mark.parametrize("has_key", [True, False])
def test_the_manager_of_the_host_selects_users_at_each_check(monkeypatch, has_key):
    """It may use the clock or the current tenant."""
    monkeypatch.setattr(logins, "get_user_model", lambda: Guest)
    monkeypatch.setattr(Present, "absent", set())
    person = sign_in()
    login = Login.of(person.user, person.cookie if has_key else None)
    assert logins.is_valid(login)
    assert logins.login_of_session(person.cookie).actor == login.actor
    monkeypatch.setattr(Present, "absent", {person.user.username})
    assert not logins.is_valid(login)
    assert logins.current_logins({login}) == set()
    with pytest.raises(Unauthenticated):
        logins.login_of_session(person.cookie)


def test_the_manager_of_django_sessions_selects_them_at_each_check(monkeypatch):
    absent = set()

    class Sessions(BaseSessionManager):
        def get_queryset(self):
            return super().get_queryset().exclude(session_key__in=absent)

    manager = Sessions()
    manager.model = DjangoSession
    monkeypatch.setattr(DjangoSession._meta, "default_manager", manager)
    monkeypatch.setitem(DjangoSession._meta.managers_map, "objects", manager)
    person = sign_in()
    login = logins.login_of_session(person.cookie)
    assert logins.is_valid(login)
    absent.add(person.cookie)
    assert not logins.is_valid(login)
    with pytest.raises(Unauthenticated):
        logins.login_of_session(person.cookie)


def test_a_session_store_of_the_host_finds_its_sessions(monkeypatch):
    person = sign_in()
    assert logins.login_of_session(person.cookie)
    monkeypatch.setattr(OwnStore, "is_closed", True)
    monkeypatch.setattr(logins, "_session_store", lambda: OwnStore)
    with pytest.raises(Unauthenticated):
        logins.login_of_session(person.cookie)
