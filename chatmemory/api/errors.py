"""Errors over HTTP: one table from class to status, and the exception handler of the views.

An error is a problem by RFC 9457, without `type`.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import TypeVar

from django.core.exceptions import PermissionDenied, TooManyFieldsSent
from django.db import InterfaceError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions
from rest_framework.response import Response

from chatmemory.database.faults import is_unavailable
from chatmemory.database.host_tests import ChatMemoryTestMixinMissing
from chatmemory.errors import (
    Archived,
    BadInput,
    Busy,
    ChatMemoryError,
    Conflict,
    Forbidden,
    Held,
    HistoryCleared,
    MemoryUnavailable,
    NotFound,
    RateLimited,
    Refused,
    Unauthenticated,
)
from chatmemory.logs import log_error

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LengthRequired(exceptions.APIException):
    """The request has a body without Content-Length, and the server does not mark its end."""

    status_code = 411


class PreconditionFailed(exceptions.APIException):
    """The request has an If-Match, which needs a strong ETag (RFC 9110, 13.1.1)."""

    status_code = 412


class NotStreamable(exceptions.APIException):
    """The server is not an ASGI server, so it cannot stream."""

    status_code = 501


STATUSES: Mapping[type, int] = {
    BadInput: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    Refused: 403,
    NotFound: 404,
    Archived: 409,
    Busy: 409,
    Conflict: 409,
    Held: 409,
    HistoryCleared: 409,
    RateLimited: 429,
    MemoryUnavailable: 503,
    ChatMemoryError: 500,
}

TRANSLATED: Mapping[type, ChatMemoryError] = {
    exceptions.NotAuthenticated: Unauthenticated(),
    exceptions.AuthenticationFailed: Unauthenticated(),
    exceptions.PermissionDenied: Forbidden(),
    PermissionDenied: Forbidden(),
    OperationalError: MemoryUnavailable(),
    InterfaceError: MemoryUnavailable(),
    UnreadablePostError: BadInput("The body is incomplete. Send it again.", code="bad_json"),
    TooManyFieldsSent: BadInput("The query has too many parameters.", code="bad_field"),
}
"""Errors of Django, REST framework and the database that have an equivalent of ours."""

HTTP_ONLY: Mapping[type, tuple[int, str, str]] = {
    Http404: (404, "not_found", "No resource has this URL. URLs end with a slash."),
    exceptions.MethodNotAllowed: (
        405,
        "method_not_allowed",
        "This URL does not support this method.",
    ),
    exceptions.NotAcceptable: (
        406,
        "not_acceptable",
        "Responses are application/json. Accept must allow it.",
    ),
    LengthRequired: (411, "length_required", "Content-Length is required."),
    PreconditionFailed: (
        412,
        "precondition_failed",
        "If-Match never matches: each ETag is weak. PATCH has expect_revision instead.",
    ),
    exceptions.UnsupportedMediaType: (
        415,
        "unsupported_media_type",
        "The body must be application/json.",
    ),
    NotStreamable: (501, "not_streamable", "Streams need an ASGI server; other URLs do not."),
}
"""Errors of HTTP itself, with their status, code and detail."""

CONTENT_TYPE = "application/problem+json"

RETRY_SECONDS = 2
"""The Retry-After of `busy`, `queue_full` and `unavailable`, whose duration is unknown."""

ATTRIBUTES = ("field", "limit", "turn", "retry_after", "reason")
"""Fields of an error that the body contains only if they are set."""


def error_response(error: Exception, context: object) -> Response:
    """Convert an error into a problem.

    An unexpected error is logged under a ref that the response contains. Neither contains its text.
    """
    if isinstance(error, ChatMemoryTestMixinMissing):
        raise error
    error = entry_for(TRANSLATED, type(error)) or error
    if is_unavailable(error):
        error = MemoryUnavailable()
    if isinstance(error, ChatMemoryError):
        return _response(error)
    if http_error := entry_for(HTTP_ONLY, type(error)):
        status, code, detail = http_error
        return _problem_response(status, detail, code=code, retry=False)
    ref = secrets.token_hex(6)
    log_error(logger, "internal error, ref %s", ref, error=error)
    internal = ChatMemoryError()
    return _problem_response(500, str(internal), code=internal.code, retry=internal.retry, ref=ref)


def _response(error: ChatMemoryError) -> Response:
    status = entry_for(STATUSES, type(error)) or 500
    values = {name: getattr(error, name, None) for name in ATTRIBUTES}
    present = {name: value for name, value in values.items() if value not in (None, "")}
    response = _problem_response(
        413 if error.code == "too_large" else status,
        str(error),
        code=error.code,
        retry=error.retry,
        **present,
    )
    match error:
        case RateLimited():
            response["Retry-After"] = str(math.ceil(error.retry_after))
        case Busy() | MemoryUnavailable():
            response["Retry-After"] = str(RETRY_SECONDS)
    return response


def _problem_response(status: int, detail: str, **extensions: object) -> Response:
    title = HTTPStatus(status).phrase
    problem = {"status": status, "title": title, "detail": detail, **extensions}
    return Response(problem, status, content_type=CONTENT_TYPE)


def entry_for(table: Mapping[type, T], error: type) -> T | None:
    """Return the entry of an error class, or of its nearest parent that has one."""
    return next((table[kind] for kind in error.__mro__ if kind in table), None)
