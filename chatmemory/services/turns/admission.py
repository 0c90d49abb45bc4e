"""Admission of turns: commit the user's message, or raise the reason for the refusal.

Admitting and running are separate. An admitted turn waits, or is claimed if the caller can run it
and the session is idle. `claim_next` is the only other way to start a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from django.db.models import F

from chatmemory import codec
from chatmemory.access.actors import Actor, check_own_name, scope_for
from chatmemory.access.addresses import address_lane, check_session_key
from chatmemory.codec import Row
from chatmemory.conf import settings
from chatmemory.database.after_commit import announce_change, announce_waiting
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.inserts import OPEN_SESSION, StoredRows, store_rows
from chatmemory.database.locks import lock_at, locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.refusals import SessionState, read_session_state
from chatmemory.database.turn_writes import TurnInsert
from chatmemory.errors import BadInput, Busy, Conflict, HistoryCleared, QueueFull
from chatmemory.models import Message, Session, Turn
from chatmemory.services.sessions import MAX_ATTEMPTS, unexplained_refusal, write_or_open
from chatmemory.services.turns.before_send import Sending, check_message
from chatmemory.services.turns.claims import (
    Claim,
    claim_of,
    decode_asked,
    find_unstarted_claim,
    lease_columns,
)
from chatmemory.services.turns.fairness import is_within_turn_limit
from chatmemory.services.turns.recovery import recover_overdue_turn
from chatmemory.services.turns.stops import stop_current_turn
from chatmemory.services.turns.versions import check_newest, check_replaceable, supersede

BUSY_POLICIES = ("queue", "reject", "interrupt")
"""Policies for a send during a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A turn after its admission; for a repeated send, its current state."""

    session_pk: int
    epoch: int
    """The epoch of the session, which identifies its streamed texts."""
    turn: str
    """Its client_id."""
    status: str
    seq: int | None
    """The seq of the user's message; None while the turn waits."""
    is_duplicate: bool
    claim: Claim | None = None
    """Set if the caller must run the turn now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Send:
    """A validated user message and the conditions of its sender."""

    scope: str
    key: str
    row: Row
    client_id: str
    epoch: int | None
    owner: str
    if_busy: str
    replaces: int | None
    expect_seq: int | None

    @property
    def must_be_idle(self) -> bool:
        return self.if_busy == "reject" or self.replaces is not None

    def conditions(self, **more: object) -> dict[str, object]:
        """Return what the columns of the session must be."""
        return {**OPEN_SESSION, **({} if self.epoch is None else {"epoch": self.epoch}), **more}


def admit_turn(
    *,
    session_key: str,
    client_id: str,
    content: object,
    by: Actor,
    scope: str | None = None,
    epoch: int | None = None,
    create: bool = False,
    owner: str = "",
    if_busy: str | None = None,
    replaces: int | None = None,
    expect_seq: int | None = None,
) -> Admitted:
    """Commit a user's message, a text or text blocks, together with the turn that will answer it.

    `owner` is the name of a process that can run the turn now. The turn is claimed for it if the
    session is idle and fewer than TURNS_PER_USER turns of the user run; otherwise it waits.
    `client_id` is the idempotency key: a repeated call returns the turn's current state.

    `if_busy` applies while another turn runs or waits; the default is `BUSY_POLICY`. `queue` adds
    the turn at the end of the queue, `reject` raises Busy, `interrupt` adds it at the front of the
    queue and requests the stop of the running turn.

    `expect_seq` is the newest user row that the sender knows, 0 for none; a newer one raises
    Conflict. `replaces` is the seq of a user row that starts a turn: the new turn supersedes the
    rows from there on, at most 200. It requires `expect_seq`, and raises Busy while any turn runs
    or waits, with every `if_busy`.

    Before a user's or visitor's message is stored, the function of BEFORE_SEND may refuse it.

    Raises BadInput, Refused, NotFound, Conflict, HistoryCleared, Archived, Busy, QueueFull,
    MemoryUnavailable.
    """
    check_own_name(by)
    scope = scope_for(by, scope)
    check_session_key(session_key)
    checked = check_content(content)
    send = _Send(
        scope=scope,
        key=session_key,
        if_busy=_check_policy(if_busy),
        replaces=_check_replaces(replaces, expect_seq),
        expect_seq=expect_seq,
        client_id=codec.check_client_id(client_id),
        row=codec.encode({"role": "user", "content": checked}),
        epoch=epoch,
        owner=owner,
    )
    sending = Sending(
        session_key=session_key,
        session=None,
        text=send.row.text,
        content=checked,
        client_id=client_id,
        replaces=replaces,
    )
    check_message(by, scope, sending)
    return write_or_open(
        partial(_admit, send),
        session_key=session_key,
        by=by,
        scope=scope,
        epoch=epoch,
        create=create,
    )


def _check_policy(if_busy: str | None) -> str:
    policy = settings.BUSY_POLICY if if_busy is None else if_busy
    if policy not in BUSY_POLICIES:
        raise BadInput(f"if_busy must be one of {', '.join(BUSY_POLICIES)}.", field="if_busy")
    return policy


def _check_replaces(replaces: int | None, expect_seq: int | None) -> int | None:
    if replaces is not None and replaces < 1:
        raise BadInput("replaces must be the seq of a user message.", field="replaces")
    if replaces is not None and expect_seq is None:
        raise BadInput("expect_seq is required when replaces is set.", field="expect_seq")
    return replaces


def check_content(content: object) -> str | list[dict[str, object]]:
    """Return a user's content unchanged: a text or a list of text blocks. Raises BadInput."""
    if isinstance(content, str):
        return codec.check_text(content)
    if not isinstance(content, Sequence) or not content:
        raise BadInput("content must be a text or a list of text blocks.", field="content")
    blocks: list[dict[str, object]] = []
    for index, block in enumerate(content):
        if not isinstance(block, Mapping) or block.get("type") != "text" or len(block) != 2:
            raise BadInput(
                'Each block of content must be {"type": "text", "text": "…"}.',
                field=f"content[{index}]",
            )
        text = codec.check_text(block.get("text"), field=f"content[{index}].text")
        blocks.append({"type": "text", "text": text})
    codec.check_text(codec.text_of(blocks), field="content")
    return blocks


