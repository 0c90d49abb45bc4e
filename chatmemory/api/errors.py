"""What an error is over HTTP: one table from class to status, one handler for the views here."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from typing import TypeVar

from django.db import InterfaceError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

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
    Unauthenticated,
)
from chatmemory.logs import log_error
from chatmemory.services.rollback import ChatMemoryTestMixinMissing

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LengthRequired(exceptions.APIException):
    """A body of unknown length, where the server can't tell its end."""

    status_code = 411


STATUSES: Mapping[type, int] = {
    BadInput: 400,
    Unauthenticated: 401,
    Forbidden: 403,
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

OURS: Mapping[type, ChatMemoryError] = {
    exceptions.NotAuthenticated: Unauthenticated(),
    exceptions.AuthenticationFailed: Unauthenticated(),
    exceptions.PermissionDenied: Forbidden(),
    OperationalError: MemoryUnavailable(),
    InterfaceError: MemoryUnavailable(),
    UnreadablePostError: BadInput("The body broke off.", code="bad_json"),
}
"""Errors of REST framework and the database that have a class here."""

HTTP_ONLY: Mapping[type, tuple[int, str, str]] = {
    Http404: (404, "not_found", "There is nothing at this address."),
    exceptions.MethodNotAllowed: (405, "method_not_allowed", "Not with this method."),
    exceptions.NotAcceptable: (406, "not_acceptable", "Answers are application/json."),
    LengthRequired: (411, "length_required", "Say how long the body is."),
    exceptions.UnsupportedMediaType: (415, "unsupported_media_type", "Send application/json."),
}

RETRY_SECONDS = 2
"""For `busy`, `queue_full` and `unavailable`, whose duration is unknown."""

ATTRIBUTES = ("field", "limit", "turn", "retry_after")
"""What an error may tell besides code, message and retry."""


def answer(error: Exception, context: object) -> Response:
    """The problem in JSON; what nobody expected is logged under a ref, without the error's text."""
    set_rollback()
    if isinstance(error, ChatMemoryTestMixinMissing):
        raise error
    if isinstance(error, exceptions.ValidationError):
        error = _bad_field(error)
    error = _of_class(OURS, error) or error
    if isinstance(error, ChatMemoryError):
        return _problem(error)
    if known := _of_class(HTTP_ONLY, error):
        status, code, message = known
        return Response({"code": code, "message": message, "retry": False}, status)
    ref = secrets.token_hex(6)
    log_error(logger, "internal error, ref %s", ref, error=error)
    return Response({**_fields(ChatMemoryError()), "ref": ref}, 500)


def _problem(error: ChatMemoryError) -> Response:
    status = _of_class(STATUSES, error)
    response = Response(_fields(error), 413 if error.code == "too_large" else status)
    match error:
        case Unauthenticated():
            response["WWW-Authenticate"] = "Session"
        case RateLimited():
            response["Retry-After"] = str(math.ceil(error.retry_after))
        case Busy() | MemoryUnavailable():
            response["Retry-After"] = str(RETRY_SECONDS)
    return response


def _fields(error: ChatMemoryError) -> dict[str, object]:
    told = {name: getattr(error, name, None) for name in ATTRIBUTES}
    known = {name: value for name, value in told.items() if value not in (None, "")}
    return {"code": error.code, "message": str(error), "retry": error.retry, **known}


def _bad_field(error: exceptions.ValidationError) -> BadInput:
    """What REST framework found in a serializer: a field that is missing or null."""
    field = next(iter(error.detail))
    return BadInput(f"{field} is missing.", field=str(field))


def _of_class(table: Mapping[type, T], error: Exception) -> T | None:
    """The entry of the error's class, or of the nearest parent that has one."""
    return next((table[kind] for kind in type(error).__mro__ if kind in table), None)
