"""The pages docs/howto/front-end.md, sign-in.md, embed.md and history-in-a-view.md."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest
from django.conf import settings as django_settings
from django.core.checks import ERROR, run_checks
from django.http import HttpResponse
from django.template import Context, Engine
from django.test import Client
from django.urls import include, path

from chatmemory import services
from chatmemory.consumers.origins import origin_problem
from chatmemory.services import Actor
from tests.blocks import block_with
from tests.factories import make_messages, make_user
from tests.servers import person_with_talk, start_servers
from tests.test_examples import ROOT, run_example

pytestmark = pytest.mark.django_db

VITE, DJANGO = "localhost:5173", "127.0.0.1:8000"
HISTORY = "docs/howto/history-in-a-view.md"


def status_of_login(host):
    """Sign in with the form, as a browser at Vite's address behind a proxy that sends this host."""
    make_user("ann")
    client = Client(enforce_csrf_checks=True, headers={"Host": host, "Origin": f"http://{VITE}"})
    page = client.get("/accounts/login/").text
    [token] = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    form = {"username": "ann", "password": "secret", "csrfmiddlewaretoken": token}
    return client.post("/accounts/login/", form).status_code


def is_socket_refused(host):
    headers = [(b"host", host.encode()), (b"origin", f"http://{VITE}".encode())]
    return origin_problem({"type": "websocket", "scheme": "ws", "headers": headers}) is not None


@pytest.fixture
def trusting(settings):
    """Apply the settings of the page; return a function that applies only these names of it."""
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1"]

    def trust(*names):
        given = run_example("docs/howto/front-end.md", "CSRF_TRUSTED_ORIGINS =")
        for name in names:
            value = given[name]
            is_dict = isinstance(value, dict)
            setattr(settings, name, {**settings.CHATMEMORY, **value} if is_dict else value)

    return trust


@pytest.mark.parametrize(
    ("host", "names", "status", "is_refused"),
    [
        (VITE, (), 302, False),
        (DJANGO, (), 403, True),
        (DJANGO, ("CSRF_TRUSTED_ORIGINS",), 302, True),
        (DJANGO, ("CSRF_TRUSTED_ORIGINS", "CHATMEMORY"), 302, False),
    ],
    ids=["own host", "changeOrigin", "login trusted", "both trusted"],
)
def test_the_table_of_proxies(trusting, host, names, status, is_refused):
    trusting(*names)
    assert (status_of_login(host), is_socket_refused(host)) == (status, is_refused)


def test_the_proxy_of_the_page_keeps_the_host_and_passes_websockets():
    text = (ROOT / "docs/howto/front-end.md").read_text()
    [config] = re.findall(r"```js\n(// vite.config.js.*?)```", text, re.DOTALL)
    assert "changeOrigin" not in config
    assert '"/ws/": {target, ws: true}' in config


def test_the_proxy_of_the_page_breaks_lost_streams_as_that_of_the_examples():
    """A test of tests/front_ends restarts the server of an example."""
    pages = [ROOT / "docs/howto/front-end.md", *ROOT.glob("docs/examples/*/vite.config.js")]
    for page in pages:
        assert re.search(r'response\.on\("close", \(\) => .*destroy', page.read_text()), page
        assert re.search(r"{target, (.*, )?configure", page.read_text()), page


def test_a_view_gives_the_user_and_the_csrf_cookie(settings, monkeypatch):
    page, ann = "docs/howto/front-end.md", make_user("ann")
    shop, views = ModuleType("shop"), ModuleType("shop.views")
    vars(views).update(run_example(page, "# shop/views.py", __name__="shop.views"))
    monkeypatch.setitem(sys.modules, "shop", shop)
    monkeypatch.setitem(sys.modules, "shop.views", views)
    names = run_example(page, "accounts/me/", path=path, urlpatterns=[])
    settings.ROOT_URLCONF = tuple(names["urlpatterns"])
    client = Client()
    assert client.get("/accounts/me/").json() == {"person": None}
    assert client.cookies["csrftoken"].value
    client.force_login(ann)
    assert client.get("/accounts/me/").json() == {"person": str(ann.pk)}


