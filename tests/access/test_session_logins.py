"""The user of a Django session is the one that Django finds, and no other."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.conf import settings as django_settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user
from django.contrib.auth.backends import ModelBackend
from django.contrib.sessions.models import Session as DjangoSession
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory.access.logins import login_of_session
from chatmemory.errors import Unauthenticated
from chatmemory.routing import websocket_urlpatterns
from tests.factories import make_session, make_user
from tests.servers import Tab, sign_in

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def store(key: str | None = None) -> Any:
    return import_module(django_settings.SESSION_ENGINE).SessionStore(key)


def change(key: str, **values: object) -> None:
    """Change the content of a session; None removes a value."""
    session = store(key)
    for name, value in values.items():
        if value is None:
            del session[name]
        else:
            session[name] = value
    session.save()


def found_by_us(key: str) -> str | None:
    try:
        return login_of_session(key).actor.id
    except Unauthenticated:
        return None


def found_by_django(key: str) -> str | None:
    request: Any = SimpleNamespace(session=store(key))
    user = get_user(request)
    return str(user.pk) if user.is_authenticated else None


class ByName(ModelBackend):
    """A backend of a host."""

    def get_user(self, user_id):
        user = super().get_user(user_id)
        return None if user is None or user.username.startswith("no") else user


BY_NAME = f"{ByName.__module__}.ByName"
MODEL = "django.contrib.auth.backends.ModelBackend"


def expire(ann, settings):
    DjangoSession.objects.update(expire_date=timezone.now() - timedelta(seconds=1))


def disable(ann, settings):
    type(ann.user).objects.update(is_active=False)


def set_password(ann, settings):
    ann.user.set_password("another")
    ann.user.save()


def rotate_secret(ann, settings):
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "x" * 50


def lose_secret(ann, settings):
    settings.SECRET_KEY = "x" * 50


def rename(ann, settings):
    type(ann.user).objects.filter(pk=ann.user.pk).update(username="nobody")


def use_backend(ann, settings, path=BY_NAME):
    settings.AUTHENTICATION_BACKENDS = [MODEL, path]
    change(ann.cookie, **{BACKEND_SESSION_KEY: path})


def rename_under_backend(ann, settings):
    use_backend(ann, settings)
    rename(ann, settings)


CASES = {
    "valid": (lambda *_: None, True),
    "expired": (expire, False),
    "disabled": (disable, False),
    "new password": (set_password, False),
    "rotated secret": (rotate_secret, True),
    "lost secret": (lose_secret, False),
    "logged out": (lambda *_: DjangoSession.objects.all().delete(), False),
    "deleted": (lambda ann, _: ann.user.delete(), False),
    "no user": (lambda ann, _: change(ann.cookie, **{SESSION_KEY: None}), False),
    "no hash": (lambda ann, _: change(ann.cookie, **{HASH_SESSION_KEY: None}), False),
    "empty hash": (lambda ann, _: change(ann.cookie, **{HASH_SESSION_KEY: ""}), False),
    "wrong hash": (lambda ann, _: change(ann.cookie, **{HASH_SESSION_KEY: "a" * 64}), False),
    "no backend": (lambda ann, _: change(ann.cookie, **{BACKEND_SESSION_KEY: None}), False),
    "removed backend": (lambda ann, _: change(ann.cookie, **{BACKEND_SESSION_KEY: BY_NAME}), False),
    "own backend": (use_backend, True),
    "own backend refuses": (rename_under_backend, False),
}


@pytest.mark.parametrize("engine", ["db", "cached_db", "cache", "signed_cookies"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_user_is_found_as_by_django(settings, engine, case):
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    bob, ann = sign_in(), sign_in(make_user())
    act, is_found = CASES[case]
    if engine != "db" and case in ("expired", "logged out"):
        pytest.skip("the session is not, or not only, in the table")
    if engine == "signed_cookies" and (
        "backend" in case or case.startswith(("no ", "empty", "wrong"))
    ):
        pytest.skip("a cookie cannot be changed on the server")
    pk = str(ann.user.pk)
    act(ann, settings)
    assert found_by_us(ann.cookie) == (pk if is_found else None)
    # Last: Django changes the key of a session with an old secret, which a socket cannot send on.
    assert found_by_django(ann.cookie) == (pk if is_found else None)
    if case in ("valid", "own backend"):
        assert found_by_us(bob.cookie) == str(bob.user.pk)


@pytest.mark.parametrize("key", ["", "x", "a" * 32, "\0" * 32, "' OR 1=1 --"])
async def test_an_invalid_cookie_is_no_login(key):
    tab = Tab(None)
    tab.scope["headers"].append(
        (b"cookie", f'{django_settings.SESSION_COOKIE_NAME}="{key}"'.encode())
    )
    async with tab:
        bye, code = await tab.closed()
        assert (bye["reason"], code) == ("unauthenticated", 4401)


def test_a_login_is_two_statements():
    ann = sign_in()
    with CaptureQueriesContext(connection) as queries:
        assert found_by_us(ann.cookie)
    assert len(queries) == 2


def test_the_middleware_of_channels_is_accepted_too(monkeypatch):
    application = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
    monkeypatch.setattr("project.asgi.application", application)
    ann = sign_in()
    make_session(owner=ann.user)

    async def types() -> list[str]:
        async with Tab(ann) as tab:
            await tab.hello()
        async with Tab(None) as stranger:
            await stranger.closed()
        return [stranger.frames[-1]["reason"]]

    assert async_to_sync(types)() == ["unauthenticated"]
