"""Claims: the right to run a turn. `claim_next` is the only way into running but admission."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Any

from django.db import IntegrityError
from django.db.models import F, Q

from chatmemory import codec
from chatmemory.conf import settings
from chatmemory.errors import BadInput, Conflict, HistoryCleared, NotFound
from chatmemory.models import DatabaseNow, Session, Turn, TurnQuerySet
from chatmemory.services.ends import cancel_all
from chatmemory.services.fairness import is_turn_free
from chatmemory.services.faults import Fault, durably, fault_of
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.news import tell, tell_finished
from chatmemory.services.pool import Lane, in_pool
from chatmemory.services.refusals import damaged, is_stored
from chatmemory.services.rights import may_chat
from chatmemory.services.rows import OWN_TURN, Stored, store
from chatmemory.services.versions import check_replaceable, supersede


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

    @property
    def turn_identity(self) -> tuple[int, str, int, int]:
        """The values of TURN_IDENTITY. A restored database assigns primary keys again."""
        return (self.session_pk, self.client_id, self.epoch, self.fence)


TURN_IDENTITY = ("session_id", "client_id", "epoch", "fence")
"""The columns of a turn that identify its run."""


def claimed_turns(claims: Iterable[Claim]) -> TurnQuerySet:
    """The turns that these claims still have the right to run."""
    identities = (dict(zip(TURN_IDENTITY, c.turn_identity, strict=True)) for c in claims)
    is_claimed = reduce(or_, (Q(**identity) for identity in identities), Q(pk__in=()))
    return Turn.objects.filter(is_claimed, status=Turn.Status.RUNNING)


def asked(stored: str) -> dict[str, object]:
    """The plain message of a turn that waits."""
    return codec.decode("user", "", stored)


def claim_next(*, session_pk: int, owner: str) -> Claim | None:
    """Begin the run of the oldest waiting turn, if the session is idle; None if not.

    A turn that was given back comes first; its user's message is stored already. None too where
    TURNS_PER_USER sessions of the person go first. All waiting turns of a person who may not chat
    any more are cancelled.
    """

    def work() -> Claim | None:
        # The oldest represents its session, whatever was put before it: two sessions that each
        # counted the other as older would wait forever.
        ready = Turn.objects.filter(session=session_pk).claimable().order_by("pk")
        # Without the lock: most processes that are notified of a turn find it claimed.
        for turn_pk, scope in ready.values_list("pk", "scope")[:1]:
            if not may_chat(scope):
                cancel_all(session_pk)
            elif is_turn_free(scope, turn_pk=turn_pk, session_pk=session_pk):
                return claim()
        return None

    def claim() -> Claim | None:
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


def claim_not_begun(*, session_pk: int, client_id: str, owner: str) -> Claim | None:
    """The claim that `owner` was given and has not begun: the answer that told of it was lost."""
    turn = (
        Turn.objects.filter(session=session_pk, client_id=client_id)
        .filter(status=Turn.Status.RUNNING, lease_owner=owner, started_at__isnull=True)
        .select_related("session")
        .first()
    )
    if turn is None:
        return None
    return _claim(turn.session, turn, turn.epoch, turn.fence, turn.user_seq or 0, owner)


def _claim_again(session: Session, owner: str) -> Claim | None:
    turn = session.turns.filter(client_id=session.running, status=Turn.Status.WAITING).first()
    if turn is None:
        return None
    Session.objects.filter(pk=session.pk).update(fence=F("fence") + 1, revision=F("revision") + 1)
    Turn.objects.filter(pk=turn.pk).update(
        status=Turn.Status.RUNNING,
        epoch=session.epoch,
        fence=session.fence + 1,
        **lease(owner),
    )
    tell(session.pk)
    return _claim(session, turn, session.epoch, session.fence + 1, turn.user_seq or 0, owner)


def _claim_waiting(session: Session, turn: Turn, owner: str) -> Claim | None:
    """Needs the lock. None if the turn failed at it."""
    try:
        if turn.replaces_from is not None:
            check_replaceable(session, turn.replaces_from, turn.replaces_to or 0)
        stored = _store_asked(session, turn)
    except (BadInput, Conflict, HistoryCleared) as error:
        _fail(session, turn, error.code)
        return None
    Turn.objects.filter(pk=turn.pk).update(
        status=Turn.Status.RUNNING,
        asked="",
        user_seq=stored.first_seq,
        epoch=stored.epoch,
        fence=stored.fence,
        **lease(owner),
    )
    if turn.replaces_from is not None:
        supersede(session.pk, turn.pk, turn.replaces_from, stored.first_seq - 1)
    tell(session.pk)
    return _claim(session, turn, stored.epoch, stored.fence, stored.first_seq, owner)


def _store_asked(session: Session, turn: Turn) -> Stored:
    """Store the user's message. Needs the lock. Raises Conflict if its client_id was used."""
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
        raise Conflict from error
    assert stored is not None  # noqa: S101  # the lock is held, and nothing runs
    return stored


def _fail(session: Session, turn: Turn, code: str) -> None:
    Turn.objects.filter(pk=turn.pk).end(Turn.Status.FAILED, error=code)
    Session.objects.filter(pk=session.pk).update(
        waiting=F("waiting") - 1, revision=F("revision") + 1
    )
    tell(session.pk)
    tell_finished(session.pk, turn.client_id, Turn.Status.FAILED, code)


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


def lease(owner: str) -> dict[str, Any]:
    """The columns of a turn that `owner` takes, from now on."""
    return {
        "lease_owner": owner,
        "lease_until": DatabaseNow() + timedelta(seconds=settings.LEASE),
    }


def _pk_lane(session_pk: int, **_: object) -> Lane:
    return (session_pk,)


aclaim_next = in_pool(claim_next, lane=_pk_lane)
