"""The Content-Security-Policy of our pages: scripts only from files of this site."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponseBase
from django.templatetags.static import static

from chatmemory.conf import settings

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def with_policy(view: View[P]) -> View[P]:
    """Send the policy, unless the view sets one."""

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        response.headers.setdefault("Content-Security-Policy", policy())
        return response

    return inner


def policy() -> str:
    """Return the policy, with the origins of static files, images and redirects."""
    files = ("'self'", *static_origins(), *settings.ASSET_ORIGINS)
    directives = {
        "default-src": files,
        "script-src": files,
        "object-src": ("'none'",),
        "base-uri": ("'none'",),
        "frame-ancestors": ("'none'",),
        "connect-src": files,
        **({"img-src": (*files, *settings.IMAGE_ORIGINS)} if settings.IMAGE_ORIGINS else {}),
        "form-action": ("'self'", *_form_origins()),
    }
    return "; ".join(" ".join((name, *sources)) for name, sources in directives.items())


def static_origins() -> list[str]:
    """Return the other origin of the static files, if STATIC_URL or their storage has one."""
    try:
        address = static("chatmemory/element/chat.js")
    except ValueError:  # a manifest of files, before `collectstatic`
        address = django_settings.STATIC_URL
    return _origins(address)


def _form_origins() -> list[str]:
    """Return the other origins to which the project redirects from a form."""
    # Chromium also checks the redirect that answers a form, such as the sign-out's.
    names = ("LOGIN_URL", "LOGIN_REDIRECT_URL", "LOGOUT_REDIRECT_URL")
    return _origins(*(str(getattr(django_settings, name) or "") for name in names))


def _origins(*addresses: str) -> list[str]:
    places = [urlsplit(address) for address in addresses]
    hosts = {(place.scheme, place.netloc.rpartition("@")[2]) for place in places}
    return sorted(f"{scheme}://{host}" if scheme else host for scheme, host in hosts if host)
