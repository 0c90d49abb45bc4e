"""Tickets: each opens one socket for the user who requested it, once and for a short time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore as Session
from django.db import connection
from django.test import Client as Browser
from django.utils import timezone
from rest_framework.authentication import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed

from chatmemory import services
from chatmemory.access.logins import check_login
from chatmemory.access.tickets import MAX_TICKETS
from chatmemory.errors import Forbidden, RateLimited, Unauthenticated
from chatmemory.models import Ticket
from chatmemory.services import Actor, Login
from tests.devices import Device
from tests.factories import make_session, make_user
from tests.servers import DEADLINE, Tab, connected, eventually, own_threads, sign_in

THIS_MODULE = "tests.access.test_tickets"
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
    """Return a socket that opens with a ticket, and with the cookie of a person if given."""
    return Tab(person, protocols=["chatmemory.v1", f"ticket.{ticket}"], **more)


def post(browser, **headers):
    return browser.post("/api/tickets/", {}, content_type="application/json", headers=headers)


async def test_a_ticket_opens_a_socket_without_cookie_and_origin(ann):
    async with connected(tab := tab_with(await ticket_for(ann), headers=NO_ORIGIN)):
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


async def test_a_used_ticket_is_refused(ann):
    ticket = await ticket_for(ann)
    async with connected(tab_with(ticket)):
        assert await refused(tab_with(ticket))


@pytest.mark.parametrize("how", ["expired", "disabled", "deleted", "new password"])
async def test_an_expired_ticket_and_one_of_an_invalid_login_are_refused(ann, settings, how):
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
async def test_an_unknown_ticket_is_refused_even_with_a_valid_cookie(ann, ticket):
    assert await refused(tab_with(ticket, ann))


async def test_a_foreign_origin_is_refused_even_with_a_ticket(ann):
    for origin in ("http://evil.example", "null", ""):
        ticket = await ticket_for(ann)
        async with tab_with(ticket, headers={"origin": origin}) as tab:
            assert not tab.is_accepted
    assert await db(Ticket.objects.count)() == 3


async def test_without_a_ticket_an_origin_is_required(ann):
    async with Tab(ann, headers=NO_ORIGIN, protocols=["chatmemory.v1"]) as tab:
        assert not tab.is_accepted


async def test_a_socket_by_ticket_closes_when_the_user_is_disabled(ann):
    async with connected(tab := tab_with(await ticket_for(ann))):
        await db(User.objects.update)(is_active=False)
        assert (await tab.send("hi"))["code"] == "unauthenticated"
        assert (await tab.closed())[1] == 4401


async def test_without_the_database_the_client_must_reconnect(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.database.retries.DEADLINE_SECONDS", 0.1)
    ticket = await ticket_for(ann)
    await db(rename)("chatmemory_ticket", "elsewhere")
    try:
        async with tab_with(ticket) as tab:
            bye, code = await tab.closed()
    finally:
        await db(rename)("elsewhere", "chatmemory_ticket")
    assert (bye["reason"], code) == ("unavailable", 4503)
    assert bye["after_ms"] is not None
    assert bye["reconnect"]


def rename(old, new):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_of_two_concurrent_uses_of_a_ticket_one_succeeds():
    user = make_user()
    ticket = services.issue_ticket(by=Actor.user(user))
    both_have_read = Barrier(2)

    def wait_for_the_other(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if sql.startswith("SELECT") and Ticket._meta.db_table in sql:
            both_have_read.wait(timeout=DEADLINE)
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
        user_pks = sorted(threads.map(use, range(2)), key=str)
    assert user_pks == [str(user.pk), None]


@pytest.mark.database
@pytest.mark.django_db
def test_a_ticket_is_short_lived_and_only_its_digest_is_stored():
    ticket = services.issue_ticket(by=Actor.user(make_user()))
    row = Ticket.objects.get()
    assert ticket not in {row.digest, row.owner}
    left = (row.expires_at - timezone.now()).total_seconds()
    assert 20 < left < 60
    assert len(ticket) >= 43


@pytest.mark.django_db
def test_the_unused_tickets_of_a_user_are_limited_and_expired_ones_deleted():
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
def test_only_users_get_tickets():
    with pytest.raises(TypeError):
        services.issue_ticket(by=Actor.server("test"))


class HeaderLogin(TokenAuthentication):
    """Accepts the name of a user as a token."""

    def authenticate_credentials(self, key):
        user = User.objects.filter(username=key, is_active=True).first()
        if user is None:
            raise AuthenticationFailed
        return user, key


@pytest.fixture
def by_header(settings):
    named = {"API_AUTHENTICATION": [f"{THIS_MODULE}.HeaderLogin"]}
    settings.CHATMEMORY = {**settings.CHATMEMORY, **named}


async def test_a_client_with_a_token_gets_a_ticket_and_chats(ann, by_header):
    name = f"Token {ann.user.username}"
    answer = await db(post)(Browser(enforce_csrf_checks=True), authorization=name)
    assert (answer.status_code, answer["Cache-Control"]) == (201, "no-store")
    fields = answer.json()
    assert 0 < fields["expires_in"] <= 60
    assert fields["protocols"] == ["chatmemory.v1", f"ticket.{fields['ticket']}"]
    async with connected(tab := Tab(None, protocols=fields["protocols"], headers=NO_ORIGIN)):
        assert (await tab.send("hi"))["type"] == "ok"


def test_a_wrong_token_gets_no_ticket(ann, by_header):
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


def test_a_password_gets_no_ticket_unless_the_host_enables_it(ann):
    basic = "Basic dXNlcjE6c2VjcmV0"
    assert post(Browser(), authorization=basic).status_code == 401


def test_the_login_of_a_password_ends_with_the_password(ann, settings):
    named = {"API_AUTHENTICATION": ["rest_framework.authentication.BasicAuthentication"]}
    settings.CHATMEMORY = {**settings.CHATMEMORY, **named}
    ann.user.set_password("secret")
    ann.user.save()
    basic = b64encode(f"{ann.user.username}:secret".encode()).decode()
    ticket = post(Browser(), authorization=f"Basic {basic}").json()["ticket"]
    login = services.use_ticket(ticket=ticket)
    assert (login.key, login.credential) == (None, None)
    check_login(login)
    ann.user.set_password("other")
    ann.user.save()
    with pytest.raises(Unauthenticated):
        check_login(login)


def test_a_body_that_is_not_empty_is_refused(ann):
    browser = Browser()
    browser.force_login(ann.user)
    body = json.dumps({"user": 1})
    answer = browser.post("/api/tickets/", body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_field")
    assert browser.get("/api/tickets/").status_code == 405


def from_header(scope):
    """Return the user that a header names."""
    name = dict(scope["headers"]).get(b"x-user", b"").decode()
    return User.objects.filter(username=name).first()


async def from_header_async(scope):
    return await db(from_header)(scope)


def device(scope):
    """Return an account of another model with the primary key of the user."""
    return Device(pk=from_header(scope).pk)


def broken(scope):
    raise RuntimeError("secret")


@pytest.mark.parametrize("name", ["from_header", "from_header_async"])
async def test_the_function_of_the_host_authenticates_sockets(ann, settings, name):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SOCKET_AUTH": f"{THIS_MODULE}.{name}"}
    async with connected(tab := Tab(None, headers={"x-user": ann.user.username})):
        assert (await tab.send("hi"))["type"] == "ok"
    assert await refused(Tab(ann, headers={"x-user": "nobody"}))
    await db(User.objects.update)(is_active=False)
    assert await refused(Tab(None, headers={"x-user": ann.user.username}))


async def test_the_function_of_the_host_cannot_return_an_account_of_another_model(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SOCKET_AUTH": f"{THIS_MODULE}.device"}
    assert await refused(Tab(None, headers={"x-user": ann.user.username}))


@pytest.mark.parametrize("name", ["broken", "no_such_function"])
async def test_a_failing_function_of_the_host_accepts_no_socket(ann, settings, name, caplog):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SOCKET_AUTH": f"{THIS_MODULE}.{name}"}
    async with Tab(ann) as tab:
        bye, code = await tab.closed()
    assert (bye["reason"], bye["reconnect"], code) == ("internal", True, 1011)
    assert "the login of a socket failed" in caplog.text


def forbidding(scope):
    raise Forbidden


@pytest.mark.regression
async def test_a_socket_that_the_function_of_the_host_forbids_does_not_reconnect(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SOCKET_AUTH": f"{THIS_MODULE}.forbidding"}
    async with Tab(ann) as tab:
        bye, code = await tab.closed()
    assert (bye["reason"], bye["reconnect"], code) == ("forbidden", False, 4403)


@db
def ticket_of_browser(person):
    """Return a ticket that this person's browser requested over REST, as subprotocols."""
    browser = Browser()
    browser.cookies[django_settings.SESSION_COOKIE_NAME] = person.cookie
    return post(browser).json()["protocols"]


