"""What a trim hides, as a plain specification, and random sessions to which it applies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate, count
from typing import Any

from hypothesis import strategies as st

from chatmemory import codec
from chatmemory.models import DatabaseNow, Message, Session, Turn
from tests.factories import make_session

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
"""The resolution of a stored time."""


@dataclass(frozen=True)
class Row:
    role: str
    tokens: int
    created_at: datetime


@dataclass
class Talk:
    """A session: its turns, of which only the first may lack a user row."""

    turns: list[list[Row]]
    hidden_turns: int = 0
    """Turns below the floor."""
    is_vacuumed: bool = False
    """Whether the hidden rows are deleted."""
    is_running: bool = False
    """Whether the last turn runs."""
    has_deferred: bool = False
    """Whether a batch waits behind the running turn."""
    is_held: bool = False
    superseded_turns: int = 0
    """Turns that the last one supersedes."""
    are_runs: list[bool] = field(default_factory=list)
    """For each turn, whether its rows name it; those that `append_messages` stored do not."""

    @property
    def visible_turns(self) -> list[list[Row]]:
        return self.turns[self.hidden_turns :]

    @property
    def rows(self) -> list[Row]:
        """The visible rows."""
        return [row for turn in self.visible_turns for row in turn]

    @property
    def first_seq(self) -> int:
        return 1 + sum(map(len, self.turns[: self.hidden_turns]))

    def floor_after(self, limit: dict[str, Any]) -> int:
        """Return the floor after a trim.

        Turns are hidden from the oldest on, while the limit hides each row of the turn. The
        running turn never is.
        """
        hideable = hidden_by(limit, self)
        floor = self.first_seq
        for number, turn in enumerate(self.visible_turns, start=1):
            is_last = number == len(self.visible_turns)
            if floor - self.first_seq + len(turn) > hideable or (is_last and self.is_running):
                break
            floor += len(turn)
        return floor


def hidden_by(limit: dict[str, Any], talk: Talk) -> int:
    """Return how many of the oldest visible rows a limit hides, wherever turns begin."""
    ((name, value),) = limit.items()
    rows = talk.rows
    match name:
        case "keep_last":
            return len(rows) - int(value)
        case "keep_turns":
            begun = [turn for turn in talk.visible_turns if turn[0].role == "user"]
            kept = begun[len(begun) - value :] if value <= len(begun) else talk.visible_turns
            return len(rows) - sum(map(len, kept))
        case "keep_tokens":
            totals = accumulate(row.tokens for row in reversed(rows))
            return len(rows) - len([total for total in totals if total <= value])
        case "before":
            recent = [n for n, row in enumerate(rows) if row.created_at >= value]
            return min(recent, default=len(rows))
        case "before_seq":
            return int(value) - talk.first_seq
    raise ValueError(name)


def boundaries(name: str, talk: Talk) -> list[Any]:
    """Return the values of a limit at which its result changes, and those beside them."""
    rows = talk.rows
    match name:
        case "keep_last":
            return [*range(len(rows) + 2), 10**40]
        case "keep_turns":
            return [*range(len(talk.visible_turns) + 2), 10**40]
        case "keep_tokens":
            totals = list(accumulate(row.tokens for row in reversed(rows)))
            beside = {0, *(total + n for total in totals for n in (-1, 0, 1))}
            return [*sorted(value for value in beside if value >= 0), 2**31, 10**40]
        case "before":
            beside_times = {row.created_at + n * TICK for row in rows for n in (-1, 0, 1)}
            return sorted(beside_times) or [NOON]
        case "before_seq":
            return [*range(talk.first_seq + len(rows) + 2), 10**40]
    raise ValueError(name)


def _rows(*roles: str) -> st.SearchStrategy[Row]:
    return st.builds(
        Row,
        role=st.sampled_from(roles),
        tokens=st.integers(0, 3),
        # The clock of a server can be set back, and rows of one batch have one time.
        created_at=st.integers(0, 4).map(lambda hour: NOON + timedelta(hours=hour)),
    )


USER_ROW = _rows("user")
ANSWERS = st.lists(_rows("assistant", "tool"), max_size=3)
ANSWERS_OF_RUN = st.lists(_rows("assistant", "tool", "user"), max_size=3)


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    """Return a session in any state that a trim can find."""
    beginning = draw(ANSWERS)
    are_runs = draw(st.lists(st.booleans(), max_size=4))
    turns = [[draw(USER_ROW), *draw(ANSWERS_OF_RUN if is_run else ANSWERS)] for is_run in are_runs]
    if beginning:
        turns, are_runs = [beginning, *turns], [False, *are_runs]
    is_running = bool(are_runs and are_runs[-1] and draw(st.booleans()))
    most_hidden = len(turns) - is_running
    return Talk(
        turns=turns,
        are_runs=are_runs,
        hidden_turns=draw(st.integers(0, most_hidden)),
        is_vacuumed=draw(st.booleans()),
        is_running=is_running,
        has_deferred=is_running and draw(st.booleans()),
        is_held=draw(st.sampled_from([False, False, False, True])),
        superseded_turns=draw(st.integers(0, max(most_hidden - 1, 0))),
    )


def store(talk: Talk, key: str) -> Session:
    """Store a session with its rows and turns."""
    starts = list(accumulate(map(len, talk.turns), initial=1))
    last_user_seq = starts[-2] if talk.turns else 0
    session = make_session(
        key,
        last_seq=starts[-1] - 1,
        first_seq=talk.first_seq,
        stored_from=talk.first_seq if talk.is_vacuumed else 1,
        running="run" if talk.is_running else None,
        waiting=int(talk.has_deferred),
        held_at=DatabaseNow() if talk.is_held else None,
        superseded_to=last_user_seq - 1 if talk.superseded_turns else 0,
    )
    rows = [row for row in _stored(session, talk) if row.seq >= session.stored_from]
    Message.stored.bulk_create(rows)
    status = Turn.Status.RUNNING if talk.is_running else Turn.Status.COMPLETE
    if talk.superseded_turns:
        superseded = starts[-2 - talk.superseded_turns]
        replaces = {"replaces_from": superseded, "replaces_to": last_user_seq - 1}
        _store_turn(session, "run", status, user_seq=last_user_seq, **replaces)
    elif talk.is_running:
        _store_turn(session, "run", status, user_seq=last_user_seq)
    if talk.has_deferred:
        asked = f"{codec.BATCH_BEGIN}[]}}"
        _store_turn(session, "deferred", Turn.Status.WAITING, asked=asked)
    return session


def _stored(session: Session, talk: Talk) -> Iterator[Message]:
    seqs = count(1)
    for turn, is_run in zip(talk.turns, talk.are_runs, strict=True):
        start = None
        for row in turn:
            seq = next(seqs)
            start = start or seq
            yield Message(
                session=session,
                seq=seq,
                role=row.role,
                text="",
                status=Message.Status.COMPLETE,
                error="",
                model="",
                tokens=row.tokens,
                created_at=row.created_at,
                turn=start if is_run else None,
            )


def _store_turn(session: Session, client_id: str, status: str, **columns: Any) -> None:
    Turn.objects.create(
        session=session, epoch=session.epoch, client_id=client_id, status=status, **columns
    )
