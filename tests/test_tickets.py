"""Sign-in without cookies: a ticket opens one socket, once, soon, for the one who was given it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from asgiref.sync import sync_to_async as db
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client as Browser
from django.utils import timezone
from rest_framework.authentication import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed

from chatmemory import services
from chatmemory.errors import RateLimited, Unauthenticated
from chatmemory.models import Ticket
from chatmemory.services import Actor
from chatmemory.services.tickets import MAX_TICKETS
from tests.factories import make_session, make_user
from tests.servers import DEADLINE, Tab, greeted, own_threads, sign_in

HERE = "tests.test_tickets"
NO_ORIGIN = {"origin": None}


@pytest.fixture
def ann(transactional_db, settings):
    settings.CHATMEMORY = {"RESPONDER": "tests.responders_for_tests.echo"}
    with own_threads():
        person = sign_in()
        make_session(owner=person.user)
        yield person


@db
def ticket_for(person):
    return services.issue_ticket(by=Actor.user(person.user))


def tab_with(ticket, person=None, **more):
    """A socket opened with a ticket, and the cookie of a person if one is given."""
    return Tab(person, protocols=["chatmemory.v1", f"ticket.{ticket}"], **more)


def post(browser, **headers):
    return browser.post("/api/tickets/", {}, content_type="application/json", headers=headers)


# Over a socket


async def test_a_ticket_opens_a_socket_without_cookie_and_origin(ann):
    async with greeted(tab := tab_with(await ticket_for(ann), headers=NO_ORIGIN)):
        assert tab.protocol == "chatmemory.v1"
        assert (await tab.send("hi"))["type"] == "ok"
        await tab.idle(2)
    assert not await db(Ticket.objects.exists)()


async def refused(tab):
    async with tab:
        assert tab.is_accepted
        bye, code = await tab.closed()
    assert [frame["type"] for frame in tab.frames] == ["bye"]
    return (bye["reason"], bye["reconnect"], code) == ("unauthenticated", False, 4401)


async def test_a_ticket_is_worth_nothing_the_second_time(ann):
    ticket = await ticket_for(ann)
    async with greeted(tab_with(ticket)):
        assert await refused(tab_with(ticket))


@pytest.mark.parametrize("how", ["expired", "disabled", "deleted", "new password"])
async def test_a_ticket_of_who_may_not_be_here_any_more_opens_nothing(ann, settings, how):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "keep"}
    ticket = await ticket_for(ann)
    match how:
        case "expired":
            past = timezone.now() - timedelta(seconds=1)
            await db(Ticket.objects.update)(expires_at=past)
        case "disabled":
            await db(User.objects.update)(is_active=False)
        case "deleted":
            await db(User.objects.all().delete)()
        case "new password":
            await db(User.objects.update)(password=make_password("another"))
    assert await refused(tab_with(ticket))


@pytest.mark.parametrize("ticket", ["", "x", "x" * 10_000, "ä", "' or 1=1 --", "\udcff"])
async def test_what_was_never_given_out_opens_nothing_whatever_the_cookie_says(ann, ticket):
    assert await refused(tab_with(ticket, ann))


async def test_a_ticket_does_not_excuse_a_foreign_origin(ann):
    for origin in ("http://evil.example", "null", ""):
        ticket = await ticket_for(ann)
        async with tab_with(ticket, headers={"origin": origin}) as tab:
            assert not tab.is_accepted
    assert await db(Ticket.objects.count)() == 3


async def test_without_a_ticket_an_origin_is_needed(ann):
    async with Tab(ann, headers=NO_ORIGIN, protocols=["chatmemory.v1"]) as tab:
        assert not tab.is_accepted


async def test_who_came_with_a_ticket_and_is_disabled_is_sent_away(ann):
    async with greeted(tab := tab_with(await ticket_for(ann))):
        await db(User.objects.update)(is_active=False)
        assert (await tab.send("hi"))["code"] == "unauthenticated"
        assert (await tab.closed())[1] == 4401


async def test_without_the_database_the_client_is_told_to_come_again(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.services.faults.DEADLINE", 0.1)
    ticket = await ticket_for(ann)
    await db(rename)("chatmemory_ticket", "elsewhere")
    try:
        async with tab_with(ticket) as tab:
            bye, code = await tab.closed()
    finally:
        await db(rename)("elsewhere", "chatmemory_ticket")
    # Elsewhere a missing table is no trouble of the database's, but a missing migration.
    is_trouble = connection.vendor == "sqlite"
    assert (bye["reason"], code) == (("unavailable", 4503) if is_trouble else ("internal", 1011))
    assert (bye["after_ms"] is not None) == is_trouble
    assert bye["reconnect"]


def rename(old, new):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


# Issued


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_of_two_who_use_a_ticket_at_once_one_is_let_in():
    user = make_user()
    ticket = services.issue_ticket(by=Actor.user(user))
    both_have_looked = Barrier(2)

    def wait_for_the_other(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if sql.startswith("SELECT") and Ticket._meta.db_table in sql:
            both_have_looked.wait(timeout=DEADLINE)
        return result

    def use(_):
        try:
            with connection.execute_wrapper(wait_for_the_other):
                return services.use_ticket(ticket=ticket).actor.id
        except Unauthenticated:
            return None
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        let_in = sorted(threads.map(use, range(2)), key=str)
    assert let_in == [str(user.pk), None]


@pytest.mark.database
@pytest.mark.django_db
def test_a_ticket_is_short_lived_and_only_its_digest_is_stored():
    ticket = services.issue_ticket(by=Actor.user(make_user()))
    row = Ticket.objects.get()
    assert ticket not in {row.digest, row.user_pk}
    left = (row.expires_at - timezone.now()).total_seconds()
    assert 20 < left < 60
    assert len(ticket) >= 43


@pytest.mark.django_db
def test_a_person_has_a_bounded_number_of_tickets_and_old_ones_go():
    ann, bob = Actor.user(make_user()), Actor.user(make_user())
    for _ in range(MAX_TICKETS):
        services.issue_ticket(by=ann)
    with pytest.raises(RateLimited):
        services.issue_ticket(by=ann)
    Ticket.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    services.issue_ticket(by=bob)
    assert Ticket.objects.count() == 1
    services.issue_ticket(by=ann)


@pytest.mark.django_db
def test_only_users_are_given_tickets():
    with pytest.raises(TypeError):
        services.issue_ticket(by=Actor.server("test"))


# Over REST


class HeaderLogin(TokenAuthentication):
    """Takes the name of a user for a token."""

    def authenticate_credentials(self, key):
        user = User.objects.filter(username=key, is_active=True).first()
        if user is None:
            raise AuthenticationFailed
        return user, key


@pytest.fixture
def by_header(settings):
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [f"{HERE}.HeaderLogin"]}


async def test_a_client_with_a_token_gets_a_ticket_and_chats(ann, by_header):
    name = f"Token {ann.user.username}"
    answer = await db(post)(Browser(enforce_csrf_checks=True), authorization=name)
    assert (answer.status_code, answer["Cache-Control"]) == (201, "no-store")
    fields = answer.json()
    assert 0 < fields["expires_in"] <= 60
    assert fields["protocols"] == ["chatmemory.v1", f"ticket.{fields['ticket']}"]
    async with greeted(tab := Tab(None, protocols=fields["protocols"], headers=NO_ORIGIN)):
        assert (await tab.send("hi"))["type"] == "ok"


def test_tokens_get_tickets_alone_and_wrong_ones_get_none(ann, by_header):
    header = {"authorization": f"Token {ann.user.username}"}
    assert Browser().get("/api/sessions/", headers=header).status_code == 401
    for wrong in ("Token nobody", "Token", ""):
        answer = post(Browser(), authorization=wrong)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def test_a_session_gets_a_ticket_with_the_csrf_token_only(ann):
    browser = Browser(enforce_csrf_checks=True)
    browser.force_login(ann.user)
    assert post(browser).status_code == 403
    browser.get("/chat/")
    token = (
        browser.get("/admin/login/?next=/").cookies.get("csrftoken") or browser.cookies["csrftoken"]
    )
    assert post(browser, **{"x-csrftoken": token.value}).status_code == 201


def test_passwords_get_no_ticket_where_the_host_did_not_choose_so(ann):
    basic = "Basic dXNlcjE6c2VjcmV0"
    assert post(Browser(), authorization=basic).status_code == 401


def test_a_body_with_more_than_nothing_is_refused(ann):
    browser = Browser()
    browser.force_login(ann.user)
    body = json.dumps({"user": 1})
    answer = browser.post("/api/tickets/", body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_field")
    assert browser.get("/api/tickets/").status_code == 405


# The host's own sign-in


def from_header(scope):
    """The user whom a header names."""
    name = dict(scope["headers"]).get(b"x-user", b"").decode()
    return User.objects.filter(username=name).first()


async def from_header_async(scope):
    return await db(from_header)(scope)


def broken(scope):
    raise RuntimeError("secret")


@pytest.mark.parametrize("name", ["from_header", "from_header_async"])
async def test_the_hosts_own_function_says_who_opens_a_socket(ann, settings, name):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SOCKET_AUTH": f"{HERE}.{name}"}
    async with greeted(tab := Tab(None, headers={"x-user": ann.user.username})):
        assert (await tab.send("hi"))["type"] == "ok"
    assert await refused(Tab(ann, headers={"x-user": "nobody"}))
    await db(User.objects.update)(is_active=False)
    assert await refused(Tab(None, headers={"x-user": ann.user.username}))


@pytest.mark.parametrize("name", ["broken", "no_such_function"])
async def test_a_function_that_fails_lets_nobody_in(ann, settings, name, caplog):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SOCKET_AUTH": f"{HERE}.{name}"}
    async with Tab(ann) as tab:
        bye, code = await tab.closed()
    assert (bye["reason"], bye["reconnect"], code) == ("internal", True, 1011)
    assert "could not be told" in caplog.text
