"""How much a person may send, read and use in a time, and how many sessions they may have.

The counts are in Django's default cache. A cache that fails or evicts limits no one, and with a
cache in each process each process counts for itself: the checks warn of that. So these limits bound
cost; they protect no data.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from functools import cache as once

from django.core.cache import cache

from chatmemory.conf import settings
from chatmemory.errors import BadInput, RateLimited
from chatmemory.models import Session
from chatmemory.services.actors import Actor, is_person
from chatmemory.services.pool import in_pool

logger = logging.getLogger(__name__)

MINUTE = 60
DAY = 24 * 60 * 60


def check_rate(by: Actor) -> None:
    """Count a send. What is refused later counts too.

    Raises RateLimited after SENDS_PER_MINUTE in this minute of the clock, or where TOKENS_PER_DAY
    were used on this day (UTC).
    """
    _check_count("sends", by, settings.SENDS_PER_MINUTE)
    limit = settings.TOKENS_PER_DAY
    if limit is not None and _used_tokens(_scope(by)) >= limit:
        message = "You have used the tokens of this day."
        raise RateLimited(message, retry_after=_seconds_left(DAY))


def check_reads(by: Actor) -> None:
    """Count a read. Raises RateLimited after READS_PER_MINUTE in this minute of the clock."""
    _check_count("reads", by, settings.READS_PER_MINUTE)


def count_tokens(*, scope: str, tokens: int) -> None:
    """Count tokens that a model used for a person; those of servers are not counted."""
    if settings.TOKENS_PER_DAY is not None and is_person(scope):
        _add("tokens", scope, DAY, tokens)


def check_sessions(by: Actor) -> None:
    """Check that a person may open one more session. Raises BadInput with code `too_many`.

    Read without a lock: requests at the same moment can exceed the limit by a few.
    """
    limit = settings.MAX_SESSIONS_PER_USER
    if limit is None or not is_person(_scope(by)):
        return
    if Session.objects.living().filter(scope=_scope(by))[:limit].count() >= limit:
        message = f"You have {limit} sessions, which is the limit."
        raise BadInput(message, code="too_many", limit=limit)


def _check_count(what: str, by: Actor, limit: int | None) -> None:
    if limit is not None and _add(what, _scope(by), MINUTE, 1) > limit:
        message = f"Too many {what} in a minute."
        raise RateLimited(message, retry_after=_seconds_left(MINUTE))


def _scope(by: Actor) -> str:
    return f"{by.kind}:{by.id}"


def _seconds_left(window: int) -> float:
    return window - time.time() % window


def _used_tokens(scope: str) -> int:
    name = _name("tokens", scope, DAY)
    return _tried(lambda: int(cache.get(name, 0)))


def _add(what: str, scope: str, window: int, amount: int) -> int:
    """How much there was in this window, with this; 0 if the cache does not keep it."""
    name = _name(what, scope, window)

    def add() -> int:
        cache.add(name, 0, 2 * window)
        return cache.incr(name, amount)

    return _tried(add)


def _name(what: str, scope: str, window: int) -> str:
    person = hashlib.sha256(scope.encode()).hexdigest()
    return f"chatmemory.{what}.{person}.{int(time.time() // window)}"


def _tried(call: Callable[[], int]) -> int:
    try:
        return call()
    except ValueError:  # not kept: evicted immediately, or the dummy cache
        return 0
    except Exception as error:  # each cache backend has errors of its own
        _warn_once(type(error).__name__)
        return 0


@once
def _warn_once(error: str) -> None:
    logger.warning("The cache fails (%s); sends, reads and tokens are not limited.", error)


acheck_rate = in_pool(check_rate)
acheck_reads = in_pool(check_reads)
