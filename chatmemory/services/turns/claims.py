"""Claims: the right to run a turn, acquired by `claim_next` or an admission to an idle session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, reduce
from operator import or_
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.expressions import Combinable

from chatmemory import codec
from chatmemory.access.logins import may_chat
from chatmemory.conf import settings
from chatmemory.database.after_commit import announce_change, announce_finished
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.inserts import StoredRows, store_rows
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.pool import Lane, in_pool
from chatmemory.database.refusals import is_client_id_stored, report_damage
from chatmemory.database.retries import retried
from chatmemory.database.statements import CompiledSelect, Parameter, padded
from chatmemory.errors import BadInput, Conflict, HistoryCleared, NotFound
from chatmemory.models import DatabaseNow, Session, Turn, TurnQuerySet
from chatmemory.services.turns.deferral import store_deferred, store_deferred_of
from chatmemory.services.turns.fairness import is_within_turn_limit
from chatmemory.services.turns.stops import cancel_waiting_turns
from chatmemory.services.turns.versions import check_replaceable, supersede

# Note [Fence]
# A process can pause, for example when its machine is suspended, and continue after another process
# has ended or requeued its turn. Checking the lease before a write does not help: the pause can
# come between the check and the write. So each claim has a number, its fence:
#
# - A claim raises `Session.fence` by one, and the turn stores the new value.
# - Each function that ends or requeues a turn from outside raises the fence again.
# - Each write of a run has its fence in the WHERE clause, so that a late write matches no row.
#
# The lease only decides when other processes may end the turn; the fence decides which process may
# write. Epoch, session and client_id are part of the condition too, since a restored database
# assigns the same fences and primary keys again.
#
# A run's start, lease, stop request and partial text are written to the turn's row without the
# session's lock, so that they never wait for a long append. Code that ends a turn under the
# session's lock therefore locks the turn's row too before it reads these columns.


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run a turn while its fence is valid. See Note [Fence]."""

    turn_pk: int
    client_id: str
    session_pk: int
    scope: str
    key: str
    epoch: int
    fence: int
    user_seq: int
    owner: str
    """The name of the process that runs the turn."""

    @property
    def turn_identity(self) -> tuple[int, str, int, int]:
        """The values of TURN_IDENTITY. A restored database assigns primary keys again."""
        return (self.session_pk, self.client_id, self.epoch, self.fence)


TURN_IDENTITY = ("session_id", "client_id", "epoch", "fence")
"""The columns of a turn that identify its run."""


def claimed_turns(claims: Iterable[Claim]) -> TurnQuerySet:
    """Return the running turns whose fence still equals one of these claims'."""
    identities = (dict(zip(TURN_IDENTITY, c.turn_identity, strict=True)) for c in claims)
    is_claimed = reduce(or_, (Q(**identity) for identity in identities), Q(pk__in=()))
    return Turn.objects.filter(is_claimed, status=Turn.Status.RUNNING)


def compiled_claimed_turns(count: int) -> TurnQuerySet:
    """Return `claimed_turns` of `count` claims that `claim_values` names at the execution."""
    identities = (
        {name: Parameter(f"{name}_{index}", Turn._meta.get_field(name)) for name in TURN_IDENTITY}
        for index in range(count)
    )
    is_claimed = reduce(or_, (Q(**identity) for identity in identities))
    return Turn.objects.filter(is_claimed, status=Turn.Status.RUNNING)


def claim_values(claims: Sequence[Claim]) -> tuple[int, dict[str, Any]]:
    """Return a count for `compiled_claimed_turns`, and its values."""
    repeated = padded(claims)
    values = {
        f"{name}_{index}": value
        for index, claim in enumerate(repeated)
        for name, value in zip(TURN_IDENTITY, claim.turn_identity, strict=True)
    }
    return len(repeated), values


def claim_of(turn: Turn, *, scope: str, key: str) -> Claim:
    """Build the claim of a turn from its columns and its session's address."""
    return Claim(
        turn_pk=turn.pk,
        client_id=turn.client_id,
        session_pk=turn.session_id,
        scope=scope,
        key=key,
        epoch=turn.epoch,
        fence=turn.fence,
        user_seq=turn.user_seq or 0,
        owner=turn.lease_owner,
    )


def decode_asked(asked: str) -> dict[str, object]:
    """Return the plain message in a waiting turn's column `asked`."""
    return codec.decode("user", "", asked)


def claim_next(*, session_pk: int, owner: str) -> Claim | None:
    """Claim the first waiting turn of a session for `owner`; return None if none can start.

    None can start while another turn runs, or while TURNS_PER_USER sessions of the user are ahead
    of this one. A requeued turn comes first; its user row is already stored. If the user may no
    longer chat, all waiting turns of the session are cancelled. Raises MemoryUnavailable.
    """
    try:
        return _claim_next(session_pk, owner)
    except NotFound:
        return None


def find_unstarted_claim(*, session_pk: int, client_id: str, owner: str) -> Claim | None:
    """Return a claim that `owner` holds and has not started because its answer was lost."""
    turn = (
        Turn.objects.filter(session=session_pk, client_id=client_id)
        .filter(status=Turn.Status.RUNNING, lease_owner=owner, started_at__isnull=True)
        .select_related("session")
        .first()
    )
    return None if turn is None else claim_of(turn, scope=turn.session.scope, key=turn.session.key)


