"""What the settings, URLs and ASGI application of a project lack for the chat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, global_settings, settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, router
from django.db.migrations.executor import MigrationExecutor
from django.urls import get_script_prefix

from chatmemory.checks.deployment import IN_PROCESS_LAYERS
from chatmemory.checks.project import check_sqlite
from chatmemory.management.counting import counted
from chatmemory.models import Session
from chatmemory.pages.checks import (
    application_problem,
    check_addresses,
    is_known_url,
    is_mounted,
)

REQUIRED_APPS = ("channels", "rest_framework")
ROUTES = "chatmemory.routing.websocket_urlpatterns"
# The lines are those of the README.
RESPONDER = """\
CHATMEMORY = {
    # The offline bot; or "openai:gpt-5" (extra models, and langchain-openai), or "shop.bot.chain"
    "RESPONDER": "demo",
}"""
IMMEDIATE = """\
# For SQLite, whose concurrent writers otherwise fail with "database is locked"
if DATABASES["{alias}"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["{alias}"].setdefault("OPTIONS", {{}})["transaction_mode"] = "IMMEDIATE\""""
LAYER = """\
# For several processes; pip install channels-redis
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [{"address": "redis://localhost:6379/0", "socket_timeout": None}]},
    }
}"""
NEW_MODULE = """\
import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", {module!r})
{name} = get_asgi_application()

"""
WIRING = """\
from channels.routing import ProtocolTypeRouter

from chatmemory.live.drain import drain  # after django is set up
from chatmemory.routing import SocketRouter, websocket_urlpatterns

{name} = ProtocolTypeRouter(
    {{
        {http},
        "lifespan": drain.lifespan,
        "websocket": SocketRouter({routes}),
    }}
)"""
OTHER_SOCKETS = """\
[*websocket_urlpatterns, re_path("", {name}.application_mapping["websocket"])]"""


@dataclass(frozen=True, slots=True)
class MissingPart:
    """Lines to add at the end of a file of the project; without a file, a command to run."""

    file: str
    code: str
    is_optional: bool = False


def missing_parts() -> Iterator[MissingPart]:
    """Yield what is missing, in the order in which it is added. Writes nothing."""
    yield from _missing_settings()
    yield from _missing_urls()
    yield from _missing_socket()
    if problem := _migration_problem():
        yield MissingPart("", f"{problem}python manage.py migrate")


def _missing_settings() -> Iterator[MissingPart]:
    file = _file_of(_settings_module())
    yield from _list_part(file, "INSTALLED_APPS", *_missing_apps())
    if not getattr(settings, "ASGI_APPLICATION", None):
        yield MissingPart(file, f'ASGI_APPLICATION = "{_application_path()}"')
    alias = router.db_for_write(Session)
    if any(warning.id == "chatmemory.W002" for warning in check_sqlite(None)):
        yield MissingPart(file, IMMEDIATE.format(alias=alias))
    given = getattr(settings, "CHATMEMORY", {})
    if "RESPONDER" not in given:
        yield MissingPart(file, 'CHATMEMORY["RESPONDER"] = "demo"' if given else RESPONDER)
    if not is_known_url(str(settings.LOGIN_URL)) and not _is_default_login_url_enough():
        yield MissingPart(file, 'LOGIN_URL = "login"')
    layer = getattr(settings, "CHANNEL_LAYERS", {}).get("default", {})
    if layer.get("BACKEND", "") in IN_PROCESS_LAYERS:
        yield MissingPart(file, LAYER, is_optional=True)


def _missing_apps() -> tuple[list[str], list[str]]:
    """Return the lines before and behind the installed apps."""
    first = []
    if not apps.is_installed("daphne"):
        mark = "" if find_spec("daphne") else "# "
        advice = ", after pip install daphne" if mark else ""
        first = [f'{mark}"daphne",  # optional: runserver with websockets{advice}']
    last = [f'"{name}",' for name in REQUIRED_APPS if not apps.is_installed(name)]
    if not apps.is_installed("chatmemory.statistics"):
        last.append('"chatmemory.statistics",  # optional: figures of each day in the admin')
    if not apps.is_installed("chatmemory.imports"):
        line = '"chatmemory.imports",  # optional: exports of ChatGPT and others'
        advice = ', after pip install "django-chatmemory[imports]"'
        last.append(line if find_spec("ijson") else f"# {line}{advice}")
    return first, last


def _missing_urls() -> Iterator[MissingPart]:
    module = settings.ROOT_URLCONF
    try:
        import_module(module)
    except Exception as error:  # the project's module may raise anything
        yield MissingPart(module, f"# It can't be imported: {type(error).__name__}. Repair it.")
        return
    lines = []
    if not is_known_url(str(settings.LOGIN_URL)) and not is_mounted("login"):
        lines.append('path("accounts/", include("chatmemory.accounts")),  # or your own login')
    if not is_mounted("chatmemory_api:sessions"):
        lines.append('path("chat/api/", include("chatmemory.api.urls")),  # optional: REST')
    if not is_mounted("chatmemory:chat"):
        lines.append('path("chat/", include("chatmemory.urls")),')
    imports = "from django.urls import include, path\n\n"
    for part in _list_part(_file_of(module), "urlpatterns", lines, []):
        yield replace(part, code=imports + part.code)
    for warning in check_addresses(None):
        yield MissingPart(_file_of(module), f"# {warning.msg}\n# {warning.hint}")


def _missing_socket() -> Iterator[MissingPart]:
    path = _application_path()
    module, _, name = path.rpartition(".")
    problem = application_problem(path)
    if problem is None:
        return
    known = f"**{name}.application_mapping"
    match problem.kind:
        case "unknown" | "broken":
            advice = f'# {problem.sentence}\n# "websocket" must lead to {ROUTES}.'
            yield MissingPart(_file_of(module), advice, is_optional=problem.kind == "unknown")
            return
        case "unrouted":
            code = WIRING.format(name=name, http=known, routes="websocket_urlpatterns")
        case "elsewhere":
            routes = OTHER_SOCKETS.format(name=name)
            code = f"from django.urls import re_path\n{WIRING}".format(
                name=name, http=known, routes=routes
            )
        case _:
            code = WIRING.format(name=name, http=f'"http": {name}', routes="websocket_urlpatterns")
    if problem.kind == "not_found":
        code = NEW_MODULE.format(module=_settings_module(), name=name) + code
    yield MissingPart(_file_of(module), code)


def _list_part(file: str, name: str, first: list[str], last: list[str]) -> Iterator[MissingPart]:
    """Yield the lines that put these entries before and behind those of a list."""
    entries = [*first, f"*{name},", *last]
    if first or last:
        code = "\n".join([f"{name} = [", *(f"    {entry}" for entry in entries), "]"])
        is_optional = all("# optional" in entry for entry in (*first, *last))
        yield MissingPart(file, code, is_optional=is_optional)


def _application_path() -> str:
    """Return ASGI_APPLICATION, or where it will be: beside that of WSGI, or beside the URLs."""
    if path := getattr(settings, "ASGI_APPLICATION", None):
        return str(path)
    beside = (getattr(settings, "WSGI_APPLICATION", None) or "").rpartition(".")[0]
    package = (beside or settings.ROOT_URLCONF).rpartition(".")[0]
    return f"{package}.asgi.application" if package else "asgi.application"


def _settings_module() -> str:
    return os.environ.get(ENVIRONMENT_VARIABLE, "settings")


def _is_default_login_url_enough() -> bool:
    """Whether LOGIN_URL leads to the login after `chatmemory.accounts` is included."""
    is_default = settings.LOGIN_URL == global_settings.LOGIN_URL
    return is_default and get_script_prefix() == "/" and not is_mounted("login")


def _migration_problem() -> str:
    """Return why `migrate` has to run, as a comment; empty if it need not."""
    connection = connections[router.db_for_write(Session)]
    is_unopened = connection.vendor == "sqlite" and connection.connection is None
    if is_unopened and not Path(connection.settings_dict["NAME"]).exists():
        return "# The database is new.\n"  # a connection would create its file
    try:
        executor = MigrationExecutor(connection)
    except (Error, ImproperlyConfigured) as error:
        return f"# The database can't be reached: {type(error).__name__}.\n"
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return f"# {counted(len(plan), 'migration')} not applied.\n" if plan else ""


def _file_of(module: str) -> str:
    """Return the path of a module, relative to the working directory if it is below."""
    try:
        spec = find_spec(module)
    except (ModuleNotFoundError, ValueError):  # no package; a module without a file
        spec = None
    if spec is None or spec.origin is None:
        return f"{module.replace('.', '/')}.py"
    path = Path(spec.origin)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
