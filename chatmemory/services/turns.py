"""Turns: claimed, run under a lease and a fence, ended.

Whoever ends a turn only ends it: `claim_next` begins the next one. A run that lost its fence can't
write any more: another ended its turn.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import IntegrityError
from django.db.models import F
from django.db.models.functions import Coalesce

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.conf import settings
from chatmemory.errors import Conflict, MemoryUnavailable, NotFound, UnknownTurn
from chatmemory.models import DatabaseNow, Message, Session, Turn
from chatmemory.services.actors import Actor
from chatmemory.services.faults import Fault, durably, fault_of
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.news import tell, tell_finished, tell_stop, tell_waiting
from chatmemory.services.pool import Lane, address_lane, in_pool
from chatmemory.services.refusals import damaged, is_stored
from chatmemory.services.rows import OWN_TURN, store
from chatmemory.services.sessions import get_session

logger = logging.getLogger(__name__)

T = TypeVar("T")

OVERDUE = 100
"""Overdue turns read at a time."""


@dataclass(slots=True)
class _Running:
    """What a run tells the code that it calls, and the tasks that this leaves behind."""

    scope: str
    key: str
    is_over: bool = False


_run_of: ContextVar[_Running | None] = ContextVar("chatmemory_run_of", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run a turn, as long as its fence stands."""

    turn_pk: int
    client_id: str
    session_pk: int
    scope: str
    key: str
    epoch: int
    fence: int
    user_seq: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What `finish_turn` leaves behind."""

    last_seq: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What became of overdue turns."""

    interrupted: int
    """Turns that had begun."""
    given_back: int
    """Turns that had not: they wait again."""
    failed: int
    """Sessions whose turn could not be ended; the log says why."""


def asked(stored: str) -> dict[str, object]:
    """The plain message of a turn that waits."""
    return codec.decode("user", "", stored)


def claim_next(*, session_pk: int, owner: str) -> Claim | None:
    """Begin the run of the oldest waiting turn, if the session is idle; None if not.

    A turn that was given back comes first; its user's message is stored already.
    """

    def work() -> Claim | None:
        with unit():
            session = lock_pk(session_pk)
            if session.running is not None:
                return _claim_again(session, owner)
            for turn in session.turns.waiting():
                claim = _claim_waiting(session, turn, owner)
                if claim is not None:
                    return claim
            return None

    try:
        return durably(work, is_repeatable=False)
    except NotFound:
        return None


def _claim_again(session: Session, owner: str) -> Claim | None:
    turn = session.turns.filter(client_id=session.running, status=Turn.Status.WAITING).first()
    if turn is None:
        return None
    Session.objects.filter(pk=session.pk).update(fence=F("fence") + 1, revision=F("revision") + 1)
    Turn.objects.filter(pk=turn.pk).update(
        status=Turn.Status.RUNNING, fence=session.fence + 1, **lease(owner)
    )
    tell(session.pk)
    return _claim(session, turn, session.epoch, session.fence + 1, turn.user_seq or 0, owner)


def _claim_waiting(session: Session, turn: Turn, owner: str) -> Claim | None:
    """Needs the lock. None if the turn failed at it."""
    try:
        stored = store(
            [codec.encode(asked(turn.asked))],
            at={"id": session.pk},
            only_if={"running": None},
            client_id=turn.client_id,
            turn=OWN_TURN,
            put={"running": turn.client_id},
            add={"fence": 1, "revision": 1, "waiting": -1},
        )
    except IntegrityError as error:
        if fault_of(error) is not Fault.DUPLICATE:
            raise
        if not is_stored(session.pk, turn.client_id):
            raise damaged(session.pk) from error
        stored = None
    if stored is None:
        Turn.objects.filter(pk=turn.pk).update(
            status=Turn.Status.FAILED, error=Conflict.code, **_ENDED
        )
        Session.objects.filter(pk=session.pk).update(
            waiting=F("waiting") - 1, revision=F("revision") + 1
        )
        tell(session.pk)
        tell_finished(session.pk, turn.client_id, Turn.Status.FAILED, Conflict.code)
        return None
    Turn.objects.filter(pk=turn.pk).update(
        status=Turn.Status.RUNNING,
        asked="",
        user_seq=stored.first_seq,
        fence=stored.fence,
        **lease(owner),
    )
    tell(session.pk)
    return _claim(session, turn, stored.epoch, stored.fence, stored.first_seq, owner)


def _claim(
    session: Session, turn: Turn, epoch: int, fence: int, user_seq: int, owner: str
) -> Claim:
    return Claim(
        turn_pk=turn.pk,
        client_id=turn.client_id,
        session_pk=session.pk,
        scope=session.scope,
        key=session.key,
        epoch=epoch,
        fence=fence,
        user_seq=user_seq,
        owner=owner,
    )