def _admit(send: _Send) -> Admitted:
    for _ in range(MAX_ATTEMPTS):
        # Most sessions are idle, so the reason for a refusal is read only afterwards. The WHERE
        # clause of the write has checked all conditions.
        if send.expect_seq is None and (admitted := _admit_to_idle(send)):
            return admitted
        if admitted := _admit_by_state(send):
            return admitted
    raise unexplained_refusal(send.scope, send.key)


def _admit_by_state(send: _Send) -> Admitted | None:
    """Replay, refuse or queue a send; return None if the reason for its refusal has ended."""
    state = read_session_state(send.scope, send.key, send.client_id)
    if state.turn is not None:
        is_own = state.running == send.client_id
        if is_own and state.is_overdue and recover_overdue_turn(state.session_pk):
            return None
        return _replay(state, send)
    if state.rows:  # a message with this client_id, which belongs to no turn
        raise Conflict
    state.check_open(send.epoch)
    if state.is_overdue and recover_overdue_turn(state.session_pk):
        return None
    if state.is_busy and send.must_be_idle:
        raise Busy(turn=_blocking_turn(state.session_pk, state.running))
    if _is_queue_full(state.session_pk, state.waiting):
        raise QueueFull(turn=_blocking_turn(state.session_pk, state.running))
    if not state.is_busy and (send.must_be_idle or send.expect_seq is not None):
        return _admit_to_idle(send)
    # If the session became idle meanwhile, the announcement lets a runner claim the turn.
    return _admit_to_queue(send)


def _admit_to_idle(send: _Send) -> Admitted | None:
    """Claim the turn, or let it wait if `owner` cannot run it now.

    Returns None if the session is not idle, or the client_id is stored already.
    """
    idle = send.conditions(running=None, waiting=0)
    can_run = bool(send.owner) and is_within_turn_limit(send.scope)
    # A claim without a check is a transaction by itself: one statement on PostgreSQL.
    is_single = can_run and send.expect_seq is None
    with ignored_duplicate(), nullcontext() if is_single else locked_transaction():
        _check_expected(send)
        if not can_run:
            return _insert_waiting(send, idle)
        stored = store_rows(
            [send.row],
            address={"scope": send.scope, "key": send.key},
            conditions=idle,
            only_unexpired=True,
            client_id=send.client_id,
            begins_turn=True,
            updates={"running": send.client_id},
            increments={"fence": 1, "revision": 1},
            turn_write=TurnInsert(_running_columns(send)),
        )
        return None if stored is None else _claimed(send, stored)
    return None


def _admit_to_queue(send: _Send) -> Admitted | None:
    """Let the turn wait; return None if the client_id is stored already. Raises QueueFull."""
    with ignored_duplicate(), locked_transaction():
        _check_expected(send)
        return _insert_waiting(send, send.conditions())
    return None


def _is_queue_full(session_pk: int, waiting: int) -> bool:
    """Return whether QUEUE_DEPTH turns wait, of a session that counts `waiting`."""
    if waiting < settings.QUEUE_DEPTH:
        return False
    # Deferred batches are counted too, but no message of a person is refused because of them.
    deferred = Turn.objects.filter(session=session_pk).deferred().count()
    return waiting - deferred >= settings.QUEUE_DEPTH


