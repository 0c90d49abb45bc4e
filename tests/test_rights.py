"""Rights at once: who logs out or is disabled has no open socket any more, in any process."""

from __future__ import annotations

import contextlib

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client as Browser

from chatmemory.hub import Hub, Place
from chatmemory.layer import RUNNERS
from chatmemory.services import Login
from tests.factories import make_session
from tests.layers import Ear
from tests.servers import Tab, eventually, greeted, own_threads, sign_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann(transactional_db, settings, monkeypatch):
    # No sweep makes good here what a signal should have done.
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 60)
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


def log_out(person):
    browser = Browser()
    browser.cookies[django_settings.SESSION_COOKIE_NAME] = person.cookie
    browser.logout()


def disable(person, model=User):
    user = model.objects.get(pk=person.user.pk)
    user.is_active = False
    user.save()


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
async def test_who_loses_the_right_to_be_here_is_expelled_at_once_in_all_processes(
    ann, bob, wire, end
):
    there = Hub()
    there.serve()
    ears = [Ear(Login.of(one.user, one.cookie)) for one in (ann, bob)]
    for ear in ears:
        there.join(Place(7, 11), ear)
    await eventually(lambda: len(wire.groups.get(RUNNERS, ())) == 1)
    async with greeted(tab := Tab(ann), other := Tab(bob)):
        await db(end)(ann)
        bye, code = await tab.closed()
        assert (bye["reason"], bye["reconnect"], code) == ("unauthenticated", False, 4401)
        await eventually(lambda: ears[0].is_expelled)
        assert (await other.send("hi"))["type"] == "ok"
    assert not ears[1].is_expelled
    assert ann.cookie not in str(wire.events)
    await db(there.shut_down)()


async def test_a_second_browser_of_who_logged_out_stays(ann):
    second = await db(sign_in)(ann.user)
    async with greeted(tab := Tab(ann), other := Tab(second)):
        await db(log_out)(ann)
        assert (await tab.closed())[1] == 4401
        assert (await other.send("hi"))["type"] == "ok"


async def test_a_change_of_an_active_user_expels_nobody(ann):
    async with greeted(tab := Tab(ann)):
        await db(ann.user.save)()
        assert (await tab.send("hi"))["type"] == "ok"
        await tab.idle(2)


async def test_a_change_that_is_rolled_back_expels_nobody(ann):

    def disable_in_vain():
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            disable(ann)
            raise ZeroDivisionError

    async with greeted(tab := Tab(ann)):
        await db(disable_in_vain)()
        assert (await tab.send("hi"))["type"] == "ok"
        await tab.idle(2)
