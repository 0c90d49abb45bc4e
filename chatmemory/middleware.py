"""Middleware of the host's requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from chatmemory.services import Actor
from chatmemory.services.retention.accounts import naming_deleter

Response = HttpResponseBase | Awaitable[HttpResponseBase]


@sync_and_async_middleware
def user_deletions(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Response]:
    """Name the user of the request in the audit if it deletes accounts; see `deleting_users`.

    Put it after Django's AuthenticationMiddleware.
    """

    def middleware(request: HttpRequest) -> HttpResponseBase:
        with naming_deleter(partial(_deleter, request, request.user)):
            response: HttpResponseBase = get_response(request)
            return response

    async def amiddleware(request: HttpRequest) -> HttpResponseBase:
        with naming_deleter(partial(_deleter, request, request.user)):
            response: HttpResponseBase = await get_response(request)
            return response

    return amiddleware if iscoroutinefunction(get_response) else middleware


def _deleter(request: HttpRequest, user: Any, deleted: AbstractBaseUser) -> Actor | None:
    """Return the user of the request; None without one, or after the own account is deleted."""
    # The view may have replaced `request.user`: by a logout, or by the user of a token.
    for each in (request.user, user):
        if isinstance(each, get_user_model()) and each.pk is not None:
            return Actor.user(each) if each.pk == deleted.pk else Actor.operator(each)
    return None
