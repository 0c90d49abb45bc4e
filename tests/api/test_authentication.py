"""`API_AUTHENTICATION`: tokens for all views of the REST API, beside Django's session."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.test import Client
from rest_framework.authentication import (
    BaseAuthentication,
    TokenAuthentication,
)
from rest_framework.exceptions import AuthenticationFailed
from rest_framework_simplejwt.models import TokenUser

from chatmemory import services
from chatmemory.api.base import WRITES
from chatmemory.api.operations import OPERATIONS
from chatmemory.api.urls import resources
from chatmemory.models import Session
from chatmemory.services import Actor
from tests.devices import Device
from tests.factories import make_user
from tests.servers import DEADLINE

ROOT = Path(__file__).resolve().parent.parent.parent
THIS_MODULE = "tests.api.test_authentication"
JSON = "application/json"

pytestmark = pytest.mark.django_db


class NameLogin(TokenAuthentication):
    """Accepts the name of a user as a token, even of a disabled one."""

    keyword = "Name"

    def authenticate_credentials(self, key):
        user = User.objects.filter(username=key).first()
        if user is None:
            raise AuthenticationFailed
        return user, key


class Refused(BaseAuthentication):
    """Refuses everyone with Django's error."""

    def authenticate(self, request):
        raise PermissionDenied("secret")


class NoUser(BaseAuthentication):
    """Accepts everyone, as a user who is none."""

    def authenticate(self, request):
        return AnonymousUser(), "credential"


class Stateless(BaseAuthentication):
    """Accepts everyone as a user who is no row."""

    def authenticate(self, request):
        return TokenUser({"user_id": 1}), "credential"


class DeviceLogin(BaseAuthentication):
    """Accepts everyone as a device with the primary key of a user."""

    def authenticate(self, request):
        return Device(pk=User.objects.get().pk), "credential"


@pytest.fixture
def accept(settings):
    def accept(*names):
        paths = [f"{THIS_MODULE}.{name}" for name in names]
        settings.CHATMEMORY = {**settings.CHATMEMORY, "API_AUTHENTICATION": paths}

    return accept


@pytest.fixture
def talk():
    ann = Actor.user(make_user("ann"))
    return services.open_session(session_key="talk", by=ann)


def as_user(name):
    return Client(enforce_csrf_checks=True, headers={"authorization": f"Name {name}"})


def test_a_token_opens_each_view_without_a_csrf_token(accept, talk, settings):
    assert as_user("ann").get("/api/sessions/").status_code == 401
    accept("NameLogin")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["export", "erase"]}
    client = as_user("ann")
    statuses = {
        (pattern.name, method): client.generic(method, url_of(pattern), b"{}", JSON).status_code
        for pattern in resources
        for method in ("GET", "POST", "PATCH", "PUT", "DELETE")
    }
    assert {401, 403}.isdisjoint(statuses.values())
    assert statuses["session", "GET"] == 200


def url_of(pattern):
    route = str(pattern.pattern).replace("<key>", "talk").replace("<turn>", "c1")
    route = route.replace("<int:seq>", "1").replace("<int:undo>", "1")
    return f"/api/{route}"


def test_each_write_with_a_session_needs_the_csrf_token(talk):
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get())
    before = Session.objects.values().get()
    refused = []
    for pattern in resources:
        for method in WRITES:
            if hasattr(pattern.callback.cls, method.lower()):
                answer = client.generic(method, url_of(pattern), b"{}", JSON)
                assert (answer.status_code, "CSRF" in answer.json()["detail"]) == (403, True)
                refused.append((pattern.callback.cls.__name__, method))
    assert {*refused} == {each for each in OPERATIONS if each[1] in WRITES}
    assert Session.objects.values().get() == before


def test_no_token_is_accepted_by_default_nor_by_the_setting_of_rest_framework(settings, talk):
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [f"{THIS_MODULE}.NameLogin"]}
    for path in ("/api/sessions/", "/api/sessions/talk/"):
        assert as_user("ann").get(path).status_code == 401
    assert as_user("ann").post("/api/tickets/", {}, content_type=JSON).status_code == 401


