"""The demo project: its services by URL, its start, and its command `demo`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.urls import reverse

from chatmemory.models import Message, Session
from project import environment
from project.asgi import application
from project.demo_dialogues import DIALOGUES
from project.management.commands import demo

VAR = Path("/srv/demo/var")


def test_sqlite_without_a_url_is_a_file_in_var():
    entry = environment.database("", VAR)
    assert entry["NAME"] == "/srv/demo/var/db.sqlite3"
    assert entry["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert ":memory:" not in entry["TEST"]["NAME"]


@pytest.mark.parametrize(
    ("url", "name"), [("sqlite:///a/b.db", "a/b.db"), ("sqlite:////a/b.db", "/a/b.db")]
)
def test_a_sqlite_path_is_relative_or_absolute(url, name):
    assert environment.database(url, VAR)["NAME"] == name


@pytest.mark.parametrize(
    ("scheme", "backend"),
    [
        ("postgres", "postgresql"),
        ("postgresql", "postgresql"),
        ("mysql", "mysql"),
        ("mariadb", "mysql"),
    ],
)
def test_a_database_url_is_parsed(scheme, backend):
    entry = environment.database(f"{scheme}://ann:p%40ss@db.example:5433/chat", VAR)
    assert entry["ENGINE"] == f"django.db.backends.{backend}"
    assert (entry["USER"], entry["PASSWORD"]) == ("ann", "p@ss")
    assert (entry["HOST"], entry["PORT"], entry["NAME"]) == ("db.example", "5433", "chat")


def test_an_unknown_database_scheme_is_refused():
    with pytest.raises(ImproperlyConfigured, match="oracle"):
        environment.database("oracle://db.example/chat", VAR)


def test_database_entries_share_no_objects():
    environment.database("mysql://db.example/a", VAR)["OPTIONS"]["charset"] = "latin1"
    assert environment.database("mysql://db.example/b", VAR)["OPTIONS"]["charset"] == "utf8mb4"


def test_redis_is_used_for_layer_and_cache():
    layer = environment.channel_layers("redis://r.example/1")["default"]
    assert layer["CONFIG"]["hosts"] == [{"address": "redis://r.example/1", "socket_timeout": None}]
    assert environment.caches("redis://r.example/1")["default"]["LOCATION"] == "redis://r.example/1"


def test_without_redis_layer_and_cache_are_in_memory():
    assert "InMemory" in environment.channel_layers("")["default"]["BACKEND"]
    assert "LocMem" in environment.caches("")["default"]["BACKEND"]


def test_the_secret_key_is_created_once_and_readable_only_by_its_owner(tmp_path):
    key = environment.secret_key(tmp_path)
    assert len(key) >= 50
    assert environment.secret_key(tmp_path) == key
    [file] = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_start_imports_no_langchain():
    run = subprocess.run(
        [sys.executable, "-c", "import sys, project.asgi, project.urls; print(*sys.modules)"],
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert "chatmemory" in loaded
    assert not loaded & {"langchain", "langchain_core", "langgraph", "langsmith"}


async def test_a_websocket_at_an_unknown_address_is_refused():
    assert await WebsocketCommunicator(application, "/nowhere/").connect() == (False, 4404)


def test_a_port_in_use_is_skipped():
    with demo.listen(0) as first:
        port = first.getsockname()[1]
        with demo.listen(port) as second:
            assert second.getsockname()[1] > port


def test_the_demo_sets_no_passwords_without_debug():
    with pytest.raises(CommandError, match="DEBUG"):
        call_command("demo")


@pytest.mark.django_db
def test_a_repeated_seed_adds_nothing():
    user, _ = demo.set_up_user()
    demo.seed(user)
    demo.seed(user)
    assert Session.objects.filter(owner=user).count() == len(DIALOGUES)
    assert Message.objects.count() == sum(len(dialogue.texts) for dialogue in DIALOGUES)


@pytest.mark.django_db
@pytest.mark.regression
def test_a_restart_ends_no_login(client):
    user, first = demo.set_up_user()
    client.force_login(user)
    again, second = demo.set_up_user()
    assert second == first
    assert again.check_password(second)
    assert client.get(reverse("home")).wsgi_request.user == user


@pytest.mark.django_db
def test_the_first_page_begins_with_the_chat_and_leads_to_the_description_of_the_api(client):
    page = client.get(reverse("home")).content.decode()
    assert page.index("<chat-memory") < page.index("demo-facts") < page.index("cm-cards")
    assert f'href="{reverse("api-docs")}"' in page
    assert "swagger" in client.get(reverse("api-docs")).content.decode()


@pytest.mark.django_db
def test_the_passwords_differ_between_users_and_projects(settings):
    (_, user), (_, operator) = demo.set_up_user(), demo.set_up_operator()
    settings.SECRET_KEY = "another"
    assert len({user, operator, demo.set_up_user()[1]}) == 3


@pytest.mark.django_db
def test_the_operator_has_only_the_permissions_of_the_app():
    operator, _ = demo.set_up_operator()
    assert operator.is_staff
    assert not operator.is_superuser
    assert operator.has_module_perms("chatmemory")
    assert not operator.has_module_perms("auth")


@contextmanager
def started_demo(folder: Path) -> Iterator[list[tuple[str, str, str]]]:
    """Run the demo; yield the page, user and password of each role, as it prints them."""
    with subprocess.Popen(
        [sys.executable, "manage.py", "demo", "--port", "8500"],
        env={**os.environ, "DATABASE_URL": f"sqlite:///{folder}/db.sqlite3", "REDIS_URL": ""},
        cwd=settings.BASE_DIR,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            printed = "".join(iter(process.stdout.readline, "Ctrl-C ends the demo.\n"))
            assert "ERROR" not in printed
            yield re.findall(r"(http\S+)\s+user (\S+), password (\S+)", printed)
        finally:
            process.send_signal(signal.SIGINT)


@pytest.mark.long
@pytest.mark.regression
def test_the_printed_passwords_work_on_the_printed_pages_and_a_restart_keeps_the_login(tmp_path):
    browsers = [build_opener(HTTPCookieProcessor(CookieJar())) for _ in range(2)]
    with started_demo(tmp_path) as first:
        logins = [_log_in(browser, *page) for browser, page in zip(browsers, first, strict=True)]
        assert logins == [200, 200]
    with started_demo(tmp_path) as again:
        assert [page[1:] for page in again] == [page[1:] for page in first]
        for browser, (page, _, _) in zip(browsers, again, strict=True):
            assert "/login/" not in browser.open(page).url


def _log_in(browser: OpenerDirector, page: str, username: str, password: str) -> int:
    """Log in through the login form of a page; return the status of the page."""
    form = browser.open(page)
    [token] = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form.read().decode())
    filled = {"username": username, "password": password, "csrfmiddlewaretoken": token}
    answer = browser.open(form.url, urlencode(filled).encode())
    assert answer.url.startswith(page)
    return int(answer.status)


@pytest.mark.django_db
def test_the_demos_page_leads_to_the_description_of_the_api(client):
    [address] = re.findall(r'<a href="(.*?)"><strong>API', client.get("/").content.decode())
    assert client.get(address).status_code == 200
    assert "openapi" in (settings.BASE_DIR / "requirements.txt").read_text()


@pytest.mark.regression
def test_the_proxy_of_the_compose_file_sends_the_address_of_its_client():
    """Without this line nginx passes on what the client sent."""
    text = (settings.BASE_DIR / "compose.yaml").read_text()
    assert "proxy_set_header X-Forwarded-For $$remote_addr;" in text