def _check_expected(send: _Send) -> None:
    """Check that no user row is newer than the sender knows. Locks the session.

    Raises NotFound, Conflict, HistoryCleared, BadInput.
    """
    if send.expect_seq is None:
        return
    session = lock_at(send.scope, send.key)
    if session.turns.filter(client_id=send.client_id).exists():
        return  # a repeated send: its own row is newer, and the insert finds the duplicate
    if send.replaces is None:
        check_newest(session, send.expect_seq)
    else:
        check_replaceable(session, send.replaces, send.expect_seq)


def _running_columns(send: _Send) -> dict[str, object]:
    return {
        "scope": send.scope,
        "client_id": send.client_id,
        "status": Turn.Status.RUNNING,
        **lease_columns(send.owner),
    }


def _claimed(send: _Send, stored: StoredRows) -> Admitted:
    """Return the turn that was inserted with its user row, and its claim."""
    assert stored.turn_pk is not None  # noqa: S101  # TurnInsert sets it
    if send.replaces:
        supersede(stored.session_pk, stored.turn_pk, send.replaces, stored.first_seq - 1)
    announce_change(stored.session_pk, stored.change)
    turn = Turn(
        pk=stored.turn_pk,
        session_id=stored.session_pk,
        client_id=send.client_id,
        epoch=stored.epoch,
        fence=stored.fence,
        user_seq=stored.first_seq,
        lease_owner=send.owner,
    )
    return Admitted(
        session_pk=stored.session_pk,
        epoch=stored.epoch,
        turn=send.client_id,
        status=Turn.Status.RUNNING,
        seq=stored.first_seq,
        is_duplicate=False,
        claim=claim_of(turn, scope=send.scope, key=send.key),
    )


def _insert_waiting(send: _Send, only_if: Mapping[str, object]) -> Admitted | None:
    """Insert a waiting turn; return None if the session does not meet the conditions.

    Needs a transaction, and locks the session.
    """
    sessions = Session.objects.at(send.scope, send.key)
    found = sessions.filter(**only_if).update(waiting=F("waiting") + 1, revision=F("revision") + 1)
    if not found:
        return None
    session = sessions.get()
    if _is_queue_full(session.pk, session.waiting - 1):
        raise QueueFull(turn=_blocking_turn(session.pk, session.running))
    turn = Turn(
        session=session,
        scope=session.scope,
        client_id=send.client_id,
        status=Turn.Status.WAITING,
        asked=send.row.body or codec.dump_json({"role": "user", "content": send.row.text}),
        epoch=session.epoch,
        replaces_from=send.replaces,
        replaces_to=send.expect_seq if send.replaces else None,
    )
    if send.if_busy == "interrupt":
        # Before all others, also before earlier interrupts: the revision only grows.
        turn.position = -session.revision
        stop_current_turn(session)
    turn.save(force_insert=True)
    if Message.stored.filter(session=session, client_id=send.client_id).exists():
        raise Conflict
    # An interrupt may have cancelled a requeued turn, so that no process ends another one.
    is_ready = session.running is None or send.if_busy == "interrupt"
    announce_waiting(session.pk, send.client_id, is_ready=is_ready)
    return Admitted(
        session_pk=session.pk,
        epoch=session.epoch,
        turn=send.client_id,
        status=Turn.Status.WAITING,
        seq=None,
        is_duplicate=False,
    )


def _blocking_turn(session_pk: int, running: str | None) -> str | None:
    """Return the client_id of the running turn, else of the first waiting one."""
    waiting = Turn.objects.filter(session=session_pk).waiting()
    return running or waiting.values_list("client_id", flat=True).first()


def _replay(state: SessionState, send: _Send) -> Admitted:
    """Return the current state of a turn that an earlier call admitted.

    Raises Conflict if its content differs, and HistoryCleared.
    """
    turn, row = state.turn, send.row
    assert turn is not None  # noqa: S101  # the caller checked it
    if turn.status != Turn.Status.CANCELLED:
        if turn.replaces_from != send.replaces:
            raise Conflict
        if state.rows:
            state.check_replay([row])
        elif turn.asked and decode_asked(turn.asked) != codec.decode(row.role, row.text, row.body):
            raise Conflict
        if send.epoch is not None and send.epoch != state.epoch:
            raise HistoryCleared
    claim = None
    if send.owner and turn.status == Turn.Status.RUNNING:
        claim = find_unstarted_claim(
            session_pk=state.session_pk, client_id=send.client_id, owner=send.owner
        )
    return Admitted(
        session_pk=state.session_pk,
        epoch=state.epoch,
        turn=send.client_id,
        status=turn.status,
        seq=turn.user_seq,
        is_duplicate=True,
        claim=claim,
    )


aadmit_turn = in_pool(admit_turn, lane=address_lane)
