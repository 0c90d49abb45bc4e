"""The base of the views: login, checks before each request, parsing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.contrib.auth.base_user import AbstractBaseUser
from django.db import transaction
from django.utils.decorators import method_decorator
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import MethodNotAllowed, PermissionDenied, UnsupportedMediaType
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from chatmemory.access import logins, rates
from chatmemory.api.errors import error_response
from chatmemory.api.parsers import StrictJSONParser
from chatmemory.api.requests import read
from chatmemory.errors import Forbidden, Unauthenticated
from chatmemory.protocol.shapes import Shape
from chatmemory.services import Actor

T = TypeVar("T")

BY_OWNER = "requested by the owner"
"""The reason of removals and exports in the audit."""
WRITES = ("POST", "PUT", "PATCH", "DELETE")
"""The methods that write. A DELETE has no body; the body of the others is JSON."""


class SessionLogin(SessionAuthentication):
    """Django's login, with the CSRF token in the header."""

    def enforce_csrf(self, request: Request) -> None:
        # On Django's request: REST framework's would read the body as a form and consume it.
        try:
            super().enforce_csrf(request._request)  # type: ignore[arg-type]  # noqa: SLF001  # Django's own request
        except PermissionDenied as error:
            raise Forbidden(str(error.detail)) from error


class Negotiation(DefaultContentNegotiation):
    """Negotiate by `Accept` alone: a `format` in the query selects nothing."""

    def filter_renderers(self, renderers: Any, format: str) -> Any:  # noqa: A002  # REST framework's name
        return renderers


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class View(APIView):
    """The base of all views; does not depend on the host's REST_FRAMEWORK setting."""

    authentication_classes = (SessionLogin,)
    permission_classes = (IsAuthenticated,)
    throttle_classes = ()
    parser_classes = (StrictJSONParser,)
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = Negotiation
    versioning_class = None
    metadata_class = None
    http_method_names = ("get", "head", "patch", "post", "put", "delete")
    check_write = staticmethod(rates.check_writes)
    """Counts a request that writes. Raises RateLimited."""

    def get_exception_handler(self) -> Callable[[Exception, Any], Response]:
        return error_response

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.method in WRITES:
            if not hasattr(self, request.method.lower()):
                raise MethodNotAllowed(request.method)
            # Before the CSRF check, which would read a form from the body.
            if request.method != "DELETE" and not self._has_json():
                raise UnsupportedMediaType(request.content_type)
        super().initial(request, *args, **kwargs)
        logins.check_reach(self.actor)
        check_rate = self.check_write if request.method in WRITES else rates.check_reads
        check_rate(self.actor)

    def _has_json(self) -> bool:
        parsers = self.get_parsers()
        return self.get_content_negotiator().select_parser(self.request, parsers) is not None

    @property
    def actor(self) -> Actor:
        """The signed-in user. Raises Unauthenticated."""
        user = self.request.user
        if not isinstance(user, AbstractBaseUser):
            raise Unauthenticated
        return Actor.user(user)

    def query(self, shape: Shape[T]) -> T:
        """Parse the query string, except `format`. Raises BadInput."""
        params = self.request.query_params.dict()
        params.pop(api_settings.URL_FORMAT_OVERRIDE, None)
        return read(shape, params)

    def body(self, shape: Shape[T]) -> T:
        """Parse the body. Raises BadInput and RoleForbidden."""
        # Not `request.data`, which treats a body without Content-Length as empty.
        parser = StrictJSONParser()
        return read(shape, parser.parse(self.request, None, self.request.parser_context))
