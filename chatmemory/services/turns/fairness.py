"""Limit how many turns of one user run simultaneously (`TURNS_PER_USER`).

The counts are read before the session's lock, so two processes can simultaneously exceed the limit
by one or two. A count under a lock would make all sessions of a user wait for each other.
"""

from __future__ import annotations

from typing import Any

from django.db.models import CharField, QuerySet

from chatmemory.access.actors import is_person
from chatmemory.conf import settings
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.database.statements import CompiledSelect, Parameter
from chatmemory.models import Turn


def has_turn_limit(scope: str) -> bool:
    """Return whether TURNS_PER_USER applies: to users and visitors, not to server code."""
    return settings.TURNS_PER_USER is not None and is_person(scope)


def _ahead_rows(limit: int, has_turn: bool) -> QuerySet[Any, Any]:
    turn = {"turn_pk": Parameter("turn"), "session_pk": Parameter("session")} if has_turn else {}
    return Turn.objects.ahead_of(Parameter("scope", CharField()), **turn)[:limit]


_AHEAD = CompiledSelect(_ahead_rows)


def is_within_turn_limit(
    scope: str, *, turn_pk: int | None = None, session_pk: int | None = None
) -> bool:
    """Return whether fewer than TURNS_PER_USER sessions of the scope are ahead of a turn.

    Without `turn_pk` and `session_pk` it is a new turn.
    """
    limit = settings.TURNS_PER_USER
    if limit is None or not is_person(scope):
        return True
    has_turn = turn_pk is not None
    ahead = _AHEAD.tuples(limit, has_turn, scope=scope, turn=turn_pk, session=session_pk)
    return len(ahead) < limit


def _claimable_rows() -> QuerySet[Any, Any]:
    ready = Turn.objects.filter(scope=Parameter("scope", CharField())).claimable()
    rows: QuerySet[Any, Any] = ready.values("pk")[:1]
    return rows


_CLAIMABLE = CompiledSelect(_claimable_rows)


@retried(is_repeatable=True)
def sessions_to_claim(*, scope: str) -> list[int]:
    """Return the sessions of a user in which a turn can start, the longest waiting first.

    Returns as many as TURNS_PER_USER, which must be set, allows now. Raises MemoryUnavailable.
    """
    # Each end of a turn asks, and rarely another one waits. This statement is built once, unlike
    # the next, in which PostgreSQL would not find that repeated parameters are the same.
    if not _CLAIMABLE.tuples(scope=scope):
        return []
    ready = Turn.objects.filter(scope=scope).claimable()
    return list(ready.session_pks_within(settings.TURNS_PER_USER or 0))


def sessions_to_sweep(*, limit: int) -> set[int]:
    """Return up to `limit` sessions in which a turn can start and the user's limit allows it."""
    ready = Turn.objects.claimable()
    if settings.TURNS_PER_USER is None:
        sessions = ready.session_pks()
    else:
        sessions = ready.session_pks_within(settings.TURNS_PER_USER)
    # In random order: sessions that cannot be claimed must not hide the same others each time.
    return set(sessions.order_by("?")[:limit])


asessions_to_claim = in_pool(sessions_to_claim)
