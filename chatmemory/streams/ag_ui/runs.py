"""The runs of clients, as turns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import F, QuerySet

from chatmemory.codec.checks import CLIENT_PREFIX
from chatmemory.database.retries import retried
from chatmemory.live.texts import SessionRef
from chatmemory.models import Turn
from chatmemory.models.fields import DatabaseNow
from chatmemory.services import Actor, sessions_of
from chatmemory.streams.reads import REPLAY_SECONDS, History, ShownTurn
from chatmemory.streams.sending import run_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The turn of a run."""

    ref: SessionRef
    key: str
    """The key of its session."""
    turn: str

    @property
    def thread(self) -> str:
        """The client's id of the session."""
        return self.key.removeprefix(CLIENT_PREFIX)


def run_of(turn: str, key: str) -> str:
    """Return the id of a run that stands for a turn, whichever client has sent it."""
    return f"{turn}@{key}"


@retried(is_repeatable=True)
def find_run(run: str, by: Actor, key: str | None = None) -> Run | None:
    """Return the turn of a run that waits or runs, else of one that has just ended.

    `key` is that of the session, if the client names it. Raises MemoryUnavailable.
    """
    sessions = sessions_of(by)
    if key is not None:
        sessions = sessions.filter(key=key)
    turns = Turn.objects.filter(session__in=sessions).undeferred()
    # Of few turns: each of the two queries of `_newest` has an index of its own.
    found = _newest(turns.filter(client_id__endswith=run_mark(run)), by)
    name, is_of_server, of_session = run.partition("@")
    if found is None and is_of_server:  # a client's id may have this form too
        found = _newest(turns.filter(client_id=name, session__key=of_session), by)
    return found


def _newest(turns: QuerySet[Turn], by: Actor) -> Run | None:
    """Return one of these turns that waits or runs, else one that has just ended."""
    active = turns.filter(scope=by.owner, status__in=Turn.ACTIVE_STATUSES)
    since = DatabaseNow() - timedelta(seconds=REPLAY_SECONDS)
    ended = turns.filter(ended_at__gte=since, user_seq__gte=F("session__first_seq"))
    columns = ("session_id", "epoch", "session__key", "client_id")
    found = active.values_list(*columns).first() or ended.values_list(*columns).first()
    if found is None:
        return None
    session_pk, epoch, found_key, turn = found
    return Run(ref=SessionRef(session_pk, epoch), key=found_key, turn=turn)


def active_turn(shown: ShownTurn | None, history: History) -> str | None:
    """Return the turn that runs or waits first; `shown` was read before the history."""
    if shown is not None and not shown.has_ended:
        return shown.turn
    running = (row.turn_client_id for row in history.rows if _is_active(row.turn, history))
    return next(running, None)


def _is_active(user_seq: int | None, history: History) -> bool:
    turn = history.turns.get(user_seq or 0)
    return turn is not None and turn.status in Turn.ACTIVE_STATUSES
