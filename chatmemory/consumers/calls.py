"""The service calls for frames. Each is one call of the pool that first checks the login."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from chatmemory import codec, services
from chatmemory.access import gates, logins, rates
from chatmemory.access.addresses import address_lane
from chatmemory.database.pool import Lane, in_pool
from chatmemory.errors import NotFound
from chatmemory.live.runner import runner
from chatmemory.models import Page, Session
from chatmemory.services import Actor, Admitted, Login
from chatmemory.services.audit.readings import record_reading, record_view

P = ParamSpec("P")
T = TypeVar("T")


def _check_login(login: Login) -> None:
    """Check the login, and that GATE lets it in. Raises Unauthenticated, Forbidden, Refused."""
    logins.check_login(login)
    gates.check_visit(login)


def _with_login_check(function: Callable[P, T]) -> Callable[Concatenate[Login, P], T]:
    """Wrap a service: check the login first. The result raises Unauthenticated and Forbidden."""

    @functools.wraps(function)
    def inner(login: Login, /, *args: P.args, **kwargs: P.kwargs) -> T:
        _check_login(login)
        return function(*args, **kwargs)

    return inner


def _open_chat(
    login: Login, /, *, is_fresh: bool, session_key: str, by: Actor, create: bool
) -> Session:
    """Return the session of a key; with `create`, a new one for a new key.

    The handshake has just checked a fresh login. Raises NotFound, with no difference between an
    unknown key, another user's key and an invalid key.
    """
    if is_fresh:
        logins.check_reach(login.by)
    else:
        _check_login(login)
    key = codec.key_of_address(session_key)
    try:
        session = services.get_session(session_key=key, by=by)
    except NotFound:
        if not create or not codec.is_new_key(key):
            raise
    else:
        if by.real is not None:
            record_reading(session=session, by=by.real)
        return session
    return services.open_session(session_key=key, by=by)


def _admit_message(login: Login, /, *, by: Actor, **fields: Any) -> Admitted:
    """Admit a turn and launch its run."""
    _check_login(login)
    rates.check_network(by, login.network)
    rates.check_rate(by)
    # Launched here, on the pool thread: the socket may have stopped waiting for the answer.
    admitted = services.admit_turn(by=by, owner=runner.owner, **fields)
    if admitted.claim is not None:
        runner.launch(admitted.claim)
    return admitted


def _rename(*, by: Actor, **fields: Any) -> None:
    rates.check_writes(by)
    services.update_session(by=by, **fields)


def _set_feedback(*, by: Actor, **fields: Any) -> None:
    rates.check_writes(by)
    services.set_feedback(by=by, **fields)


def _read_page(*, by: Actor, **fields: Any) -> Page:
    page = services.read_page(by=by, **fields)
    if by.real is not None:
        record_view(page, by.real)
    return page


def _lane_of_call(_: Login, /, **fields: Any) -> Lane:
    return address_lane(**fields)


aopen = in_pool(_open_chat, lane=_lane_of_call)
asend = in_pool(_admit_message, lane=_lane_of_call)
astop = in_pool(_with_login_check(services.stop_turn), lane=_lane_of_call)
arename = in_pool(_with_login_check(_rename), lane=_lane_of_call)
afeedback = in_pool(_with_login_check(_set_feedback), lane=_lane_of_call)
afetch = in_pool(_with_login_check(_read_page))
