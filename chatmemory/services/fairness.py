"""How many turns of one person run at a time, and whose are next.

The counts are read before the session's lock, so two processes can exceed the limit by one or two
at the same moment. A count under a lock would make all sessions of a person wait for each other.
"""

from __future__ import annotations

from chatmemory.conf import settings
from chatmemory.models import Turn
from chatmemory.services.actors import is_person
from chatmemory.services.faults import durably
from chatmemory.services.pool import in_pool


def has_turn_limit(scope: str) -> bool:
    """Whether the turns of this scope are limited: those of people are, those of servers not."""
    return settings.TURNS_PER_USER is not None and is_person(scope)


def is_turn_free(scope: str, *, turn_pk: int | None = None, session_pk: int | None = None) -> bool:
    """Whether fewer than TURNS_PER_USER sessions of the scope go before this turn, or a new one."""
    if not has_turn_limit(scope):
        return True
    ahead = Turn.objects.ahead_of(scope, turn_pk=turn_pk, session_pk=session_pk)
    return ahead < (settings.TURNS_PER_USER or 0)


def sessions_to_claim(*, scope: str) -> list[int]:
    """The sessions of a person in which a turn could begin, the longest waiting first.

    No more than TURNS_PER_USER: no more can begin. Raises MemoryUnavailable.
    """
    ready = Turn.objects.filter(scope=scope).claimable().sessions()
    return durably(lambda: list(ready[: settings.TURNS_PER_USER]), is_repeatable=True)


def sessions_to_sweep(*, limit: int) -> set[int]:
    """Sessions in which a turn could begin; none of a person with TURNS_PER_USER running."""
    ready = Turn.objects.claimable()
    if settings.TURNS_PER_USER is not None:
        ready = ready.within(settings.TURNS_PER_USER)
    # In any order: sessions that can't be claimed must not hide the same others each time.
    return set(ready.order_by("?").values_list("session_id", flat=True)[:limit])


asessions_to_claim = in_pool(sessions_to_claim)