def start_turn(*, claim: Claim) -> bool:
    """Say that the run begins now; False if it was taken away, or begun before."""
    turn = Turn.objects.filter(
        pk=claim.turn_pk,
        fence=claim.fence,
        status=Turn.Status.RUNNING,
        started_at__isnull=True,
    )

    def work() -> bool:
        begun = turn.update(started_at=DatabaseNow(), **lease(claim.owner))
        if begun:
            tell(claim.session_pk)
        return bool(begun)

    # Not again where it may have been done: the second call would say that the turn was taken.
    return durably(work, is_repeatable=False)


def save_partial(*, claim: Claim, text: str, step: int) -> bool:
    """Keep the text so far, for the case that this process dies; False if the fence is lost."""
    turn = Turn.objects.filter(pk=claim.turn_pk, fence=claim.fence, status=Turn.Status.RUNNING)
    return durably(lambda: bool(turn.update(partial=text, step=step)), is_repeatable=True)


def add_rows(*, claim: Claim, messages: Sequence[Mapping[str, object]], step: int | None) -> bool:
    """Store finished rows of a running turn; False if the fence is lost."""
    rows = [codec.encode(message, lenient=True, step=step) for message in messages]
    batch_id = uuid.uuid4().hex
    if not rows:
        return True

    def work() -> bool:
        try:
            stored = store(
                rows,
                at={"id": claim.session_pk},
                only_if=_standing(claim),
                client_id=batch_id,
                turn=claim.user_seq,
            )
        except IntegrityError as error:
            if fault_of(error) is not Fault.DUPLICATE:
                raise
            if not is_stored(claim.session_pk, batch_id):
                raise damaged(claim.session_pk) from error
            return True
        if stored is not None:
            tell(claim.session_pk)
        return stored is not None

    return durably(work, is_repeatable=True)


def finish_turn(
    *,
    claim: Claim,
    status: str,
    message: Mapping[str, object],
    error: str = "",
    model: str = "",
    usage: Mapping[str, object] | None = None,
    step: int | None = None,
) -> Ended | None:
    """End a run and store its last row, in one transaction; None if the fence is lost.

    A run that ends in the middle leaves no tool call open: each gets a result that says so.
    """
    last = codec.encode(message, lenient=True, status=status, error=error, model=model, step=step)
    usage_text = "" if usage is None else _usage_text(usage)
    batch_id = uuid.uuid4().hex

    def work() -> Ended | None:
        results = _results_for_open_calls(claim.session_pk, claim.user_seq)
        try:
            with unit():
                return finish([*results, last])
        except IntegrityError as error:
            if fault_of(error) is not Fault.DUPLICATE:
                raise
            raise damaged(claim.session_pk) from error

    def finish(rows: list[Row]) -> Ended | None:
        stored = store(
            rows,
            at={"id": claim.session_pk},
            only_if=_standing(claim),
            client_id=batch_id,
            turn=claim.user_seq,
            put={"running": None},
            add={"revision": 1},
            in_unit=True,
        )
        if stored is None:
            return _finished_before(claim.session_pk, batch_id)
        Turn.objects.filter(pk=claim.turn_pk).update(
            status=status, error=last.error, model=last.model, usage=usage_text, **_ENDED
        )
        tell(claim.session_pk)
        tell_finished(claim.session_pk, claim.client_id, status, error)
        return Ended(last_seq=stored.last_seq, waiting=stored.waiting)

    return durably(work, is_repeatable=True)


def _finished_before(session_pk: int, batch_id: str) -> Ended | None:
    """What this same call did, if it lost the connection after its commit."""
    values = Message.stored.filter(session=session_pk, client_id=batch_id).values_list(
        "session__last_seq", "session__waiting"
    )
    return next((Ended(last_seq=last, waiting=waiting) for last, waiting in values), None)


def _usage_text(usage: Mapping[str, object]) -> str:
    """What a model says of its usage, made fit for JSON."""
    message = {"role": "assistant", "content": "", "usage": usage}
    row = codec.encode(message, lenient=True)
    return codec.dump_json(codec.decode(row.role, row.text, row.body).get("usage"))


def _results_for_open_calls(session_pk: int, user_seq: int) -> list[Row]:
    """A result for each tool call of a turn that has none; in the order of the calls."""
    rows = Message.stored.filter(session=session_pk, seq__gt=user_seq).in_order()
    called: dict[str, None] = {}
    for role, text, body in rows.values_list("role", "text", "body"):
        plain = codec.decode(role, text, body)
        for call in codec.calls_of(plain):
            called[str(call.get("id"))] = None
        called.pop(str(plain.get("tool_call_id")), None)
    return [
        codec.encode(codec.unknown_outcome(call_id), status=Message.Status.INTERRUPTED)
        for call_id in called
    ]


