"""Signing in and out with the views and templates of the package."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import reverse
from django.urls.resolvers import RoutePattern

from chatmemory import accounts, urls
from chatmemory.api import urls as api_urls
from tests.factories import make_user
from tests.pages.test_pages import html_of

pytestmark = pytest.mark.django_db

PASSWORD = "a long password"


@pytest.fixture
def ann():
    user = make_user("ann")
    user.set_password(PASSWORD)
    user.save()
    return user


def sign_in(password=PASSWORD, **fields):
    browser = Client()
    fields = {"username": "ann", "password": password, **fields}
    return browser, browser.post("/accounts/login/", fields)


def test_a_user_reaches_the_requested_page_by_the_default_login_url(ann):
    address = f"/accounts/login/?next={reverse('chatmemory:chat')}"
    answer = Client().get(reverse("chatmemory:chat"))
    assert (answer.status_code, answer["Location"]) == (302, address)
    assert 'name="next" value="/chat/"' in html_of(Client().get(address))
    browser, answer = sign_in(next="/chat/~new/")
    assert (answer.status_code, answer["Location"]) == (302, "/chat/~new/")
    assert browser.get("/chat/~all/").status_code == 200


@pytest.mark.parametrize(
    "target", ["", "https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)"]
)
def test_without_a_page_of_this_site_the_chats_follow(ann, target):
    _, answer = sign_in(next=target)
    assert (answer.status_code, answer["Location"]) == (302, "/chat/")


@override_settings(LOGIN_REDIRECT_URL="home")
def test_a_project_can_choose_the_page_that_follows(ann):
    _, answer = sign_in()
    assert (answer.status_code, answer["Location"]) == (302, "/")


def test_a_wrong_password_is_stated_and_keeps_the_requested_page(ann):
    browser, answer = sign_in("wrong", next="/chat/talk/")
    page = html_of(answer)
    assert 'role="alert"' in page
    assert "correct username and password" in page
    assert 'name="next" value="/chat/talk/"' in page
    assert browser.get("/chat/~all/").status_code == 302


def test_a_sign_in_needs_the_csrf_token(ann):
    fields = {"username": "ann", "password": PASSWORD}
    assert Client(enforce_csrf_checks=True).post("/accounts/login/", fields).status_code == 403


def test_a_user_who_may_not_see_a_page_is_told_who_is_signed_in(ann):
    browser, _ = sign_in()
    assert "You are signed in as ann." in html_of(browser.get("/accounts/login/?next=/admin/"))


@override_settings(LOGOUT_REDIRECT_URL=None)
def test_signing_out_is_a_post_and_leads_back_to_the_sign_in(ann):
    browser, _ = sign_in()
    assert browser.get("/accounts/logout/").status_code == 405
    page = html_of(browser.post("/accounts/logout/"))
    assert "You are signed out." in page
    assert 'href="/accounts/login/"' in page
    assert browser.get("/chat/~all/").status_code == 302


@pytest.mark.parametrize("to", [None, "home"])
def test_signing_out_removes_what_the_browser_keeps_of_the_person(ann, to):
    browser, _ = sign_in()
    with override_settings(LOGOUT_REDIRECT_URL=to):
        answer = browser.post("/accounts/logout/")
    assert answer["Clear-Site-Data"] == '"storage"'
    assert "Clear-Site-Data" not in browser.get("/accounts/logout/")


@pytest.mark.parametrize(
    ("to", "targets"),
    [
        (None, "'self'"),
        ("home", "'self'"),
        ("https://sso.example/end?x=1", "'self' https://sso.example"),
        ("https://user:secret@sso.example:8/", "'self' https://sso.example:8"),
    ],
)
def test_forms_lead_only_to_this_site_and_where_the_project_redirects(ann, to, targets):
    browser, _ = sign_in()
    with override_settings(LOGOUT_REDIRECT_URL=to):
        policy = browser.get("/chat/~archived/")["Content-Security-Policy"]
    assert policy.endswith(f"; form-action {targets}")


@pytest.mark.parametrize("path", ["login", "logout"])
def test_the_pages_send_the_policy(ann, path):
    browser, _ = sign_in()
    answer = browser.post(f"/accounts/{path}/")
    assert "script-src 'self'" in answer["Content-Security-Policy"]


@pytest.mark.regression
def test_the_pages_show_the_text_of_the_user_not_the_username(ann, settings, monkeypatch):
    monkeypatch.setattr(User, "__str__", lambda user: f"{user.username}@example.org")
    browser, _ = sign_in()
    for address in ("/chat/~all/", "/chat/~data/", "/accounts/login/"):
        shown = re.findall(r"\bann\b[^<. ]*", html_of(browser.get(address)))
        assert set(shown) == {"ann@example"}
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["erase"]}
    erased = browser.post("/chat/~data/erase/", {"confirm": "ann@example.org"})
    assert erased.status_code == 200


@pytest.mark.regression
@pytest.mark.parametrize(
    ("name", "wrong", "right"), [("", "", "ann"), ("Ann  Lee", "Ann", "Ann Lee")]
)
def test_erasing_own_data_needs_a_name_that_can_be_written(
    ann, settings, monkeypatch, name, wrong, right
):
    monkeypatch.setattr(User, "__str__", lambda user: name)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["erase"]}
    browser, _ = sign_in()
    statuses = [
        browser.post("/chat/~data/erase/", {"confirm": text}).status_code for text in (wrong, right)
    ]
    assert statuses == [400, 200]


def statuses_without_a_login():
    """Request each address of the package without a login; return the status of each."""
    arguments = {"key": "k", "turn": "c1", "seq": 1, "undo": 1, "language": "de"}
    found = {}
    for module in (urls, accounts, api_urls):
        prefix = f"{module.app_name}:" if hasattr(module, "app_name") else ""
        for pattern in module.urlpatterns:
            names = pattern.pattern.converters
            if isinstance(pattern.pattern, RoutePattern):
                given = {name: arguments[name] for name in names}
                address = reverse(f"{prefix}{pattern.name}", kwargs=given)
                found[address] = Client().get(address).status_code
    return found


@pytest.mark.regression
def test_a_middleware_that_requires_a_login_hides_nothing_that_needs_none(settings):
    usual = statuses_without_a_login()
    required = "django.contrib.auth.middleware.LoginRequiredMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, required]
    changed = {
        address: (usual[address], status)
        for address, status in statuses_without_a_login().items()
        if status != usual[address]
    }
    assert usual["/chat/~words/de.js"] == 200
    # The middleware asks for the login before the page refuses the method.
    assert all(statuses == (405, 302) for statuses in changed.values()), changed
