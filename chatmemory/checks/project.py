"""Checks of the host's other settings: layer, databases, installed apps, environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from channels.exceptions import InvalidChannelLayerError
from channels.layers import channel_layers
from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.core import checks
from django.db import router
from django.utils.module_loading import import_string

from chatmemory.checks.values import is_dictionary
from chatmemory.conf import settings
from chatmemory.models import Session, installed_models
from chatmemory.models.derived import followers
from chatmemory.services.derived.removal import person_models, range_models
from chatmemory.services.integrity.tables import REMEDY, wrong_tables
from chatmemory.startup import are_threads_patched

REDIS_WAIT_SECONDS = 5
"""How long channels_redis waits for a message."""

PSYCOPG_POOL_SIZE = 4
"""The default size of psycopg's pool."""

TRACING_VARIABLES = (
    "LANGSMITH_TRACING",
    "LANGSMITH_TRACING_V2",
    "LANGCHAIN_TRACING",
    "LANGCHAIN_TRACING_V2",
)
"""Each enables LangSmith's tracing if its value is "true"."""

SCHEMA_APPS = ("django_tenants", "tenant_schemas")
"""Apps that select a PostgreSQL schema for each request."""


GATES = ("django_otp", "allauth_2fa", "stronghold", "zweifach", "duo_universal_auth")
"""Packages whose middlewares, or host's subclasses of them, let only some logins in."""

IMPERSONATORS = ("impersonate", "hijack")
"""Packages with which staff view the site as another user."""


