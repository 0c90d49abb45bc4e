"""Visits: requests and open sockets, as the host's functions of GATE and IMPERSONATOR see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.http import HttpRequest

from chatmemory.access.actors import Actor
from chatmemory.conf import settings
from chatmemory.database.host_code import ask_host, call_host_here
from chatmemory.errors import Refused, Unauthenticated


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request for a page or to REST, or a socket."""

    kind: str
    """`page`, `rest` or `socket`."""
    by: Actor
    user: AbstractBaseUser | None
    """The account; None for a visitor."""
    session: Mapping[str, Any]
    """The content of the Django session, which cannot be changed; empty without one."""
    headers: Mapping[str, str]
    """By names in any case."""
    cookies: Mapping[str, str]
    host: str
    path: str


def visit_of_request(request: HttpRequest, *, kind: str, by: Actor, user: object) -> Visit:
    """Return a request as a visit of this person."""
    session = getattr(request, "session", None)
    return Visit(
        kind=kind,
        by=by,
        user=user if isinstance(user, get_user_model()) else None,
        session=MappingProxyType({} if session is None else dict(session.items())),
        headers=request.headers,
        cookies=request.COOKIES,
        host=request.get_host(),
        path=request.path,
    )


def check_gate(visit: Visit) -> None:
    """Check that the function of GATE lets a visit in. Raises Refused, and its other errors."""
    if settings.GATE is None:
        return
    try:
        ask_host(settings.GATE, visit)
    except Refused as error:
        error.is_final = True
        raise


def person_of(visit: Visit) -> Actor:
    """Return whose chats a visit shows, with the operator who really acts by IMPERSONATOR.

    Raises Unauthenticated if one of them is inactive, and any error of the host's functions.
    """
    if settings.IMPERSONATOR is None or visit.user is None:
        return visit.by
    found = call_host_here(settings.IMPERSONATOR, visit)
    if found is None:
        return visit.by
    real, shown = found if isinstance(found, tuple) else (found, visit.user)
    for user in (real, shown):
        if not isinstance(user, get_user_model()):
            raise TypeError(f"{settings.IMPERSONATOR} returned a {type(user).__name__} as a user")
        if not getattr(user, "is_active", True):
            raise Unauthenticated
    person = Actor.user(shown)
    return person if real == shown else replace(person, real=Actor.operator(real))