def _oldest_rows() -> QuerySet[Any, Any]:
    # The oldest turn represents its session, whatever its position in the queue: two sessions that
    # each counted the other as older would wait forever. A deferred batch has no scope.
    ready = Turn.objects.filter(session=Parameter("session")).claimable()
    rows: QuerySet[Any, Any] = ready.order_by("scope", "pk").values("pk", "scope")[:1]
    return rows


_OLDEST = CompiledSelect(_oldest_rows)


# Not repeatable: after a lost commit the second call would find the turn claimed.
@retried(is_repeatable=False)
def _claim_next(session_pk: int, owner: str) -> Claim | None:
    # Read without the lock: most processes that are notified of a turn find that it is claimed.
    for turn_pk, scope in _OLDEST.tuples(session=session_pk):
        if not scope and store_deferred_of(session_pk):
            return _claim_next(session_pk, owner)
        if not may_chat(scope):
            cancel_waiting_turns(session_pk)
        elif is_within_turn_limit(scope, turn_pk=turn_pk, session_pk=session_pk):
            return _claim_first(session_pk, owner)
    return None


def _claim_first(session_pk: int, owner: str) -> Claim | None:
    with locked_transaction():
        session = lock_pk(session_pk)
        if session.running is not None:
            return _claim_requeued(session, owner)
        turns = list(session.turns.waiting())
        if len(turns) < session.waiting:  # a batch was deferred after the read without the lock
            store_deferred(session)
        # A turn that can no longer be stored fails, and the next one is claimed.
        for turn in turns:
            if (claim := _claim_waiting(session, turn, owner)) is not None:
                return claim
        return None


def _claim_requeued(session: Session, owner: str) -> Claim | None:
    """Claim the turn in `session.running` if it was requeued. Needs the session's lock."""
    turn = session.turns.filter(client_id=session.running, status=Turn.Status.WAITING).first()
    if turn is None:
        return None
    Session.objects.filter(pk=session.pk).update(fence=F("fence") + 1, revision=F("revision") + 1)
    turn.epoch, turn.fence = session.epoch, session.fence + 1
    return _mark_running(session, turn, owner)


def _claim_waiting(session: Session, turn: Turn, owner: str) -> Claim | None:
    """Store a waiting turn's user message and claim it; return None if that fails the turn.

    Needs the session's lock.
    """
    try:
        if turn.replaces_from is not None:
            check_replaceable(session, turn.replaces_from, turn.replaces_to or 0)
        stored = _store_asked(session, turn)
    except (BadInput, Conflict, HistoryCleared) as error:
        _fail(session, turn, error.code)
        return None
    turn.epoch, turn.fence, turn.user_seq = stored.epoch, stored.fence, stored.first_seq
    claim = _mark_running(session, turn, owner)
    if turn.replaces_from is not None:
        supersede(session.pk, turn.pk, turn.replaces_from, stored.first_seq - 1)
    return claim


def _store_asked(session: Session, turn: Turn) -> StoredRows:
    """Store the user's message. Needs the session's lock. Raises Conflict if its id was used."""
    with ignored_duplicate():
        stored = store_rows(
            [codec.encode(decode_asked(turn.asked))],
            address={"id": session.pk},
            conditions={"running": None},
            client_id=turn.client_id,
            begins_turn=True,
            updates={"running": turn.client_id},
            increments={"fence": 1, "revision": 1, "waiting": -1},
        )
        assert stored is not None  # noqa: S101  # the lock is held, and nothing runs
        return stored
    if is_client_id_stored(session.pk, turn.client_id):
        raise Conflict
    raise report_damage(session.pk)


def _mark_running(session: Session, turn: Turn, owner: str) -> Claim:
    """Store the turn's new epoch, fence and user_seq, and its lease. Needs the session's lock."""
    turn.lease_owner = owner
    session.turns.filter(pk=turn.pk).update(
        status=Turn.Status.RUNNING,
        asked="",
        user_seq=turn.user_seq,
        epoch=turn.epoch,
        fence=turn.fence,
        **lease_columns(owner),
    )
    # The start follows immediately, and the runner announces it to the other processes.
    announce_change(session.pk, is_local=True)
    return claim_of(turn, scope=session.scope, key=session.key)


def _fail(session: Session, turn: Turn, code: str) -> None:
    """End a waiting turn that can no longer be stored. Needs the session's lock."""
    session.turns.filter(pk=turn.pk).mark_ended(Turn.Status.FAILED, error=code)
    Session.objects.filter(pk=session.pk).update(
        waiting=F("waiting") - 1, revision=F("revision") + 1
    )
    announce_change(session.pk)
    announce_finished(session.pk, turn.client_id, Turn.Status.FAILED, code)


def lease_columns(owner: object) -> dict[str, Any]:
    """Return the columns of a lease that starts now and lasts `LEASE` seconds."""
    return {"lease_owner": owner, "lease_until": _lease_end(settings.LEASE)}


@cache
def _lease_end(lease: float) -> Combinable:
    """Return one expression for each lease, since its SQL is cached under it."""
    return DatabaseNow() + timedelta(seconds=lease)


def _session_lane(session_pk: int, **_: object) -> Lane:
    return (session_pk,)


aclaim_next = in_pool(claim_next, lane=_session_lane)
