"""System checks for the chat pages: websockets and the login URL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from channels.routing import ProtocolTypeRouter, URLRouter
from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIHandler
from django.core.management import get_commands
from django.shortcuts import resolve_url
from django.urls import (
    NoReverseMatch,
    Resolver404,
    URLResolver,
    get_resolver,
    get_script_prefix,
    is_valid_path,
    resolve,
    reverse,
)
from django.urls.converters import UUIDConverter
from django.utils import translation
from django.utils.module_loading import import_string

from chatmemory import startup
from chatmemory.conf import settings as chat_settings
from chatmemory.csp import static_origins

SOCKET_HINT = (
    'Route "websocket" to chatmemory.routing.websocket_urlpatterns: `manage.py chatmemory_init` '
    "prints the lines. Silence this check if another server serves the websockets."
)
WRAPPED = ("application", "inner", "app")
"""Names of the attribute in which ASGI middleware stores the wrapped application."""
DJANGO_COMMANDS = ("django.core", "django.contrib.staticfiles")


@checks.register
def check_websockets(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Warn if the chat page is mounted but has no websocket route."""
    if not _are_pages_mounted():
        return []
    found: list[checks.CheckMessage] = []
    problem = application_problem(getattr(settings, "ASGI_APPLICATION", None))
    if problem and problem.kind != "unknown":
        found.append(checks.Warning(problem.sentence, hint=SOCKET_HINT, id="chatmemory.W018"))
    if settings.DEBUG and get_commands().get("runserver") in DJANGO_COMMANDS:
        hint = (
            'pip install "django-chatmemory[daphne]", and put "daphne" first in INSTALLED_APPS. '
            "Silence this check if you use another server."
        )
        message = "The chat page needs websockets, which Django's runserver does not serve."
        if apps.is_installed("daphne"):
            message = (
                "'daphne' is after django.contrib.staticfiles in INSTALLED_APPS, so Django's "
                "runserver is used, which does not serve websockets."
            )
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W018"))
    return found


class ApplicationProblem(NamedTuple):
    """Why an ASGI application has no chat socket, or none that can be seen (`unknown`)."""

    kind: Literal["unset", "not_found", "broken", "django", "unrouted", "elsewhere", "unknown"]
    sentence: str


def application_problem(path: str | None) -> ApplicationProblem | None:
    """Return why the application of a dotted path has no chat socket; None if it has one."""
    if not path:
        sentence = "The chat page needs websockets, and ASGI_APPLICATION is not set."
        return ApplicationProblem("unset", sentence)
    name = f"ASGI_APPLICATION {path!r}"
    try:
        with startup.inspecting():
            application = import_string(path)
    except Exception as error:  # the project's module may raise anything
        is_absent = isinstance(error, ModuleNotFoundError) and path.startswith(f"{error.name}.")
        sentence = f"{name} can't be imported: {type(error).__name__}."
        return ApplicationProblem("not_found" if is_absent else "broken", sentence)
    if isinstance(application, ASGIHandler):
        sentence = f"{name} is Django's own, which does not accept websockets."
        return ApplicationProblem("django", sentence)
    unknown = ApplicationProblem("unknown", f"The routes of {name} can't be inspected.")
    if not isinstance(application, ProtocolTypeRouter):
        return unknown
    websocket = application.application_mapping.get("websocket")
    if websocket is None:
        return ApplicationProblem("unrouted", f"{name} has no route for websockets.")
    routers = list(_routers(websocket))
    if any(map(_has_chat, routers)):
        return None
    sentence = f"{name} routes websockets, but not to chatmemory."
    return ApplicationProblem("elsewhere", sentence) if routers else unknown


def _routers(application: object) -> Iterator[URLRouter]:
    """Yield the router inside nested middleware, if there is one."""
    for _ in range(20):
        if isinstance(application, URLRouter):
            yield application
            return
        application = next(
            (inner for name in WRAPPED if (inner := getattr(application, name, None))), None
        )


def _has_chat(router: URLRouter) -> bool:
    callbacks = [route.callback for route in router.routes]
    modules = [getattr(getattr(c, "consumer_class", None), "__module__", "") for c in callbacks]
    inner = [found for callback in callbacks for found in _routers(callback)]
    return any(m.startswith("chatmemory.") for m in modules) or any(map(_has_chat, inner))


