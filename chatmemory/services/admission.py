"""Turns, admitted: the user's message is committed, or the reason said why not.

Admitting and running are two things. A turn is admitted as waiting, or as claimed where the caller
can run it and the session is idle; `claim_next` is the only other way into running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.db import IntegrityError
from django.db.models import F

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.conf import settings
from chatmemory.errors import BadInput, Busy, Conflict, HistoryCleared, QueueFull
from chatmemory.models import Message, Session, Turn
from chatmemory.services.actors import Actor, scope_for
from chatmemory.services.addresses import check_session_key
from chatmemory.services.alongside import NewTurn
from chatmemory.services.claims import Claim, asked, claim_not_begun, lease
from chatmemory.services.ends import end_overdue, stop_running
from chatmemory.services.fairness import is_turn_free
from chatmemory.services.faults import Fault, fault_of
from chatmemory.services.locks import lock_at, unit
from chatmemory.services.news import tell, tell_waiting
from chatmemory.services.pool import address_lane, in_pool
from chatmemory.services.refusals import Found, explain
from chatmemory.services.rows import OPEN, OWN_TURN, store
from chatmemory.services.sessions import write_at
from chatmemory.services.versions import check_newest, check_replaceable, supersede

BUSY_POLICIES = ("queue", "reject", "interrupt")
"""What may become of a send while another turn runs or waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A turn after its admission, or as it is now if it was admitted before."""

    session_pk: int
    turn: str
    """Its client_id."""
    status: str
    seq: int | None
    """The number of the user's message; None while it waits."""
    is_duplicate: bool
    claim: Claim | None = None
    """Set where the caller shall run it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Send:
    """What shall be admitted, and where."""

    scope: str
    key: str
    row: Row
    client_id: str
    epoch: int | None
    owner: str
    if_busy: str
    replaces: int | None
    expect_seq: int | None

    def conditions(self) -> dict[str, object]:
        """What the session must be, whatever runs in it."""
        return {**OPEN} if self.epoch is None else {**OPEN, "epoch": self.epoch}


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
    """Commit a user's message, a text or text blocks, and the turn that shall answer it.

    With an `owner`, the name of a process that can run it now, the turn is claimed for it if the
    session is idle and fewer than TURNS_PER_USER turns of the person run; else it waits. The same
    `client_id` again admits nothing and returns the turn as it is.

    `if_busy` says what becomes of it while another runs or waits, `BUSY_POLICY` where it is None:
    `queue` lets it wait behind the others, `reject` raises Busy, `interrupt` lets it wait before
    all others and stops the one that runs.

    With `expect_seq`, the newest row of a user that the sender knows (0 for none), it is a Conflict
    if there is a newer one. With `replaces`, the number of a user's row that begins a turn, it is
    another version of that: it supersedes what was said from there on, at most 200 rows. That
    takes an `expect_seq`, and is Busy while anything runs or waits, whatever `if_busy` says.

    Raises BadInput, NotFound, Conflict, HistoryCleared, Archived, Busy, QueueFull,
    MemoryUnavailable.
    """
    scope = scope_for(by, scope)
    check_session_key(session_key)
    if_busy = settings.BUSY_POLICY if if_busy is None else if_busy
    if if_busy not in BUSY_POLICIES:
        raise BadInput(f"if_busy must be one of {', '.join(BUSY_POLICIES)}.", field="if_busy")
    if replaces is not None and replaces < 1:
        raise BadInput("replaces must be the number of a user's message.", field="replaces")
    if replaces is not None and expect_seq is None:
        raise BadInput("Who replaces must say what was newest, by expect_seq.", field="expect_seq")
    send = _Send(
        scope=scope,
        key=session_key,
        client_id=codec.check_client_id(client_id),
        row=codec.encode({"role": "user", "content": check_content(content)}),
        epoch=epoch,
        owner=owner,
        if_busy=if_busy,
        replaces=replaces,
        expect_seq=expect_seq,
    )
    return write_at(
        lambda: _admit(send),
        session_key=session_key,
        by=by,
        scope=scope,
        epoch=epoch,
        create=create,
    )


def check_content(content: object) -> str | list[dict[str, object]]:
    """What a person says: a text, or a list of text blocks; unchanged. Raises BadInput."""
    if isinstance(content, str):
        return codec.check_text(content)
    if not isinstance(content, Sequence) or not content:
        raise BadInput("Say a text or a list of text blocks.", field="content")
    blocks: list[dict[str, object]] = []
    for place, block in enumerate(content):
        if not isinstance(block, Mapping) or block.get("type") != "text" or len(block) != 2:
            raise BadInput("Only text blocks are taken.", field=f"content[{place}]")
        text = codec.check_text(block.get("text"), field=f"content[{place}].text")
        blocks.append({"type": "text", "text": text})
    codec.check_text(codec.text_of(blocks), field="content")
    return blocks


def _admit(send: _Send) -> Admitted | None:
    """Admit or say why not; None if what was in the way has just gone."""
    if send.expect_seq is None and (admitted := _unless_there(_at_once, send)):
        return admitted
    found = explain(send.scope, send.key, send.client_id)
    if found.turn is not None:
        if found.running == send.client_id and found.is_overdue and end_overdue(found.session_pk):
            return None
        return _replay(found, send)
    if found.rows:
        raise Conflict
    found.check_open(send.epoch)
    if found.is_overdue and end_overdue(found.session_pk):
        return None
    must_be_idle = send.if_busy == "reject" or send.replaces is not None
    if found.is_busy and must_be_idle:
        raise Busy(turn=_in_the_way(found))
    if found.waiting >= settings.QUEUE_DEPTH:
        raise QueueFull(turn=_in_the_way(found))
    if not found.is_busy and (must_be_idle or send.expect_seq is not None):
        return _unless_there(_at_once, send)
    # It may be idle by now; what waits then is claimed at once.
    return _unless_there(_in_queue, send)


def _unless_there(admit: Callable[[_Send], Admitted | None], send: _Send) -> Admitted | None:
    """What `admit` does; None if the client_id is there already."""
    try:
        return admit(send)
    except IntegrityError as error:
        if fault_of(error) is not Fault.DUPLICATE:
            raise
        return None


def _check_expected(send: _Send) -> None:
    """See that what the sender knows is the newest. Takes the lock.

    Raises NotFound, Conflict, HistoryCleared, BadInput.
    """
    newest = send.expect_seq
    if newest is None:
        return
    session = lock_at(send.scope, send.key)
    if session.turns.filter(client_id=send.client_id).exists():
        return  # it is the newest itself, and will be found
    if send.replaces is None:
        check_newest(session, newest)
    else:
        check_replaceable(session, send.replaces, newest)


def _in_the_way(found: Found) -> str | None:
    waiting = Turn.objects.filter(session=found.session_pk).waiting()
    return found.running or waiting.values_list("client_id", flat=True).first()


def _at_once(send: _Send) -> Admitted | None:
    """Claim it, or let it wait where it may not begin; None if the session isn't idle."""
    idle = {**send.conditions(), "running": None, "waiting": 0}
    is_claimed = bool(send.owner) and is_turn_free(send.scope)
    if is_claimed and send.expect_seq is None:
        return _claimed(send, idle)  # a unit by itself
    with unit():
        _check_expected(send)
        return _claimed(send, idle) if is_claimed else _waiting(send, idle)


