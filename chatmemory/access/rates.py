"""Rate limits for sends, reads, other writes and tokens; the limit of sessions of a person.

The counters are in Django's default cache. Nothing is limited if the cache fails or evicts them,
and with a cache per process each process counts separately (a system check warns about this). So
the limits bound cost; they do not protect data.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from functools import cache as once
from functools import partial

from django.core.cache import cache

from chatmemory.access.actors import Actor, is_person
from chatmemory.conf import settings
from chatmemory.errors import BadInput, RateLimited
from chatmemory.models import Session

logger = logging.getLogger(__name__)

MINUTE = 60
DAY = 24 * 60 * 60


def check_rate(by: Actor) -> None:
    """Count a send, even if it is refused later.

    Raises RateLimited after SENDS_PER_MINUTE sends in this minute of the clock, or if
    TOKENS_PER_DAY are used on this day (UTC).
    """
    _check_count("sends", by, settings.SENDS_PER_MINUTE)
    limit = settings.TOKENS_PER_DAY
    if limit is not None and _used_tokens(_scope(by)) >= limit:
        message = f"You have used the {limit} tokens of this day. Try again tomorrow (UTC)."
        raise RateLimited(message, retry_after=_seconds_left(DAY))


def check_reads(by: Actor) -> None:
    """Count a read. Raises RateLimited after READS_PER_MINUTE reads in this minute of the clock."""
    _check_count("reads", by, settings.READS_PER_MINUTE)


def check_writes(by: Actor) -> None:
    """Count a write that sends no message. Raises RateLimited after WRITES_PER_MINUTE."""
    _check_count("writes", by, settings.WRITES_PER_MINUTE)


def count_tokens(*, scope: str, tokens: int) -> None:
    """Count the tokens that a model used for a person; other scopes have no limit."""
    if settings.TOKENS_PER_DAY is not None and is_person(scope):
        _add("tokens", scope, DAY, tokens)


def check_sessions(by: Actor) -> None:
    """Check that a person may open one more session. Raises BadInput with code `too_many`.

    It takes no lock, so concurrent requests can exceed the limit by a few sessions.
    """
    limit = settings.MAX_SESSIONS_PER_USER
    if limit is None or not is_person(_scope(by)):
        return
    if Session.objects.active().filter(scope=_scope(by))[:limit].count() >= limit:
        message = f"You can have up to {limit} sessions. Delete one first."
        raise BadInput(message, code="too_many", limit=limit)


def _check_count(counter: str, by: Actor, limit: int | None) -> None:
    if limit is not None and _add(counter, _scope(by), MINUTE, 1) > limit:
        message = f"Only {limit} {counter} per minute are allowed. Try again later."
        raise RateLimited(message, retry_after=_seconds_left(MINUTE))


def _scope(by: Actor) -> str:
    return f"{by.kind}:{by.id}"


def _seconds_left(window_seconds: int) -> float:
    return window_seconds - time.time() % window_seconds


def _used_tokens(scope: str) -> int:
    name = _name("tokens", scope, DAY)
    return _value_or_zero(lambda: int(cache.get(name, 0)))


def _add(counter: str, scope: str, window_seconds: int, amount: int) -> int:
    """Increase a counter of this time window; return its value, or 0 if the cache fails."""
    name = _name(counter, scope, window_seconds)
    # The counter outlasts its window, since the clocks of processes differ.
    return _value_or_zero(partial(_increase, name, amount, timeout_seconds=2 * window_seconds))


def _increase(name: str, amount: int, *, timeout_seconds: int) -> int:
    # Not get and set: two processes would count only one of two concurrent calls.
    try:
        return cache.incr(name, amount)
    except ValueError:  # the key is missing
        cache.add(name, 0, timeout_seconds)
        return cache.incr(name, amount)


def _name(counter: str, scope: str, window_seconds: int) -> str:
    # A hash, because the name in a scope may have characters that memcached rejects in keys.
    person = hashlib.sha256(scope.encode()).hexdigest()
    return f"chatmemory.{counter}.{person}.{int(time.time() // window_seconds)}"


def _value_or_zero(call: Callable[[], int]) -> int:
    try:
        return call()
    except ValueError:  # the key is missing: evicted immediately, or the dummy cache
        return 0
    except Exception as error:  # each cache backend has its own errors
        _warn_once(type(error).__name__)
        return 0


@once
def _warn_once(error: str) -> None:
    logger.warning("The cache failed (%s); sends, reads, writes and tokens are not limited.", error)