def end_overdue(session_pk: int) -> bool:
    """End the running turn of a session if its lease has ended; False if there was no such turn.

    One that had begun ends as interrupted, with the text that was kept. One that had not is given
    back: it waits again, first in the queue. Nothing is ever run twice by itself.
    """
    return _end_overdue(session_pk) is not None


def _end_overdue(session_pk: int) -> str | None:
    """The status of the turn that was ended or given back, or None."""

    def work() -> str | None:
        with unit():
            session = lock_pk(session_pk)
            # A run's start and lease are written without the session's lock.
            turns = session.turns.overdue().filter(client_id=session.running)
            turn = turns.select_for_update().first()
            if turn is None:
                return None
            return _end(session, turn)

    return durably(work, is_repeatable=True)


def end_all_overdue(*, limit: int | None = None) -> Recovered:
    """Do the same in all sessions; look at `limit` turns at most.

    The newest come first, so that those which can't be ended keep no other from its end.
    Raises MemoryUnavailable only if the database can't even be asked.
    """
    found: Counter[str | None] = Counter()
    for session_pk in _overdue(limit):
        try:
            found[_end_overdue(session_pk)] += 1
        except (MemoryUnavailable, NotFound) as error:  # its lock is held, or it has just gone
            logger.warning(
                "the overdue turn of session %s is left for now: %s", session_pk, error.code
            )
            found["failed"] += 1
        except Exception:  # one damaged session must not keep all others from their end
            logger.exception("the overdue turn of session %s can't be ended", session_pk)
            found["failed"] += 1
    return Recovered(
        interrupted=found[Turn.Status.INTERRUPTED],
        given_back=found[Turn.Status.WAITING],
        failed=found["failed"],
    )


def _overdue(limit: int | None) -> Iterator[int]:
    """The sessions of the overdue turns that there are now, some at a time."""
    left = sys.maxsize if limit is None else limit
    older = Turn.objects.overdue().order_by("-pk")
    while page := _read(older.values_list("pk", "session_id")[: min(left, OVERDUE)]):
        yield from (session_pk for _, session_pk in page)
        left -= len(page)
        older = older.filter(pk__lt=page[-1][0])


def _read(rows: Iterable[T]) -> list[T]:
    return durably(lambda: list(rows), is_repeatable=True)


def end_stray(session: Session, turn: Turn) -> None:
    """End a running turn that its session doesn't name; its run can't write. Needs the lock.

    While its rows are the last ones of an idle session it ends as an overdue one does. Later it
    gets no row, which would stand between others' rows; what was kept of its text stays with it.
    """
    begin = turn.user_seq or 0
    rows = Message.stored.filter(session=session, seq__gte=begin)
    has_rows = rows.filter(seq=begin).exists() and not rows.exclude(turn=begin).exists()
    is_last = session.running is None and has_rows
    if is_last and session.epoch == turn.epoch:
        session.running = turn.client_id
        Session.objects.filter(pk=session.pk).update(running=turn.client_id)
        _end(session, turn)
        return
    kept = turn.partial if session.epoch == turn.epoch else ""
    Turn.objects.filter(pk=turn.pk).update(
        status=Turn.Status.INTERRUPTED, **{**_ENDED, "partial": kept, "fence": F("fence") + 1}
    )
    tell_finished(session.pk, turn.client_id, Turn.Status.INTERRUPTED, "")


def _end(session: Session, turn: Turn) -> str:
    """End or give back, and return the status that it has now. Needs the lock."""
    if turn.started_at is None:
        _give_back(session, turn)
        return Turn.Status.WAITING
    interrupt(session, turn)
    return Turn.Status.INTERRUPTED


def _give_back(session: Session, turn: Turn) -> None:
    """Needs the lock."""
    Turn.objects.filter(pk=turn.pk).update(
        status=Turn.Status.WAITING, fence=F("fence") + 1, lease_owner="", lease_until=None
    )
    Session.objects.filter(pk=session.pk).update(fence=F("fence") + 1, revision=F("revision") + 1)
    tell(session.pk)
    tell_waiting(session.pk, turn.client_id)


def give_back_claims(*, owner: str) -> int:
    """Let others run what this process claimed and has not begun; return how many turns.

    Those that can't be given back now are when their lease ends.
    """
    claims = Turn.objects.filter(
        lease_owner=owner, status=Turn.Status.RUNNING, started_at__isnull=True
    )

    def work(session_pk: int) -> bool:
        with unit():
            session = lock_pk(session_pk)
            # A run's start is written without the session's lock.
            turns = claims.filter(session=session, client_id=session.running)
            turn = turns.select_for_update().first()
            if turn is not None:
                _give_back(session, turn)
            return turn is not None

    given_back = 0
    for session_pk in _read(claims.values_list("session_id", flat=True)):
        try:
            given_back += durably(partial(work, session_pk), is_repeatable=True)
        except (MemoryUnavailable, NotFound) as error:  # its lock is held, or it has just gone
            logger.warning("the claim of session %s is not given back: %s", session_pk, error.code)
    return given_back


