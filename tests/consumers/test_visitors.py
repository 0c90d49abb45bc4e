"""Sockets of visitors: by cookie and ticket; they end with the visitor."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.cache import cache

from chatmemory import services
from chatmemory.access.visitors import COOKIE, LOCAL_COOKIE
from chatmemory.database.after_commit import announce_visitor_ended
from chatmemory.live.connections import connections
from chatmemory.live.hub import hub
from chatmemory.models import DatabaseNow, Session, Visitor
from chatmemory.services import Actor
from tests import responders_for_tests
from tests.factories import make_messages, make_session, make_user, make_visitor
from tests.servers import Tab, connected, eventually, live_process, sign_in, use_responder

process = live_process
KEY = str(uuid.uuid4())


@pytest.fixture
def guest(process, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}
    cache.clear()
    guest = make_visitor()
    here = {"session_key": "talk", "by": guest.actor}
    services.append_messages(**here, messages=make_messages("hi", "hello"), create=True)
    yield guest
    cache.clear()


def tab_of(token, key="talk", *, name=COOKIE, cookies="", origin="http://testserver"):
    headers = {"cookie": f"{cookies}{name}={token}", "origin": origin}
    return Tab(None, key, headers=headers)


async def refused(tab):
    async with tab:
        bye, code = await tab.closed()
    return bye["reason"], code


async def test_a_visitor_chats_in_own_sessions(guest):
    async with connected(tab := tab_of(guest.token)):
        answer = await tab.send("what?")
        assert answer["type"] == "ok"
        await tab.idle(4)


async def test_the_first_message_opens_a_session_of_the_visitor(guest):
    async with tab_of(guest.token, KEY) as tab:
        await tab.hello(create=True)
        await tab.send("hi")
    assert (await Session.objects.aget(key=KEY)).scope == guest.actor.owner


async def test_a_session_of_a_user_or_another_visitor_is_not_found(guest):
    await db(make_session)("theirs", owner=await db(make_user)())
    other = await db(make_visitor)()
    assert await refused_hello(tab_of(guest.token, "theirs")) == ("not_found", 4404)
    assert await refused_hello(tab_of(other.token, "talk")) == ("not_found", 4404)


async def refused_hello(tab):
    async with tab:
        await tab.put('{"type": "hello", "v": 1}')
        bye, code = await tab.closed()
    return bye["reason"], code


async def test_a_login_takes_precedence_over_the_cookie_of_a_visitor(guest):
    person = await db(sign_in)()
    session = f"{django_settings.SESSION_COOKIE_NAME}={person.cookie}; "
    async with tab_of(guest.token, KEY, cookies=session) as tab:
        await tab.hello(create=True)
    assert (await Session.objects.aget(key=KEY)).scope == f"user:{person.user.pk}"


@pytest.mark.parametrize("token", ["a" * 43, "", "\x01"])
async def test_an_unknown_credential_is_refused(guest, token):
    assert await refused(tab_of(token)) == ("unauthenticated", 4401)


async def test_an_ended_visitor_is_refused(guest):
    await Visitor.objects.aupdate(ends_at=DatabaseNow())
    assert await refused(tab_of(guest.token)) == ("unauthenticated", 4401)


async def test_a_foreign_page_opens_no_socket_with_the_cookie(guest):
    async with tab_of(guest.token, origin="https://evil.example") as tab:
        assert not tab.is_accepted


async def test_the_cookie_of_development_servers_means_nothing_elsewhere(guest, settings):
    local = {"host": "127.0.0.1", "origin": "http://127.0.0.1"}
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    headers = {**local, "cookie": f"{LOCAL_COOKIE}={guest.token}"}
    assert await refused(Tab(None, headers=headers)) == ("unauthenticated", 4401)
    settings.DEBUG = True
    async with connected(Tab(None, headers=headers)):
        pass


async def test_a_ticket_opens_a_socket_of_the_visitor(guest):
    ticket = await services.aissue_ticket(by=guest.actor)
    protocols = ["chatmemory.v1", f"ticket.{ticket}"]
    async with connected(tab := Tab(None, protocols=protocols, headers={"origin": None})):
        assert (await tab.send("what?"))["type"] == "ok"
        await tab.idle(4)


SHOP = "https://shop.example"
OTHER = "https://other.example"


@pytest.fixture
def embeds(guest, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBEDS": {"shop": [SHOP], "other": [OTHER]}}


async def page_of(actor, origin):
    """Return a tab on a page of this origin, with a ticket."""
    ticket = await services.aissue_ticket(by=actor)
    protocols = ["chatmemory.v1", f"ticket.{ticket}"]
    return Tab(None, KEY, protocols=protocols, headers={"origin": origin})


async def test_a_visitor_of_an_embed_opens_a_socket_on_its_pages_alone(embeds):
    shopper = await db(make_visitor)(embed="shop")
    async with await page_of(shopper.actor, SHOP) as tab:
        await tab.hello(create=True)
    for origin in (OTHER, "http://testserver", None):
        assert await refused(await page_of(shopper.actor, origin)) == ("unauthenticated", 4401)
    async with await page_of(shopper.actor, "https://evil.example") as tab:
        assert not tab.is_accepted


async def test_the_pages_of_embeds_open_no_socket_of_this_site(embeds, guest):
    """Neither with the ticket of a user or visitor of this site, nor with a cookie."""
    user = await db(make_user)()
    for actor in (Actor.user(user), guest.actor):
        assert await refused(await page_of(actor, SHOP)) == ("unauthenticated", 4401)
    async with tab_of(guest.token, origin=SHOP) as tab:
        assert not tab.is_accepted


async def test_the_page_of_an_embed_uses_no_other_host(embeds):
    shopper = await db(make_visitor)(embed="shop")
    page = await page_of(shopper.actor, SHOP)
    page.scope["headers"] = [(b"host", b"evil.example"), (b"origin", SHOP.encode())]
    async with page:
        assert not page.is_accepted


async def test_the_sweep_closes_the_sockets_of_removed_embeds(embeds, settings):
    shopper = await db(make_visitor)(embed="shop")
    async with await page_of(shopper.actor, SHOP) as tab:
        await tab.hello(create=True)
        settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBEDS": {"other": [OTHER]}}
        await hub.sweep._sweep_logins()
        _, code = await tab.closed()
    assert code == 4401


@pytest.mark.slow
async def test_the_sweep_and_each_frame_end_the_sockets_of_a_removed_origin(embeds, settings):
    """The other origins of the embed stay."""
    second = "https://www.shop.example"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBEDS": {"shop": [SHOP, second]}}
    shopper, other = await db(make_visitor)(embed="shop"), await db(make_visitor)(embed="shop")
    pages = [await page_of(by.actor, at) for by, at in ((shopper, SHOP), (other, second))]
    async with pages[0] as removed, pages[1] as kept, await page_of(shopper.actor, SHOP) as used:
        for tab in (removed, kept, used):
            await tab.hello(create=True)
        settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBEDS": {"shop": [second]}}
        assert (await used.send("hi"))["code"] == "unauthenticated"
        await hub.sweep._sweep_logins()
        for tab in (removed, used):
            assert (await tab.closed())[1] == 4401
        assert (await kept.send("hi"))["type"] == "ok"
        await kept.idle(2)


class StoredEmbeds(Mapping):
    """The embeds of a host, in a table: the name of each user is an origin of `shop`."""

    def __getitem__(self, key):
        return list(User.objects.values_list("username", flat=True))

    def __iter__(self):
        return iter(["shop"] if User.objects.exists() else [])

    def __len__(self):
        return User.objects.exists()


async def test_the_embeds_may_be_in_the_hosts_database(guest, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBEDS": StoredEmbeds()}
    await db(make_user)(SHOP)
    shopper = await db(make_visitor)(embed="shop")
    async with await page_of(shopper.actor, SHOP) as tab:
        await tab.hello(create=True)
        assert (await tab.send("hi"))["type"] == "ok"
        await tab.idle(2)
        await User.objects.all().adelete()
        await hub.sweep._sweep_logins()
        assert (await tab.closed())[1] == 4401


async def test_each_frame_of_an_ended_visitor_is_refused(guest):
    """Without any notification or sweep."""
    async with connected(tab := tab_of(guest.token)):
        await Visitor.objects.aupdate(ends_at=DatabaseNow())
        answer = await tab.ask("send", client_id="c2", text="hi")
        assert (answer["type"], answer["code"]) == ("error", "unauthenticated")
        _, code = await tab.closed()
    assert code == 4401


async def test_the_sweep_closes_the_sockets_of_ended_visitors_alone(guest):
    person = await db(sign_in)()
    await db(make_session)(owner=person.user)
    async with connected(tab := tab_of(guest.token), other := Tab(person)):
        await Visitor.objects.aupdate(ends_at=DatabaseNow())
        await hub.sweep._sweep_logins()
        _, code = await tab.closed()
        assert code == 4401
        assert (await other.send("hi"))["type"] == "ok"
        await other.idle(2)


async def test_the_end_of_a_visitor_closes_the_sockets_immediately(guest):
    async with connected(tab := tab_of(guest.token)):
        await db(announce_visitor_ended)(guest.actor.owner)
        _, code = await tab.closed()
    assert code == 4401


async def test_the_sockets_of_a_visitor_are_counted(guest, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "CONNECTIONS_PER_USER": 1}
    async with connected(first := tab_of(guest.token)):
        await eventually(lambda: connections._of.get(guest.actor.owner))
        async with connected(tab_of(guest.token)):
            _, code = await first.closed()
            assert code == 4409


async def test_sends_of_an_address_are_limited(guest, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_SENDS_PER_MINUTE": 1}
    async with connected(tab := tab_of(guest.token)):
        assert (await tab.send("one"))["type"] == "ok"
        await tab.idle(4)
        answer = await tab.ask("send", client_id="c9", text="two")
        assert (answer["code"], answer["retry"]) == ("rate_limited", True)


async def test_an_adoption_closes_the_sockets_of_the_visitor(guest):
    ann = services.Actor.user(await db(make_user)())
    async with connected(tab := tab_of(guest.token)):
        keys = await db(services.adopt_visitor)(by=ann, visitor=guest.actor)
        _, code = await tab.closed()
    assert keys == {"talk": "talk"}
    assert code in (4401, 4404)  # the visitor's end, or the session's move, is noticed first


async def test_an_erasure_closes_the_sockets_of_the_visitor(guest):
    async with connected(tab := tab_of(guest.token)):
        await db(services.erase_person)(by=guest.actor, reason="")
        _, code = await tab.closed()
    assert code in (4401, 4404)


async def test_a_running_turn_of_an_adopted_visitor_ends_in_the_users_session(guest, settings):
    responders_for_tests.reset()
    use_responder(settings, "slow", ALLOW_ANONYMOUS=True)
    person = await db(sign_in)()
    ann = services.Actor.user(person.user)
    async with connected(tab := tab_of(guest.token)):
        await tab.send("what?")
        await eventually(responders_for_tests.BEGUN.is_set)
        await db(services.adopt_visitor)(by=ann, visitor=guest.actor)
        await tab.closed()
    async with connected(tab := Tab(person)):
        responders_for_tests.GO.set()
        await tab.idle(4)
    page = await services.aread_history(session_key="talk", by=ann)
    assert [row.text for row in page.rows] == ["hi", "hello", "what?", "So far, so good."]
    assert page.rows[-1].status == "complete"
