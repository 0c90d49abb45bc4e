"""The built wheel, installed in a new project with the lines of the README."""

from __future__ import annotations

import asyncio
import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import uuid
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import httpx
import pytest

import chatmemory
from tests import wheels
from tests.servers import Connection, free_port, is_listening, wait_for

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """
from pathlib import Path
SECRET_KEY = "of a test"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "mysite.urls"
STATIC_URL = "static/"
USE_TZ = True
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {name!r},
                         "OPTIONS": {{"transaction_mode": "IMMEDIATE"}}}}}}
INSTALLED_APPS = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                  "django.contrib.sessions", "django.contrib.messages",
                  "django.contrib.staticfiles"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
              "django.middleware.csrf.CsrfViewMiddleware",
              "django.contrib.auth.middleware.AuthenticationMiddleware",
              "django.contrib.messages.middleware.MessageMiddleware"]
TEMPLATES = [{{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
              "OPTIONS": {{"context_processors": [
                  "django.template.context_processors.request",
                  "django.contrib.auth.context_processors.auth",
                  "django.contrib.messages.context_processors.messages"]}}}}]
"""


def readme_block(first_line: str) -> str:
    blocks: list[str] = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    return next(block for block in blocks if block.startswith(first_line + "\n"))


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist and the wheel; return both."""
    return wheels.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(built):
    return built[1]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel in a separate folder."""
    target = tmp_path_factory.mktemp("site")
    subprocess.run([*PIP, "install", "--no-deps", "--target", target, wheel], check=True)  # noqa: S603  # our own command line
    return target


@pytest.fixture
def empty_project(installed, tmp_path):
    """Make a new project with the README's lines; return it and its environment."""
    parts = [SETTINGS.format(name=str(tmp_path / "db.sqlite3")), readme_block("# settings.py")]
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite" / "settings.py").write_text("".join(parts))
    (tmp_path / "mysite" / "urls.py").write_text(readme_block("# urls.py"))
    (tmp_path / "mysite" / "asgi.py").write_text(readme_block("# asgi.py"))
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    path = os.pathsep.join([str(tmp_path), str(installed)])
    return tmp_path, {
        **environment,
        "PYTHONPATH": path,
        "DJANGO_SETTINGS_MODULE": "mysite.settings",
    }


def manage(project, *arguments: str) -> str:
    folder, environment = project
    command = [sys.executable, "-m", "django", *arguments]
    done = subprocess.run(  # noqa: S603  # our own command line
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout or done.stderr


@contextmanager
def served(project, program="daphne", application="mysite.asgi:application"):
    """Serve the project; yield its address."""
    folder, environment = project
    port, log = free_port(), folder / "server.log"
    arguments = [*program.split(), f"--port={port}", application]
    if program == "runserver":
        arguments = ["django", "runserver", "--noreload", str(port)]
    command = [sys.executable, "-m", *arguments]
    with (
        log.open("wb") as out,
        subprocess.Popen(  # noqa: S603  # our own command line
            command, cwd=folder, env=environment, stdout=out, stderr=out
        ) as process,
    ):
        try:
            wait_for(lambda: is_listening(port), f"{program} does not start", log)
            yield SimpleNamespace(port=port, address=f"http://127.0.0.1:{port}")
        finally:
            process.kill()


@pytest.mark.regression
@pytest.mark.slow
def test_a_server_that_requires_the_lifespan_starts_the_readmes_application(empty_project):
    with served(empty_project, "uvicorn --lifespan on"):
        pass  # otherwise it exits before it listens


@pytest.mark.regression
@pytest.mark.slow
def test_without_daphne_runserver_serves_pages_and_rest_and_states_what_is_missing(empty_project):
    folder, _ = empty_project
    for name in ("daphne", "autobahn", "twisted"):  # as if they were not installed
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module {name}')")
    settings = folder / "mysite" / "settings.py"
    settings.write_text(re.sub('(?m)^    "daphne",.*\n', "", settings.read_text()))
    manage(empty_project, "migrate", "-v0")
    with served(empty_project, "runserver") as server:
        page = httpx.get(f"{server.address}/chat/", follow_redirects=True)
        answer = httpx.get(f"{server.address}/chat/api/sessions/")
    assert page.status_code == 200
    assert "chatmemory/shared/pages.css" in page.text
    assert answer.json()["code"] == "unauthenticated"
    found = re.findall(r"\w+\.[CEW]\d+", (folder / "server.log").read_text())
    assert found == ["chatmemory.W018"]
    assert "django-chatmemory[daphne]" in (folder / "server.log").read_text()


POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"pool": True}}
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"timeout": 9}}


@pytest.mark.regression
@pytest.mark.parametrize(
    ("database", "more"), [(POSTGRESQL, {}), (SQLITE, {"transaction_mode": "IMMEDIATE"})]
)
def test_the_readmes_settings_keep_the_options_of_the_database(database, more):
    names = {"INSTALLED_APPS": [], "DATABASES": {"default": deepcopy(database)}}
    exec(readme_block("# settings.py"), names)  # noqa: S102  # our own page
    assert names["DATABASES"]["default"]["OPTIONS"] == {**database["OPTIONS"], **more}


def login_of_ann(project) -> str:
    """Create a user; return the cookie of its login."""
    return manage(
        project,
        "shell",
        "-v0",
        "-c",
        "from django.contrib.auth.models import User\n"
        "from django.test import Client\n"
        "client = Client(); client.force_login(User.objects.create_user('ann'))\n"
        "print(client.cookies['sessionid'].value)",
    ).strip()


async def talk(server, login) -> str:
    """State an order number, ask for it, and return the answer."""
    person: Any = SimpleNamespace(cookie=login)  # a connection uses only the cookie
    async with Connection(server, person, str(uuid.uuid4())) as chat:
        await chat.hello(create=True)
        await chat.send("My order number is 4711.", "c1")
        await chat.idle(2)
        await chat.send("What is my order number?", "c2")
        await chat.idle(4)
        return chat.texts()[-1]


SOURCES = (".py", ".typed", ".json", ".html", ".css", ".js", ".ts", ".svg", ".txt", ".po", ".mo")
"""The files of the packages that belong in the wheel."""


def sources() -> set[str]:
    """Return all files of the app in the checkout that belong in the wheel."""
    files = (path for path in (ROOT / "chatmemory").rglob("*") if path.is_file())
    kept = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert [name for name in sorted(kept) if not name.endswith(SOURCES)] == []
    return kept


@pytest.mark.slow
def test_the_wheel_contains_exactly_the_files_of_the_app(wheel):
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    information = {name for name in names if ".dist-info/" in name}
    assert names - information == sources()
    for name in (
        "py.typed",
        "protocol.schema.json",
        "templates/chatmemory/session.html",
        "static/chatmemory/client/chatmemory-client.js",
        "locale/de/LC_MESSAGES/django.mo",
        "langgraph/migrations/0001_initial.py",
        "langgraph/migrations/0002_turns_and_states.py",
        "langgraph/migrations/0003_known_messages.py",
        "statistics/migrations/0001_initial.py",
        "statistics/templates/admin/chatmemory_statistics/page.html",
    ):
        assert f"chatmemory/{name}" in names


@pytest.mark.slow
def test_the_sdist_contains_only_what_builds_the_wheel(built):
    with tarfile.open(built[0]) as archive:
        names = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    own = {*wheels.FILES, "PKG-INFO", "setup.cfg"}
    assert {name for name in names if not name.startswith("django_chatmemory.egg-info/")} == (
        sources() | own
    )


@pytest.mark.slow
def test_a_package_index_accepts_the_files(built):
    command = [sys.executable, "-m", "twine", "check", "--strict", *built]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  # our own
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


@pytest.mark.slow
def test_the_metadata_name_license_python_and_extras(wheel):
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        found = email.message_from_bytes(archive.read(name))
    assert found["Version"] == chatmemory.__version__
    assert found["License-Expression"] == "BSD-3-Clause"
    assert found["License-File"] == "LICENSE"
    assert found["Requires-Python"] == ">=3.11"
    assert found["Description-Content-Type"] == "text/markdown"
    assert {*found.get_all("Provides-Extra")} == {*EXTRAS}
    assert "Framework :: Django :: 5.2" in found.get_all("Classifier")
    assert found.get_all("Project-URL") is None  # there is none


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.long
def test_the_wheel_is_the_same_in_each_build(built, tmp_path):
    assert wheels.build(tmp_path)[1].read_bytes() == built[1].read_bytes()


@pytest.mark.slow
def test_the_wheel_has_the_version_of_the_code(installed):
    assert (installed / f"django_chatmemory-{chatmemory.__version__}.dist-info").is_dir()


@pytest.mark.long
def test_a_new_project_with_the_lines_of_the_readme_works(empty_project, installed):
    where = manage(empty_project, "shell", "-c", "import chatmemory; print(chatmemory.__file__)")
    assert str(installed) in where
    found = re.findall(r"\w+\.[CEW]\d+", manage(empty_project, "check"))
    assert found == []
    manage(empty_project, "migrate", "-v0")
    with served(empty_project) as server:
        reply = asyncio.run(talk(server, login_of_ann(empty_project)))
    assert "4711" in reply
