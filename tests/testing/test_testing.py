"""What `chatmemory.testing` promises to projects that use the app."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.core import mail
from django.db import connections, transaction
from django.test import Client, override_settings

from chatmemory.conf import settings
from chatmemory.database import host_tests
from chatmemory.database.host_tests import ChatMemoryTestMixinMissing
from chatmemory.models import Message
from chatmemory.services import aappend_messages
from chatmemory.testing.cases import TEST_SETTINGS, settings_for_tests
from chatmemory.testing.sockets import chat_communicator
from project.asgi import application
from tests.conftest import database_environment
from tests.factories import TALK, make_messages, make_session
from tests.servers import DEADLINE, sign_in

ROOT = Path(__file__).resolve().parents[2]
MISSING = "ChatMemoryTestMixinMissing: chatmemory cannot use another thread here"
own_threads = override_settings(CHATMEMORY={"DB_THREADS": 2})

FILES = {
    "pytest.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = mysite.settings\n",
    "mysite/__init__.py": "",
    "mysite/urls.py": """
from django.urls import include, path
urlpatterns = [path("chat/api/", include("chatmemory.api.urls"))]
""",
    "mysite/asgi.py": """
from django.core.asgi import get_asgi_application
http = get_asgi_application()
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from chatmemory.routing import websocket_urlpatterns
websocket = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
application = ProtocolTypeRouter({"http": http, "websocket": websocket})
""",
    "mysite/settings.py": """
import os
from pathlib import Path
from project import environment
SECRET_KEY = "for tests"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "channels", "rest_framework", "chatmemory"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware"]
ROOT_URLCONF = "mysite.urls"
ASGI_APPLICATION = "mysite.asgi.application"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DATABASES = {"default": environment.database(os.environ["DATABASE_URL"], Path.cwd())}
if "sqlite" in DATABASES["default"]["ENGINE"]:
    del DATABASES["default"]["TEST"]  # in memory, Django's default
else:
    DATABASES["default"].setdefault("TEST", {})["NAME"] = os.environ["TEST_NAME"]
