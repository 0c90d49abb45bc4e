"""The turns of a page: status, times and usage; the running one; those that wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connections
from django.db.models import Subquery
from django.utils.translation import gettext as _

from chatmemory import codec
from chatmemory.admin.text import duration, visible
from chatmemory.errors import BadInput
from chatmemory.models import Message, Session, SupersededRange, Turn, TurnQuerySet, superseded

MAX_UNSTORED = 50
"""Turns without a message that a page shows: waiting and cancelled ones."""

NOTABLE_WAIT = timedelta(seconds=1)
"""The page states how long a turn waited if it is longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLine:
    """A turn, as the line below its last message states it."""

    status: str
    label: str
    facts: list[str]


class Turns:
    """The turns that a page of messages needs, and its superseded ranges."""

    def __init__(self, session: Session, rows: Sequence[Message], *, has_rowless: bool) -> None:
        """`has_rowless` also reads the turns without a message: waiting and cancelled ones."""
        turns = list({turn.pk: turn for turn in _read_turns(session, rows, has_rowless)}.values())
        turns.sort(key=lambda turn: (turn.position, turn.pk))
        self.all = turns
        self.by_seq = {turn.user_seq: turn for turn in turns if turn.user_seq is not None}
        ended = [turn for turn in self.by_seq.values() if turn.ended_at is not None]
        self.last = max(ended, key=lambda turn: turn.user_seq or 0, default=None)
        """The session's last turn that ended."""
        self.running = next((turn for turn in turns if turn.client_id == session.running), None)
        rowless = [turn for turn in turns if turn.user_seq is None and turn.asked][:MAX_UNSTORED]
        self.queued = [turn for turn in rowless if turn.status == Turn.Status.WAITING]
        """The waiting turns, in the order in which they start."""
        self.cancelled = [turn for turn in rowless if turn.ended_at is not None]
        has_superseded = rows and session.superseded_to >= rows[0].seq
        self._superseded = superseded(rows[0].seq, session=session) if has_superseded else []

    def superseded_in(self, seq: int) -> SupersededRange | None:
        """Return the widest range by which this message is superseded; None without one."""
        return next((found for found in reversed(self._superseded) if seq in found), None)

    def line_of(self, number: int | None) -> TurnLine | None:
        """Return the line about the turn with this user row, unless it runs or waits."""
        turn = self.by_seq.get(number or 0)
        if turn is None or turn.ended_at is None:
            return None
        return TurnLine(
            status=turn.status, label=str(Turn.Status(turn.status).label), facts=_turn_facts(turn)
        )


def _read_turns(session: Session, rows: Sequence[Message], has_rowless: bool) -> list[Turn]:
    turns = session.turns.order_by().with_reason()
    numbers = {row.turn for row in rows if row.turn is not None}
    # A UNION, so that each part uses its own index in a session with many turns.
    parts: list[TurnQuerySet] = [_numbered(turns, numbers)] if numbers else []
    ended = session.turns.filter(user_seq__isnull=False, ended_at__isnull=False)
    parts.append(turns.filter(pk=Subquery(ended.order_by("-user_seq").values("pk")[:1])))
    if session.running is not None:
        parts.append(turns.filter(client_id=session.running))
    if has_rowless:
        parts.append(turns.filter(user_seq__isnull=True).exclude(asked=""))
    return list(parts[0].union(*parts[1:], all=True) if parts[1:] else parts[0])


def _numbered(turns: TurnQuerySet, numbers: Collection[int]) -> TurnQuerySet:
    found = turns.filter(user_seq__in=numbers)
    # The limit changes no result. Without it, PostgreSQL expects that a session with a tenth of all
    # turns has a tenth of those with low numbers, and compiles the statement.
    can_limit = connections[turns.db].features.supports_slicing_ordering_in_compound
    return found[: len(numbers)] if can_limit else found


def _turn_facts(turn: Turn) -> list[str]:
    """Return error, duration, time to the first text, waiting time, model and usage."""
    facts = [visible(turn.error)] if turn.error else []
    if turn.started_at is not None and turn.ended_at is not None:
        facts.append(_("in %(time)s") % {"time": duration(turn.ended_at - turn.started_at)})
    if turn.first_text_ms is not None:
        first = duration(timedelta(milliseconds=turn.first_text_ms))
        facts.append(_("first text after %(time)s") % {"time": first})
    waited = (turn.started_at or turn.created_at) - turn.created_at
    if waited > NOTABLE_WAIT:
        facts.append(_("waited %(time)s") % {"time": duration(waited)})
    if turn.stop_requested_at is not None:
        facts.append(_("stop requested"))
    if turn.model:
        facts.append(visible(turn.model))
    return [*facts, *_usage(turn)]


def _usage(turn: Turn) -> list[str]:
    """Return the tokens that the model reported."""
    try:
        usage = codec.parse_json(turn.usage.encode()) if turn.usage else {}
    except BadInput:
        return []
    numbers = usage if isinstance(usage, Mapping) else {}
    texts = {
        "input_tokens": _("%(n)s tokens in"),
        "output_tokens": _("%(n)s tokens out"),
        "total_tokens": _("%(n)s tokens together"),
    }
    return [
        text % {"n": numbers[name]}
        for name, text in texts.items()
        if isinstance(numbers.get(name), int)
    ]


def age_of(turn: Turn) -> str:
    """Return for how long a turn runs, or waits."""
    return duration(datetime.now(UTC) - (turn.started_at or turn.created_at))