def test_a_password_is_refused_unless_the_host_names_it(settings, talk):
    make_user("eve").set_password("secret")
    basic = Client(headers={"authorization": "Basic ZXZlOnNlY3JldA=="})
    answer = basic.get("/api/sessions/")
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Session")


def test_a_challenge_names_each_means_of_authentication(accept, talk):
    accept("NameLogin", "NoUser")
    answer = as_user("unknown").get("/api/sessions/")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer["WWW-Authenticate"] == "Name, Session"


@pytest.mark.parametrize("name", ["unknown", ""])
def test_a_wrong_token_is_refused(accept, talk, name):
    accept("NameLogin")
    assert as_user(name).get("/api/sessions/talk/").status_code == 401


def test_a_disabled_user_is_not_authenticated_whatever_the_class_accepts(accept, talk):
    accept("NameLogin")
    User.objects.update(is_active=False)
    answer = as_user("ann").get("/api/sessions/talk/")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert as_user("ann").post("/api/tickets/", {}, content_type=JSON).status_code == 401


@pytest.mark.parametrize("name", ["NoUser", "Stateless", "DeviceLogin"])
def test_a_class_that_returns_no_user_authenticates_no_one(accept, talk, name):
    accept(name)
    answer = Client().get("/api/sessions/")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


@pytest.mark.regression
def test_a_class_may_refuse_with_the_error_of_django(accept, talk):
    accept("Refused")
    answer = Client().get("/api/sessions/")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert b"secret" not in answer.content


def refuse(actor):
    return False


def test_a_token_of_a_person_who_may_not_chat_is_forbidden(accept, talk, settings):
    accept("NameLogin")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "REACH": f"{THIS_MODULE}.refuse"}
    answer = as_user("ann").get("/api/sessions/")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_session_needs_the_csrf_token_also_beside_tokens(accept, talk):
    accept("NameLogin")
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(username="ann"))
    assert client.get("/api/sessions/talk/").status_code == 200
    answer = client.patch("/api/sessions/talk/", {"title": "x"}, content_type=JSON)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_token_precedes_the_session_of_the_browser(accept, talk):
    accept("NameLogin")
    client = as_user("ann")
    client.force_login(make_user("bob"))
    body = {"title": "x"}
    assert client.patch("/api/sessions/talk/", body, content_type=JSON).status_code == 200


READABLE = {
    "cache-control",
    "content-language",
    "content-length",
    "content-type",
    "expires",
    "last-modified",
    "pragma",
}
"""The headers that a page of another origin may always read (Fetch, 4.6)."""


@pytest.mark.slow
def test_the_documentation_of_cors_exposes_each_header_that_the_api_sends(talk, settings):
    names = exposed_in((ROOT / "docs/reference/api-authentication.md").read_text())
    assert exposed_in((ROOT / "tests/tokens/settings.py").read_text()) == names
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["export"]}
    ann, sent = Client(), set()
    ann.force_login(User.objects.get())
    for pattern in resources:
        for client, method in ((Client(), "GET"), (ann, "GET"), (ann, "POST"), (ann, "TRACE")):
            answer = client.generic(method, url_of(pattern), b"{}", JSON)
            sent |= {name.lower() for name in answer.headers}
    settings.CHATMEMORY = {**settings.CHATMEMORY, "READS_PER_MINUTE": 0}
    sent |= {name.lower() for name in ann.get("/api/sessions/").headers}
    of_django = {name.lower() for name in ann.get("/").headers}
    assert sorted(sent - of_django - READABLE) == sorted(name.lower() for name in names)


def exposed_in(text):
    (names,) = re.findall(r"^CORS_EXPOSE_HEADERS = (\[.*\])$", text, re.MULTILINE)
    return json.loads(names)


@pytest.mark.slow
def test_tokens_of_rest_framework_and_jwts_chat_from_another_origin(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.tokens.scenario"],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.tokens.settings",
            "DATABASE_URL": f"sqlite:///{tmp_path / 'tokens.sqlite3'}",
            "REDIS_URL": "",
        },
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr
