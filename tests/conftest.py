"""Fixtures and hooks of all tests, and the services that some of them need."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn
from urllib.parse import urlsplit

import hypothesis
import pytest
import redis
from asgiref.sync import async_to_sync
from channels.layers import channel_layers
from django.apps import apps
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.core.cache import caches
from django.core.management.color import no_style
from django.db import OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client, TransactionTestCase, modify_settings, override_settings
from django.test.utils import override_script_prefix
from django.utils import translation
from django.utils.crypto import get_random_string
from playwright.sync_api import Browser
from pytest_django.plugin import DjangoDbBlocker

from chatmemory.database.faults import Fault, fault_of
from chatmemory.live import layer
from chatmemory.live.hub import hub
from chatmemory.live.runner import runner
from chatmemory.rendering import markdown
from project import environment
from tests import browsers
from tests.browsers import ALLOW_QUERIES
from tests.layers import FakeLayer

ASYNC_TEST_S = 120  # five times the longest test

# The same examples in each run, so that no change is refused because of another part of the code.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("fast", deadline=None, derandomize=True, max_examples=25)
# Other examples in each run, for `make ci-long`.
hypothesis.settings.register_profile(
    "random", deadline=None, derandomize=False, max_examples=1_000, print_blob=True
)
hypothesis.settings.load_profile("repeatable")


def pytest_configure() -> None:
    """Let the processes that tests start receive SIGINT.

    A shell without job control starts background processes with SIGINT ignored, and their
    children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test as Django's TestCase does.

    Its database work runs in the thread that holds the test's transaction, and is rolled back
    with it. After `ASYNC_TEST_S` it fails, and the traceback names what it awaits.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def run() -> None:
        async with asyncio.timeout(ASYNC_TEST_S):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    async_to_sync(run)()
    return True


FAST_CASES = 2
"""How many cases of a parametrized test with a database are fast."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    _mark_slow(items)
    yield
    # Each process launches Chromium once: it is closed before a test that needs no browser.
    items.sort(key=_needs_browser)


def _needs_browser(item: pytest.Item) -> bool:
    return "launch" in getattr(item, "fixturenames", ())


def _mark_slow(items: list[pytest.Item]) -> None:
    """Mark as slow what has no marker of its own.

    They are the contract's tests that start processes, and of a test with a database the cases
    between the first and the last: `make test-fast` runs one of each kind.
    """
    cases: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "workers" in names:
            item.add_marker(pytest.mark.slow)
        marked = item.get_closest_marker("django_db")
        if marked or "db" in names or "transactional_db" in names:
            cases[item.parent, getattr(item, "originalname", item.name)].append(item)
    for same in cases.values():
        kept = {round(n * (len(same) - 1) / (FAST_CASES - 1)) for n in range(FAST_CASES)}
        for number, item in enumerate(same):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude what is imported from garbage collection: a full one takes 0.3 s with it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _settings_of_all_tests() -> Iterator[None]:
    # Only tests that request Redis, and the servers that tests start, use it. Only the shop of the
    # demo and the tests of visitors allow visitors. A test that rolls back has one connection.
    with override_settings(
        CHATMEMORY={**settings.CHATMEMORY, "ALLOW_ANONYMOUS": False, "DB_THREADS": 0},
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        CACHES=environment.caches(""),
        CHANNEL_LAYERS=environment.channel_layers(""),
    ):
        yield


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Give each run its own SQLite file, so that concurrent runs do not share one."""
    if connection.vendor == "sqlite":
        file = tmp_path_factory.mktemp("database") / "test.sqlite3"
        connection.settings_dict["TEST"]["NAME"] = str(file)
        # Tests cut no power, so no commit needs to reach the disk.
        connection.settings_dict["OPTIONS"]["init_command"] += "; PRAGMA synchronous=OFF"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """End connections of killed processes, which would keep PostgreSQL from dropping its database.

    A server process notices that its client is gone only when its statement ends.
    """
    yield
    browsers.shared.close()
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


KEPT_TABLES = {"django_content_type", "auth_permission"}
"""Tables that `migrate` fills and no test changes."""
MAX_DEADLOCKS = 5
"""After as many deadlocks the cleanup after a test fails."""


@pytest.fixture(scope="session", autouse=True)
def _fast_flush() -> Iterator[None]:
    """Empty tables with DELETE on PostgreSQL: TRUNCATE takes 0.1 s, and tests leave few rows.

    Keep the permissions: Django's `flush` deletes them and sends `post_migrate` to create them
    again, which takes several times as long as the rest.
    """

    def empty_tables(case: Any) -> None:
        for alias in case._databases_names(include_mirrors=False):
            database = connections[alias]
            flush(database, database.ops.sql_flush(no_style(), tables_of(database)))

    @cache
    def tables_of(database: BaseDatabaseWrapper) -> list[str]:
        existing = database.introspection.django_table_names(only_existing=True)
        return [name for name in existing if name not in KEPT_TABLES]

    def flush(database: BaseDatabaseWrapper, statements: list[str]) -> None:
        for attempt in count():
            try:
                database.ops.execute_sql_flush(statements)
            except OperationalError as error:
                # The servers that several tests share still sweep, and lock in another order.
                if fault_of(error) is not Fault.CONFLICT or attempt == MAX_DEADLOCKS:
                    raise
            else:
                return

    def delete_all(style: object, tables: Iterable[str], **_: object) -> list[str]:
        names = [connection.ops.quote_name(table) for table in tables]
        # In any order: references are checked at the commit. The lock, which TRUNCATE takes too,
        # waits for threads of a test that still write.
        lock = f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE"
        return [lock, *(f"DELETE FROM {name}" for name in names)]  # noqa: S608  # names only

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty_tables)
        if connection.vendor == "postgresql":
            patch.setattr(connection.ops, "sql_flush", delete_all)
        yield


@pytest.fixture(scope="session", autouse=True)
def _fast_login() -> Iterator[None]:
    """Let `force_login` of a new client store its login by one statement: Django needs fourteen.

    It sends no signal and leaves `last_login`; `login` does both.
    """
    slow = Client.force_login

    def force_login(client: Client, user: Any, backend: str | None = None) -> None:
        cookie = settings.SESSION_COOKIE_NAME
        if cookie in client.cookies or SessionStore.__module__ != settings.SESSION_ENGINE:
            slow(client, user, backend)
            return
        user.backend = backend or settings.AUTHENTICATION_BACKENDS[0]
        login = {
            SESSION_KEY: user._meta.pk.value_to_string(user),
            BACKEND_SESSION_KEY: user.backend,
            HASH_SESSION_KEY: user.get_session_auth_hash(),
        }
        store = SessionStore()
        key = get_random_string(32)
        row = {"session_data": store.encode(login), "expire_date": store.get_expiry_date()}
        store.model(session_key=key, **row).save(force_insert=True)
        client.cookies[cookie] = key

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "force_login", force_login)
        yield


@pytest.fixture(autouse=True)
def _isolated(
    request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    # Channels would close the test's own connection: github.com/django/channels/issues/2118
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)
    # No minute ends in a test of a limit per minute; only servers in other processes see time pass.
    begin = time.time()
    monkeypatch.setattr("chatmemory.access.rates.time", SimpleNamespace(time=lambda: begin))
    if _commits(request):
        given = settings.CHATMEMORY
        settings.CHATMEMORY = {name: given[name] for name in given.keys() - {"DB_THREADS"}}
    yield
    translation.deactivate()  # LocaleMiddleware leaves the language of the last request
    runner.shut_down()  # otherwise it would run the next test's turns
    hub.shut_down()
    caches["default"].clear()
    markdown._cache.clear()  # its HTML has words in the language, or the translation, of this test
    channel_layers.backends.clear()


def _commits(request: pytest.FixtureRequest) -> bool:
    marker = request.node.get_closest_marker("django_db")
    commits = marker is not None and marker.kwargs.get("transaction", False)
    return commits or "transactional_db" in request.fixturenames


SHOP = "tests.shop"


