"""Checks of the settings, run by `manage.py check`."""

from __future__ import annotations

import ast
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.abc import InspectLoader
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from symtable import SymbolTable, symtable
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from channels.exceptions import InvalidChannelLayerError
from channels.layers import channel_layers
from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.core import checks
from django.db import router
from django.utils.module_loading import import_string

from chatmemory.conf import Duration, OptionalDuration, Setting, Settings, settings
from chatmemory.services import BUSY_POLICIES, retention_rules

NUMBERS = {
    "WINDOW_TOKENS": (1, True),
    "WINDOW_MESSAGES": (1, True),
    "MAX_MESSAGE_CHARS": (1, False),
    "MAX_REPLY_CHARS": (1, False),
    "DB_THREADS": (0, False),
    "SENDS_PER_MINUTE": (1, True),
    "CONNECTIONS_PER_USER": (1, True),
    "READS_PER_MINUTE": (1, True),
    "TOKENS_PER_DAY": (1, True),
    "MAX_SESSIONS_PER_USER": (1, True),
    "TURNS_PER_USER": (1, True),
    "WAITS_PER_USER": (0, True),
    "WAITS_PER_PROCESS": (0, True),
    "UNDO_DAYS": (0, False),
    "QUEUE_DEPTH": (1, False),
}
"""The least value of a setting that is a number, and whether it may be None."""

REDIS_WAITS = 5
"""For how many seconds channels_redis waits for a message."""
PSYCOPG_POOL = 4
"""How many connections psycopg's pool has if nobody says."""
LEAST_LEASE = 5.0
"""How many seconds a busy process may stand still."""

MAY_BE_ZERO = ("DRAIN",)
"""Durations that may be none at all."""

FUNCTIONS = {
    "TOKEN_COUNTER": "approximate",
    "SOCKET_AUTH": None,
    "VALID_LOGINS": None,
    "REACH": None,
}
"""Settings that are the path of a function, and what stands for none."""

RESPONDER_HINT = "It must be demo, a model string provider:model, or the path of what answers."

TRACING_VARIABLES = (
    "LANGSMITH_TRACING",
    "LANGSMITH_TRACING_V2",
    "LANGCHAIN_TRACING",
    "LANGCHAIN_TRACING_V2",
)
"""Each turns LangSmith's tracing on, if it is "true"."""

SCHEMA_APPS = ("django_tenants", "tenant_schemas")
"""Apps that choose a schema of PostgreSQL for each request."""

IN_PROCESS_LAYERS = ("", "channels.layers.InMemoryChannelLayer")
IN_PROCESS_CACHES = (
    "",
    "django.core.cache.backends.locmem.LocMemCache",
    "django.core.cache.backends.dummy.DummyCache",
)
COUNTED_IN_CACHE = ("SENDS_PER_MINUTE", "READS_PER_MINUTE", "TOKENS_PER_DAY")
"""Limits whose counts are in Django's cache."""

NAMES_UNTOLD = re.compile(
    r"\bimport[\s\\]*\*|\b__getattr__\b|\b(?:globals|locals|vars|setattr|exec)\s*\("
)
"""What in a source makes names that don't stand in it."""


