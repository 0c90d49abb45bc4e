"""The base of the views: checks before each request, parsing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.db import transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import MethodNotAllowed, NotAcceptable, UnsupportedMediaType
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.utils.mediatypes import media_type_matches
from rest_framework.views import APIView

from chatmemory.access import logins, rates
from chatmemory.access.visits import check_gate, person_of, visit_of_request
from chatmemory.api import cors
from chatmemory.api.authentication import EmbedLogin, VisitorLogin, account_logins
from chatmemory.api.errors import PreconditionFailed, error_response
from chatmemory.api.parsers import StrictJSONParser
from chatmemory.api.requests import read
from chatmemory.api.view_schema import ViewSchema
from chatmemory.conf import settings
from chatmemory.errors import BadInput, Unauthenticated
from chatmemory.protocol.shapes import Shape
from chatmemory.services import Actor, Login

T = TypeVar("T")

WRITES = ("POST", "PUT", "PATCH", "DELETE")
"""The methods that write. A DELETE has no body; the body of the others is JSON."""


class Negotiation(DefaultContentNegotiation):
    """Negotiate by `Accept` alone, without reading the query: `format` selects no renderer."""

    def select_renderer(
        self,
        request: Request,
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        accepted = self.get_accept_list(request)
        for renderer in renderers:
            if any(media_type_matches(renderer.media_type, each) for each in accepted):
                return renderer, renderer.media_type
        raise NotAcceptable


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class PublicView(APIView):
    """The base of all views; does not depend on the host's REST_FRAMEWORK setting."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()
    parser_classes = (StrictJSONParser,)
    renderer_classes: tuple[type[JSONRenderer], ...] = (JSONRenderer,)
    content_negotiation_class = Negotiation
    schema = ViewSchema()
    versioning_class = None
    metadata_class = None
    http_method_names: tuple[str, ...] = ("get", "head", "patch", "post", "put", "delete")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        # Before the login, since a browser asks this without one.
        return cors.preflight(request) or super().dispatch(request, *args, **kwargs)

    def get_exception_handler(self) -> Callable[[Exception, Any], Response]:
        return error_response

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response.headers.setdefault("Cache-Control", "no-store")
        cors.open_to_embeds(request, response)
        return response

    def get_authenticate_header(self, request: Request) -> str:
        """Return a challenge for each means of authentication (RFC 9110, 11.6.1)."""
        challenges = (each.authenticate_header(request) for each in self.get_authenticators())
        return ", ".join(challenge for challenge in challenges if challenge)

    def handle_exception(self, exc: Exception) -> Response:
        response = super().handle_exception(exc)
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            response["WWW-Authenticate"] = self.get_authenticate_header(self.request)
        return response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.method in WRITES:
            if not hasattr(self, request.method.lower()):
                raise MethodNotAllowed(request.method)
            # Before the CSRF check, which would read a form from the body.
            if request.method != "DELETE" and not self._has_json():
                raise UnsupportedMediaType(request.content_type)
        super().initial(request, *args, **kwargs)

    def body(self, shape: Shape[T]) -> T:
        """Parse the body. Raises BadInput and RoleForbidden."""
        # Not `request.data`, which treats a body without Content-Length as empty.
        parser = StrictJSONParser()
        return read(shape, parser.parse(self.request, None, self.request.parser_context))

    def _has_json(self) -> bool:
        parsers = self.get_parsers()
        return self.get_content_negotiator().select_parser(self.request, parsers) is not None


class View(PublicView):
    """The base of the views for a person who is signed in, or a visitor, and may chat."""

    check_read = staticmethod(rates.check_reads)
    """Counts a request that reads. Raises RateLimited."""
    check_write = staticmethod(rates.check_writes)
    """Counts a request that writes. Raises RateLimited."""

    def get_authenticators(self) -> list[BaseAuthentication]:
        # A visitor last: who signs in is no visitor any more.
        of_visitors = [EmbedLogin(), VisitorLogin()] if settings.ALLOW_ANONYMOUS else []
        return [*account_logins(), *of_visitors]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        django_request = request._request  # noqa: SLF001  # Django's own request
        by, user = self._authenticated, request.user
        visit = visit_of_request(django_request, kind="rest", by=by, user=user)
        check_gate(visit)
        self.actor = actor = person_of(visit)
        logins.check_reach(actor)
        is_write = request.method in WRITES
        check_rate = self.check_write if is_write else self.check_read
        check_rate(actor)
        if is_write and request.headers.get("If-Match", "*").strip() != "*":
            raise PreconditionFailed

    actor: Actor
    """The signed-in user, or the visitor; set before a method is called."""

    @property
    def _authenticated(self) -> Actor:
        """Raises Unauthenticated."""
        login = self.visitor
        if login is not None:
            return login.actor
        user = self.request.user
        # The host's classes may return anything, such as a user who was disabled, or an account of
        # another model, whose primary key is that of another person.
        if not isinstance(user, get_user_model()) or not logins.is_active(user):
            raise Unauthenticated
        return Actor.user(user)

    @property
    def visitor(self) -> Login | None:
        """The login of a visitor; None for a user."""
        # By the class, since the host's classes may return anything.
        auth: object = self.request.auth
        authenticator = self.request.successful_authenticator
        is_visitor = isinstance(authenticator, EmbedLogin | VisitorLogin)
        return auth if is_visitor and isinstance(auth, Login) else None

    def query(self, shape: Shape[T]) -> T:
        """Parse the query string. Raises BadInput."""
        params = dict(self.request.query_params.lists())
        # REST framework's own parameter, `format`: it selects no renderer here, and is ignored
        # where the shape has no field of this name.
        if api_settings.URL_FORMAT_OVERRIDE not in shape.names:
            params.pop(api_settings.URL_FORMAT_OVERRIDE, None)
        query = read(shape, {name: values[-1] for name, values in params.items()})
        for name, values in params.items():
            if len(values) > 1:
                raise BadInput(f"{name} is given {len(values)} times.", field=name)
        return query