@pytest.mark.regression
@pytest.mark.parametrize("is_signaled", [True, False], ids=["by a logout", "by its session"])
async def test_a_socket_closes_with_the_login_that_requested_its_ticket(
    ann, monkeypatch, is_signaled
):
    """Immediately by the signal; by the sweep, if the session ends without one."""
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60 if is_signaled else 0.1)
    other = await db(sign_in)(ann.user)
    protocols = [await ticket_of_browser(person) for person in (ann, other)]
    tab, stays = (Tab(None, protocols=each, headers=NO_ORIGIN) for each in protocols)
    async with connected(tab, stays):
        browser = Browser()
        browser.cookies[django_settings.SESSION_COOKIE_NAME] = ann.cookie
        end = browser.logout if is_signaled else Session(ann.cookie).delete
        await db(end)()
        bye, code = await tab.closed()
        assert (bye["reason"], bye["reconnect"], code) == ("unauthenticated", False, 4401)
        assert (await stays.send("hi"))["type"] == "ok"


@pytest.mark.regression
async def test_a_ticket_of_an_ended_login_is_refused(ann):
    protocols = await ticket_of_browser(ann)
    await db(Session(ann.cookie).delete)()
    assert await refused(Tab(None, protocols=protocols, headers=NO_ORIGIN))