person = person_with_talk
serve = start_servers


@pytest.mark.browser
@pytest.mark.slow
def test_the_front_end_signs_in_and_out(person, serve, launch, chromium):
    text = (ROOT / "docs/howto/front-end.md").read_text()
    [script] = re.findall(r"```js\n(// src/login.js.*?)```", text, re.DOTALL)
    [server] = serve()
    page = launch(chromium).new_page()
    name = django_settings.SESSION_COOKIE_NAME
    page.context.add_cookies([{"name": name, "value": person.cookie, "url": server.address}])
    answer = {"body": script, "content_type": "text/javascript"}
    page.route("**/login.js", lambda route: route.fulfill(**answer))
    page.goto(f"{server.address}/chat/")  # sets the CSRF cookie
    for function, address in {"signOut": "/", "signIn": "/accounts/login/?next=/"}.items():
        page.evaluate(f'import("/login.js").then(({{{function}}}) => {{ {function}(); }})')
        page.wait_for_url(f"{server.address}{address}")
        page.goto(f"{server.address}/chat/")
        page.wait_for_url(f"{server.address}/accounts/login/?next=/chat/")


def test_the_login_of_the_package_and_your_own(settings):
    names = run_example("docs/howto/sign-in.md", 'include("chatmemory.accounts")')
    settings.ROOT_URLCONF = tuple(names["urlpatterns"])
    answer = Client().get("/chat/")
    assert answer.headers["Location"] == "/accounts/login/?next=/chat/"
    given = run_example("docs/howto/sign-in.md", "members:login")
    view = lambda request: HttpResponse()  # noqa: E731
    members = ([path("in/", view, name="login"), path("out/", view, name="leave")], "members")
    settings.ROOT_URLCONF = (
        path("", view, name="home"),  # the LOGOUT_REDIRECT_URL of the project
        path("members/", include(members)),
        path("chat/", include("chatmemory.urls")),
    )
    settings.LOGIN_URL = given["LOGIN_URL"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, **given["CHATMEMORY"]}
    assert Client().get("/chat/").headers["Location"] == "/members/in/?next=/chat/"
    client = Client()
    client.force_login(make_user())
    assert 'action="/members/out/"' in client.get("/chat/", follow=True).text


def test_the_settings_of_an_embed_pass_the_checks(settings):
    given = run_example("docs/howto/embed.md", "EMBEDS")["CHATMEMORY"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, **given}
    assert [found for found in run_checks() if found.level >= ERROR] == []


def test_a_view_shows_the_history_of_its_person(settings, tmp_path):
    template = block_with(HISTORY, "{% for message in messages %}").text
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/chat.html").write_text(template)
    (tmp_path / "shop/chats.html").write_text("{% for c in chats %}{{ c.key }}{% endfor %}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    names = run_example(HISTORY, "def chats(request)", __name__="views_of_the_shop")
    settings.ROOT_URLCONF = (
        path("mine/", names["chats"]),
        path("mine/<key>/", names["chat"]),
    )
    ann = make_user()
    services.append_messages(
        session_key="talk",
        by=Actor.user(ann),
        messages=make_messages("<b>Hi</b>", "It is **here**."),
        create=True,
    )
    client = Client()
    client.force_login(ann)
    assert client.get("/mine/").text == "talk"
    page = client.get("/mine/talk/").text
    assert "&lt;b&gt;Hi&lt;/b&gt;" in page
    assert "<strong>here</strong>" in page
    client.force_login(make_user())
    assert client.get("/mine/talk/").status_code == 404
    long = {"html": None, "text": "<i>", "role": "assistant"}
    shown = Engine().from_string(template).render(Context({"messages": [long]}))
    assert "&lt;i&gt;" in shown
