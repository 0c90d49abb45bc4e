"""Superseded rows: those that a later turn replaces, and those that were withdrawn."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import BigIntegerField, Exists, Q, QuerySet, Value

from chatmemory.models.turns import Turn
from chatmemory.models.withdrawn import WithdrawnRange

_NONE = Value(None, output_field=BigIntegerField())


class SupersededRange(NamedTuple):
    """Consecutive rows that the window and the transcript omit."""

    low: int
    high: int
    user_seq: int | None
    """The user row of the turn that replaces them; None if they were withdrawn."""

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and self.low <= seq <= self.high


def superseded(low: int, *, newest: int | None = None, **session: Any) -> list[SupersededRange]:
    """Return the ranges that end at the seq `low` or above, in order of their ends.

    `session` are conditions on the rows of one session. `newest` is its newest row: turns that
    began later supersede nothing. One range for each turn, since a client shows each version of a
    message; see Note [Superseded ranges].
    """
    turns = Turn.objects.filter(**session).superseding(low)
    if newest is not None:
        turns = turns.filter(user_seq__lte=newest)
    withdrawn = WithdrawnRange.objects.filter(**session, high__gte=low)
    # A UNION, so that a session without withdrawn ranges needs no further statement.
    both: QuerySet[Any, Any] = turns.values_list("replaces_from", "replaces_to", "user_seq").union(
        withdrawn.values_list("low", "high", _NONE), all=True
    )
    ranges = (SupersededRange(*columns) for columns in both)
    return sorted(ranges, key=lambda found: (found.high, -found.low))


def superseded_seqs(
    low: int, *, newest: int | None = None, **session: Any
) -> list[tuple[int, int]]:
    """Return the first and the last seq of each range of `superseded`, both from `low` on."""
    found = superseded(low, newest=newest, **session)
    return [(max(one.low, low), one.high) for one in found]


def is_current(session: Any, low: Any, high: Any) -> Q:
    """Match if no row from `low` to `high` is superseded. The parameters may be expressions."""
    turns = Turn.objects.filter(session=session).superseding(low, high)
    withdrawn = WithdrawnRange.objects.filter(session=session, low__lte=high, high__gte=low)
    # Not NOT (… OR …): PostgreSQL joins for a NOT EXISTS, but would search for each row then.
    return Q(~Exists(turns), ~Exists(withdrawn))