@checks.register
def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """What is set in `CHATMEMORY` is known, and is what it should be."""
    given = getattr(django_settings, "CHATMEMORY", {})
    if not _can_be_read():
        return [checks.Error("CHATMEMORY must be a dictionary.", id="chatmemory.E001")]
    known = [name for name, value in vars(Settings).items() if isinstance(value, Setting)]
    found: list[checks.CheckMessage] = []
    for name in given:
        if name not in known:
            near = get_close_matches(str(name).upper(), known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
            found.append(
                checks.Warning(f"CHATMEMORY has no {name!r}.", hint=hint, id="chatmemory.W001")
            )
    for name, (least, may_be_none) in NUMBERS.items():
        value = getattr(settings, name)
        if value is None and may_be_none:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            what = f"a whole number from {least} on" + (" or None" if may_be_none else "")
            found.append(
                checks.Error(f"CHATMEMORY[{name!r}] must be {what}.", id="chatmemory.E002")
            )
    for name in known:
        if isinstance(vars(Settings)[name], Duration | OptionalDuration) and not _is_duration(name):
            span = "from 0 on" if name in MAY_BE_ZERO else "above 0"
            message = f"CHATMEMORY[{name!r}] must be a number of seconds {span}, or a timedelta."
            found.append(checks.Error(message, id="chatmemory.E003"))
    return [
        *found,
        *_check_functions(),
        *_check_audit_keys(),
        *_check_erasure_list(),
        *_check_busy_policy(),
        *_check_retention(),
        *_check_origins(),
        *_check_responder(),
    ]


def _can_be_read() -> bool:
    """Whether the settings are a dictionary; `check_settings` says so if not."""
    return isinstance(getattr(django_settings, "CHATMEMORY", {}), dict)


def _is_duration(name: str) -> bool:
    may_be_none = isinstance(vars(Settings)[name], OptionalDuration)
    try:
        value = getattr(settings, name)
        if value is None or value == 0:
            return may_be_none if value is None else name in MAY_BE_ZERO
        return bool(0 < value < math.inf)
    except (TypeError, ValueError):
        return False


def _check_functions() -> list[checks.CheckMessage]:
    """What is named by its path can be imported and called."""
    return [
        checks.Error(
            f"CHATMEMORY[{name!r}]: {path!r} is not a function that can be imported.",
            id="chatmemory.E004",
        )
        for name, default in FUNCTIONS.items()
        if (path := getattr(settings, name)) != default and not _is_function(path)
    ]


def _check_audit_keys() -> list[checks.CheckMessage]:
    """The audit's keys are texts, and the fallbacks a list of them."""
    key: object = settings.AUDIT_KEY
    fallbacks: object = settings.AUDIT_KEY_FALLBACKS
    found: list[checks.CheckMessage] = []
    if not isinstance(key, str):
        message = "CHATMEMORY['AUDIT_KEY'] must be a text."
        found.append(checks.Error(message, id="chatmemory.E002"))
    if not isinstance(fallbacks, list | tuple) or not all(
        isinstance(former, str) and former for former in fallbacks
    ):
        message = "CHATMEMORY['AUDIT_KEY_FALLBACKS'] must be a list of texts."
        found.append(checks.Error(message, id="chatmemory.E002"))
    return found


def _check_erasure_list() -> list[checks.CheckMessage]:
    """The erasure list is a file with an absolute path, or what a callable returns."""
    given: object = settings.ERASURE_LIST
    is_file = isinstance(given, str | Path) and Path(given).is_absolute()
    if given is None or is_file or _is_function(given):
        return []
    message = (
        f"CHATMEMORY['ERASURE_LIST']: {str(given)!r} is neither an absolute path nor a function "
        "that can be imported."
    )
    return [checks.Error(message, id="chatmemory.E004")]


def _is_function(path: object) -> bool:
    try:
        return isinstance(path, str) and callable(import_string(path))
    except ImportError:
        return False


@checks.register
def check_channel_layer(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """The channel layer can be built, and its Redis connections wait long enough.

    `get_channel_layer` is silent about a layer that can't be built.
    """
    if "default" not in getattr(django_settings, "CHANNEL_LAYERS", {}):
        return []
    try:
        layer = channel_layers.make_backend("default")
    except (InvalidChannelLayerError, ImportError, KeyError, TypeError, ValueError) as error:
        message = f"CHANNEL_LAYERS['default'] can't be built: {type(error).__name__}: {error}"
        return [checks.Error(message, id="chatmemory.E005")]
    if type(layer).__module__.split(".")[0] != "channels_redis":
        return []
    return [*_check_redis_hosts(), *_check_redis_layer(layer)]


def _check_redis_hosts() -> list[checks.CheckMessage]:
    """No read gives up before a layer that waits for a message does."""
    config = django_settings.CHANNEL_LAYERS["default"].get("CONFIG", {})
    hosts = config.get("hosts", [])
    if hosts and all(map(_waits_long_enough, hosts)):
        return []
    return [
        checks.Error(
            "The channel layer's Redis hosts give up reading too soon, or don't say when.",
            hint='redis-py 8 does after 5 s. Use {"address": …, "socket_timeout": None}.',
            id="chatmemory.E006",
        )
    ]


def _waits_long_enough(host: object) -> bool:
    if not isinstance(host, dict) or "socket_timeout" not in host:
        return False
    timeout = host["socket_timeout"]
    return timeout is None or (isinstance(timeout, int | float) and timeout > REDIS_WAITS)


def _check_redis_layer(layer: object) -> list[checks.CheckMessage]:
    """It is the one that loses nothing while all goes well."""
    if type(layer).__module__ != "channels_redis.core":
        return []
    return [
        checks.Warning(
            "The channel layer is channels_redis.core.RedisChannelLayer.",
            hint="It drops what a slow process doesn't fetch in time, and closes with Redis. Use "
            "channels_redis.pubsub.RedisPubSubChannelLayer.",
            id="chatmemory.W004",
        )
    ]


@checks.register
def check_times(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """What lasts how long fits together."""
    if not _can_be_read() or not all(map(_is_duration, ("LEASE", "TURN_TIMEOUT", "DRAIN"))):
        return []
    lease, timeout, drain = settings.LEASE, settings.TURN_TIMEOUT, settings.DRAIN
    found = {
        f"CHATMEMORY['LEASE'] is {lease:g} s": (
            lease < LEAST_LEASE,
            f"A process that stands still for so long loses its runs. Use {LEAST_LEASE:g} or more.",
        ),
        f"CHATMEMORY['LEASE'] is longer than TURN_TIMEOUT, {timeout:g} s": (
            lease > timeout,
            "A dead process is noticed only when its lease ends.",
        ),
        f"CHATMEMORY['DRAIN'] is longer than TURN_TIMEOUT, {timeout:g} s": (
            drain > timeout,
            "No turn takes that long; what ends the process may not wait for it either.",
        ),
    }
    return [
        checks.Warning(f"{what}.", hint=hint, id="chatmemory.W005")
        for what, (is_so, hint) in found.items()
        if is_so
    ]


@checks.register
def check_pool(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """The connection pool has room for DB_THREADS, and for requests beside them."""
    threads: object = settings.DB_THREADS if _can_be_read() else None
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
    """How many connections psycopg's pool opens at most; None without one."""
    pool = database.get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    given = pool if isinstance(pool, dict) else {}
    size = given.get("max_size") or given.get("min_size", PSYCOPG_POOL)
    return size if isinstance(size, int) else None


@checks.register(deploy=True)
def check_deployment(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """What works on one's own machine works for many processes and for strangers."""
    if not _can_be_read():
        return []
    layer = getattr(django_settings, "CHANNEL_LAYERS", {}).get("default", {})
    backend = layer.get("BACKEND", "")
    found: list[checks.CheckMessage] = []
    if backend in IN_PROCESS_LAYERS:
        message = "No channel layer is shared by several processes."
        hint = (
            "With more than one, each learns from the others only by its sweep, after up to 5 s. "
            "Set CHANNEL_LAYERS, or silence this if there is one process."
        )
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W007"))
    if "*" in django_settings.ALLOWED_HOSTS and settings.ALLOWED_ORIGINS is None:
        message = "ALLOWED_HOSTS has '*', and CHATMEMORY['ALLOWED_ORIGINS'] is not set."
        hint = "Whatever host a page says it is from may then open a websocket. Set one of them."
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W008"))
    api = getattr(django_settings, "REST_FRAMEWORK", {})
    has_tokens = settings.SOCKET_AUTH or "DEFAULT_AUTHENTICATION_CLASSES" in api
    if has_tokens and settings.VALID_LOGINS is None:
        message = "People sign in without a Django session, and VALID_LOGINS is not set."
        hint = (
            "A websocket outlives a revoked token by up to CONNECTION_AGE. Set "
            "CHATMEMORY['VALID_LOGINS'], or silence this if no token is ever revoked."
        )
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W013"))
    found += _check_cache(has_shared_layer=backend not in IN_PROCESS_LAYERS)
    if settings.DB_THREADS == 0:
        message = "CHATMEMORY['DB_THREADS'] is 0, which is for tests."
        hint = "No lease is renewed, and nothing is swept."
        found.append(checks.Error(message, hint=hint, id="chatmemory.E012"))
    return found


@checks.register(deploy=True)
def check_evidence(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """The audit survives a rotation of Django's key, and erasures survive a restore."""
    if not _can_be_read():
        return []
    found: list[checks.CheckMessage] = []
    if not settings.AUDIT_KEY:
        message = "CHATMEMORY['AUDIT_KEY'] is not set; the audit uses Django's SECRET_KEY."
        hint = (
            "When SECRET_KEY is rotated, the audit can no longer be verified, nor erased persons "
            "found. Set a key of its own, and add the SECRET_KEY to AUDIT_KEY_FALLBACKS if there "
            "are entries already."
        )
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W015"))
    if settings.ERASURE_LIST is None:
        message = "CHATMEMORY['ERASURE_LIST'] is not set."
        hint = "A restored backup brings erased persons back, and nothing can erase them again."
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W020"))
    return found


def _check_cache(*, has_shared_layer: bool) -> list[checks.CheckMessage]:
    """The cache that counts is one for all processes, where there may be several."""
    limits = [name for name in COUNTED_IN_CACHE if getattr(settings, name) is not None]
    backend = django_settings.CACHES.get("default", {}).get("BACKEND", "")
    is_embedded = django_settings.DATABASES["default"].get("ENGINE", "").endswith(".sqlite3")
    if not limits or backend not in IN_PROCESS_CACHES or (is_embedded and not has_shared_layer):
        return []
    message = f"CACHES['default'] is not shared by several processes: {backend}."
    hint = (
        f"With more than one, each counts for itself, or not at all: {', '.join(limits)}. Use a "
        "shared cache such as Redis, or silence this if there is one process."
    )
    return [checks.Warning(message, hint=hint, id="chatmemory.W010")]


def _check_retention() -> list[checks.CheckMessage]:
    """Each rule can be read, and what becomes of a deleted user's sessions is known."""
    found: list[checks.CheckMessage] = []
    try:
        retention_rules()
    except ValueError as error:
        found.append(checks.Error(f"CHATMEMORY: {error}.", id="chatmemory.E009"))
    if settings.USER_DELETED not in ("purge", "erase", "keep"):
        message = "CHATMEMORY['USER_DELETED'] must be purge, erase or keep."
        found.append(checks.Error(message, id="chatmemory.E010"))
    return found


def _check_busy_policy() -> list[checks.CheckMessage]:
    """What becomes of a send while another turn runs is known."""
    if settings.BUSY_POLICY in BUSY_POLICIES:
        return []
    message = f"CHATMEMORY['BUSY_POLICY'] must be one of {', '.join(BUSY_POLICIES)}."
    return [checks.Error(message, id="chatmemory.E011")]


def _check_origins() -> list[checks.CheckMessage]:
    """Each allowed origin is one, and none is all."""
    given: object = settings.ALLOWED_ORIGINS
    if given is None:
        return []
    origins = given if isinstance(given, list | tuple) else [given]
    wrong = [origin for origin in origins if not _is_origin(origin)]
    if not wrong and origins is given:
        return []
    message = "CHATMEMORY['ALLOWED_ORIGINS'] must be a list of scheme://host[:port]."
    hint = "It has " + ", ".join(map(repr, wrong)) + "." if origins is given else None
    return [checks.Error(message, hint=hint, id="chatmemory.E007")]


def _check_responder() -> list[checks.CheckMessage]:
    """The responder exists; it is not imported, which can take seconds."""
    name: object = settings.RESPONDER
    if name == "demo":
        return []
    if isinstance(name, str) and ":" in name:
        return _check_model(name)
    hint: str | None = RESPONDER_HINT
    if isinstance(name, str) and "." in name.strip("."):
        hint = _missing_hint(*name.rpartition(".")[::2])
    return [] if hint is None else [_no_responder(name, hint)]


def _no_responder(name: object, hint: str) -> checks.CheckMessage:
    message = f"CHATMEMORY['RESPONDER'] is {name!r}, which can't be found."
    return checks.Error(message, hint=hint, id="chatmemory.E008")


def _check_model(name: str) -> list[checks.CheckMessage]:
    """LangChain knows the provider of a model string, and its package is installed."""
    providers = _provider_packages()
    if providers is None:
        hint = "Model strings need LangChain: pip install 'django-chatmemory[models]'."
        return [_no_responder(name, hint)]
    provider = name.partition(":")[0]
    package = providers.get(provider)
    if package is None and providers:
        hint = f"LangChain knows no provider {provider!r}; write provider:model."
        return [_no_responder(name, hint + _did_you_mean(provider, providers))]
    if package is None or find_spec(package):
        return []
    return [
        checks.Warning(
            f"CHATMEMORY['RESPONDER'] is {name!r}, which needs the package {package}.",
            hint=f"pip install {package.replace('_', '-')}",
            id="chatmemory.W016",
        )
    ]


def _provider_packages() -> Mapping[str, str] | None:
    """The top-level package of each provider that `init_chat_model` knows.

    Empty where that can't be read; None without LangChain.
    """
    spec = find_spec("langchain")
    if spec is None:
        return None
    # Read, not imported, which takes seconds.
    for location in spec.submodule_search_locations or ():
        file = Path(location) / "chat_models" / "base.py"
        if file.exists():
            return dict(_table_of_providers(file.read_text(encoding="utf-8")))
    return {}


def _table_of_providers(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.parse(source).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="_BUILTIN_PROVIDERS"), value=ast.Dict() as table):
                for key, value in zip(table.keys, table.values, strict=True):
                    match key, value:
                        case (
                            ast.Constant(value=str(name)),
                            ast.Tuple(elts=[ast.Constant(value=str(module)), *_]),
                        ):
                            yield name, module.partition(".")[0]


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _missing_hint(module: str, name: str) -> str | None:
    """What to do where a module does not have this name; None where it has, or may make it."""
    if (loaded := sys.modules.get(module)) is not None:
        if isinstance(vars(loaded).get(name), ModuleType):
            return f"{module}.{name} is a module; name the responder in it."
        if name in vars(loaded) or "__getattr__" in vars(loaded):
            return None
        if PathFinder.find_spec(f"{module}.{name}", getattr(loaded, "__path__", ())):
            return f"{module}.{name} is a module; name the responder in it."
        return f"{module} has no {name!r}.{_did_you_mean(name, vars(loaded))}"
    try:
        spec = find_spec(module)
        if spec is None:
            return f"There is no module {module}."
        source = spec.loader.get_source(module) if isinstance(spec.loader, InspectLoader) else None
        if source is None or NAMES_UNTOLD.search(source):
            return None
        names = set(_global_names(symtable(source, module, "exec")))
    except ModuleNotFoundError as error:
        return f"There is no module {error.name}."
    except (ImportError, SyntaxError, ValueError) as error:
        return f"{module} can't be imported: {type(error).__name__}."
    if name in names:
        return None
    if PathFinder.find_spec(f"{module}.{name}", spec.submodule_search_locations or ()):
        return f"{module}.{name} is a module; name the responder in it."
    return f"{module} has no {name!r}.{_did_you_mean(name, names)}"


def _global_names(block: SymbolTable) -> Iterator[str]:
    """The names that a module gives itself, also in its functions."""
    for symbol in block.get_symbols():
        is_bound = symbol.is_assigned() or symbol.is_imported()
        if is_bound and (block.get_type() == "module" or symbol.is_declared_global()):
            yield symbol.get_name()
    for inner in block.get_children():
        yield from _global_names(inner)


def _is_origin(origin: object) -> bool:
    if not isinstance(origin, str):
        return False
    parts = urlsplit(origin)
    is_bare = not (parts.path or parts.query or parts.fragment)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_bare


@checks.register
def check_sqlite(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """SQLite's transactions begin as writers, in a file that all threads open."""
    found: list[checks.CheckMessage] = [
        checks.Warning(
            f"DATABASES[{alias!r}] is SQLite in memory.",
            hint="Each thread would have a database of its own. Use a file.",
            id="chatmemory.W009",
        )
        for alias, database in django_settings.DATABASES.items()
        if database.get("ENGINE") == "django.db.backends.sqlite3"
        and str(database.get("NAME")) == ":memory:"
    ]
    return found + [
        checks.Warning(
            f"DATABASES[{alias!r}] is SQLite without transaction_mode IMMEDIATE.",
            hint='Writers that meet would fail at once. Set "OPTIONS": '
            '{"transaction_mode": "IMMEDIATE"}.',
            id="chatmemory.W002",
        )
        for alias, database in django_settings.DATABASES.items()
        if database.get("ENGINE") == "django.db.backends.sqlite3"
        and str(database.get("OPTIONS", {}).get("transaction_mode")).upper()
        not in ("IMMEDIATE", "EXCLUSIVE")
    ]


@checks.register
def check_atomic_requests(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """No request is one transaction: it would hold a session's lock until its answer is sent."""
    return [
        checks.Warning(
            f"DATABASES[{alias!r}] has ATOMIC_REQUESTS.",
            hint="A view of yours that writes to a session holds its lock until the view ends; "
            "mark it with transaction.non_atomic_requests. The app's own views are.",
            id="chatmemory.W003",
        )
        for alias, database in django_settings.DATABASES.items()
        if database.get("ATOMIC_REQUESTS")
    ]


@checks.register
def check_tenants(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """No app chooses a schema of the database for each request."""
    return [
        checks.Error(
            f"{name} is installed; chatmemory does not support a schema per tenant.",
            hint="Sockets, runs and async services use threads that know no tenant: they would "
            "read and write another tenant's sessions. Run a process with its own database for "
            "each tenant, or keep chatmemory in a project without tenants.",
            id="chatmemory.E014",
        )
        for name in SCHEMA_APPS
        if apps.is_installed(name)
    ]


@checks.register
def check_tracing(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """LangSmith is not given what users write."""
    on = [name for name in TRACING_VARIABLES if os.environ.get(name, "").lower() == "true"]
    return [
        checks.Warning(
            f"{name} is set: LangChain sends prompts and replies to LangSmith.",
            hint="If that is not intended, remove it from the environment; else silence this.",
            id="chatmemory.W017",
        )
        for name in on[:1]
    ]


@checks.register
def check_routers(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """One database holds all tables of the app and the users: statements join them."""
    models = [get_user_model(), *apps.get_app_config("chatmemory").get_models()]
    written = {model._meta.label: router.db_for_write(model) for model in models}
    if len(set(written.values())) == 1:
        return []
    places = ", ".join(f"{label} to {alias}" for label, alias in written.items())
    message = f"DATABASE_ROUTERS write the models of chatmemory to different databases: {places}."
    hint = "Let db_for_write return one alias for chatmemory and the user model."
    return [checks.Error(message, hint=hint, id="chatmemory.E013")]