def interrupt(session: Session, turn: Turn) -> None:
    """End the running turn with the text that was kept. Needs the lock."""
    user_seq = turn.user_seq or 0
    last = codec.encode(
        {"role": "assistant", "content": turn.partial},
        lenient=True,
        status=Message.Status.INTERRUPTED,
        step=turn.step,
    )
    store(
        [*_results_for_open_calls(session.pk, user_seq), last],
        at={"id": session.pk},
        only_if={"running": turn.client_id},
        turn=user_seq,
        put={"running": None},
        add={"revision": 1, "fence": 1},
    )
    Turn.objects.filter(pk=turn.pk).update(
        status=Turn.Status.INTERRUPTED, **{**_ENDED, "fence": F("fence") + 1}
    )
    tell(session.pk)
    tell_finished(session.pk, turn.client_id, Turn.Status.INTERRUPTED, "")


def stop_turn(*, session_key: str, turn: str, by: Actor, scope: str | None = None) -> str:
    """Stop a turn and return its status: a waiting one is cancelled, a running one told to end.

    One that ended stays as it is. A running one whose process is dead ends here.
    Raises NotFound, UnknownTurn.
    """
    session = get_session(session_key=session_key, by=by, scope=scope)

    def work() -> str:
        found = session.turns.filter(client_id=turn)
        try:
            status = found.get().status
        except Turn.DoesNotExist:
            raise UnknownTurn from None
        if status == Turn.Status.WAITING and _cancel(session.pk, turn):
            return Turn.Status.CANCELLED
        if found.overdue().exists() and end_overdue(session.pk):
            _cancel(session.pk, turn)
        running = found.filter(status=Turn.Status.RUNNING)
        if running.update(stop_requested_at=Coalesce("stop_requested_at", DatabaseNow())):
            tell_stop(session.pk, found.get().pk)
        return found.get().status

    return durably(work, is_repeatable=True)


def _cancel(session_pk: int, client_id: str) -> bool:
    """Cancel a waiting turn; False if it doesn't wait any more."""
    with unit():
        session = lock_pk(session_pk)
        waiting = session.turns.filter(client_id=client_id, status=Turn.Status.WAITING)
        if not waiting.update(status=Turn.Status.CANCELLED, **_ENDED):
            return False
        if session.running == client_id:
            Session.objects.filter(pk=session.pk).update(
                running=None, fence=F("fence") + 1, revision=F("revision") + 1
            )
        else:
            Session.objects.filter(pk=session.pk).update(
                waiting=F("waiting") - 1, revision=F("revision") + 1
            )
        tell(session.pk)
        tell_finished(session.pk, client_id, Turn.Status.CANCELLED, "")
    return True


@contextmanager
def running(claim: Claim) -> Iterator[None]:
    """In this context, and in copies of it, `in_run` is true of the claim's session."""
    run = _Running(claim.scope, claim.key)
    token = _run_of.set(run)
    try:
        yield
    finally:
        run.is_over = True  # a task that outlives the run has a copy of the context
        _run_of.reset(token)


def in_run(scope: str, key: str) -> bool:
    """Whether this code is called by the responder that answers in this session."""
    run = _run_of.get()
    return run is not None and not run.is_over and (run.scope, run.key) == (scope, key)


_ENDED: dict[str, Any] = {
    "asked": "",
    "partial": "",
    "lease_owner": "",
    "lease_until": None,
    "ended_at": DatabaseNow(),
}


def lease(owner: str) -> dict[str, Any]:
    """The columns of a turn that `owner` takes, from now on."""
    return {
        "lease_owner": owner,
        "lease_until": DatabaseNow() + timedelta(seconds=settings.LEASE),
    }


def _standing(claim: Claim) -> dict[str, object]:
    return {"epoch": claim.epoch, "running": claim.client_id, "fence": claim.fence}


def _claim_lane(*, claim: Claim, **_: object) -> Lane:
    return (claim.scope, claim.key)


def _pk_lane(session_pk: int, **_: object) -> Lane:
    return (session_pk,)


aclaim_next = in_pool(claim_next, lane=_pk_lane)
astart_turn = in_pool(start_turn, lane=_claim_lane)
asave_partial = in_pool(save_partial, lane=_claim_lane)
aadd_rows = in_pool(add_rows, lane=_claim_lane)
afinish_turn = in_pool(finish_turn, lane=_claim_lane)
aend_overdue = in_pool(end_overdue, lane=_pk_lane)
aend_all_overdue = in_pool(end_all_overdue)
agive_back_claims = in_pool(give_back_claims)
astop_turn = in_pool(stop_turn, lane=address_lane)
