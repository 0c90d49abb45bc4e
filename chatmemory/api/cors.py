"""Cross-origin requests (CORS) of the pages of embeds; a host's middleware may allow others.

Cookies are not allowed, so that a foreign page can use only a secret which it sends itself.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers
from rest_framework.request import Request

from chatmemory.access.embeds import is_origin_of_any
from chatmemory.conf import settings

METHODS = "GET, POST, PATCH, PUT, DELETE"

REQUEST_HEADERS = "Authorization, Content-Type, If-None-Match"

RESPONSE_HEADERS = "Allow, Content-Disposition, ETag, Retry-After, WWW-Authenticate"
"""Headers that scripts may read, beside those that all may (Fetch, 2.2.6)."""

PREFLIGHT_SECONDS = 600
"""How long a browser may remember the answer."""


def open_to_embeds(request: Request | HttpRequest, response: HttpResponse) -> None:
    """Let the scripts of a page of an embed read the answer."""
    if not settings.EMBEDS:
        return
    patch_vary_headers(response, ["Origin"])
    origin = request.headers.get("Origin", "")
    if is_origin_of_any(origin):
        response["Access-Control-Allow-Origin"] = origin
        response["Access-Control-Expose-Headers"] = RESPONSE_HEADERS


def preflight(request: HttpRequest) -> HttpResponse | None:
    """Answer a browser that asks whether the page of an embed may send a request; else None."""
    if request.method != "OPTIONS" or not is_origin_of_any(request.headers.get("Origin", "")):
        return None
    response = HttpResponse(status=204)
    open_to_embeds(request, response)
    response["Access-Control-Allow-Methods"] = METHODS
    response["Access-Control-Allow-Headers"] = REQUEST_HEADERS
    response["Access-Control-Max-Age"] = str(PREFLIGHT_SECONDS)
    return response
