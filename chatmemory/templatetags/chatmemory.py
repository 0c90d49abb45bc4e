"""`{% load chatmemory %}` puts the chat into a page, or links to conversations in the admin."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django import template
from django.apps import apps
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured
from django.forms.utils import flatatt
from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.shortcuts import resolve_url
from django.template import Context
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString

from chatmemory import codec
from chatmemory.access import visitors
from chatmemory.conf import settings
from chatmemory.pages.adoption import has_declined
from chatmemory.pages.catalog import catalog_url
from chatmemory.pages.views import socket_path

register = template.Library()

NO_REQUEST = (
    "The tags of chatmemory need the request in the context: render the template with it, "
    "and add django.template.context_processors.request."
)


LOGOUT_NAMES = ("logout", "account_logout", "accounts:logout", "auth:logout", "users:logout")
"""The usual names of the view that signs out; the second is that of django-allauth."""


@register.simple_tag
def chatmemory_logout_url() -> str | None:
    """Return the path that signs out; None if there is none.

    The form that posts there has the CSRF token, so another site is no answer.
    """
    for name in LOGOUT_NAMES if settings.LOGOUT_URL is None else (settings.LOGOUT_URL,):
        with suppress(NoReverseMatch):
            address = resolve_url(name)
            return address if url_has_allowed_host_and_scheme(address, None) else None
    return None


@register.simple_tag(takes_context=True)
def chatmemory_widget(
    context: Context,
    *,
    session_key: object = None,
    suggestions: Sequence[str] | None = None,
    **attributes: object,
) -> SafeString:
    """Return the script and the element, for the user or the visitor of the request.

    Without a key, the person continues the last chat of this browser. `suggestions` replace
    those of the setting. `attributes` are named as in docs/reference/customizing.md, with
    underscores: `color_scheme="dark"`. Raises NotFound for a key that no URL can contain,
    ImproperlyConfigured without a request.
    """
    request = _request(context)
    key = None if session_key is None else codec.key_of_address(str(session_key))
    given = {name.replace("_", "-"): value for name, value in attributes.items()}
    element = {**_session(key), **_person(request, key), **given}
    return format_html(
        '{}<script type="module" src="{}"{}></script>\n<chat-memory{}>{}</chat-memory>',
        chatmemory_words(context),
        static("chatmemory/element/chat.js"),
        _nonce(request),
        flatatt({name: value for name, value in element.items() if value is not None}),
        _suggestions(suggestions),
    )


@register.simple_tag(takes_context=True)
def chatmemory_words(context: Context) -> SafeString:
    """Return the script with the texts in the active language; nothing if they are English.

    It is not deferred, so that it runs before each module, wherever the page has it.
    """
    address = catalog_url()
    if not address:
        return SafeString()
    return format_html('<script src="{}"{}></script>\n', address, _nonce(context.get("request")))


@register.simple_tag(takes_context=True)
def chatmemory_conversations(context: Context, user: object, **options: Any) -> SafeString:
    """Return a list of links to the user's conversations in the admin, as HTML.

    `options` are those of `conversation_links`. Empty without links, and without the admin. Raises
    ImproperlyConfigured without a request.
    """
    request = _request(context)
    if not apps.is_installed("django.contrib.admin"):
        return SafeString()
    # Not above: a project without the admin cannot import it.
    from chatmemory.admin.links import conversation_links

    links = conversation_links(user, request=request, **options)
    if not links:
        return SafeString()
    return render_to_string("admin/chatmemory/conversation_links.html", {"links": links})


def _request(context: Context) -> HttpRequest:
    request: HttpRequest | None = context.get("request")
    if request is None:
        raise ImproperlyConfigured(NO_REQUEST)
    return request


def _nonce(request: HttpRequest | None) -> SafeString:
    """Return the attribute with the nonce that django-csp or Django 6 has made for the request."""
    # The second as in django.middleware.csp, which Django 5.2 lacks. Both are false until used.
    nonce = getattr(request, "csp_nonce", getattr(request, "_csp_nonce", None))
    return flatatt({"nonce": nonce})


def _suggestions(given: Sequence[str] | None) -> SafeString:
    suggestions = settings.SUGGESTIONS if given is None else given
    return render_to_string("chatmemory/_suggestions.html", {"suggestions": suggestions})


def _session(key: str | None) -> dict[str, object]:
    """Return the attributes that name the session; without a key, the browser chooses it."""
    if key is None:
        return {"sockets": socket_path()}
    return {"url": f"{socket_path()}{key}/", "create": codec.is_new_key(key)}


def _person(request: HttpRequest, key: str | None) -> dict[str, object]:
    """Return the attributes that name the person, and what a person may load."""
    user = getattr(request, "user", None)
    api = (_view_address("chatmemory_api:sessions") or "").removesuffix("sessions/") or None
    found: dict[str, object] = {
        "api": api,
        "details": django_settings.DEBUG or bool(getattr(user, "is_staff", False)),
    }
    if isinstance(user, get_user_model()):
        was_visitor = settings.ALLOW_ANONYMOUS and visitors.token_of(request) is not None
        if was_visitor and api is not None and not has_declined(request):
            found |= {"adopt": True, "csrf": get_token(request)}
        page = None if key is None else _view_address("chatmemory:session", key)
        return {**found, "person": user.pk, "page": page, "login": _login_url(request)}
    if settings.ALLOW_ANONYMOUS and api is not None:
        return {**found, "csrf": get_token(request)}
    # With SOCKET_AUTH, the host may know the person by other means than Django's login.
    is_out = settings.SOCKET_AUTH is None
    return {**found, "api": None, "login": _login_url(request), "signed-out": is_out}


def _login_url(request: HttpRequest) -> str:
    return redirect_to_login(request.get_full_path()).url


def _view_address(name: str, *args: str) -> str | None:
    """Return the address of a view, if the host has included it."""
    try:
        return reverse(name, args=args)
    except NoReverseMatch:
        return None
