"""Where a trim puts the floor: at the first row of a turn, never inside one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict

from django.db.models import F, Q
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Coalesce
from django.utils.timezone import is_naive

from chatmemory.errors import BadInput
from chatmemory.models import DatabaseNow, Message, MessageQuerySet, Session


class Cut(TypedDict, total=False):
    """What a trim is asked for: exactly one of these."""

    keep_last: int
    """Hide all but so many messages."""
    keep_turns: int
    """Hide all but so many turns."""
    keep_tokens: int
    """Hide all but the newest messages that have so many tokens together."""
    before: datetime
    """Hide the messages up to the first, in order of seq, that is not older."""
    before_seq: int
    """Hide the messages below this number."""


def check_cut(cut: Cut) -> None:
    """See that a cut says one thing that can be done.

    Raises BadInput; TypeError where it is no cut at all.
    """
    if len(cut) != 1 or not cut.keys() <= _FINDERS.keys():
        raise TypeError(f"give exactly one of {', '.join(_FINDERS)}, not {', '.join(cut) or None}")
    ((name, value),) = cut.items()
    if name == "before":
        if not isinstance(value, datetime):
            raise TypeError(f"before is a datetime, not {type(value).__name__}")
        if is_naive(value):
            raise BadInput("before must have a time zone.", field=name)
        try:
            value.astimezone(UTC)
        except OverflowError:
            raise BadInput("before is outside of all calendars.", field=name) from None
    elif not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {type(value).__name__}")
    elif value < 0:
        raise BadInput(f"{name} must be 0 or more.", field=name, limit=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Older:
    """Rows that a search without the session's lock found to be older than a time.

    A search by time reads all older rows; under the lock only the later ones are left to it.
    """

    session_pk: int = 0
    from_seq: int = 0
    below_seq: int = 0

    def known_below(self, session: Session) -> int:
        """Rows from the floor to below this number are older, whatever was written since."""
        is_same = session.pk == self.session_pk and session.first_seq >= self.from_seq
        return self.below_seq if is_same else 0


UNKNOWN = Older()


def find_older(session: Session, cut: Cut) -> Older:
    """Search for the rows that a cut hides. Needs no lock."""
    return _older(session, floor_after(session, cut))


def find_older_by_age(session: Session, age: timedelta) -> Older:
    """Search for the rows that are older than this by the database's clock. Needs no lock."""
    return _older(session, floor_by_age(session, age))


def _older(session: Session, floor: int) -> Older:
    return Older(session_pk=session.pk, from_seq=session.first_seq, below_seq=floor)


def floor_after(session: Session, cut: Cut, older: Older = UNKNOWN) -> int:
    """The number at which a trim would put the floor, at least where it is.

    It goes back to the first row of the turn that it meets, and never past that of a turn that
    runs.
    """
    if "before" in cut:
        return _before_turn(session, _of_time(session, cut["before"], older))
    ((name, value),) = cut.items()
    return _before_turn(session, _FINDERS[name](session, value))


def floor_by_age(session: Session, age: timedelta, older: Older = UNKNOWN) -> int:
    """The same where all older messages go, by the database's clock."""
    return _before_turn(session, _of_time(session, DatabaseNow() - age, older))


def _before_turn(session: Session, wished: int) -> int:
    floor = min(max(wished, session.first_seq), session.last_seq + 1)
    if floor == session.first_seq or (floor > session.last_seq and session.running is None):
        return floor
    rows = _above(session).filter(role=Message.Role.USER, seq__lte=floor).order_by("-seq")
    # A run may store rows of a user too: the turn begins with its own user's row.
    begun = rows.values_list(Coalesce("turn", "seq"), flat=True).first()
    return max(begun or 0, session.first_seq)


def _above(session: Session) -> MessageQuerySet:
    return Message.stored.filter(session=session, seq__gte=session.first_seq)


def _of_messages(session: Session, keep: int) -> int:
    return session.last_seq - keep + 1


def _of_turns(session: Session, keep: int) -> int:
    if keep == 0:
        return session.last_seq + 1
    if keep > session.message_count:
        return session.first_seq
    begins = Q(turn__isnull=True) | Q(turn=F("seq"))
    users = _above(session).filter(begins, role=Message.Role.USER).order_by("-seq")
    found = users.values_list("seq", flat=True)[keep - 1 : keep]
    return next(iter(found), session.first_seq)


def _of_tokens(session: Session, keep: int) -> int:
    floor = session.last_seq + 1
    newest = _above(session).order_by("-seq").values_list("seq", "tokens")
    for seq, tokens in newest.iterator(chunk_size=1_000):
        keep -= tokens
        if keep < 0:
            break
        floor = seq
    return floor


def _of_time(
    session: Session, moment: datetime | CombinedExpression, older: Older = UNKNOWN
) -> int:
    unknown = _above(session).filter(seq__gte=older.known_below(session))
    kept = unknown.filter(created_at__gte=moment).order_by("seq")
    return next(iter(kept.values_list("seq", flat=True)[:1]), session.last_seq + 1)


def _of_number(session: Session, seq: int) -> int:
    return seq


_FINDERS: dict[str, Callable[..., int]] = {
    "keep_last": _of_messages,
    "keep_turns": _of_turns,
    "keep_tokens": _of_tokens,
    "before": _of_time,
    "before_seq": _of_number,
}