@pytest.fixture(scope="session")
def _shop_tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    installed = modify_settings(INSTALLED_APPS={"append": SHOP})
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock():
        patch.setattr("chatmemory.models.derived._followers", {})  # it registers its orders
        with installed, connection.schema_editor() as editor:
            for model in apps.get_app_config("shop").get_models():
                editor.create_model(model)
            # No foreign keys: the tests of migrations drop the tables that they would refer to.
            editor.deferred_sql.clear()


@pytest.fixture
def shop(
    request: pytest.FixtureRequest,
    _shop_tables: None,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ModuleType]:
    """Install the app of a host with derived rows; return its models."""
    request.getfixturevalue("transactional_db" if _commits(request) else "db")
    monkeypatch.setattr("chatmemory.models.derived._followers", {})
    # By the fixture: it undoes this after what a test sets itself. Otherwise the app would stay.
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, SHOP]
    models = import_module(f"{SHOP}.models")
    yield models
    for model in apps.get_app_config("shop").get_models():
        model._default_manager.all().delete()
    models.FILES.clear()


@pytest.fixture
def live_database_env(transactional_db: None) -> dict[str, str]:
    """The environment in which another process of the project uses this test's database."""
    return database_environment()


def database_environment() -> dict[str, str]:
    """Return the environment in which another process uses the database of this connection."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        url = f"sqlite:///{name}"
    else:
        url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    inherited = {name: value for name, value in os.environ.items() if name != ALLOW_QUERIES}
    return {**inherited, "DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": url}


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    # A test with pytest.mark.redis or pytest.mark.browser need not request the fixture.
    for marker, fixture in (("redis", "redis_url"), ("browser", "chromium")):
        if request.node.get_closest_marker(marker):
            request.getfixturevalue(fixture)


@pytest.fixture
def redis_url() -> str:
    """The URL of a running Redis, from `REDIS_URL`; without one the test is skipped."""
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
    """A channel layer between the hubs of a test, as if they were in different processes."""
    fake = FakeLayer()
    monkeypatch.setattr(layer, "get_channel_layer", lambda: fake)
    return fake


@pytest.fixture
def postgresql() -> None:
    """Skip the test on all other databases."""
    if connection.vendor != "postgresql":
        pytest.skip("only for PostgreSQL")


@pytest.fixture
def url_prefix(settings: Any) -> Iterator[str]:
    """The project is below a URL prefix."""
    settings.STATIC_URL = "/app/static/"  # Django would keep one with the prefix for later tests
    with override_script_prefix("/app/"):
        yield "/app/"


@pytest.fixture
def chromium() -> str:
    """The path of the system's Chromium; without one the test is skipped.

    Its headless shell has no window, which saves a third of the CPU time.
    """
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    return found or missing("Chromium is not installed")


@pytest.fixture
def firefox() -> str:
    """The path of the system's Firefox; without one the test is skipped."""
    found = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
    return found or missing("Firefox is not installed")


@pytest.fixture
def launch() -> Iterator[Callable[[str], Browser]]:
    """Launches a browser, which consecutive tests share; its tabs are closed after the test."""
    yield browsers.shared.launch
    browsers.shared.close_contexts()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _needs_browser(item):
        os.environ[ALLOW_QUERIES] = "1"
    else:
        browsers.shared.close()
        os.environ.pop(ALLOW_QUERIES, None)


def pytest_unconfigure() -> None:
    browsers.shared.close()


@pytest.fixture
def browser_path(request: pytest.FixtureRequest) -> str:
    """The path of Chromium; in a test with the marker `firefox`, also that of Firefox."""
    path: str = request.getfixturevalue(getattr(request, "param", "chromium"))
    return path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("firefox"):
        both = ["chromium", pytest.param("firefox", marks=pytest.mark.long)]
        metafunc.parametrize("browser_path", both, indirect=True)


def missing(what: str) -> NoReturn:
    """Skip the test because something is missing; fail it if services are required."""
    if os.environ.get("CHATMEMORY_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{what}, and CHATMEMORY_REQUIRE_SERVICES is 1", pytrace=False)
    pytest.skip(what)