@pytest.mark.regression
def test_a_check_of_a_login_by_ticket_includes_its_session(ann):
    login = services.use_ticket(
        ticket=services.issue_ticket(by=Actor.user(ann.user), key=ann.cookie)
    )
    check_login(login)
    Session(ann.cookie).delete()
    with pytest.raises(Unauthenticated):
        check_login(login)


@pytest.mark.regression
def test_the_database_does_not_reveal_the_login_of_a_ticket(ann):
    tickets = [
        services.issue_ticket(by=Actor.user(ann.user), key=ann.cookie, credential="a-token")
        for _ in range(2)
    ]
    rows = [row.login for row in Ticket.objects.order_by("pk")]
    for row in rows:
        assert b"a-token" not in bytes.fromhex(row)
        assert ann.cookie.encode() not in bytes.fromhex(row)
    assert rows[0] != rows[1]
    login = services.use_ticket(ticket=tickets[0])
    assert (login.key, login.credential) == (ann.cookie, "a-token")


@pytest.mark.regression
@pytest.mark.parametrize("engine", ["cache", "signed_cookies"])
def test_a_ticket_works_with_each_session_engine(ann, settings, engine):
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    browser = Browser()
    browser.force_login(ann.user)
    login = services.use_ticket(ticket=post(browser).json()["ticket"])
    assert login.key == browser.session.session_key
    check_login(login)
    browser.logout()
    if engine == "cache":  # signed cookies end in the browser alone
        with pytest.raises(Unauthenticated):
            check_login(login)


CALLS: list[list[str | None]] = []
REVOKED: set[str] = set()


def not_revoked(logins):
    """Return the logins whose token is valid, as a function of the host does."""
    CALLS.append(sorted(login.credential for login in logins))
    return [login for login in logins if login.credential not in REVOKED]


def by_token(scope):
    """Return the user and the token that a header names."""
    token = dict(scope["headers"]).get(b"x-token", b"").decode()
    user = User.objects.filter(username=token.partition("/")[0]).first()
    return user and (user, token)