@checks.register(deploy=True)
def check_static_files(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Warn of static files on another origin, which a browser loads only with CORS."""
    if not _are_pages_mounted():
        return []
    return [
        checks.Warning(
            f"The static files are on another origin: {origin}.",
            hint=(
                "Browsers load modules and stylesheets from there only if it sends "
                "Access-Control-Allow-Origin: see docs/howto/deployment.md of django-chatmemory. "
                "Silence this check if it does."
            ),
            id="chatmemory.W040",
        )
        for origin in static_origins()
    ]


@checks.register
def check_login_url(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Warn if LOGIN_URL, to which the chat pages redirect, does not resolve."""
    if not _are_pages_mounted() or is_known_url(str(settings.LOGIN_URL)):
        return []
    return [
        checks.Warning(
            f"LOGIN_URL {str(settings.LOGIN_URL)!r} is neither a view name nor a known URL.",
            hint=(
                "The chat pages redirect there. Set it to your login page, or add "
                'path("accounts/", include("chatmemory.accounts")) to your URLs. Below a URL '
                'prefix, set it to the name of a view, such as "login".'
            ),
            id="chatmemory.W019",
        )
    ]


def is_known_url(url: str) -> bool:
    """Return whether a URL is known in any language: `i18n_patterns` depend on the active one."""
    languages = [code for code, _ in settings.LANGUAGES] if settings.USE_I18N else []
    for language in (None, *languages):
        with translation.override(language):
            if _is_found_now(url, language):
                return True
    return False


def _is_found_now(url: str, language: str | None) -> bool:
    prefix = get_script_prefix()
    try:
        address = resolve_url(url).partition("?")[0]
    except NoReverseMatch:
        return False
    if "//" in address:
        return True
    path = "/" + address.removeprefix(prefix)
    # LocaleMiddleware redirects an unknown address to that with the prefix of the language.
    paths = (path, f"/{language}{path}")
    return address.startswith(prefix) and any(map(is_valid_path, paths))


@checks.register
def check_logout_url(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Warn if LOGOUT_URL does not resolve to a path of this site."""
    if not (_are_pages_mounted() and isinstance(getattr(settings, "CHATMEMORY", {}), dict)):
        return []
    url = chat_settings.LOGOUT_URL
    if url is None or ("//" not in str(url) and is_known_url(str(url))):
        return []
    return [
        checks.Warning(
            f"CHATMEMORY['LOGOUT_URL'] {str(url)!r} is neither a view name nor a path of the site.",
            hint="Without it the chat pages have no Sign out. None tries the usual names of views.",
            id="chatmemory.W049",
        )
    ]


@checks.register
def check_addresses(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Warn if a URL of the project hides one of ours, or one of ours hides one of the project."""
    if not (is_mounted("chatmemory:chat") or is_mounted("chatmemory_api:sessions")):
        return []
    return [
        checks.Warning(
            f"{address} leads to {found}, which hides {name}.",
            hint="The first of the URLs wins. Include those of chatmemory under a prefix of their "
            'own, such as "chat/api/", and before a URL that matches more.',
            id="chatmemory.W041",
        )
        for address, name in _views(get_resolver())
        if (found := _view_at(address)) not in ("", name)
        and (found.startswith("chatmemory.") or name.startswith("chatmemory."))
    ]


def _views(resolver: URLResolver, prefix: str = "/") -> Iterator[tuple[str, str]]:
    """Yield an example of each address, with the name of the view that the project means for it."""
    for view in resolver.reverse_dict:
        if not callable(view):
            continue  # a name of a view
        for possibilities, pattern, _, converters in resolver.reverse_dict.getlist(view):
            text, names = possibilities[0]
            examples = {
                name: str(UUID(int=1)) if isinstance(converters.get(name), UUIDConverter) else "1"
                for name in names
            }
            example = text % examples
            if re.match(pattern, example):  # not of a pattern with alternatives
                yield prefix + example, _name_of(view)
    for below, inner in resolver.namespace_dict.values():
        if "%(" not in below:  # a prefix with parameters
            yield from _views(inner, prefix + below)


def _view_at(address: str) -> str:
    try:
        return _name_of(resolve(address).func)
    except Resolver404:  # the example is not one
        return ""


def _name_of(view: object) -> str:
    known = getattr(view, "view_class", view)
    return f"{known.__module__}.{getattr(known, '__qualname__', type(known).__qualname__)}"


def _are_pages_mounted() -> bool:
    return is_mounted("chatmemory:chat")


def is_mounted(name: str) -> bool:
    """Return whether the project's URLs have this name."""
    try:
        reverse(name)
    except (ImportError, ImproperlyConfigured, NoReverseMatch):  # Django checks ROOT_URLCONF
        return False
    return True
