"""Rate limits for sends, reads, other writes and tokens; the limits of sessions of a person.

The counters are in Django's default cache. Nothing is limited if the cache fails or evicts them,
and with a cache per process each process counts separately (a system check warns about this). So
the limits bound cost; they do not protect data.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from functools import partial

from django.core.cache import cache
from django.utils.module_loading import import_string

from chatmemory.access.actors import Actor, is_person, visitor_of
from chatmemory.access.networks import block_of
from chatmemory.conf import settings
from chatmemory.errors import BadInput, RateLimited
from chatmemory.logs import log_once
from chatmemory.models import Session

logger = logging.getLogger(__name__)

MINUTE = 60
HOUR = 60 * 60
DAY = 24 * 60 * 60

VISITORS = "visitors"
"""The name under which all visitors are counted together."""

BLOCK_FACTOR = 10
"""How many networks at their limit a /48 may have, since it can belong to many customers."""

RESERVED_SHARE = 4
"""A quarter of the new visitors in total is only for blocks without one in this hour."""

MAX_VISITOR_SESSIONS = 100
"""Stored sessions of a visitor, since one transaction adopts all of them."""

MAX_PINNED = 100
"""Pinned sessions of one scope."""


def check_rate(by: Actor) -> None:
    """Count a send, even if it is refused later.

    Raises RateLimited after SENDS_PER_MINUTE sends in this minute of the clock, or if
    TOKENS_PER_DAY are used on this day (UTC).
    """
    check_count("sends", by, "SENDS_PER_MINUTE")
    _check_tokens(by.owner, limit_for("TOKENS_PER_DAY", by))
    if by.kind == "visitor":
        _check_tokens(VISITORS, settings.VISITOR_TOKENS_PER_DAY)


def _check_tokens(counted: str, limit: int | None) -> None:
    if limit is not None and _used_tokens(counted) >= limit:
        message = f"The {limit} tokens of this day are used. Try again tomorrow (UTC)."
        raise RateLimited(message, retry_after=_seconds_left(DAY))


def check_network(by: Actor, network: str) -> None:
    """Count a send of a visitor, for the network and its block.

    Raises RateLimited after VISITOR_SENDS_PER_MINUTE of a network, or ten times of a block.
    """
    if by.kind == "visitor":
        _check_network("sends", network, settings.VISITOR_SENDS_PER_MINUTE, MINUTE, "minute")


def check_new_visitor(network: str, embed: str = "") -> None:
    """Count a new visitor of this network, its block, of this embed, and of all.

    The last quarter of the embed's and of the total limit is only for blocks without a visitor
    in this hour. Raises RateLimited after VISITORS_PER_HOUR (of a block ten times),
    EMBED_VISITORS_PER_MINUTE or VISITORS_PER_MINUTE.
    """
    limit = settings.VISITORS_PER_HOUR
    # In this order: a network above its limit must not use up its embed's, nor an embed the total.
    is_first = _check_network("new visitors", network, limit, HOUR, "hour") <= 1
    if embed:
        _check_total(f"embed:{embed}", settings.EMBED_VISITORS_PER_MINUTE, is_first=is_first)
    _check_total(VISITORS, settings.VISITORS_PER_MINUTE, is_first=is_first)


def _check_network(
    counter: str, network: str, limit: int | None, window_seconds: int, unit: str
) -> int:
    """Count for a network and its block; return the count of the block. Raises RateLimited."""
    counted = _check_window(counter, f"network:{network}", limit, window_seconds, unit)
    block = block_of(network)
    if limit is None or block == network:
        return counted
    limit *= BLOCK_FACTOR
    return _check_window(counter, f"network:{block}", limit, window_seconds, unit)


def _check_total(counted: str, limit: int | None, *, is_first: bool) -> None:
    if limit is not None and not is_first:
        # A counter of its own: what is refused here must not use up the reserved share.
        most = limit - limit // RESERVED_SHARE
        _check_window("new visitors", f"{counted}:known", most, MINUTE, "minute")
    _check_window("new visitors", counted, limit, MINUTE, "minute")


def check_reads(by: Actor) -> None:
    """Count a read. Raises RateLimited after READS_PER_MINUTE reads in this minute of the clock."""
    check_count("reads", by, "READS_PER_MINUTE")


def check_writes(by: Actor) -> None:
    """Count a write that sends no message. Raises RateLimited after WRITES_PER_MINUTE."""
    check_count("writes", by, "WRITES_PER_MINUTE")


def count_tokens(*, scope: str, tokens: int) -> None:
    """Count the tokens that a model used for a person; other scopes have no limit."""
    if settings.TOKENS_PER_DAY is not None and is_person(scope):
        _increase_counter("tokens", scope, DAY, tokens)
    if settings.VISITOR_TOKENS_PER_DAY is not None and visitor_of(scope) is not None:
        _increase_counter("tokens", VISITORS, DAY, tokens)


def check_sessions(by: Actor) -> None:
    """Check that a person may open one more session. Raises BadInput with code `too_many`.

    It takes no lock, so concurrent requests can exceed the limit by a few sessions.
    """
    if not is_person(by.owner):
        return
    limit = limit_for("MAX_SESSIONS_PER_USER", by)
    if limit is None:
        return
    if Session.objects.active().filter(scope=by.owner)[:limit].count() >= limit:
        message = f"You can have up to {limit} sessions. Delete one first."
        raise BadInput(message, code="too_many", limit=limit)


def check_visitor_sessions(scope: str) -> None:
    """Check that a locked visitor may open one more session; purged ones count until the vacuum.

    Raises BadInput with code `too_many`.
    """
    limit = MAX_VISITOR_SESSIONS
    if Session.objects.of_scopes(scope)[:limit].count() >= limit:
        message = f"You can have up to {limit} sessions. Sign in to open more."
        raise BadInput(message, code="too_many", limit=limit)


def can_pin(scope: str) -> bool:
    """Whether this scope has fewer than MAX_PINNED pinned sessions. Takes no lock either."""
    pinned = Session.objects.active().filter(scope=scope, pinned_at__isnull=False)
    return pinned[:MAX_PINNED].count() < MAX_PINNED


def limit_for(name: str, by: Actor) -> int | None:
    """Return the limit that this setting has for an actor; None for no limit.

    Raises the errors of the function that the setting may name.
    """
    value: object = getattr(settings, name)
    if isinstance(value, str):
        value = import_string(value)(by)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        kind = type(value).__name__
        raise TypeError(f"the function of {name} must return an int or None, not {kind}")
    return max(0, value)


def check_count(counter: str, by: Actor, setting: str) -> None:
    """Count in this minute of the clock. Raises RateLimited above the limit of this setting."""
    _check_window(counter, by.owner, limit_for(setting, by), MINUTE, "minute")


def _check_window(
    counter: str, counted: str, limit: int | None, window_seconds: int, unit: str
) -> int:
    """Count in this time window; return the count, or 0 without a limit. Raises RateLimited."""
    if limit is None:
        return 0
    count = _increase_counter(counter, counted, window_seconds, 1)
    if count > limit:
        message = f"Only {limit} {counter} per {unit} are allowed. Try again later."
        raise RateLimited(message, retry_after=_seconds_left(window_seconds))
    return count


def _seconds_left(window_seconds: int) -> float:
    return window_seconds - time.time() % window_seconds


def _used_tokens(scope: str) -> int:
    name = _counter_name("tokens", scope, DAY)
    return _value_or_zero(lambda: int(cache.get(name, 0)))


def _increase_counter(counter: str, scope: str, window_seconds: int, amount: int) -> int:
    """Increase a counter of this time window; return its value, or 0 if the cache fails."""
    name = _counter_name(counter, scope, window_seconds)
    # The counter outlasts its window, since the clocks of processes differ.
    return _value_or_zero(partial(_increase, name, amount, timeout_seconds=2 * window_seconds))


def _increase(name: str, amount: int, *, timeout_seconds: int) -> int:
    # Not get and set: two processes would count only one of two concurrent calls.
    try:
        return cache.incr(name, amount)
    except ValueError:  # the key is missing
        cache.add(name, 0, timeout_seconds)
        return cache.incr(name, amount)


def _counter_name(counter: str, scope: str, window_seconds: int) -> str:
    # A hash, because the name in a scope may have characters that memcached rejects in keys.
    person = hashlib.sha256(scope.encode()).hexdigest()
    return f"chatmemory.{counter.replace(' ', '_')}.{person}.{int(time.time() // window_seconds)}"


def _value_or_zero(call: Callable[[], int]) -> int:
    try:
        return call()
    except ValueError:  # the key is missing: evicted immediately, or the dummy cache
        return 0
    except Exception as error:  # each cache backend has its own errors
        text = "The cache failed (%s); sends, reads, writes and tokens are not limited."
        log_once(logger, logging.WARNING, text, type(error).__name__)
        return 0
