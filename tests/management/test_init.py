"""What `chatmemory_init` prints for a project, and what works when it is added."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from django.urls import include, path, re_path
from django.views.generic import View

from tests.management.commanding import run, run_json
from tests.test_wheel import login_of_ann, manage, served, talk

pytestmark = pytest.mark.django_db

COMMAND = "chatmemory_init"
ROOT = Path(__file__).resolve().parent.parent.parent
CHANNELS = """
from channels.auth import AuthMiddlewareStack
from channels.generic.websocket import WebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path


class Echo(WebsocketConsumer):
    def receive(self, text_data):
        self.send(text_data=text_data)


sockets = AuthMiddlewareStack(URLRouter([path("ws/echo/", Echo.as_asgi())]))
shop = ProtocolTypeRouter({"http": application, "websocket": sockets})
"""
ECHO = """
import asyncio
from channels.testing import WebsocketCommunicator
from config.web.asgi import shop

async def echo():
    socket = WebsocketCommunicator(shop, "/ws/echo/")
    await socket.connect()
    await socket.send_to(text_data="hello")
    print(await socket.receive_from())

asyncio.run(echo())
"""


def start_project(folder: Path, name: str):
    """Make a project with `chatmemory` in its INSTALLED_APPS; return it and its environment."""
    command = [sys.executable, "-m", "django", "startproject", name, str(folder)]
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    subprocess.run(command, check=True, env=environment)  # noqa: S603  # our own command line
    add(folder / name / "settings.py", 'INSTALLED_APPS += ["chatmemory"]')
    return folder, {
        **environment,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": f"{name}.settings",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def add(file: Path, code: str) -> None:
    file.write_text(f"{file.read_text()}\n{code}\n")


def init(project) -> tuple[int, str]:
    """Return the exit status and the output of the command; it writes no file."""
    folder, environment = project
    before = contents(folder)
    done = subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-m", "django", COMMAND],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert contents(folder) == before
    return done.returncode, done.stdout


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def blocks(printed: str) -> list[tuple[str, str]]:
    """Return the files that the output names, each with its lines; `then run` is one of them."""
    parts = re.split(
        r"^# (optional, \S+|\S+): add at the end\n|^# (then run)\n", printed, flags=re.MULTILINE
    )
    return [(parts[i] or parts[i + 1], parts[i + 2]) for i in range(1, len(parts), 3)]


def apply(project, printed: str) -> None:
    """Add what the output says, as a person would copy it."""
    for file, code in blocks(printed):
        if file == "then run":
            manage(project, "migrate", "-v0")
        elif not file.startswith("optional"):
            add(project[0] / file, code)


def is_complete(project) -> bool:
    status, printed = init(project)
    found = re.findall(r"\w+\.[CEW]\d+", manage(project, "check"))
    return (status, found) == (0, []) and "Nothing is missing." in printed


@pytest.mark.long
def test_a_new_project_works_with_the_printed_lines(tmp_path):
    project = start_project(tmp_path, "mysite")
    status, printed = init(project)
    assert status == 1
    assert [file for file, _ in blocks(printed)] == [
        "mysite/settings.py",
        "mysite/urls.py",
        "mysite/asgi.py",
        "then run",
        "optional, mysite/settings.py",
    ]
    apply(project, printed)
    assert is_complete(project)
    with served(project) as server:
        assert "4711" in asyncio.run(talk(server, login_of_ann(project)))


@pytest.mark.long
def test_a_project_with_rest_framework_and_sockets_keeps_them(tmp_path):
    project = start_project(tmp_path, "config")
    folder, environment = project
    for name in ("settings", "web"):
        (folder / "config" / name).mkdir()
    (folder / "config/settings.py").rename(folder / "config/settings/dev.py")
    (folder / "config/asgi.py").rename(folder / "config/web/asgi.py")
    environment["DJANGO_SETTINGS_MODULE"] = "config.settings.dev"
    add(
        folder / "config/settings/dev.py",
        'INSTALLED_APPS = ["daphne", *INSTALLED_APPS, "channels", "rest_framework"]\n'
        'ASGI_APPLICATION = "config.web.asgi.shop"\n'
        'CHATMEMORY = {"SENDS_PER_MINUTE": None}',
    )
    add(
        folder / "config/urls.py",
        "from django.contrib.auth.views import LoginView\n"
        'urlpatterns += [path("login/", LoginView.as_view(), name="login")]',
    )
    add(folder / "config/web/asgi.py", CHANNELS)
    status, printed = init(project)
    assert status == 1
    assert not re.search('"daphne"|rest_framework|accounts|ASGI_APPLICATION|CHATMEMORY =', printed)
    apply(project, printed)
    assert is_complete(project)
    assert manage(project, "shell", "-v0", "-c", ECHO).strip() == "hello"
    with served(project, application="config.web.asgi:shop") as server:
        assert "4711" in asyncio.run(talk(server, login_of_ann(project)))


class Anything(View):
    """A view of the host that matches each address."""


chat = path("chat/", include("chatmemory.urls"))
api = path("chat/api/", include("chatmemory.api.urls"))
login = path("accounts/", include("chatmemory.accounts"))
anything = re_path("", Anything.as_view())


def lacking(settings, **changed) -> list[str]:
    """Return the lines for a project with these settings that are not optional."""
    for name, value in changed.items():
        setattr(settings, name, value)
    status, [*parts, result] = run_json(COMMAND)
    found = [part["code"] for part in parts if not part["optional"]]
    assert (status, result) == (bool(found), {"missing": len(found)})
    return found


@pytest.mark.parametrize(("package", "start"), [("ijson", '"'), (None, '# "')])
def test_the_app_for_imports_is_optional(settings, monkeypatch, package, start):
    apps = [name for name in settings.INSTALLED_APPS if name != "chatmemory.imports"]
    found = {"ijson": package, "daphne": "daphne"}
    monkeypatch.setattr("chatmemory.management.missing.find_spec", found.get)
    assert lacking(settings, INSTALLED_APPS=apps) == []
    printed = run(COMMAND)[1]
    assert f'    {start}chatmemory.imports",  # optional' in printed
    assert ("django-chatmemory[imports]" in printed) is (package is None)


def test_a_complete_project_lacks_nothing():
    status, printed = run(COMMAND)
    assert (status, printed.endswith("Nothing is missing.\n")) == (0, True)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("none", ["**none.application_mapping", "SocketRouter(websocket_urlpatterns)"]),
        ("http", ['"http": http', "SocketRouter(websocket_urlpatterns)"]),
        ("elsewhere", ["import re_path", "**elsewhere.application_mapping", "*websocket_urlpat"]),
        ("nowhere.application", ["get_asgi_application()", '"http": application']),
    ],
)
def test_the_printed_lines_extend_an_application(settings, name, lines):
    [code] = lacking(settings, ASGI_APPLICATION=f"tests.pages.test_page_checks.{name}")
    assert [line for line in lines if line not in code] == []


@pytest.mark.parametrize("name", ["unknown", "other"])
def test_an_application_that_cannot_be_inspected_is_only_a_note(settings, name):
    assert lacking(settings, ASGI_APPLICATION=f"tests.pages.test_page_checks.{name}") == []
    assert "can't be inspected" in run(COMMAND)[1]


@pytest.mark.parametrize(
    ("patterns", "login_url", "lines"),
    [
        ([login, api, chat], "/accounts/login/", []),
        ([login, chat], "/accounts/login/", []),
        ([api, chat], "/accounts/login/", ["chatmemory.accounts"]),
        ([login, api, chat], "/sign-in/", ['LOGIN_URL = "login"']),
        ([login, api], "/accounts/login/", ["chatmemory.urls"]),
        ([anything, login, api, chat], "/accounts/login/", ["hides"]),
    ],
)
def test_the_urls_are_resolved(settings, monkeypatch, patterns, login_url, lines):
    module = ModuleType("urls_of_a_host")
    module.__dict__["urlpatterns"] = patterns
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = lacking(settings, ROOT_URLCONF=module.__name__, LOGIN_URL=login_url)
    assert [line for line in lines if not any(line in code for code in found)] == []
    assert bool(found) is bool(lines)