def _in_queue(send: _Send) -> Admitted | None:
    """Let it wait, whatever runs and waits; None if the queue is full by now."""
    with unit():
        _check_expected(send)
        return _waiting(send, {**send.conditions(), "waiting__lt": settings.QUEUE_DEPTH})


def _claimed(send: _Send, only_if: Mapping[str, object]) -> Admitted | None:
    columns = {
        "scope": send.scope,
        "client_id": send.client_id,
        "status": Turn.Status.RUNNING,
        **lease(send.owner),
    }
    stored = store(
        [send.row],
        at={"scope": send.scope, "key": send.key},
        only_if=only_if,
        unexpired=True,
        client_id=send.client_id,
        turn=OWN_TURN,
        put={"running": send.client_id},
        add={"fence": 1, "revision": 1},
        turn_write=NewTurn(columns),
    )
    if stored is None or stored.turn_pk is None:
        return None
    if send.replaces:
        supersede(stored.session_pk, stored.turn_pk, send.replaces, stored.first_seq - 1)
    tell(stored.session_pk)
    claim = Claim(
        turn_pk=stored.turn_pk,
        client_id=send.client_id,
        session_pk=stored.session_pk,
        scope=send.scope,
        key=send.key,
        epoch=stored.epoch,
        fence=stored.fence,
        user_seq=stored.first_seq,
        owner=send.owner,
    )
    return Admitted(
        session_pk=stored.session_pk,
        turn=send.client_id,
        status=Turn.Status.RUNNING,
        seq=stored.first_seq,
        is_duplicate=False,
        claim=claim,
    )


def _waiting(send: _Send, only_if: Mapping[str, object]) -> Admitted | None:
    sessions = Session.objects.at(send.scope, send.key)
    found = sessions.filter(**only_if).update(waiting=F("waiting") + 1, revision=F("revision") + 1)
    if not found:
        return None
    session = sessions.get()
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
        turn.place = -session.revision  # before all others: the revision only grows
        stop_running(session)
    turn.save(force_insert=True)
    if Message.stored.filter(session=session, client_id=send.client_id).exists():
        raise Conflict
    tell(session.pk)
    tell_waiting(session.pk, send.client_id)
    return Admitted(
        session_pk=session.pk,
        turn=send.client_id,
        status=Turn.Status.WAITING,
        seq=None,
        is_duplicate=False,
    )


def _replay(found: Found, send: _Send) -> Admitted:
    """A send that was admitted before, as it is now."""
    turn, row = found.turn, send.row
    assert turn is not None  # noqa: S101  # the caller looked
    if turn.status != Turn.Status.CANCELLED:
        if turn.replaces_from != send.replaces:
            raise Conflict
        if found.rows:
            found.check_replay([row])
        elif turn.asked and asked(turn.asked) != codec.decode(row.role, row.text, row.body):
            raise Conflict
        if send.epoch is not None and send.epoch != found.epoch:
            raise HistoryCleared
    claim = None
    if send.owner and turn.status == Turn.Status.RUNNING:
        claim = claim_not_begun(
            session_pk=found.session_pk, client_id=send.client_id, owner=send.owner
        )
    return Admitted(
        session_pk=found.session_pk,
        turn=send.client_id,
        status=turn.status,
        seq=turn.user_seq,
        is_duplicate=True,
        claim=claim,
    )


aadmit_turn = in_pool(admit_turn, lane=address_lane)
