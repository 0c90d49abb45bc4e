"""The gate of open sockets: the host's function of GATE is asked again while they are open."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from django.contrib.auth import get_user_model

from chatmemory.access import logins
from chatmemory.access.logins import Login
from chatmemory.access.visits import Visit, check_gate
from chatmemory.conf import settings
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import durably
from chatmemory.errors import ChatMemoryError, Refused
from chatmemory.logs import log_error
from chatmemory.models import on_primary

logger = logging.getLogger(__name__)


def enter(login: Login, visit: Visit) -> Login:
    """Return the login of a socket, with the visit that `check_visit` checks again.

    Raises Refused, MemoryUnavailable, and any error of the host's function.
    """
    if settings.GATE is None:
        return login
    entered = replace(login, visit=visit)
    check_visit(entered)
    return entered


def check_visit(login: Login) -> None:
    """Check that GATE still lets the visit of a socket in, by its user and session of now.

    Raises Refused, MemoryUnavailable, and any error of the host's function.
    """
    for visit in durably(lambda: _now([login]), is_repeatable=True):
        _check(visit)


def refusals(given: Sequence[Login]) -> list[ChatMemoryError | None]:
    """Return for each login why its visit must end, or None."""
    return [_refusal(visit) for visit in _now(given)]


def _refusal(visit: Visit | None) -> ChatMemoryError | None:
    try:
        _check(visit)
    except ChatMemoryError as error:
        return error
    except Exception as error:  # of the host's function; the next frame gets it as `internal`
        log_error(logger, "the function of GATE failed for an open socket", error=error)
    return None


def _check(visit: Visit | None) -> None:
    if visit is None:
        return
    try:
        check_gate(visit)
    except Refused as error:
        error.is_final = True
        raise


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
