"""Limits of a trim: compute the new floor, always at the first row of a turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TypedDict

from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Coalesce
from django.utils.timezone import is_naive

from chatmemory.database.batches import in_pages
from chatmemory.errors import BadInput
from chatmemory.models import DatabaseNow, Message, MessageQuerySet, Session


class TrimLimit(TypedDict, total=False):
    """What a trim keeps. Exactly one key is given."""

    keep_last: int
    """Number of newest messages to keep."""
    keep_turns: int
    """Number of newest turns to keep."""
    keep_tokens: int
    """Keep the newest messages with at most this number of tokens in total."""
    before: datetime
    """Hide the messages before the first one, in order of seq, that is not older than this time."""
    before_seq: int
    """Hide the messages below this seq."""


def check_trim_limit(limit: TrimLimit) -> None:
    """Check that one limit is given, with a valid value.

    Raises BadInput for a bad value, TypeError for another number of limits or a wrong type.
    """
    if len(limit) != 1 or not limit.keys() <= _FLOORS.keys():
        raise TypeError(f"give exactly one of {', '.join(_FLOORS)}, not {', '.join(limit) or None}")
    ((name, value),) = limit.items()
    if name == "before":
        if not isinstance(value, datetime):
            raise TypeError(f"before must be a datetime, not {type(value).__name__}")
        if is_naive(value):
            raise BadInput("before must have a time zone.", field=name)
        try:
            value.astimezone(UTC)
        except OverflowError:
            raise BadInput("before is out of range.", field=name) from None
    elif not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    elif value < 0:
        raise BadInput(f"{name} must be 0 or more.", field=name, limit=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderRows:
    """Rows that a search without the session's lock found to be older than a time.

    A search by time reads all older rows, which can take seconds. With this result the search
    under the lock reads only the later rows.
    """

    session_pk: int = 0
    from_seq: int = 0
    below_seq: int = 0

    def known_below(self, session: Session) -> int:
        """Return the seq below which all visible rows are older; 0 if nothing is known."""
        # Rows never change their time, so the result stays valid while the floor only rises.
        is_same = session.pk == self.session_pk and session.first_seq >= self.from_seq
        return self.below_seq if is_same else 0


NONE_FOUND = OlderRows()


def find_older_rows(session: Session, limit: TrimLimit) -> OlderRows:
    """Search for the rows that a limit hides, without the lock."""
    return _older_rows(session, floor_for_limit(session, limit))


def find_rows_older_than(session: Session, age: timedelta) -> OlderRows:
    """Search for the rows older than this by the database's clock, without the lock."""
    return _older_rows(session, floor_for_age(session, age))


def _older_rows(session: Session, floor: int) -> OlderRows:
    return OlderRows(session_pk=session.pk, from_seq=session.first_seq, below_seq=floor)


def floor_for_limit(session: Session, limit: TrimLimit, older: OlderRows = NONE_FOUND) -> int:
    """Return the floor after a trim, at least the current floor.

    A floor inside a turn is lowered to the turn's first row. The floor never passes the first row
    of the running turn.
    """
    if "before" in limit:
        return _start_of_turn(session, _hide_before(session, limit["before"], older))
    ((name, value),) = limit.items()
    return _start_of_turn(session, _FLOORS[name](session, value))


def floor_for_age(session: Session, age: timedelta, older: OlderRows = NONE_FOUND) -> int:
    """Return the floor after all messages older than this, by the database's clock."""
    return _start_of_turn(session, _hide_before(session, DatabaseNow() - age, older))


def _start_of_turn(session: Session, wanted: int) -> int:
    floor = min(max(wanted, session.first_seq), session.last_seq + 1)
    if floor == session.first_seq or (floor > session.last_seq and session.running is None):
        return floor
    rows = _visible_rows(session).filter(role=Message.Role.USER, seq__lte=floor).order_by("-seq")
    # A run can store user rows too, so the newest user row is not always the start of its turn.
    start = rows.values_list(Coalesce("turn", "seq"), flat=True).first()
    return max(start or 0, session.first_seq)


def _visible_rows(session: Session) -> MessageQuerySet:
    return Message.stored.filter(session=session, seq__gte=session.first_seq)


def _keep_messages(session: Session, keep: int) -> int:
    return session.last_seq - keep + 1


def _keep_turns(session: Session, keep: int) -> int:
    if keep == 0:
        return session.last_seq + 1
    if keep > session.message_count:
        return session.first_seq
    starts = _visible_rows(session).turn_starts().order_by("-seq")
    found = starts.values_list("seq", flat=True)[keep - 1 : keep]
    return next(iter(found), session.first_seq)


def _keep_tokens(session: Session, keep: int) -> int:
    floor = session.last_seq + 1
    # In pages, and not as a window function: only the rows that fit are read, newest first.
    newest = _visible_rows(session).values_list("seq", "tokens")
    for seq, tokens in in_pages(newest, "-seq", itemgetter(0)):
        keep -= tokens
        if keep < 0:
            break
        floor = seq
    return floor


def _hide_before(
    session: Session, moment: datetime | CombinedExpression, older: OlderRows = NONE_FOUND
) -> int:
    unsearched = _visible_rows(session).filter(seq__gte=older.known_below(session))
    kept = unsearched.filter(created_at__gte=moment).order_by("seq")
    return next(iter(kept.values_list("seq", flat=True)[:1]), session.last_seq + 1)


def _hide_below(session: Session, seq: int) -> int:
    return seq


_FLOORS: dict[str, Callable[..., int]] = {
    "keep_last": _keep_messages,
    "keep_turns": _keep_turns,
    "keep_tokens": _keep_tokens,
    "before": _hide_before,
    "before_seq": _hide_below,
}
