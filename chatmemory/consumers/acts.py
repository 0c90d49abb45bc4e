"""What frames ask of the services: one call of the pool each, if the person still may be here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from chatmemory import codec, services
from chatmemory.errors import NotFound
from chatmemory.models import Session
from chatmemory.runner import runner
from chatmemory.services import Actor, Admitted, Login
from chatmemory.services.pool import Lane, address_lane, in_pool

P = ParamSpec("P")
T = TypeVar("T")


def _rightly(function: Callable[P, T]) -> Callable[Concatenate[Login, P], T]:
    """The same behind a look at the rights, which raises Unauthenticated and Forbidden."""

    @functools.wraps(function)
    def inner(login: Login, /, *args: P.args, **kwargs: P.kwargs) -> T:
        services.check_login(login)
        return function(*args, **kwargs)

    return inner


def _greet(
    login: Login, /, *, is_fresh: bool, session_key: str, by: Actor, create: bool
) -> Session:
    """The session of an address. Unknown, another's, and no key at all are alike.

    Of a fresh login the handshake has just read what a look at the rights would.
    """
    if is_fresh:
        services.check_reach(login.actor)
    else:
        services.check_login(login)
    key = codec.key_of_address(session_key)
    try:
        return services.get_session(session_key=key, by=by)
    except NotFound:
        if not create or not codec.is_new_key(key):
            raise
    return services.open_session(session_key=key, by=by)


def _send(*, by: Actor, **fields: Any) -> Admitted:
    """Admit a turn and launch its run, even if its socket no longer waits for the answer."""
    services.check_rate(by)
    admitted = services.admit_turn(by=by, owner=runner.owner, **fields)
    if admitted.claim is not None:
        runner.launch(admitted.claim)
    return admitted


def _lane(_: Login, /, **fields: Any) -> Lane:
    return address_lane(**fields)


agreet = in_pool(_greet, lane=_lane)
asend = in_pool(_rightly(_send), lane=_lane)
astop = in_pool(_rightly(services.stop_turn), lane=_lane)
afetch = in_pool(_rightly(services.read_page))