@checks.register
def check_gates(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Warn of middlewares that close pages or change their user, but not websockets."""
    if not is_dictionary():
        return []
    return [
        checks.Warning(
            f"{path} is in MIDDLEWARE, and CHATMEMORY['{name}'] is not set.",
            hint=f"Middlewares do not run for websockets: there {effect}."
            f" docs/howto/gate.md shows a function for {name}.",
            id="chatmemory.W044",
        )
        for name, packages, effect in (
            ("GATE", GATES, "a login that it refuses can chat"),
            ("IMPERSONATOR", IMPERSONATORS, "staff write as the person, or see their own chats"),
        )
        if getattr(settings, name) is None
        for path in django_settings.MIDDLEWARE
        if not _packages_of(path).isdisjoint(packages)
    ]


def _packages_of(path: str) -> set[str]:
    """Return the package of a middleware, and of each class that it inherits from."""
    try:
        bases = getattr(import_string(path), "__mro__", ())
    except ImportError:  # Django itself reports it
        bases = ()
    modules = (path, *(base.__module__ for base in bases))
    return {module.partition(".")[0] for module in modules}


@checks.register
def check_channel_layer(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Check that the channel layer can be created, and its Redis timeouts.

    `get_channel_layer` reports no error for a layer that cannot be created.
    """
    if "default" not in getattr(django_settings, "CHANNEL_LAYERS", {}):
        return []
    try:
        layer = channel_layers.make_backend("default")
    except (InvalidChannelLayerError, ImportError, KeyError, TypeError, ValueError) as error:
        message = f"CHANNEL_LAYERS['default'] cannot be created: {type(error).__name__}: {error}"
        return [checks.Error(message, id="chatmemory.E005")]
    if type(layer).__module__.split(".")[0] != "channels_redis":
        return []
    return [*_check_redis_hosts(), *_check_redis_layer(layer)]


def _check_redis_hosts() -> list[checks.CheckMessage]:
    """Check that no Redis read times out before channels_redis stops waiting for a message."""
    config = django_settings.CHANNEL_LAYERS["default"].get("CONFIG", {})
    hosts = config.get("hosts", [])
    if hosts and all(map(_waits_long_enough, hosts)):
        return []
    return [
        checks.Error(
            "The channel layer's Redis hosts need a socket_timeout of None, or above "
            f"{REDIS_WAIT_SECONDS} s.",
            hint='The default of redis-py 8 is 5 s. Use {"address": …, "socket_timeout": None}.',
            id="chatmemory.E006",
        )
    ]


def _waits_long_enough(host: object) -> bool:
    if not isinstance(host, dict) or "socket_timeout" not in host:
        return False
    timeout = host["socket_timeout"]
    return timeout is None or (isinstance(timeout, int | float) and timeout > REDIS_WAIT_SECONDS)


def _check_redis_layer(layer: object) -> list[checks.CheckMessage]:
    """Warn of the Redis layer that drops messages in normal operation."""
    if type(layer).__module__ != "channels_redis.core":
        return []
    return [
        checks.Warning(
            "The channel layer is channels_redis.core.RedisChannelLayer.",
            hint="It drops messages that a slow process does not fetch in time, and fails with "
            "Redis. Use channels_redis.pubsub.RedisPubSubChannelLayer.",
            id="chatmemory.W004",
        )
    ]


@checks.register
def check_pool(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Check that the connection pool is larger than DB_THREADS."""
    threads: object = settings.DB_THREADS if is_dictionary() else None
    return [
        checks.Warning(
            f"DATABASES[{alias!r}] has a pool of {size} connections for DB_THREADS {threads}.",
            hint="Requests and the runner's keeper need some too: raise the pool's max_size, or "
            "lower DB_THREADS.",
            id="chatmemory.W006",
        )
        for alias, database in django_settings.DATABASES.items()
        if (size := _pool_size(database)) is not None
        and isinstance(threads, int)
        and size <= threads
    ]


def _pool_size(database: Mapping[str, Any]) -> int | None:
    """Return the maximum size of psycopg's pool; None without a pool."""
    pool = database.get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    given = pool if isinstance(pool, dict) else {}
    size = given.get("max_size") or given.get("min_size", PSYCOPG_POOL_SIZE)
    return size if isinstance(size, int) else None


@checks.register
def check_sqlite(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Warn of SQLite in memory, and of transactions that do not begin with a write lock."""
    found: list[checks.CheckMessage] = []
    alias = router.db_for_write(Session)  # others may be read only, such as one to import
    database = django_settings.DATABASES[alias]
    if database.get("ENGINE") != "django.db.backends.sqlite3":
        return found
    if str(database.get("NAME")) == ":memory:":
        message = f"DATABASES[{alias!r}] is SQLite in memory."
        hint = "Each thread has its own database. Use a file."
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W009"))
    mode = str(database.get("OPTIONS", {}).get("transaction_mode")).upper()
    if mode not in ("IMMEDIATE", "EXCLUSIVE"):
        message = f"DATABASES[{alias!r}] is SQLite without transaction_mode IMMEDIATE."
        hint = (
            'Concurrent writers fail immediately. Set "OPTIONS": {"transaction_mode": "IMMEDIATE"}.'
        )
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W002"))
    return found


@checks.register
def check_atomic_requests(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Warn of requests in one transaction: they hold a session's lock until the response."""
    return [
        checks.Warning(
            f"DATABASES[{alias!r}] has ATOMIC_REQUESTS.",
            hint="Your views that write to a session hold its lock until they return. Mark them "
            "with transaction.non_atomic_requests, as the app's views are.",
            id="chatmemory.W003",
        )
        for alias, database in django_settings.DATABASES.items()
        if database.get("ATOMIC_REQUESTS")
    ]


@checks.register
def check_autocommit(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Check that statements outside of transactions are committed immediately."""
    alias = router.db_for_write(Session)
    if django_settings.DATABASES[alias].get("AUTOCOMMIT", True):
        return []
    return [
        checks.Error(
            f"DATABASES[{alias!r}] has AUTOCOMMIT False, which chatmemory does not support.",
            hint="Its writes would fail or stay uncommitted. Remove AUTOCOMMIT, and use "
            "transaction.atomic where several statements belong together.",
            id="chatmemory.E015",
        )
    ]


@checks.register(checks.Tags.database)
def check_tables(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[checks.CheckMessage]:
    """Warn of tables that do not fit the models. No error, which would keep `migrate` from it."""
    if router.db_for_write(Session) not in (databases or ()):
        return []
    wrong = wrong_tables()
    return [checks.Warning(" ".join(wrong), hint=REMEDY, id="chatmemory.W031")] if wrong else []


@checks.register
def check_tenants(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Reject apps that select a database schema for each request."""
    return [
        checks.Error(
            f"{name} is installed; chatmemory does not support a schema per tenant.",
            hint="Sockets, runs and async services use threads without a tenant: they would "
            "read and write another tenant's sessions. Run a process with its own database for "
            "each tenant, or keep chatmemory in a project without tenants.",
            id="chatmemory.E014",
        )
        for name in SCHEMA_APPS
        if apps.is_installed(name)
    ]


@checks.register
def check_tracing(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Warn if LangSmith receives the users' messages."""
    enabled = [name for name in TRACING_VARIABLES if os.environ.get(name, "").lower() == "true"]
    return [
        checks.Warning(
            f"{name} is set: LangChain sends prompts and replies to LangSmith.",
            hint="Unset it, or silence this check if that is intended.",
            id="chatmemory.W017",
        )
        for name in enabled[:1]
    ]


@checks.register
def check_routers(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Check that all tables of the app and the users are in one database: statements join them."""
    derived = (*range_models(), *person_models(), *followers())
    models = [get_user_model(), *installed_models(), *derived]
    written = {model._meta.label: router.db_for_write(model) for model in models}
    if len(set(written.values())) == 1:
        return []
    places = ", ".join(f"{label} to {alias}" for label, alias in written.items())
    message = f"DATABASE_ROUTERS send writes of chatmemory to different databases: {places}."
    hint = "db_for_write must return one alias for chatmemory, the user model and derived rows."
    return [checks.Error(message, hint=hint, id="chatmemory.E013")]


@checks.register
def check_patched_threads(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Warn of processes that can run no turn, because gevent or eventlet has patched threads."""
    if not are_threads_patched():
        return []
    return [
        checks.Warning(
            "gevent or eventlet has patched threads; this process runs no turns.",
            hint="Its messages wait for another process: run `manage.py chatmemory_runner`, without"
            " patched threads, or an ASGI server.",
            id="chatmemory.W043",
        )
    ]