@pytest.fixture
def tokens(settings):
    """Let a function of the host revoke logins."""
    CALLS.clear()
    REVOKED.clear()
    mine = {"SOCKET_AUTH": f"{THIS_MODULE}.by_token", "VALID_LOGINS": f"{THIS_MODULE}.not_revoked"}
    settings.CHATMEMORY = {**settings.CHATMEMORY, **mine}


@pytest.mark.regression
@pytest.mark.parametrize("by_ticket", [True, False], ids=["by ticket", "by SOCKET_AUTH"])
async def test_a_revoked_token_closes_only_its_sockets(
    ann, tokens, by_header, by_ticket, monkeypatch
):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.1)
    name = ann.user.username
    token = name if by_ticket else f"{name}/1"
    if by_ticket:
        answer = await db(post)(Browser(), authorization=f"Token {name}")
        tab = Tab(None, protocols=answer.json()["protocols"], headers=NO_ORIGIN)
    else:
        tab = Tab(None, headers={"x-token": token})
    stays = Tab(None, headers={"x-token": f"{name}/2"})
    async with connected(tab, stays):
        await eventually(lambda: [token, f"{name}/2"] in CALLS)  # one call for all
        REVOKED.add(token)
        assert (await tab.closed())[1] == 4401
        assert (await stays.send("hi"))["type"] == "ok"


@pytest.mark.regression
async def test_a_revoked_token_writes_nothing_even_before_a_sweep(ann, tokens, monkeypatch):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 60)
    name = ann.user.username
    async with connected(tab := Tab(None, headers={"x-token": name})):
        REVOKED.add(name)
        assert (await tab.send("hi"))["code"] == "unauthenticated"
        assert (await tab.closed())[1] == 4401


def failing_check(logins):
    raise RuntimeError("secret")


@pytest.mark.regression
async def test_no_login_of_the_host_writes_while_its_check_fails(
    ann, tokens, settings, monkeypatch, caplog
):
    """The sweep continues without it, and closes no socket."""
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.1)
    async with connected(tab := Tab(None, headers={"x-token": ann.user.username})):
        settings.CHATMEMORY = {
            **settings.CHATMEMORY,
            "VALID_LOGINS": f"{THIS_MODULE}.failing_check",
        }
        assert (await tab.send("hi"))["code"] == "internal"
        await eventually(lambda: "a sweep failed" in caplog.text)
        assert "builtins.RuntimeError" in caplog.text
        assert "secret" not in caplog.text
        settings.CHATMEMORY = {**settings.CHATMEMORY, "VALID_LOGINS": f"{THIS_MODULE}.not_revoked"}
        assert (await tab.send("hi", "c2"))["type"] == "ok"


@pytest.mark.regression
async def test_a_failing_check_of_the_host_keeps_no_socket_of_a_disabled_user_open(
    ann, tokens, settings, monkeypatch
):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.1)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VALID_LOGINS": f"{THIS_MODULE}.failing_check"}
    bob = await db(sign_in)()
    await db(make_session)(owner=bob.user)
    disabled = Tab(None, headers={"x-token": bob.user.username})
    async with connected(stays := Tab(None, headers={"x-token": ann.user.username}), disabled):
        await db(User.objects.filter(pk=bob.user.pk).update)(is_active=False)
        assert (await disabled.closed())[1] == 4401
        assert stays.is_quiet()


@pytest.mark.regression
def test_logins_by_a_session_are_not_checked_by_the_host(ann, tokens):
    check_login(Login.of(ann.user, ann.cookie))
    assert CALLS == []
    REVOKED.add("")
    check_login(Login.of(ann.user, credential="other"))
    assert CALLS == [["other"]]


@pytest.mark.regression
@pytest.mark.slow
def test_a_user_model_needs_no_password_and_no_column_is_active(tmp_path):
    """It can be another model than AbstractBaseUser, with the attributes that Django needs."""
    done = subprocess.run(  # our own command line
        [sys.executable, "-m", "tests.plain_user.scenario"],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.plain_user.settings",
            "DATABASE_URL": f"sqlite:///{tmp_path / 'members.sqlite3'}",
        },
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr
