"""How often a person may write."""

from __future__ import annotations

import hashlib
import logging
import time
from functools import cache as once

from django.core.cache import cache

from chatmemory.conf import settings
from chatmemory.errors import RateLimited
from chatmemory.services.actors import Actor
from chatmemory.services.pool import in_pool

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 60


def check_rate(by: Actor) -> None:
    """Count a send, and refuse it if there were SENDS_PER_MINUTE in this minute of the clock.

    What is refused later counts too. A cache that fails refuses nobody. Raises RateLimited.
    """
    limit = settings.SENDS_PER_MINUTE
    if limit is None:
        return
    now = time.time()
    if _count(by, int(now // WINDOW_SECONDS)) > limit:
        raise RateLimited(retry_after=WINDOW_SECONDS - now % WINDOW_SECONDS)


def _count(by: Actor, window: int) -> int:
    """How many there were in this window, with this one; 0 if nobody knows."""
    who = hashlib.sha256(f"{by.kind}:{by.id}".encode()).hexdigest()
    name = f"chatmemory.sends.{who}.{window}"
    try:
        cache.add(name, 0, 2 * WINDOW_SECONDS)
        return cache.incr(name)
    except ValueError:  # not kept: evicted at once, or the dummy cache
        return 0
    except Exception as error:  # each cache backend has errors of its own
        _warn_once(type(error).__name__)
        return 0


@once
def _warn_once(error: str) -> None:
    logger.warning("The cache fails (%s); sends are not limited.", error)


acheck_rate = in_pool(check_rate)
