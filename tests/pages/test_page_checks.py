"""The system checks for websockets and the login URL."""

from __future__ import annotations

from types import ModuleType

import pytest
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.conf.urls.i18n import i18n_patterns
from django.core.asgi import get_asgi_application
from django.urls import include, path, re_path

from chatmemory.routing import websocket_urlpatterns
from tests.test_checks import found

pytestmark = pytest.mark.django_db  # checks read the features of the database

http = get_asgi_application()
chat = URLRouter(websocket_urlpatterns)


async def other(scope, receive, send):
    """A websocket consumer of the host project."""


none = ProtocolTypeRouter({"http": http})
elsewhere = ProtocolTypeRouter({"websocket": AuthMiddlewareStack(URLRouter([path("x", other)]))})
direct = ProtocolTypeRouter({"websocket": AuthMiddlewareStack(chat)})
nested = ProtocolTypeRouter({"websocket": URLRouter([re_path(r"^app/", chat)])})
unknown = ProtocolTypeRouter({"websocket": other})
urlpatterns = [path("chat/", include("chatmemory.urls"))]

APPS = [app for app in settings.INSTALLED_APPS if app != "daphne"]
MOUNTED = {"ROOT_URLCONF": __name__, "LOGIN_URL": "/chat/"}


def warnings(*, deploy=False, **changed):
    return found(deploy=deploy, **{**MOUNTED, **changed})


@pytest.mark.regression
@pytest.mark.parametrize(
    ("name", "word"),
    [
        (None, "ASGI_APPLICATION is not set"),
        ("nowhere.application", "ModuleNotFoundError"),
        (f"{__name__}.http", "does not accept websockets"),
        (f"{__name__}.none", "no route for websockets"),
        (f"{__name__}.elsewhere", "not to chatmemory"),
    ],
)
def test_an_application_without_a_chat_socket_is_a_warning(name, word):
    assert word in warnings(ASGI_APPLICATION=name)["chatmemory.W018"]


@pytest.mark.parametrize("name", ["direct", "nested", "unknown", "other"])
def test_an_application_that_has_or_may_have_a_chat_socket_passes(name):
    assert warnings(ASGI_APPLICATION=f"{__name__}.{name}") == {}


@pytest.mark.regression
@pytest.mark.parametrize(
    ("apps", "word"),
    [
        (APPS, "runserver does not serve"),
        ([*APPS, "daphne"], "is after django.contrib.staticfiles"),
    ],
)
def test_a_runserver_without_websockets_is_a_warning(apps, word):
    assert word in warnings(INSTALLED_APPS=apps, DEBUG=True)["chatmemory.W018"]
    assert "chatmemory.W018" not in warnings(INSTALLED_APPS=apps, DEBUG=False)


@pytest.mark.regression
def test_static_files_on_another_origin_are_a_warning():
    assert "chatmemory.W040" not in warnings(deploy=True)
    found = warnings(deploy=True, STATIC_URL="//cdn.example/static/")
    assert "origin: cdn.example." in found["chatmemory.W040"]


@pytest.mark.regression
def test_the_deploy_check_needs_no_collected_static_files(tmp_path):
    backend = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"
    given = {
        "STORAGES": {**settings.STORAGES, "staticfiles": {"BACKEND": backend}},
        "STATIC_ROOT": str(tmp_path),
        "STATIC_URL": "https://cdn.example/static/",
    }
    found = warnings(deploy=True, **given)
    assert "origin: https://cdn.example." in found["chatmemory.W040"]


def tickets(request, pk=None):
    """A view of the host's own API."""


own_api = path("api/", include([re_path("^tickets/$", tickets), path("users/<int:pk>/", tickets)]))
chat_api = path("api/", include("chatmemory.api.urls"))
api_below_chat = path("chat/api/", include("chatmemory.api.urls"))


@pytest.mark.regression
@pytest.mark.parametrize(
    ("urls", "words"),
    [
        ([chat_api, own_api], ("/api/tickets/ leads to chatmemory.api", "hides tests.pages")),
        ([own_api, chat_api], ("/api/tickets/ leads to tests.pages", "hides chatmemory.api")),
        ([path("<path:rest>", tickets), *urlpatterns], ("/chat/", "hides chatmemory.pages")),
    ],
)
def test_an_address_of_two_views_is_a_warning(urls, words):
    found = warnings(ROOT_URLCONF=tuple(urls))["chatmemory.W041"]
    assert all(word in found for word in words)


def test_addresses_of_one_view_pass():
    assert warnings(ROOT_URLCONF=(api_below_chat, *urlpatterns, own_api)) == {}
    assert "chatmemory.W041" not in found(ROOT_URLCONF="project.urls")


@pytest.mark.regression
def test_a_last_url_that_matches_the_rest_passes():
    rest = re_path("^.*$", tickets)
    assert "chatmemory.W041" not in found(ROOT_URLCONF=(api_below_chat, *urlpatterns, rest))


@pytest.mark.slow
@pytest.mark.regression
@pytest.mark.parametrize("url", ["login", "/accounts/login/"])
def test_an_unknown_login_url_is_a_warning(url):
    assert repr(url) in warnings(LOGIN_URL=url)["chatmemory.W019"]


@pytest.mark.parametrize("url", ["chatmemory:chat", "/chat/?x=1", "https://sso.example.org/"])
def test_a_known_or_external_login_url_passes(url):
    assert warnings(LOGIN_URL=url) == {}


@pytest.mark.regression
@pytest.mark.parametrize("url", ["/accounts/login/", "/de/accounts/login/", "/en/accounts/login/"])
def test_a_login_url_below_the_prefix_of_a_language_passes(url):
    module = ModuleType("urls_with_languages")
    accounts = path("accounts/", include("chatmemory.accounts"))
    module.urlpatterns = [*urlpatterns, *i18n_patterns(accounts)]
    changed = {"ROOT_URLCONF": module, "LANGUAGES": [("en", "English"), ("de", "German")]}
    assert warnings(LOGIN_URL=url, **changed) == {}
    assert set(warnings(LOGIN_URL=f"{url}x/", **changed)) == {"chatmemory.W019"}


@pytest.mark.regression
@pytest.mark.parametrize(
    ("url", "is_found"),
    [("chatmemory:chat", True), ("/app/chat/?x=1", True), ("/chat/", False), ("/app/no/", False)],
)
def test_a_login_url_below_a_prefix_begins_with_it(url, is_found, url_prefix):
    assert ("chatmemory.W019" not in warnings(LOGIN_URL=url)) is is_found


@pytest.mark.parametrize("url", ["logout", "/nowhere/", "https://sso.example.org/out", 5])
def test_an_unknown_or_external_logout_url_is_a_warning(url):
    assert repr(str(url)) in warnings(CHATMEMORY={"LOGOUT_URL": url})["chatmemory.W049"]


@pytest.mark.parametrize("url", [None, "chatmemory:chat", "/chat/"])
def test_a_known_logout_url_passes(url):
    assert warnings(CHATMEMORY={"LOGOUT_URL": url}) == {}


def test_projects_without_the_pages_have_no_warning():
    changed = {"ASGI_APPLICATION": None, "LOGIN_URL": "/nowhere/"}
    assert (
        found(ROOT_URLCONF="chatmemory.api.urls", INSTALLED_APPS=APPS, DEBUG=True, **changed) == {}
    )
