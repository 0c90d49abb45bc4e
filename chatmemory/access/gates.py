"""Open sockets: the host's functions of GATE and IMPERSONATOR are asked again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from django.contrib.auth import get_user_model

from chatmemory.access import logins
from chatmemory.access.logins import Login
from chatmemory.access.visits import Visit, check_gate, person_of
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import durably
from chatmemory.errors import ChatMemoryError, OtherPerson
from chatmemory.logs import log_error
from chatmemory.models import on_primary

logger = logging.getLogger(__name__)


def enter(login: Login, visit: Visit) -> Login:
    """Return the login of a socket, with the visit that `check_visit` checks again.

    Raises Refused, Unauthenticated, MemoryUnavailable, and any error of the host's functions.
    """
    entered = replace(login, visit=visit)
    [now] = durably(lambda: _now([entered]), is_repeatable=True)
    assert now is not None  # noqa: S101  # the login has a visit
    check_gate(now)
    return replace(entered, person=person_of(now))


def check_visit(login: Login) -> None:
    """Check that the host still lets a socket in, and as the same, by its session of now.

    Raises Refused, OtherPerson, Unauthenticated, MemoryUnavailable, and any error of the host's
    functions.
    """
    for visit in durably(lambda: _now([login]), is_repeatable=True):
        _check(login, visit)


def refusals(given: Sequence[Login]) -> list[ChatMemoryError | None]:
    """Return for each login why its visit must end, or None."""
    return [_refusal(*each) for each in zip(given, _now(given), strict=True)]


def _refusal(login: Login, visit: Visit | None) -> ChatMemoryError | None:
    try:
        _check(login, visit)
    except ChatMemoryError as error:
        return error
    except Exception as error:  # of the host's function; the next frame gets it as `internal`
        log_error(logger, "GATE or IMPERSONATOR failed for an open socket", error=error)
    return None


def _check(login: Login, visit: Visit | None) -> None:
    if visit is None:
        return
    check_gate(visit)
    person = person_of(visit)
    if (person.owner, person.responsible.id) != (login.by.owner, login.by.responsible.id):
        raise OtherPerson


def _now(given: Sequence[Login]) -> list[Visit | None]:
    """Return the visits of logins, with the users and Django sessions of now; or None."""
    visiting = [login for login in given if login.visit is not None]
    pks = {login.actor.id for login in visiting if login.actor.kind == "user"}
    found = on_primary(get_user_model()).filter(pk__in=pks) if pks else ()
    users = {str(user.pk): user for user in found}
    keys = {login.key for login in visiting if login.key is not None}
    sessions = logins.session_data(keys)
    return [
        login.visit
        and replace(
            login.visit,
            user=users.get(login.actor.id) if login.actor.kind == "user" else None,
            session=MappingProxyType(dict(sessions.get(login.key or "", {}))),
        )
        for login in given
    ]


aenter = in_pool(enter)
arefusals = in_pool(refusals)
