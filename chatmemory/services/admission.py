"""Turns, admitted: the user's message is committed, or the reason said why not.

Admitting and running are two things. A turn is admitted as waiting, or as claimed where the caller
can run it and the session is idle; `claim_next` is the only other way into running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import IntegrityError
from django.db.models import F

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.errors import BadInput, Busy, Conflict, HistoryCleared
from chatmemory.models import Message, Session, Turn
from chatmemory.services.actors import Actor, scope_for
from chatmemory.services.addresses import check_session_key
from chatmemory.services.claims import Claim, asked, lease
from chatmemory.services.ends import end_overdue
from chatmemory.services.faults import Fault, fault_of
from chatmemory.services.locks import bounded_wait, unit
from chatmemory.services.news import tell, tell_waiting
from chatmemory.services.pool import address_lane, in_pool
from chatmemory.services.refusals import Found, explain
from chatmemory.services.rows import OPEN, OWN_TURN, store
from chatmemory.services.sessions import write_at


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
) -> Admitted:
    """Commit a user's message, a text or text blocks, and the turn that shall answer it.

    With an `owner`, the name of a process that can run it now, the turn is claimed for it if the
    session is idle; without one it waits for somebody. The same `client_id` again admits nothing
    and returns the turn as it is.

    Raises BadInput, NotFound, Conflict, HistoryCleared, Archived, Busy, MemoryUnavailable.
    """
    scope = scope_for(by, scope)
    check_session_key(session_key)
    client_id = codec.check_client_id(client_id)
    row = codec.encode({"role": "user", "content": check_content(content)})

    return write_at(
        lambda: _admit(scope, session_key, row, client_id, epoch, owner),
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


def _admit(
    scope: str, key: str, row: Row, client_id: str, epoch: int | None, owner: str
) -> Admitted | None:
    """Admit or say why not; None if what was in the way has just gone."""
    idle = {**OPEN, "running": None, "waiting": 0} | ({} if epoch is None else {"epoch": epoch})
    try:
        with unit():
            if owner:
                admitted = _claim_at_once(scope, key, row, client_id, idle, owner)
            else:
                admitted = _let_wait(scope, key, row, client_id, idle)
    except IntegrityError as error:
        if fault_of(error) is not Fault.DUPLICATE:
            raise
        admitted = None
    if admitted is not None:
        return admitted
    found = explain(scope, key, client_id)
    if found.turn is not None:
        if found.running == client_id and found.is_overdue and end_overdue(found.session_pk):
            return None
        return _replay(found, row, client_id, epoch)
    if found.rows:
        raise Conflict
    found.check_open(epoch)
    if found.running is not None and not (found.is_overdue and end_overdue(found.session_pk)):
        raise Busy(turn=found.running)
    if found.waiting:
        waiting = Turn.objects.filter(session=found.session_pk).waiting()
        raise Busy(turn=waiting.values_list("client_id", flat=True).first())
    return None


def _claim_at_once(
    scope: str, key: str, row: Row, client_id: str, idle: Mapping[str, object], owner: str
) -> Admitted | None:
    stored = store(
        [row],
        at={"scope": scope, "key": key},
        only_if=idle,
        unexpired=True,
        client_id=client_id,
        turn=OWN_TURN,
        put={"running": client_id},
        add={"fence": 1, "revision": 1},
        in_unit=True,
    )
    if stored is None:
        return None
    turn = Turn.objects.create(
        session_id=stored.session_pk,
        client_id=client_id,
        status=Turn.Status.RUNNING,
        user_seq=stored.first_seq,
        epoch=stored.epoch,
        fence=stored.fence,
        **lease(owner),
    )
    tell(stored.session_pk)
    claim = Claim(
        turn_pk=turn.pk,
        client_id=client_id,
        session_pk=stored.session_pk,
        scope=scope,
        key=key,
        epoch=stored.epoch,
        fence=stored.fence,
        user_seq=stored.first_seq,
        owner=owner,
    )
    return Admitted(
        session_pk=stored.session_pk,
        turn=client_id,
        status=Turn.Status.RUNNING,
        seq=stored.first_seq,
        is_duplicate=False,
        claim=claim,
    )


def _let_wait(
    scope: str, key: str, row: Row, client_id: str, idle: Mapping[str, object]
) -> Admitted | None:
    sessions = Session.objects.at(scope, key)
    with bounded_wait():
        found = sessions.filter(**idle).update(waiting=F("waiting") + 1, revision=F("revision") + 1)
    if not found:
        return None
    session = sessions.get()
    turn = Turn.objects.create(
        session=session,
        client_id=client_id,
        status=Turn.Status.WAITING,
        asked=row.body or codec.dump_json({"role": row.role, "content": row.text}),
        epoch=session.epoch,
    )
    if Message.stored.filter(session=session, client_id=client_id).exists():
        raise Conflict
    Turn.objects.filter(pk=turn.pk).update(place=turn.pk)
    tell(session.pk)
    tell_waiting(session.pk, client_id)
    return Admitted(
        session_pk=session.pk,
        turn=client_id,
        status=Turn.Status.WAITING,
        seq=None,
        is_duplicate=False,
    )


def _replay(found: Found, row: Row, client_id: str, epoch: int | None) -> Admitted:
    """A send that was admitted before, as it is now."""
    turn = found.turn
    assert turn is not None  # noqa: S101  # the caller looked
    if turn.status != Turn.Status.CANCELLED:
        if found.rows:
            found.check_replay([row])
        elif turn.asked and asked(turn.asked) != codec.decode(row.role, row.text, row.body):
            raise Conflict
        if epoch is not None and epoch != found.epoch:
            raise HistoryCleared
    return Admitted(
        session_pk=found.session_pk,
        turn=client_id,
        status=turn.status,
        seq=turn.user_seq,
        is_duplicate=True,
    )


aadmit_turn = in_pool(admit_turn, lane=address_lane)
