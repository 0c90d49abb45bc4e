"""A server of the Model Context Protocol (MCP): agents of other programs search a person's chats.

The host adds `memory_server` to its URLs. It is a view, so that a request has the host's login,
middleware and database, and the same checks as one to REST. Each POST gets its answer as JSON;
no state is kept between requests, so any process can answer each of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from chatmemory.access import rates
from chatmemory.api.base import View
from chatmemory.api.parsers import MAX_BODY_BYTES
from chatmemory.consumers.origins import origin_problem
from chatmemory.errors import BadInput, Forbidden
from chatmemory.streams.base import EventStreamRenderer

if find_spec("mcp") is None:
    raise ImproperlyConfigured('Install "django-chatmemory[mcp]".')

ANSWER = "chatmemory.search.mcp_server.answer"
"""Imported at the first request, since the SDK needs a second or two."""


class MemoryServer(View):
    """The tools `search_memory`, `read_messages` and `list_sessions`, over streamable HTTP."""

    check_write = staticmethod(rates.check_reads)  # each call only reads
    renderer_classes = (JSONRenderer, EventStreamRenderer)  # clients accept both
    schema = None  # type: ignore[assignment]  # JSON-RPC, which OpenAPI does not describe

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        check_origin(request._request)  # noqa: SLF001  # Django's own request
        super().initial(request, *args, **kwargs)

    def post(self, request: Request) -> HttpResponse:
        body = request.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            message = f"The body must have at most {MAX_BODY_BYTES} bytes."
            raise BadInput(message, code="too_large", limit=MAX_BODY_BYTES)
        response: HttpResponse = import_string(ANSWER)(body, request.headers, self.actor)
        return response


memory_server = MemoryServer.as_view()


def check_origin(request: HttpRequest) -> None:
    """Check the page that sends a request, as for a socket. Programs have none. Raises Forbidden.

    A page of another site could point its own name to this server (DNS rebinding).
    """
    headers = [(b"host", request.get_host().encode())]
    if "Origin" in request.headers:
        headers.append((b"origin", request.headers["Origin"].encode("latin1", "replace")))
    scope = {"scheme": "wss" if request.is_secure() else "ws", "headers": headers}
    problem = origin_problem(scope, may_be_missing=True, may_be_embed=True)
    if problem is not None:
        raise Forbidden(f"The request is refused: {problem}.")