CHATMEMORY = {"RESPONDER": "demo"}
""",
}


def page_files() -> dict[str, str]:
    """Return the code blocks of the page, by the file name in their first line."""
    page = (ROOT / "docs/howto/testing.md").read_text()
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL)
    assert page.count("```python") == len(blocks)
    return dict(blocks)


@pytest.fixture
def mysite(tmp_path):
    """Run a command in a small project with the code of the page."""
    pages = page_files()
    for name, text in {**FILES, **pages}.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (tmp_path / "tests/__init__.py").touch()
    # With TransactionTestCase the page's tests must pass too.
    for name, text in pages.items():
        if "TestCase" in text:
            copy = name.replace("/test_", "/test_committing_")
            (tmp_path / copy).write_text(text.replace("TestCase", "TransactionTestCase"))

    def run(*arguments, **env):
        name = f"test_mysite_{uuid.uuid4().hex[:12]}"
        return subprocess.run(  # noqa: S603  # our own command line
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            env={
                **database_environment(),
                "DJANGO_SETTINGS_MODULE": "mysite.settings",
                "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
                "TEST_NAME": name,
                **env,
            },
            capture_output=True,
            text=True,
            timeout=10 * DEADLINE,
            check=False,
        )

    return run


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.long
def test_the_code_of_the_page_passes_under_djangos_runner(mysite):
    ended = mysite("django", "test", "--noinput")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"Ran 6 tests", ended.stderr), ended.stderr
    assert "ChatMemoryTestMixinMissing" not in ended.stderr


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.long
def test_the_code_of_the_page_passes_under_pytest(mysite):
    ended = mysite("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin")
    assert ended.returncode == 0, ended.stdout
    assert "8 passed" in ended.stdout


@pytest.mark.regression
@pytest.mark.database
@pytest.mark.long
def test_without_the_mixin_each_kind_of_test_fails_with_an_error_that_names_it(mysite, tmp_path):
    for name in ("test_memory", "test_sockets"):
        file = tmp_path / f"tests/{name}.py"
        file.write_text(file.read_text().replace("(ChatMemoryTestMixin, ", "("))
    ended = mysite("django", "test", "--noinput", "tests.test_memory", "tests.test_sockets")
    assert re.search(r"Ran 3 tests", ended.stderr), ended.stderr
    assert "FAILED (errors=3)" in ended.stderr
    assert ended.stderr.count(MISSING) >= 3


@pytest.mark.slow
def test_without_daphne_the_sockets_name_the_extra(tmp_path):
    (tmp_path / "daphne.py").write_text("raise ModuleNotFoundError('No module named daphne')")
    code = "import django; django.setup(); import chatmemory.testing.sockets"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "tests.server_settings",
        "WITHOUT_DAPHNE": "1",
        "CHATMEMORY": "{}",
        "REDIS_URL": "",
    }
    done = subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert 'pip install "django-chatmemory[daphne]"' in done.stderr.splitlines()[-1]


@pytest.mark.regression
@pytest.mark.django_db
@own_threads
def test_threads_of_the_pool_refuse_to_work_beside_a_tests_transaction():
    with pytest.raises(ChatMemoryTestMixinMissing, match="ChatMemoryTestMixin"):
        async_to_sync(aappend_messages)(**TALK, messages=make_messages("a"), create=True)
    assert not Message.objects.exists()


@pytest.mark.regression
@pytest.mark.django_db
def test_an_event_loop_outside_of_the_tests_thread_is_refused():
    """Such as pytest-asyncio's: its rows would not be rolled back with the test."""
    with pytest.raises(ChatMemoryTestMixinMissing, match="pytest-asyncio"):
        asyncio.run(aappend_messages(**TALK, messages=make_messages("a"), create=True))
    assert not Message.objects.exists()


@pytest.mark.slow
@pytest.mark.regression
@pytest.mark.django_db
@own_threads
def test_a_socket_and_a_waiting_post_raise_the_error_in_the_test():
    person, client = sign_in(), Client()
    client.force_login(person.user)
    socket = chat_communicator(application, "/ws/chat/talk/", client=client)

    async def connect():
        await socket.connect()
        await socket.receive_output(DEADLINE)

    with pytest.raises(ChatMemoryTestMixinMissing):
        async_to_sync(connect)()
    make_session(owner=person.user)
    send = {"client_id": "1", "text": "Hello", "wait": 5}
    with pytest.raises(ChatMemoryTestMixinMissing):
        client.post("/api/sessions/talk/messages/", send, content_type="application/json")


@pytest.mark.django_db
def test_a_hook_of_a_hook_is_called():
    called = []

    def work():
        transaction.on_commit(lambda: transaction.on_commit(lambda: called.append("inner")))
        transaction.on_commit(lambda: called.append("outer"))

    host_tests.as_if_committed(work)
    assert called == ["outer", "inner"]
    assert not connections["default"].run_on_commit


def test_connections_are_recorded_only_during_tests(monkeypatch):
    monkeypatch.setattr(host_tests, "_threads", {})
    host_tests.note_connection(connection=connections["default"])
    assert host_tests._threads
    host_tests._threads.clear()
    monkeypatch.delattr(mail, "outbox")
    host_tests.note_connection(connection=connections["default"])
    assert not host_tests._threads


def test_a_test_that_overrides_settings_keeps_the_test_settings():
    with settings_for_tests(), override_settings(CHATMEMORY={"LEASE": 9}):
        assert settings.LEASE == 9
        assert {name: getattr(settings, name) for name in TEST_SETTINGS} == TEST_SETTINGS
        with override_settings(CHATMEMORY={"DB_THREADS": 3}):
            assert settings.DB_THREADS == 3
