"""Visitors over REST: the cookie, CSRF, and what they can and cannot do."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client

from chatmemory import services
from chatmemory.access.visitors import COOKIE, LOCAL_COOKIE
from chatmemory.models import DatabaseNow, Feedback, Message, Session, Ticket, Turn, Visitor
from chatmemory.services import Actor
from chatmemory.services.retention.retention import expire_sessions
from tests.api.calls import JSON, post, problem, talk_of
from tests.factories import make_messages, make_user, make_visitor

VISITORS = "/api/visitors/"
CSRF = "a" * 32
KEY = str(uuid.UUID(int=0, version=4))

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}
    cache.clear()
    yield
    cache.clear()


class Browser(Client):
    """A browser over HTTPS, which sends cookies and the CSRF token as the chat page does."""

    def __init__(self, token=None, *, csrf=CSRF, is_secure=True):
        super().__init__(enforce_csrf_checks=True)
        self.is_secure = is_secure
        self.cookies["csrftoken"] = CSRF
        if token is not None:
            self.cookies[COOKIE] = token
        self.csrf = csrf

    def generic(self, method, path, *args, **more):
        headers = {"x-csrftoken": self.csrf, "referer": "https://testserver/", "accept": JSON}
        given = {**headers, **(more.pop("headers", None) or {})}
        headers = {name: value for name, value in given.items() if value is not None}
        more |= {"secure": self.is_secure, "headers": headers}
        return super().generic(method, path, *args, **more)


def test_a_visitor_is_created_with_a_cookie_that_scripts_and_other_hosts_cannot_use():
    browser = Browser()
    answer = post(browser, VISITORS, {})
    assert answer.status_code == 201
    cookie = answer.cookies[COOKIE]
    assert {name: value for name, value in cookie.items() if value} == {
        "expires": cookie["expires"],
        "max-age": 90 * 24 * 60 * 60,
        "path": "/",
        "secure": True,
        "httponly": True,
        "samesite": "Lax",
    }
    assert COOKIE.startswith("__Host-")
    [visitor] = Visitor.objects.all()
    assert answer.json() == {
        "visitor": visitor.digest,
        "ends_at": visitor.ends_at.isoformat(),
        "token": None,
    }
    assert cookie.value not in answer.content.decode()


def test_the_visitor_of_a_valid_cookie_is_returned_without_another_row():
    browser = Browser()
    first = post(browser, VISITORS, {})
    again = post(browser, VISITORS, {})
    assert (again.status_code, again.json()) == (200, first.json())
    assert COOKIE not in again.cookies
    assert Visitor.objects.count() == 1


def test_asking_for_the_visitor_of_a_cookie_is_limited(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WRITES_PER_MINUTE": 1}
    browser = Browser(make_visitor().token)
    statuses = [post(browser, VISITORS, {}).status_code for _ in range(2)]
    assert statuses == [200, 429]


def test_no_page_view_and_no_read_stores_a_visitor():
    browser = Browser()
    paths = ("/", "/shop/", "/chat/", "/accounts/login/", "/api/sessions/", "/api/health/")
    for path in paths:
        browser.get(path)
    assert not Visitor.objects.exists()


@pytest.mark.parametrize("csrf", [None, "b" * 32])
def test_another_page_cannot_create_or_use_a_visitor(csrf):
    browser = Browser(make_visitor().token, csrf=csrf)
    assert problem(post(browser, VISITORS, {}))[:2] == (403, "forbidden")
    assert problem(post(browser, "/api/sessions/", {}))[:2] == (403, "forbidden")
    del browser.cookies[COOKIE]
    assert problem(post(browser, VISITORS, {}))[:2] == (403, "forbidden")
    assert (Visitor.objects.count(), Session.objects.count()) == (1, 0)


def test_a_foreign_origin_is_refused():
    browser = Browser(make_visitor().token)
    answer = post(browser, "/api/sessions/", {}, origin="https://evil.example")
    assert problem(answer)[:2] == (403, "forbidden")


def test_a_visitor_chats_rates_exports_and_erases():
    browser = Browser()
    post(browser, VISITORS, {})
    by = Actor.visitor(browser.cookies[COOKIE].value)
    opened = post(browser, "/api/sessions/", {"key": KEY, "title": "A kettle"})
    assert opened.status_code == 201
    assert Session.objects.get().scope == by.owner
    address = f"/api/sessions/{KEY}/"
    sent = post(browser, f"{address}messages/", {"client_id": "c1", "text": "hi", "wait": 5})
    assert sent.status_code in (201, 202)
    Turn.objects.update(status="complete", ended_at=DatabaseNow())
    Session.objects.update(running=None)
    rated = browser.put(f"{address}turns/c1/feedback/", {"value": 1}, content_type=JSON)
    assert (rated.status_code, Feedback.objects.count()) == (200, 1)
    assert browser.get(f"{address}messages/").json()["messages"][0]["text"] == "hi"
    assert KEY in b"".join(browser.get("/api/own-data/export/").streaming_content).decode()
    assert browser.delete(address).status_code == 200
    assert browser.get(address).status_code == 404


def test_a_visitor_does_not_reach_sessions_of_users_and_other_visitors():
    talk_of(make_user("ann"), "hi", key=KEY)
    other = make_visitor().actor
    services.append_messages(
        session_key=KEY, by=other, messages=make_messages("secret"), create=True
    )
    browser = Browser(make_visitor().token)
    for path in (f"/api/sessions/{KEY}/", f"/api/sessions/{KEY}/messages/"):
        assert browser.get(path).status_code == 404
    assert browser.get("/api/sessions/").json()["sessions"] == []
    sent = post(browser, f"/api/sessions/{KEY}/messages/", {"client_id": "c1", "text": "hi"})
    assert sent.status_code == 404
    assert Message.stored.filter(text="secret").count() == 1


def test_a_user_who_signs_in_is_no_visitor():
    guest = make_visitor()
    services.open_session(session_key="visitors", by=guest.actor)
    user = make_user("ann")
    services.open_session(session_key="users", by=Actor.user(user))
    browser = Browser(guest.token)
    browser.force_login(user)
    assert [each["key"] for each in browser.get("/api/sessions/").json()["sessions"]] == ["users"]
    assert problem(post(browser, VISITORS, {}))[:2] == (409, "conflict")
    assert Visitor.objects.count() == 1
    browser.logout()
    browser.cookies[COOKIE] = guest.token
    [session] = browser.get("/api/sessions/").json()["sessions"]
    assert session["key"] == "visitors"


@pytest.mark.parametrize("columns", [{"days": -1}, {"adopted_at": DatabaseNow()}, None])
def test_an_unknown_ended_or_adopted_credential_is_refused_and_replaced(columns):
    old = "a" * 43 if columns is None else make_visitor(**columns).token
    browser = Browser(old)
    answer = browser.get("/api/sessions/")
    assert problem(answer)[:2] == (401, "unauthenticated")
    assert answer["WWW-Authenticate"] == "Session, Visitor"
    assert post(browser, VISITORS, {}).status_code == 201
    assert browser.cookies[COOKIE].value != old
    assert browser.get("/api/sessions/").status_code == 200


def test_without_the_setting_the_cookie_means_nothing(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": False}
    browser = Browser(make_visitor().token)
    assert browser.get("/api/sessions/")["WWW-Authenticate"] == "Session"
    for answer in (browser.get("/api/sessions/"), post(browser, VISITORS, {})):
        assert problem(answer)[:2] == (401, "unauthenticated")


def refuse_visitors(by):
    return by.kind != "visitor"


def test_a_visitor_whom_reach_refuses_is_forbidden(settings):
    guest = make_visitor()
    reach = f"{__name__}.refuse_visitors"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "REACH": reach}
    assert Browser(guest.token).get("/api/sessions/").status_code == 403
    assert post(Browser(), VISITORS, {}).status_code == 403


def test_a_ticket_of_a_visitor_opens_a_socket_of_the_visitor():
    guest = make_visitor()
    answer = post(Browser(guest.token), "/api/tickets/", {})
    assert answer.status_code == 201
    assert services.use_ticket(ticket=answer.json()["ticket"]).actor == guest.actor
    assert not Ticket.objects.exists()


# Limits


@pytest.mark.parametrize("limit", ["VISITORS_PER_HOUR", "VISITORS_PER_MINUTE"])
def test_mass_creation_is_limited_and_states_when_to_retry(settings, limit):
    settings.CHATMEMORY = {**settings.CHATMEMORY, limit: 2}
    answers = [post(Browser(), VISITORS, {}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [201, 201, 429, 429]
    assert 0 < int(answers[-1]["Retry-After"]) <= 3600
    assert Visitor.objects.count() == 2


def test_an_invented_address_does_not_evade_the_limit(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITORS_PER_HOUR": 1}
    addresses = ("198.51.100.1", "198.51.100.2")
    statuses = [
        post(Browser(), VISITORS, {}, x_forwarded_for=each).status_code for each in addresses
    ]
    assert statuses == [201, 429]


def test_addresses_of_one_ipv6_network_share_a_limit_behind_a_trusted_proxy(settings):
    limits = {"VISITORS_PER_HOUR": 1, "TRUSTED_PROXIES": ["127.0.0.1"]}
    settings.CHATMEMORY = {**settings.CHATMEMORY, **limits}
    addresses = ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1")
    statuses = [
        post(Browser(), VISITORS, {}, x_forwarded_for=each).status_code for each in addresses
    ]
    assert statuses == [201, 429, 201]


def test_sends_of_all_visitors_of_an_address_are_limited(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_SENDS_PER_MINUTE": 1}
    statuses = []
    for guest in (make_visitor(), make_visitor()):
        services.open_session(session_key=KEY, by=guest.actor)
        body = {"client_id": "c1", "text": "hi"}
        statuses.append(
            post(Browser(guest.token), f"/api/sessions/{KEY}/messages/", body).status_code
        )
    assert statuses == [202, 429]


# A development server, and a server without HTTPS


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000"])
def test_a_development_server_without_https_uses_another_cookie(settings, host):
    settings.DEBUG, settings.ALLOWED_HOSTS = True, ["*"]
    browser = Browser(is_secure=False)
    answer = post_plainly(browser, host)
    assert answer.status_code == 201
    cookie = answer.cookies[LOCAL_COOKIE]
    assert (cookie["secure"], cookie["httponly"], cookie["samesite"]) == ("", True, "Lax")
    assert COOKIE not in answer.cookies
    assert browser.get("/api/sessions/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("debug", "host"), [(False, "127.0.0.1"), (True, "shop.example"), (True, "192.168.1.7")]
)
def test_elsewhere_visitors_need_https(settings, debug, host):
    settings.DEBUG, settings.ALLOWED_HOSTS = debug, ["*"]
    answer = post_plainly(Browser(is_secure=False), host)
    assert problem(answer)[:2] == (403, "forbidden")
    assert "SECURE_PROXY_SSL_HEADER" in answer.json()["detail"]
    assert not Visitor.objects.exists()


def test_the_cookie_of_development_servers_means_nothing_elsewhere(settings):
    settings.ALLOWED_HOSTS = ["*"]
    for debug, secure, host in [(False, False, "127.0.0.1"), (True, True, "127.0.0.1")]:
        settings.DEBUG = debug
        browser = Browser(is_secure=secure)
        browser.cookies[LOCAL_COOKIE] = make_visitor().token
        answer = browser.get("/api/sessions/", headers={"host": host})
        assert answer.status_code == 401


def post_plainly(browser, host):
    headers = {"host": host, "referer": None}
    return browser.post(VISITORS, "{}", content_type=JSON, headers=headers)


# Erasure


def with_sessions(*keys):
    guest = make_visitor()
    for key in keys:
        by = {"session_key": key, "by": guest.actor}
        services.append_messages(**by, messages=make_messages("hi", "hello"), create=True)
    return guest


def test_a_visitor_erases_all_own_data():
    guest, other = with_sessions("a", "b"), with_sessions("c")
    services.purge_session(session_key="b", by=guest.actor, reason="")
    services.issue_ticket(by=guest.actor)
    browser = Browser(guest.token)
    answer = browser.delete("/api/visitors/me/")
    expected = {"sessions": 2, "messages": 4, "turns": 0, "held": []}
    assert (answer.status_code, answer.json()) == (200, expected)
    assert (answer.cookies[COOKIE].value, answer.cookies[COOKIE]["max-age"]) == ("", 0)
    assert answer.cookies[COOKIE]["secure"]
    assert [visitor.scope for visitor in Visitor.objects.all()] == [other.actor.owner]
    assert [session.key for session in Session.objects.all()] == ["c"]
    assert not Ticket.objects.exists()
    assert Browser(guest.token).get("/api/sessions/").status_code == 401


def test_a_session_on_hold_stays_and_its_visitor_is_not_authenticated():
    guest = with_sessions("a", "b")
    by = Actor.server("tests")
    held = {"session_key": "a", "by": by, "scope": guest.actor.owner, "reason": "a case"}
    services.hold_session(**held)
    answer = Browser(guest.token).delete("/api/visitors/me/")
    assert answer.json()["held"] == ["a"]
    assert [session.key for session in Session.objects.all()] == ["a"]
    assert Browser(guest.token).get("/api/sessions/").status_code == 401
    expire_sessions()
    assert (Session.objects.active().count(), Visitor.objects.count()) == (1, 1)
    services.release_session(**held)
    expire_sessions()
    assert (Session.objects.active().count(), Visitor.objects.count()) == (0, 0)


def test_another_page_cannot_erase_a_visitor():
    guest = with_sessions("a")
    answer = Browser(guest.token, csrf=None).delete("/api/visitors/me/")
    assert problem(answer)[:2] == (403, "forbidden")
    assert Session.objects.count() == 1


def test_own_data_of_a_visitor_is_erased_with_the_visitor(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["erase"]}
    guest = with_sessions("a")
    body = {"confirm": guest.actor.label}
    assert post(Browser(guest.token), "/api/own-data/erase/", body).status_code == 200
    assert not Session.objects.exists()
    assert not Visitor.objects.exists()


# Adoption

ADOPTION = "/api/visitors/adoption/"
NOTHING: dict[str, object] = {"visitor": None, "sessions": [], "done": False}
LOGIN = {"username": "ann", "password": "secret", "csrfmiddlewaretoken": CSRF}


def signed_in(guest=None, name="ann", **options):
    browser = Browser(guest and guest.token, **options)
    user = User.objects.filter(username=name).first() or make_user(name)
    browser.force_login(user)
    return browser, Actor.user(user)


def test_the_user_sees_titles_and_first_messages_before_the_adoption():
    guest = with_sessions("a")
    browser, ann = signed_in(guest)
    listed = browser.get(ADOPTION).json()
    [session] = listed.pop("sessions")
    assert listed == {"visitor": guest.actor.id, "done": False}
    assert (session["key"], session["title"], session["text"]) == ("a", "", "hi")
    assert not services.sessions_of(ann).exists()


def test_nothing_moves_at_a_login_without_a_confirmation():
    """On a shared computer the next person would read the chat."""
    guest = with_sessions("a")
    browser, ann = signed_in(guest)
    assert browser.get("/api/sessions/").json()["sessions"] == []
    assert services.sessions_of(guest.actor).exists()
    assert not services.sessions_of(ann).exists()


def test_a_confirmed_adoption_moves_the_sessions_and_ends_the_visitor():
    guest = with_sessions("a", "b")
    browser, ann = signed_in(guest)
    body = {"visitor": guest.actor.id}
    answer = post(browser, ADOPTION, body)
    assert (answer.status_code, answer.json()) == (200, {"keys": {"a": "a", "b": "b"}})
    assert (answer.cookies[COOKIE].value, answer.cookies[COOKIE]["max-age"]) == ("", 0)
    assert services.sessions_of(ann).count() == 2
    browser.cookies[COOKIE] = guest.token  # the first answer was lost
    done = {"visitor": guest.actor.id, "sessions": [], "done": True}
    assert browser.get(ADOPTION).json() == done
    del browser.cookies[COOKIE]
    assert post(browser, ADOPTION, body).json() == answer.json()
    replayed = Browser(guest.token)
    assert replayed.get("/api/sessions/").status_code == 401
    assert post(replayed, VISITORS, {}).json()["visitor"] != guest.actor.id


def test_another_page_cannot_adopt_for_the_user():
    guest = with_sessions("a")
    browser, ann = signed_in(guest, csrf=None)
    answer = post(browser, ADOPTION, {"visitor": guest.actor.id})
    assert problem(answer)[:2] == (403, "forbidden")
    assert not services.sessions_of(ann).exists()


def test_only_the_visitor_of_the_cookie_is_adopted():
    """The name of a visitor is no credential; and a planted cookie is not what the user saw."""
    guest, planted = with_sessions("a"), with_sessions("b")
    for browser in (signed_in()[0], signed_in(planted)[0], signed_in(make_visitor(days=-1))[0]):
        answer = post(browser, ADOPTION, {"visitor": guest.actor.id})
        assert problem(answer)[:2] == (404, "not_found")
    assert services.sessions_of(guest.actor).count() == 1
    assert services.sessions_of(planted.actor).count() == 1


def test_a_repeated_confirmation_adopts_no_other_visitor():
    """The cookie may have changed since the user saw the list."""
    guest, later = with_sessions("a"), with_sessions("b")
    browser, ann = signed_in(guest)
    body = {"visitor": guest.actor.id}
    keys = post(browser, ADOPTION, body).json()
    browser.cookies[COOKIE] = later.token
    assert post(browser, ADOPTION, body).json() == keys == {"keys": {"a": "a"}}
    assert services.sessions_of(later.actor).exists()
    assert services.sessions_of(ann).count() == 1


def test_an_email_that_a_visitor_states_connects_no_account(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_ADOPT": "auto"}
    guest = make_visitor().actor
    email = "ann@example.com"
    about = {"title": email, "metadata": {"email": email, "user": "ann"}}
    services.open_session(session_key="a", by=guest, **about)
    ann = Actor.user(make_user("ann", email=email))
    browser = Browser()
    assert browser.post("/accounts/login/", LOGIN).status_code == 302
    assert browser.get(ADOPTION).json()["sessions"] == []
    assert services.sessions_of(guest).exists()
    assert not services.sessions_of(ann).exists()


def test_another_user_does_not_get_the_adopted_sessions_or_their_keys():
    guest = with_sessions("a")
    body = {"visitor": guest.actor.id}
    post(signed_in(guest)[0], ADOPTION, body)
    answer = post(signed_in(guest, "bob")[0], ADOPTION, body)
    assert problem(answer)[:2] == (404, "not_found")
    assert "keys" not in answer.json()


@pytest.mark.parametrize("guest", [None, "ended"])
def test_without_a_visitor_nothing_is_listed(guest):
    browser, _ = signed_in(guest and make_visitor(days=-1))
    assert browser.get(ADOPTION).json() == NOTHING


def test_a_visitor_cannot_adopt():
    guest = with_sessions("a")
    browser = Browser(guest.token)
    assert browser.get(ADOPTION).json() == NOTHING
    answer = post(browser, ADOPTION, {"visitor": guest.actor.id})
    assert problem(answer)[:2] == (409, "conflict")


def sign_in_on_the_page(guest):
    browser = Browser(guest.token)
    ann = make_user("ann")
    assert browser.post("/accounts/login/", LOGIN).status_code == 302
    return Actor.user(ann)


@pytest.mark.parametrize(("setting", "moves"), [("ask", False), ("auto", True)])
def test_the_setting_decides_about_recent_sessions_at_the_login(settings, setting, moves):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_ADOPT": setting}
    ann = sign_in_on_the_page(with_sessions("a"))
    assert services.sessions_of(ann).exists() == moves


def test_older_sessions_do_not_move_at_the_login(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_ADOPT": "auto"}
    guest = with_sessions("a", "b")
    Session.objects.filter(key="a").update(last_message_at=DatabaseNow() - timedelta(hours=2))
    ann = sign_in_on_the_page(guest)
    assert services.sessions_of(guest.actor).count() == 2
    assert not services.sessions_of(ann).exists()


@pytest.mark.parametrize("columns", [{"days": -1}, {"adopted_at": DatabaseNow()}])
def test_a_login_with_an_old_cookie_succeeds(settings, columns):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_ADOPT": "auto"}
    assert sign_in_on_the_page(make_visitor(**columns))
