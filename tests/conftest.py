"""How tests run, and the services that some of them need."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NoReturn
from urllib.parse import urlsplit

import hypothesis
import pytest
import redis
from asgiref.sync import async_to_sync
from channels.layers import channel_layers
from django.core.cache import caches
from django.db import connection
from django.test import override_settings

from chatmemory import layer
from chatmemory.hub import hub
from chatmemory.runner import runner
from project import environment
from tests.layers import FakeLayer

hypothesis.settings.register_profile("chatmemory", deadline=None)
hypothesis.settings.load_profile("chatmemory")


def pytest_configure() -> None:
    """Let processes that tests start hear Ctrl-C.

    A shell without job control starts what runs in its background with SIGINT ignored, and
    children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test as Django's TestCase does.

    Its database work comes back to the thread that holds the test's transaction, and is
    rolled back with it.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    async_to_sync(pyfuncitem.obj)(**{name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the contract that start processes are slow; it can't know the name of our mark."""
    for item in items:
        if "workers" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _settings() -> Iterator[None]:
    # Redis is for the tests that ask for it, and for the servers that tests start.
    with override_settings(
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        CACHES=environment.caches(""),
        CHANNEL_LAYERS=environment.channel_layers(""),
    ):
        yield


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Give each run a SQLite file of its own, so that two runs at once don't meet."""
    if connection.vendor == "sqlite":
        file = tmp_path_factory.mktemp("database") / "test.sqlite3"
        connection.settings_dict["TEST"]["NAME"] = str(file)


@pytest.fixture(scope="session", autouse=True)
def _emptied_quickly() -> Iterator[None]:
    """TRUNCATE takes PostgreSQL 0.1 s whatever is in the tables, and tests leave few rows."""

    def delete_all(style: object, tables: Iterable[str], **_: object) -> list[str]:
        names = [connection.ops.quote_name(table) for table in tables]
        # In any order: references are checked at the commit. The lock, as TRUNCATE's, is for what
        # a test left behind and still writes.
        lock = f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE"
        return [lock, *(f"DELETE FROM {name}" for name in names)]  # noqa: S608  # names only

    with pytest.MonkeyPatch.context() as patch:
        if connection.vendor == "postgresql":
            patch.setattr(connection.ops, "sql_flush", delete_all)
        yield


@pytest.fixture(autouse=True)
def _apart(
    request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    # Channels would close the test's own connection: github.com/django/channels/issues/2118
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)
    if _rolls_back(request):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "DB_THREADS": 0}
    yield
    runner.shut_down()  # or it would run the next test's turns
    hub.shut_down()
    caches["default"].clear()
    channel_layers.backends.clear()


def _rolls_back(request: pytest.FixtureRequest) -> bool:
    marker = request.node.get_closest_marker("django_db")
    commits = marker is not None and marker.kwargs.get("transaction", False)
    return not commits and "transactional_db" not in request.fixturenames


@pytest.fixture
def live_database_env(transactional_db: None) -> dict[str, str]:
    """The environment in which another process of the project opens this test's database."""
    return database_environment()


def database_environment() -> dict[str, str]:
    """The same for whoever keeps the database by itself."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        url = f"sqlite:///{name}"
    else:
        url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": url}


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    # pytest.mark.redis and pytest.mark.browser ask for what they need by themselves.
    for marker, fixture in (("redis", "redis_url"), ("browser", "chromium")):
        if request.node.get_closest_marker(marker):
            request.getfixturevalue(fixture)


@pytest.fixture
def redis_url() -> str:
    """The Redis that `REDIS_URL` names; without one the test is skipped."""
    url = os.environ.get("REDIS_URL", "")
    return url if _answers(url) else missing("no Redis answers at REDIS_URL")


@cache
def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=1, socket_timeout=1) as client:
            return bool(client.ping())
    except (ValueError, redis.RedisError):
        return False


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> FakeLayer:
    """What stands between the hubs of a test, as if they were in different processes."""
    found = FakeLayer()
    monkeypatch.setattr(layer, "get_channel_layer", lambda: found)
    return found


@pytest.fixture
def postgresql() -> None:
    """Skip the test on every other database."""
    if connection.vendor != "postgresql":
        pytest.skip("runs on PostgreSQL alone")


@pytest.fixture
def chromium() -> str:
    """The path of the system's Chromium; without one the test is skipped."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    return found or missing("Chromium is not installed")


def missing(what: str) -> NoReturn:
    """Skip the test; where services are required, fail it."""
    if os.environ.get("CHATMEMORY_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{what}, and CHATMEMORY_REQUIRE_SERVICES is 1", pytrace=False)
    pytest.skip(what)
