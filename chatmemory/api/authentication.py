"""The logins of the REST API: of users, and of visitors."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from chatmemory import services
from chatmemory.access import visitors
from chatmemory.access.networks import network_of
from chatmemory.conf import settings
from chatmemory.errors import Forbidden
from chatmemory.services import Login


class SessionLogin(SessionAuthentication):
    """Django's login, with the CSRF token in the header."""

    def enforce_csrf(self, request: Request) -> None:
        # On Django's request: REST framework's would read the body as a form and consume it.
        try:
            super().enforce_csrf(request._request)  # type: ignore[arg-type]  # noqa: SLF001  # Django's own request
        except PermissionDenied as error:
            raise Forbidden(str(error.detail)) from error

    def authenticate_header(self, request: Request) -> str:
        return "Session"


class EmbedLogin(BaseAuthentication):
    """The secret of a visitor in the header `Authorization: Visitor …`, on the page of an embed.

    No CSRF token: a browser does not add this header by itself.
    """

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Login] | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "visitor":
            return None
        origin = request.headers.get("Origin", "")
        network = network_of_request(request)
        login = services.authenticate_visitor(token=token.strip(), network=network, origin=origin)
        return AnonymousUser(), login

    def authenticate_header(self, request: Request) -> str:
        return "Visitor"


class VisitorLogin(BaseAuthentication):
    """The cookie of a visitor, with the CSRF token in the header."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Login] | None:
        token = visitors.token_of(request._request)  # noqa: SLF001  # Django's own request
        if token is None:
            return None
        SessionLogin().enforce_csrf(request)
        login = services.authenticate_visitor(token=token, network=network_of_request(request))
        return AnonymousUser(), login


def network_of_request(request: Request) -> str:
    """Return the network of the client, for limits on visitors."""
    meta = request.META
    return network_of(meta.get("REMOTE_ADDR") or "", meta.get("HTTP_X_FORWARDED_FOR", ""))


def account_logins() -> list[BaseAuthentication]:
    """Return the means of authentication of persons with an account."""
    # The cookie last: a browser adds it by itself, so a credential is what the client means.
    named = (import_string(path)() for path in settings.API_AUTHENTICATION)
    return [*named, SessionLogin()]
